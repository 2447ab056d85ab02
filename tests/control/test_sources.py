"""Artifacts by URL: a real HTTPS server, and a resolver that a test can make lie."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore
import pytest
from pydantic import ValidationError
from tests.control.kit import Client, Kit, artifact, eventually, manifest_of
from tests.support.pki import Pki, make_pki

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls
from saisei_control.artifacts.sources import Patience, PrivateOrigin, Sources, Unfetchable, load_origins, origin_of
from saisei_control.settings import ControlSettings
from saisei_service.egress import EgressPolicy, EgressRefused, PinnedBackend

BUNDLE = urls.WORKER_BUNDLE
CODE = b'{"handlers": []}'
SECRET = "Bearer of-this-host-alone"


@dataclass
class Site:
    """An HTTPS server on 127.0.0.1: paths to raw responses; what is not there is a 404."""

    pki: Pki
    origin: str = ""
    port: int = 0
    responses: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0
    # Given instead of an end to what a response says: nothing more, ever.
    stalls: bool = False
    server: asyncio.Server | None = None

    async def start(self, cert: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self.server.sockets[0].getsockname()[1]
        self.origin = f"https://127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            self.seen.append((path, {n.lower(): v for n, _, v in (line.partition(": ") for line in head[1:] if line)}))
            writer.write(self.responses.get(path) or response(b"", status="404 Not Found"))
            await writer.drain()
            if self.stalls:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def put(self, path: str, data: bytes) -> str:
        self.responses[path] = response(data)
        return f"{self.origin}{path}"

    def known(self, **more: Any) -> PrivateOrigin:
        return PrivateOrigin(**{"origin": self.origin, "ca_file": self.pki.ca, **more})


def response(body: bytes, *headers: str, status: str = "200 OK", sized: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}", "connection: close", *headers, *([f"content-length: {len(body)}"] if sized else [])]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    folder = tmp_path / "pki"
    folder.mkdir()
    return make_pki(folder)


@pytest.fixture
async def site(pki: Pki) -> AsyncIterator[Site]:
    made = Site(pki)
    await made.start(pki.cert, pki.key)
    yield made
    made.stop()


async def fetched(sources: Sources, url: str, limit: int = 1000) -> bytes:
    body = bytearray()
    try:
        await sources.fetch(url, limit, body.extend)
    finally:
        await sources.close()
    return bytes(body)


async def refusal(sources: Sources, url: str, limit: int = 1000) -> Unfetchable:
    with pytest.raises(Unfetchable) as caught:
        await fetched(sources, url, limit)
    return caught.value


def told(*answers: Iterable[str]) -> Any:
    """A resolver that gives these answers in turn, the last one for ever; `asked` counts."""
    left = [list(answer) for answer in answers]

    async def resolver(_name: str, _port: int) -> list[str]:
        resolver.asked += 1  # type: ignore[attr-defined]
        return left.pop(0) if len(left) > 1 else left[0]

    resolver.asked = 0  # type: ignore[attr-defined]
    return resolver


async def test_what_is_asked_of_a_source(site: Site) -> None:
    """AR-12, AR-11: one GET with identity coding and this Host's own credentials there; nothing of a caller."""
    url = site.put("/a/b.js", b"x" * 1000)
    assert await fetched(Sources(private=[site.known(authorization=SECRET)]), url) == b"x" * 1000
    assert site.seen == [
        (
            "/a/b.js",
            {
                "host": f"127.0.0.1:{site.port}",
                "accept": "*/*",
                "accept-encoding": "identity",
                "user-agent": "Saisei",
                "authorization": SECRET,
            },
        )
    ]


BAD = {
    "redirect": (response(b"", "location: /good", status="302 Found"), "status 302 (redirects are not followed)"),
    "no content": (response(b"", status="204 No Content"), "status 204"),
    "partial": (response(b"x", status="206 Partial Content"), "status 206"),
    "forbidden": (response(b"", status="403 Forbidden"), "status 403"),
    "trouble": (response(b"", status="503 Service Unavailable"), "status 503"),
    "coded": (response(b"x", "content-encoding: gzip"), "content coding"),
    "transfer coded": (response(b"x", "transfer-encoding: gzip, chunked", sized=False), "broke off"),
    "announced too large": (response(b"", "content-length: 1001", sized=False), "more than the 1,000 bytes"),
    "too large": (response(bytes(1001), sized=False), "more than the 1,000 bytes"),
    "too large in chunks": (
        response(b"3e8\r\n" + bytes(1000) + b"\r\n1\r\nx\r\n0\r\n\r\n", "transfer-encoding: chunked", sized=False),
        "more than the 1,000 bytes",
    ),
    "cut": (response(b"x", "content-length: 2", sized=False), "broke off"),
    "cut in chunks": (response(b"5\r\nab", "transfer-encoding: chunked", sized=False), "broke off"),
    "two lengths": (response(b"xx", "content-length: 1"), "broke off"),
    "no HTTP": (b"SSH-2.0-x\r\n\r\n", "broke off"),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000, "broke off"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_what_is_no_artifact_is_refused(site: Site, kind: str) -> None:
    """AR-12: no redirect, only 200, no coding, nothing over the limit, nothing cut off; the reason says no path."""
    site.put("/good", b"x")
    site.responses["/private-path"], reason = BAD[kind]
    error = await refusal(Sources(private=[site.known()]), f"{site.origin}/private-path")
    assert reason in error.message
    assert "private-path" not in error.message
    assert error.passing is (reason in ("broke off", "status 503"))
    assert [path for path, _ in site.seen] == ["/private-path"]


async def test_a_source_that_stalls_is_left(site: Site) -> None:
    """AR-12: the time for an artifact is finite, whether nothing comes or a byte now and then."""
    site.stalls = True
    site.responses["/a"] = response(b"x", "content-length: 9", sized=False)
    for patience in (Patience(read=0.2), Patience(whole=0.3)):
        error = await refusal(Sources(private=[site.known()], patience=patience), f"{site.origin}/a")
        assert error.passing


async def test_certificates_are_verified(site: Site, pki: Pki) -> None:
    """AR-12: an authority that is not known, and a name that the certificate does not have, are refused."""
    url = site.put("/a", b"x")
    stranger = await refusal(Sources(private=[PrivateOrigin(origin=site.origin)]), url)
    named = f"https://wrong.test:{site.port}"
    resolver = told(["127.0.0.1"])
    wrong = await refusal(Sources(private=[site.known(origin=named)], resolver=resolver), f"{named}/a")
    for error in (stranger, wrong):
        assert "certificate" in error.message and not error.passing
    named = f"https://files.test:{site.port}"
    assert await fetched(Sources(private=[site.known(origin=named)], resolver=resolver), f"{named}/a") == b"x"
    assert [path for path, _ in site.seen] == ["/a"]


async def test_the_list_of_private_origins_is_exact(site: Site, pki: Pki) -> None:
    """AR-11: another port, another name of the same address and an unlisted origin are refused, unasked."""
    other = Site(pki)
    await other.start(pki.cert, pki.key)
    known = [site.known(authorization=SECRET)]
    resolver = told(["127.0.0.1"])
    for url in (other.put("/a", b"x"), f"https://localhost:{site.port}/a", f"https://files.test:{site.port}/a"):
        assert "no public address" in (await refusal(Sources(private=known, resolver=resolver), url)).message
    assert (site.connections, other.connections) == (0, 0)
    closed = Sources(public=False, private=known)
    assert "named" in (await refusal(closed, "https://files.example/a")).message
    other.stop()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "168.63.129.16", "224.0.0.1", "240.0.0.1", "0.0.0.0"),
        *("::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
async def test_addresses_inside_are_refused(site: Site, address: str) -> None:
    """AR-12: whatever name leads there, no private, loopback, link-local, multicast, reserved or metadata address."""
    error = await refusal(Sources(resolver=told([address])), f"https://files.test:{site.port}/a")
    assert "no public address" in error.message and not error.passing
    literal = f"[{address}]" if ":" in address else address
    assert "no public address" in (await refusal(Sources(), f"https://{literal}:{site.port}/a")).message
    assert site.connections == 0


class Recorder(httpcore.AsyncNetworkBackend):
    """Notes where connections would go, and refuses them."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.tried.append(host)
        raise httpcore.ConnectError("refused")


async def test_a_name_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """AR-12: a name is resolved once for each connection, which goes to the very addresses that were judged."""
    resolver = told(["93.184.216.34", "10.0.0.1", "2606:4700::1111"], ["127.0.0.1"])
    network = Recorder()
    backend = PinnedBackend(EgressPolicy(), resolver)
    monkeypatch.setattr(backend, "_network", network)
    with pytest.raises(httpcore.ConnectError):
        await backend.connect_tcp("rebinding.test", 443)
    assert network.tried == ["93.184.216.34", "2606:4700::1111"]
    assert resolver.asked == 1
    with pytest.raises(EgressRefused):
        await backend.connect_tcp("rebinding.test", 443)
    assert (len(network.tried), resolver.asked) == (2, 2)


async def test_names_without_an_address(site: Site) -> None:
    """AR-13: what the resolver cannot tell, or refuses to, is a reason that may pass."""

    async def nothing(_name: str, _port: int) -> list[str]:
        raise OSError("no such name")

    async def never(_name: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    for resolver in (nothing, never):
        sources = Sources(resolver=resolver, patience=Patience(whole=0.2))
        assert (await refusal(sources, "https://gone.test/a")).passing


def test_the_file_of_origins(tmp_path: Path) -> None:
    """AR-11, Design 5: the operator's file is strict, and what is wrong is told by field, without a credential."""
    file = tmp_path / "origins.toml"
    file.write_text('[[origins]]\norigin = "https://a.test:8443"\nauthorization = "Bearer x"\n')
    assert load_origins(file) == [PrivateOrigin(origin="https://a.test:8443", authorization="Bearer x")]
    for wrong, field_of in (
        ('origin = "https://a.test/"', "origin"),
        ('origin = "http://a.test"', "origin"),
        ('origin = "https://A.test"', "origin"),
        ('origin = "https://a.test:443"', "origin"),
        ('origin = "https://a.test"\nca_file = "/nowhere.pem"', "ca_file"),
        ('origin = "https://a.test"\nauthorization = "Bearer s3cret\\r\\nx: y"', "authorization"),
        ('origin = "https://a.test"\nmore = 1', "more"),
    ):
        file.write_text(f"[[origins]]\n{wrong}\n")
        with pytest.raises(ValueError, match=rf"origins.toml: origins\.0\.{field_of}: ") as caught:
            ControlSettings(artifact_origins_file=file).sources()
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ValidationError):
        ControlSettings(artifact_fetch="perhaps")


def test_origins_of_urls() -> None:
    """AR-11: an origin is compared as the URL standard writes it."""
    assert origin_of("https://A.test:443/x") == "https://a.test"
    assert origin_of("https://[2001:DB8::1]:8443/x") == "https://[2001:db8::1]:8443"


# --- through the control service ---


def published(site: Site, files: dict[str, bytes], **spec: str) -> dict[str, Any]:
    """The spec of a bundle that lies at `site`."""
    manifest = json.loads(manifest_of(files))
    for file in manifest["files"]:
        file["url"] = site.put(f"/files/{file['path']}", files[file["path"]])
        file.update(spec)
    raw = json.dumps(manifest).encode()
    url = site.put("/manifest.json", raw)
    return {"artifact": {"url": url, "sha256": hashlib.sha256(raw).hexdigest()}}


async def configured(kit: Kit, site: Site, **settings: Any) -> None:
    file = kit.folder / "origins.toml"
    file.write_text(f'[[origins]]\norigin = "{site.origin}"\nca_file = "{site.pki.ca}"\nauthorization = "{SECRET}"\n')
    await kit.reconfigure(artifact_origins_file=file, **settings)


def leftovers(kit: Kit) -> list[Path]:
    return [path for path in (kit.folder / "artifacts").rglob("*") if path.is_file()]


async def test_a_bundle_by_url(kit: Kit, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """AR-08, AR-09, AR-13, AR-14: fetched once, each file once; kept when the source is gone; no URL in the log."""
    caplog.set_level(logging.INFO)
    await configured(kit, site)
    client = await kit.client()
    files = {"main.js": CODE, "lib/a.js": b"export {};", "lib/same.js": b"export {};"}
    spec = published(site, files)
    uid = await client.made(BUNDLE, "bundle", spec)
    observed = json.loads((await client.get(uid)).observed_json)
    assert [(f["path"], f["byteSize"]) for f in observed["files"]] == [(p, len(d)) for p, d in files.items()]
    assert "url" not in json.dumps(observed).lower()
    assert sorted(path for path, _ in site.seen) == ["/files/lib/a.js", "/files/main.js", "/manifest.json"]
    site.stop()
    assert (await client.settled(await client.update(uid, 1, spec))).status == pb.OPERATION_STATUS_SUCCEEDED
    await kit.restart()
    again = await client.get(uid)
    assert (again.observed_generation, json.loads(again.observed_json), len(site.seen)) == (2, observed, 3)
    assert sorted(path.name for path in leftovers(kit)) == sorted(
        {spec["artifact"]["sha256"], *(hashlib.sha256(data).hexdigest() for data in files.values())}
    )
    assert site.origin not in caplog.text and SECRET not in caplog.text
    await client.deleted(uid)
    assert leftovers(kit) == []


async def test_bytes_that_are_held_are_not_fetched(kit: Kit, site: Site) -> None:
    """AR-11: what the caller has uploaded is used; what another has is fetched, for a digest authorises nothing."""
    await configured(kit, site)
    alice, bob = await kit.client(), await kit.client("bob")
    spec = published(site, {"main.js": CODE, "b.js": b"bob's"})
    await alice.put(CODE)
    await bob.put(b"bob's")
    await alice.made(BUNDLE, "bundle", spec)
    assert [path for path, _ in site.seen] == ["/manifest.json", "/files/b.js"]


async def failed(client: Client, name: str, spec: dict[str, Any]) -> pb.OperationError:
    operation = await client.settled(await client.create(BUNDLE, name, spec))
    assert (operation.status, operation.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    assert (await client.get(operation.resource_uid)).observed_json == "{}"
    return operation.error


async def test_what_does_not_verify_leaves_nothing(kit: Kit, site: Site) -> None:
    """AR-13, AR-12, AR-02: a wrong digest, a missing file and too many bytes fail the Operation; no byte is kept."""
    await configured(kit, site)
    client = await kit.client()
    error = await failed(client, "digest", published(site, {"main.js": CODE}, sha256="0" * 64))
    assert error.code == "artifact_invalid" and "main.js has the SHA-256" in error.message
    spec = published(site, {"main.js": CODE, "b.js": b"b"})
    del site.responses["/files/b.js"]
    error = await failed(client, "missing", spec)
    assert error.code == "artifact_unavailable" and "b.js cannot be fetched: 127.0.0.1 answered" in error.message
    assert "/files/" not in error.message
    large = {"main.js": CODE, **{f"{n}.txt": bytes([n]) * 16_777_216 for n in range(8)}}
    spec = published(site, large)
    error = await failed(client, "large", spec)
    assert error.code == "artifact_invalid" and "134,217,728" in error.message
    site.responses["/files/main.js"] = response(b"", "content-length: 16777217", sized=False)
    error = await failed(client, "file", published(site, {"x.js": CODE}) | spec)
    assert error.code == "artifact_invalid"
    assert leftovers(kit) == []


async def test_the_largest_bundle(kit: Kit, site: Site) -> None:
    """AR-02, AR-08, Issue 4: 512 files and 134,217,728 bytes are taken, over several connections at once."""
    await configured(kit, site)
    client = await kit.client()
    blocks = {f"{n}.txt": n.to_bytes(4, "big") * 65_536 for n in range(510)}
    halves = {"main.js": CODE.ljust(262_144), "last.txt": b"x" * 262_144}
    uid = await client.made(BUNDLE, "bundle", published(site, {**halves, **blocks}))
    observed = json.loads((await client.get(uid)).observed_json)
    assert (observed["fileCount"], observed["totalBytes"]) == (512, 134_217_728)
    await client.deleted(uid)
    assert leftovers(kit) == []


async def test_passing_trouble_is_waited_out(kit: Kit, site: Site) -> None:
    """AR-13, H-108: a source in trouble for a moment is asked again; an equal PUT repairs a failed bundle."""
    await configured(kit, site)
    client = await kit.client()
    spec = published(site, {"main.js": CODE})
    good = site.responses["/files/main.js"]
    site.responses["/files/main.js"] = response(b"", status="503 Service Unavailable")
    operation = await client.create(BUNDLE, "bundle", spec)

    async def asked() -> bool:
        return [path for path, _ in site.seen].count("/files/main.js") >= 1

    await eventually(asked)
    site.responses["/files/main.js"] = good
    settled = await client.settled(operation)
    # On a busy machine all tries may have been made before the trouble was over.
    if settled.status == pb.OPERATION_STATUS_FAILED:
        assert settled.error.code == "artifact_unavailable"
        settled = await client.settled(await client.update(settled.resource_uid, 1, spec))
    assert settled.status == pb.OPERATION_STATUS_SUCCEEDED


async def test_an_unlisted_private_origin_through_the_service(kit: Kit, site: Site) -> None:
    """AR-12, AR-11: without the operator's word the Host connects to nothing inside; with fetching off, to nothing."""
    client = await kit.client()
    spec = published(site, {"main.js": CODE})
    error = await failed(client, "bundle", spec)
    assert error.code == "artifact_unavailable" and "no public address" in error.message
    await kit.reconfigure(artifact_fetch=False)
    error = await failed(client, "other", artifact(b"{}") | {"artifact": {**spec["artifact"]}})
    assert error.code == "artifact_unavailable" and "operator" in error.message
    assert site.connections == 0
