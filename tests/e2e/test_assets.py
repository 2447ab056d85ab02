"""Static assets through the gateway's TLS: what comes first, what a miss is, and what changes with a Deployment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import Browser, Page
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import Json
from saisei_cli.deploy import apply as forms
from saisei_cli.deploy.project import read_project
from saisei_contract.artifacts import is_artifact_path

APP = Path(__file__).parent / "apps" / "site"
PUBLIC = APP / "public"
INDEX, STYLE = (PUBLIC / "index.html").read_bytes(), (PUBLIC / "style.css").read_bytes()
VECTORS = Path(__file__).parents[1] / "contract" / "asset_key_vectors.json"

MODES = {
    "assets-first": "",
    "worker-first": "run_worker_first = true\n",
    "spa": "single_page_application = true\n",
    "worker-first-spa": "run_worker_first = true\nsingle_page_application = true\n",
}


def project(folder: Path, name: str, assets: str, *, code: bool = True) -> Path:
    """The app with another name and other settings of its assets."""
    shutil.copytree(APP, folder, dirs_exist_ok=True)
    main = 'main = "main.mjs"\n' if code else ""
    text = f'space = "sites"\nname = "{name}"\n{main}endpoint = true\n[assets]\nfolder = "public"\n{assets}'
    (folder / "saisei.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def sites(host: DevHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Browser]]:
    """A browser for each mode, and for the same files without code as `static` and `static-spa`."""
    browsers = {}
    for name, assets in MODES.items():
        deployed = host.deploy(project(tmp_path_factory.mktemp(name), name, assets))
        browsers[name] = Browser(host, str(deployed.hostname))
    for name, assets in (("static", ""), ("static-spa", MODES["spa"])):
        deployed = host.deploy(project(tmp_path_factory.mktemp(name), name, assets, code=False))
        browsers[name] = Browser(host, str(deployed.hostname))
    yield browsers
    for browser in browsers.values():
        browser.close()


def is_index(page: Page) -> bool:
    return (page.status, page.headers.get("content-type"), page.body) == (200, "text/html", INDEX)


def by_worker(page: Page, status: int = 200) -> bool:
    return page.status == status and page.headers.get("x-worker") == "yes"


def test_assets_first(sites: dict[str, Browser]) -> None:
    """WV-22, WV-23: a hit is 200 with the manifest's type; misses, other methods and odd paths go to fetch."""
    site = sites["assets-first"]
    for _ in range(2):
        assert is_index(site.get("/"))
        assert is_index(site.get("/index.html?v=1"))
        style = site.get("/style.css")
        assert (style.status, style.headers["content-type"], style.body) == (200, "text/css", STYLE)
        assert site.get("/docs/").text == "<h1>docs</h1>\n"
        for path in ("/docs", "/index", "/Style.css", "/style.css/", "/other"):
            assert site.get(path).headers.get("x-worker") == "yes", path
        assert site.get("/other").text == "GET /other"
        for path in ("//style.css", "/docs//index.html", "/style.css%00", "/%2fstyle.css", "/%ff"):
            assert site.get(path).headers.get("x-worker") == "yes", path
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        page = site.get("/index.html", method, b"x")
        assert by_worker(page)
        assert page.text == f"{method} /index.html"
    assert site.get("/gone/x").text == "no /gone/x"
    assert site.get("/throws").status == 500


def test_the_worker_first(sites: dict[str, Browser]) -> None:
    """WV-24: fetch answers; exactly its 404 is replaced by an asset, if one matches, and else stays as it is."""
    site = sites["worker-first"]
    for _ in range(2):
        assert site.get("/index.html").text == "GET /index.html"
        assert site.get("/").text == "GET /"
        style = site.get("/style.css")
        assert (style.status, style.headers["content-type"], style.body) == (200, "text/css", STYLE)
        assert "x-worker" not in style.headers
    for path in ("/other.css", "/gone/x", "/docs//style.css"):
        page = site.get(path)
        assert by_worker(page, 404), path
        assert page.text == f"no {path}"
    assert by_worker(site.get("/style.css", "POST", b""), 404)
    assert site.get("/throws").status == 500
    head = site.get("/style.css", "HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(STYLE)))


def test_the_fallback(sites: dict[str, Browser]) -> None:
    """WV-21, WV-25: index.html answers every searchable GET and HEAD without a file, before fetch is asked."""
    site = sites["spa"]
    for _ in range(2):
        for path in ("/", "/other", "/a/deep/link/", "/gone/x", "/throws", "/docs", "/missing.png"):
            assert is_index(site.get(path)), path
        assert site.get("/style.css").body == STYLE
        assert site.get("/docs/").text == "<h1>docs</h1>\n"
        for path in ("/a//b", "/%ff", "/a%5cb", "/a%2fb"):
            assert site.get(path).headers.get("x-worker") == "yes", path
    head = site.get("/a/deep/link", "HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(INDEX)), b"")
    assert by_worker(site.get("/other", "POST", b""))


def test_the_fallback_after_the_worker(sites: dict[str, Browser]) -> None:
    """WV-24, WV-25: only what fetch does not find."""
    site = sites["worker-first-spa"]
    assert site.get("/other").text == "GET /other"
    assert is_index(site.get("/gone/x"))
    assert is_index(site.get("/missing.css"))
    assert site.get("/style.css").body == STYLE
    assert by_worker(site.get("/gone//x"), 404)
    assert by_worker(site.get("/gone/x", "POST", b""), 404)


def test_without_code(sites: dict[str, Browser]) -> None:
    """WV-04, WV-22, WV-23: what no file answers is 404, and so is every other method."""
    for _ in range(2):
        assert is_index(sites["static"].get("/"))
        for path in ("/other", "/docs", "/a//b", "/%ff"):
            assert sites["static"].get(path).status == 404, path
        assert is_index(sites["static-spa"].get("/other"))
        assert sites["static-spa"].get("/a//b").status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        for name in ("static", "static-spa"):
            assert sites[name].get("/", method, b"x").status == 404


@pytest.mark.parametrize("path", ["/", "/style.css", "/docs/", "/missing"])
def test_head_is_get_without_its_body(sites: dict[str, Browser], path: str) -> None:
    """WV-22: the same status and the same headers, the Date apart, whatever else is asked for."""
    for headers in ({}, {"accept_encoding": "gzip"}, {"if_none_match": "*"}, {"if_match": '"x"'}):
        get, head = (sites["static-spa"].get(path, method, **headers) for method in ("GET", "HEAD"))
        assert (get.headers | {"date": ""}, get.status) == (head.headers | {"date": ""}, head.status)
        assert head.body == b""


def test_what_browsers_ask_for(sites: dict[str, Browser]) -> None:
    """Issue 7, WV-22: validators, ranges and conditions over the wire."""
    site = sites["assets-first"]
    whole = site.get("/style.css")
    tag = whole.headers["etag"]
    assert tag == f'"{hashlib.sha256(STYLE).hexdigest()}"'
    kept = site.get("/style.css", if_none_match=tag)
    assert (kept.status, kept.body, kept.headers["etag"]) == (304, b"", tag)
    part = site.get("/style.css", range="bytes=3-8", if_range=tag)
    assert (part.status, part.body) == (206, STYLE[3:9])
    assert part.headers["content-range"] == f"bytes 3-8/{len(STYLE)}"
    assert site.get("/style.css", range=f"bytes={len(STYLE)}-").status == 416
    assert site.get("/style.css", if_match='"other"').status == 412
    # The connection is as good as before after each of them.
    assert site.get("/style.css").body == STYLE


def test_through_a_service_binding(host: DevHost, sites: dict[str, Browser], tmp_path: Path) -> None:
    """MW-40, WV-22, WV-25: a caller gets the same assets by the same rules, as bytes that it can read."""
    (tmp_path / "main.mjs").write_text(
        """export default { async fetch(request, env) {
          const answer = await env.SITE.fetch(request);
          const text = await answer.text();
          const seen = ["content-type", "content-encoding", "etag"].map((name) => answer.headers.get(name));
          return Response.json({ status: answer.status, text, seen });
        } };"""
    )
    services = '[[services]]\nbinding = "SITE"\nworker = "static-spa"\n'
    head = 'space = "sites"\nname = "in-front"\nmain = "main.mjs"\nendpoint = true\n'
    (tmp_path / "saisei.toml").write_text(head + services)
    with Browser(host, str(host.deploy(tmp_path).hostname)) as browser:
        for path, body in (("/style.css", STYLE), ("/deep/link", INDEX)):
            answer = json.loads(browser.get(path, accept_encoding="gzip").body)
            whole = sites["static-spa"].get(path)
            seen = [whole.headers["content-type"], None, whole.headers["etag"]]
            assert answer == {"status": 200, "text": body.decode(), "seen": seen}
        assert json.loads(browser.get("/style.css", if_none_match="*").body)["status"] == 304
        assert json.loads(browser.get("/a//b").body)["status"] == 404
        assert json.loads(browser.get("/style.css", "POST", b"x").body)["status"] == 404


def create(host: DevHost, form: str, name: str, spec: Json) -> Json:
    settled = host.client.wait_operation(host.client.create_resource(form, "sites", name, spec))
    assert settled["status"] == "succeeded", settled
    return host.client.resource(settled["resourceUid"])


def ref(resource: Json) -> Json:
    return {"resourceUid": resource["uid"]}


def bundle(host: DevHost, name: str, files: dict[str, bytes]) -> Json:
    listed = []
    for path, data in files.items():
        sha256, _ = host.client.put_artifact(data)
        url = host.client.artifact_url(sha256)
        listed.append({"path": path, "url": url, "sha256": sha256, "mediaType": "text/plain"})
    sha256, _ = host.client.put_artifact(json.dumps({"files": listed}).encode())
    artifact = {"url": host.client.artifact_url(sha256), "sha256": sha256}
    return create(host, forms.STATIC_ASSET_BUNDLE, name, {"artifact": artifact})


def static_version(host: DevHost, name: str, worker: Json, files: dict[str, bytes]) -> Json:
    assets = {"bundle": ref(bundle(host, f"{name}.files", files)), "runWorkerFirst": False, "notFoundHandling": "none"}
    return create(host, forms.WORKER_VERSION, name, {"worker": ref(worker), "handlers": [], "assets": assets})


def allocation(worker: Json, **weights: Any) -> Json:
    return {
        "worker": ref(worker),
        "versions": [{"workerVersion": {"resourceUid": uid}, "weight": weight} for uid, weight in weights.items()],
    }


def test_each_vector_over_the_wire(host: DevHost) -> None:
    """WV-20, WV-21: a site with a file for each key of the vectors gives for each path that file, or 404."""
    vectors = json.loads(VECTORS.read_text())["vectors"]
    keys = {vector["key"] for vector in vectors if vector["key"] is not None}
    files = {key: key.encode() for key in keys if is_artifact_path(key)}
    worker = create(host, forms.MODULE_WORKER, "vectors", {})
    version = static_version(host, "vectors.version", worker, files)
    create(host, forms.WORKER_DEPLOYMENT, "vectors.live", allocation(worker, **{version["uid"]: 10_000}))
    endpoint = create(host, forms.WORKER_ENDPOINT, "vectors.door", {"worker": ref(worker)})
    asked = 0
    with Browser(host, endpoint["output"]["hostname"]) as browser:
        for vector in vectors:
            path = vector["path"]
            # A fragment is never sent; spaces, letters beyond ASCII and paths without their slash are no HTTP.
            if not path.startswith("/") or not path.isascii() or "#" in path or " " in path:
                continue
            page = browser.get(path)
            if vector["key"] in files:
                assert (page.status, page.text) == (200, vector["key"]), vector
            else:
                assert page.status == 404, vector
            asked += 1
    assert asked >= 150


def test_a_canary_of_two_sites(host: DevHost) -> None:
    """WD-04, WD-08: each request is one Version's, by weight; a switch holds for the very next request."""
    worker = create(host, forms.MODULE_WORKER, "canary", {})
    one = static_version(host, "canary.one", worker, {"index.html": b"one", "only-one": b"1"})
    two = static_version(host, "canary.two", worker, {"index.html": b"two"})
    weights = {one["uid"]: 5_000, two["uid"]: 5_000}
    live = create(host, forms.WORKER_DEPLOYMENT, "canary.live", allocation(worker, **weights))
    endpoint = create(host, forms.WORKER_ENDPOINT, "canary.door", {"worker": ref(worker)})
    with Browser(host, endpoint["output"]["hostname"]) as browser:
        pages = [browser.get("/").text for _ in range(200)]
        # Eight standard deviations.
        assert 44 <= pages.count("one") <= 156
        # A Version that has no such file is not replaced by one that has.
        found = [browser.get("/only-one").status for _ in range(200)]
        assert 44 <= found.count(200) <= 156
        assert set(found) == {200, 404}
        spec = allocation(worker, **{two["uid"]: 10_000})
        host.client.wait_operation(host.client.update_resource(live["uid"], live["generation"], spec))
        assert {browser.get("/").text for _ in range(50)} == {"two"}
        assert {browser.get("/only-one").status for _ in range(50)} == {404}


def test_a_new_deploy_is_seen_at_once(host: DevHost, tmp_path: Path) -> None:
    """WD-08, WV-13: the next request has the new file; a Version that is deleted takes its copies along."""
    folder = project(tmp_path, "renewed", "", code=False)
    other = STYLE + b"/* x */"
    digest = hashlib.sha256(other).hexdigest()
    held = host.data_dir / "runtime-assets" / digest[:2] / digest
    with Browser(host, str(host.deploy(folder).hostname)) as browser:
        tag = browser.get("/style.css").headers["etag"]
        for text, status in ((other, 200), (STYLE, 304)):
            (folder / "public" / "style.css").write_bytes(text)
            forms.deploy(host.client, read_project(folder), {}, lambda change: None, prune=True)
            new = browser.get("/style.css", if_none_match=tag)
            assert (new.status, new.body) == (status, text if status == 200 else b"")
            assert held.exists() == (text == other)


def test_services_that_die(host: DevHost, sites: dict[str, Browser]) -> None:
    """Design 6: whichever service is killed, the site is back with the same bytes as soon as the service is."""
    hostname = sites["assets-first"].hostname
    for service in ("runtime", "gateway", "control", "runtime"):
        os.kill(host.service_pid(service), signal.SIGKILL)

        def served() -> bool:
            try:
                with Browser(host, hostname) as browser:
                    return browser.get("/style.css").body == STYLE and by_worker(browser.get("/other"))
            except OSError:
                return False

        eventually(served, 60)
