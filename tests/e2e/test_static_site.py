"""A real static site, and large files: byte-exact, compressed where that is asked for, with bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.bench.measure import usage
from tests.support.browser import Browser
from tests.support.dev_host import DevHost, eventually
from tests.support.npm_packages import fetch

from saisei_cli.deploy.assets import MEDIA_TYPES, OCTETS

# A library whose package holds its web site: pages, styles, images, scripts.
SITE = {"vis": "4.21.0"}
PARTS = ("docs", "examples", "dist")
MEGABYTE = 1024 * 1024


def write_project(folder: Path, name: str, more: str = "") -> Path:
    text = f'space = "sites"\nname = "{name}"\nendpoint = true\n[assets]\nfolder = "public"\n{more}'
    (folder / "saisei.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real-site")
    package = fetch(folder, SITE) / "vis"
    for part in PARTS:
        shutil.copytree(package / part, folder / "public" / part)
    return folder / "public"


def test_a_real_site(host: DevHost, public: Path) -> None:
    """WV-20, WV-22, AR-08, Issue 7: each of over 300 real files, twice, byte for byte and with its type."""
    hostname = str(host.deploy(write_project(public.parent, "real-site")).hostname)
    files = sorted(path for path in public.rglob("*") if path.is_file() and not path.name.startswith("."))
    assert len(files) >= 300
    index = (public / "docs" / "index.html").read_bytes()

    def browse(part: int) -> int:
        """Every eighth file, plain and as browsers ask for it; how many came compressed."""
        compressed = 0
        with Browser(host, hostname) as browser:
            for file in files[part::8]:
                data = file.read_bytes()
                path = "/" + quote(file.relative_to(public).as_posix())
                for accepted in ("identity", "gzip, deflate, br"):
                    page = browser.get(path, accept_encoding=accepted)
                    packed = page.headers.get("content-encoding") == "gzip"
                    compressed += packed
                    assert page.status == 200
                    assert page.headers["content-length"] == str(len(page.body))
                    assert page.headers["content-type"] == MEDIA_TYPES.get(file.suffix.lower(), OCTETS)
                    assert page.headers["etag"] == f'"{hashlib.sha256(page.body).hexdigest()}"'
                    assert (gzip.decompress(page.body) if packed else page.body) == data
                    assert len(page.body) <= len(data)
            assert browser.get("/docs/").body == index
            assert browser.get("/docs").status == browser.get("/").status == 404
        return compressed

    with ThreadPoolExecutor(8) as pool:
        # Pages, styles and scripts; images are packed already.
        assert 100 <= sum(pool.map(browse, range(8))) < len(files)


def test_large_files_stream(host: DevHost, tmp_path: Path) -> None:
    """Issue 7, AR-02: eight slow clients take 16 MiB each, and no service holds a whole file for any of them."""
    (tmp_path / "public").mkdir()
    data = os.urandom(16 * MEGABYTE)
    (tmp_path / "public" / "large.bin").write_bytes(data)
    hostname = str(host.deploy(write_project(tmp_path, "large")).hostname)
    services = [host.service_pid(name) for name in ("gateway", "runtime")]
    with contextlib.ExitStack() as stack:
        browsers = [stack.enter_context(Browser(host, hostname)) for _ in range(8)]
        warm = browsers[0].get("/large.bin", range="bytes=5000000-14999999")
        assert (warm.status, warm.body == data[5_000_000:15_000_000]) == (206, True)
        before = usage(services).rss_bytes
        responses = [browser.open("/large.bin") for browser in browsers]
        heads = [response.read(MEGABYTE) for response in responses]
        # By now the others have had time to run ahead of their readers, if they do.
        bodies = [bytearray(head) for head in heads]
        most = 0
        for _ in range(16):
            for response, body in zip(responses, bodies, strict=True):
                body.extend(response.read(MEGABYTE))
            most = max(most, usage(services).rss_bytes - before)
        assert [hashlib.sha256(body).digest() for body in bodies] == [hashlib.sha256(data).digest()] * 8
        # Whole copies would be 128 MiB in each of the two services. On a slow machine all eight streams may have their
        # buffers in gRPC and TLS full at once: some MiB each.
        assert most < 112 * MEGABYTE, f"{most / MEGABYTE:.0f} MiB"


def test_a_download_ends_with_its_deployment(host: DevHost, tmp_path: Path) -> None:
    """WD-09, WV-13: a client that does not read on is cut off, and holds nothing back for ever."""
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "large.bin").write_bytes(os.urandom(16 * MEGABYTE))
    deployed = host.deploy(write_project(tmp_path, "stalled"))
    client = host.client
    with Browser(host, str(deployed.hostname)) as browser:
        response = browser.open("/large.bin")
        response.read(1000)
        live = client.resource(deployed.deployment_uid)
        door = next(item for item in client.resources(space="sites") if item["name"] == "stalled.endpoint")
        for resource in (door, live):
            settled = client.wait_operation(client.delete_resource(resource["uid"], resource["generation"]))
            assert settled["status"] == "succeeded", settled
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    version = client.resource(deployed.version_uid)

    def deleted() -> bool:
        settled = client.wait_operation(client.delete_resource(version["uid"], version["generation"]))
        return bool(settled["status"] == "succeeded")

    assert eventually(deleted)
    digest = hashlib.sha256((tmp_path / "public" / "large.bin").read_bytes()).hexdigest()
    assert not (host.data_dir / "runtime-assets" / digest[:2] / digest).exists()
