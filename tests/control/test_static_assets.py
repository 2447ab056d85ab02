"""StaticAssetBundles, and WorkerVersions that serve them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from tests.control.kit import Builder, Client, Kit, Refused, artifact, ref, refused, url_of
from tests.control.test_sources import Site, configured, pki, site

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

__all__ = ["pki", "site"]

ASSETS, VERSION = urls.STATIC_ASSET_BUNDLE, urls.WORKER_VERSION
PAGE, STYLE = b"<h1>hello</h1>", b"h1 { color: teal }"
SITE = {"index.html": (PAGE, "text/html"), "css/a.css": (STYLE, "text/css"), "empty": (b"", "x-a/b.c+d")}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_of(site: dict[str, tuple[bytes, str]]) -> bytes:
    files = [
        {"path": path, "url": url_of(data), "sha256": digest(data), "mediaType": media_type}
        for path, (data, media_type) in site.items()
    ]
    return json.dumps({"files": files}).encode()


async def upload(client: Client, site: dict[str, tuple[bytes, str]]) -> dict[str, Any]:
    """The spec of a bundle whose bytes are here."""
    manifest = manifest_of(site)
    for data, _ in site.values():
        await client.put(data)
    await client.put(manifest)
    return artifact(manifest)


async def bundle_of(client: Client, build: Builder, site: dict[str, tuple[bytes, str]] = SITE) -> str:
    return await client.made(ASSETS, build.name(), await upload(client, site))


def static(worker: str, bundle: str, **more: Any) -> dict[str, Any]:
    assets = {"bundle": ref(bundle), "runWorkerFirst": False, "notFoundHandling": "none"} | more
    return {"worker": ref(worker), "handlers": [], "assets": assets}


SPA = {"notFoundHandling": "single_page_application"}


async def test_a_bundle_shows_what_was_verified(client: Client, build: Builder) -> None:
    """AR-06, AR-08: sizes, digests and types in the manifest's order; no URLs, no entrypoint; empty files are fine."""
    uid = await bundle_of(client, build)
    found = await client.get(uid)
    assert json.loads(found.observed_json) == {
        "manifestSha256": digest(manifest_of(SITE)),
        "fileCount": 3,
        "totalBytes": len(PAGE) + len(STYLE),
        "files": [
            {"path": path, "sha256": digest(data), "mediaType": media_type, "byteSize": len(data)}
            for path, (data, media_type) in SITE.items()
        ],
    }
    assert found.output_json == "{}"


@pytest.mark.parametrize(
    "manifest",
    [
        b'{"files": [], "entrypoint": "a"}',
        json.dumps({"entrypoint": "a", **json.loads(manifest_of({"a": (b"a", "text/html")}))}).encode(),
        manifest_of({"a": (b"a", "text/html; charset=utf-8")}),
        manifest_of({"a": (b"a", "text")}),
        manifest_of({"a": (b"a", "")}),
        manifest_of({"../a": (b"a", "text/html")}),
        manifest_of({"a/": (b"a", "text/html")}),
        manifest_of({"a\\b": (b"a", "text/html")}),
        manifest_of({"a?b": (b"a", "text/html")}),
        b"\xef\xbb\xbf" + manifest_of({"a": (b"a", "text/html")}),
    ],
)
async def test_a_bad_manifest_is_invalid(client: Client, manifest: bytes) -> None:
    """AR-02, AR-03, AR-06, AR-13: the Operation fails without an effect, and nothing is shown."""
    await client.put(b"a")
    await client.put(manifest)
    operation = await client.settled(await client.create(ASSETS, "site", artifact(manifest)))
    assert (operation.status, operation.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    assert operation.error.code == "artifact_invalid"
    assert (await client.get(operation.resource_uid)).observed_json == "{}"


async def test_a_digest_authorises_nobody(kit: Kit, client: Client) -> None:
    """AR-11: bytes that another principal sent are not this one's to serve."""
    await client.put(manifest_of(SITE))
    bob = await kit.client("bob")
    for data, _ in SITE.values():
        await bob.put(data)
    operation = await client.settled(await client.create(ASSETS, "site", artifact(manifest_of(SITE))))
    assert operation.error.code == "artifact_unavailable"


async def test_a_site_by_url(kit: Kit, site: Site) -> None:
    """AR-09, AR-11, AR-12, AR-14: fetched from where it lies, each file once, and kept when the source has gone."""
    await configured(kit, site)
    await kit.reconfigure(preview_forms=False)
    client = await kit.client()
    manifest = json.loads(manifest_of(SITE))
    for file in manifest["files"]:
        file["url"] = site.put(f"/{file['path']}", SITE[file["path"]][0])
    raw = json.dumps(manifest).encode()
    spec = {"artifact": {"url": site.put("/manifest.json", raw), "sha256": digest(raw)}}
    uid = await client.made(ASSETS, "site", spec)
    assert sorted(path for path, _ in site.seen) == sorted(["/manifest.json", *(f"/{path}" for path in SITE)])
    site.stop()
    assert (await client.settled(await client.update(uid, 1, spec))).status == pb.OPERATION_STATUS_SUCCEEDED
    observed = json.loads((await client.get(uid)).observed_json)
    assert [file["path"] for file in observed["files"]] == list(SITE)
    assert "url" not in observed["files"][0]


async def test_a_bundle_is_immutable(kit: Kit, client: Client, build: Builder) -> None:
    """AR-09, AR-14, F-06, F-07: equal PUTs verify custody again; another digest and private inputs are refused."""
    uid = await bundle_of(client, build)
    spec = json.loads((await client.get(uid)).spec_json)
    assert (await refused(client.update(uid, 1, artifact(b"other")))).reason == "invalid_spec"
    assert (await refused(client.update(uid, 1, spec, secrets={"A": "1"}))).reason == "capability_required"
    await kit.restart()
    assert (await client.settled(await client.update(uid, 1, spec))).status == pb.OPERATION_STATUS_SUCCEEDED
    (kit.folder / "artifacts" / "sha256" / digest(STYLE)[:2] / digest(STYLE)).write_bytes(b"damaged")
    failed = await client.settled(await client.update(uid, 2, spec))
    assert (failed.status, failed.error.code) == (pb.OPERATION_STATUS_FAILED, "artifact_unavailable")


async def test_custody_is_shared_and_released(kit: Kit, client: Client, build: Builder) -> None:
    """AR-10: held by a Version it stays; then only what no other bundle owns goes, code and assets alike."""
    other = {"again.css": (STYLE, "text/css"), "b": (b"b", "text/plain")}
    one, two = await bundle_of(client, build), await bundle_of(client, build, other)
    version = await client.made(VERSION, "version", static(await build.worker(), one))
    assert (await refused(client.delete(one, 1))).reason == "dependency_conflict"
    assert kit.app is not None
    await kit.app.custody.release("principal:alice")
    await kit.app.custody.tidy()
    await client.deleted(version)
    await client.deleted(one)
    held = {path.name for path in (kit.folder / "artifacts" / "sha256").rglob("*") if path.is_file()}
    assert held == {digest(STYLE), digest(b"b"), digest(manifest_of(other))}
    await client.deleted(two)
    assert not [path for path in (kit.folder / "artifacts" / "sha256").rglob("*") if path.is_file()]


async def test_a_static_version_runs_no_code(kit: Kit, client: Client, build: Builder) -> None:
    """WV-04, WV-10: nothing is inspected; `bundleVerified` is absent; the runtime gets each file by its digest."""
    bundle = await bundle_of(client, build)
    uid = await client.made(VERSION, "version", static(await build.worker(), bundle, **SPA))
    found = await client.get(uid)
    assert json.loads(found.observed_json) == {"ready": True, "resolvedBindings": True}
    assert kit.runtime.called("InspectVersion") == []
    body = (await kit.runtime.hosts(uid)).version
    assert (body.entrypoint, list(body.files), list(body.handlers)) == ("", [], [])
    assert (body.assets.run_worker_first, body.assets.single_page_application) == (False, True)
    assert {file.path: (file.sha256, file.media_type, file.size_bytes) for file in body.assets.files} == {
        path: (digest(data), media_type, len(data)) for path, (data, media_type) in SITE.items()
    }
    assert await kit.runtime.fetch(digest(PAGE), uid) == PAGE
    again = await client.settled(await client.update(uid, 1, static(found_worker(found), bundle, **SPA)))
    assert (again.status, again.generation) == (pb.OPERATION_STATUS_SUCCEEDED, 2)


def found_worker(resource: pb.Resource) -> str:
    return str(json.loads(resource.spec_json)["worker"]["resourceUid"])


async def test_a_version_of_code_and_assets(kit: Kit, client: Client, build: Builder) -> None:
    """WV-10, WV-23: with a bundle `bundleVerified` is there; a Version without assets has no assets to host."""
    worker, code = await build.worker(), await build.bundle(["fetch"])
    spec = static(worker, await bundle_of(client, build), runWorkerFirst=True) | {
        "bundle": ref(code),
        "handlers": ["fetch"],
    }
    uid = await client.made(VERSION, "version", spec)
    assert json.loads((await client.get(uid)).observed_json)["bundleVerified"] is True
    body = (await kit.runtime.hosts(uid)).version
    assert body.assets.run_worker_first and body.entrypoint == "main.js"
    assert await kit.runtime.fetch(digest(STYLE), uid) == STYLE
    plain = await build.version(worker)
    assert not (await kit.runtime.hosts(plain)).version.HasField("assets")


async def test_bytes_are_fetched_for_their_version_only(kit: Kit, client: Client, build: Builder) -> None:
    """AR-11: the digest of another bundle's file is nothing to a Version."""
    worker = await build.worker()
    other = await bundle_of(client, build, {"b": (b"b", "text/plain")})
    uid = await client.made(VERSION, "version", static(worker, other))
    with pytest.raises(Exception, match="no such file"):
        await kit.runtime.fetch(digest(PAGE), uid)


async def test_the_fallback_needs_an_index(client: Client, build: Builder) -> None:
    """WV-05: refused before the Version is stored, by what the bundle has at its root."""
    worker = await build.worker()
    bundle = await bundle_of(client, build, {"sub/index.html": (PAGE, "text/html"), "Index.html": (PAGE, "text/html")})
    error = await refused(client.create(VERSION, "version", static(worker, bundle, **SPA)))
    assert error.reason == "dependency_conflict"
    assert "index.html" in error.message
    assert [item.form for item in (await client.list()).items if item.form == VERSION] == []
    assert await client.made(VERSION, "version", static(worker, bundle))


async def test_the_fallback_waits_for_no_verification(client: Client, build: Builder) -> None:
    """WV-05: whether an unverified bundle has an index is not known, so the Version is not stored."""
    worker = await build.worker()
    failed = await client.settled(await client.create(ASSETS, "site", artifact(manifest_of(SITE))))
    assert failed.status == pb.OPERATION_STATUS_FAILED
    refusal = await refused(client.create(VERSION, "version", static(worker, failed.resource_uid, **SPA)))
    assert refusal.reason == "dependency_conflict"
    spec = await upload(client, SITE)
    operation, refusals = await client.update(failed.resource_uid, 1, spec), set()
    while True:
        try:
            await client.create(VERSION, "version", static(worker, failed.resource_uid, **SPA))
            break
        except Refused as busy:
            refusals.add(busy.reason)
            await asyncio.sleep(0)
    assert refusals <= {"resource_busy"}
    assert (await client.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED


async def test_a_version_waits_for_its_assets(client: Client, build: Builder) -> None:
    """WV-10: an unverified bundle never makes a Version ready; a failed one fails it."""
    worker = await build.worker()
    failed = await client.settled(await client.create(ASSETS, "site", artifact(manifest_of(SITE))))
    operation = await client.settled(await client.create(VERSION, "version", static(worker, failed.resource_uid)))
    assert (operation.status, operation.error.code) == (pb.OPERATION_STATUS_FAILED, "artifact_unavailable")
    found = await client.get(operation.resource_uid)
    assert found.observed_json == "{}"
    await client.settled(await client.update(failed.resource_uid, 1, await upload(client, SITE)))
    again = await client.settled(await client.update(operation.resource_uid, 1, static(worker, failed.resource_uid)))
    assert again.status == pb.OPERATION_STATUS_SUCCEEDED


async def test_assets_answer_http(client: Client, build: Builder) -> None:
    """WD-05, WD-06, EP-01: a static Version is enough for an Endpoint; code without fetch is not, before and after."""
    worker = await build.worker()
    site = await client.made(VERSION, "site", static(worker, await bundle_of(client, build)))
    mute = await build.version(worker)
    deployment = await build.deployment(worker, site)
    assert await client.made(urls.WORKER_ENDPOINT, "door", {"worker": ref(worker)})
    for versions in ([mute], [site, mute]):
        weights = [{"workerVersion": ref(uid), "weight": 10_000 // len(versions)} for uid in versions]
        switch = client.update(deployment, 1, {"worker": ref(worker), "versions": weights})
        assert (await refused(switch)).reason == "dependency_conflict"


async def test_a_static_version_provides_no_class(client: Client, build: Builder) -> None:
    """WV-12: a Deployment with it is refused while the Worker has a workflow."""
    worker = await build.worker()
    await client.made(urls.DURABLE_WORKFLOW, "flow", {"worker": ref(worker), "className": "Flow"})
    site = await client.made(VERSION, "site", static(worker, await bundle_of(client, build)))
    weights = [{"workerVersion": ref(site), "weight": 10_000}]
    deployment = client.create(urls.WORKER_DEPLOYMENT, "live", {"worker": ref(worker), "versions": weights})
    assert (await refused(deployment)).reason == "dependency_conflict"


@pytest.mark.parametrize(
    "change",
    [
        {"handlers": ["fetch"]},
        {"vars": {"a": 1}},
        {"requiredSensitiveVars": ["A"]},
        {"assets": {"runWorkerFirst": True}},
        {"assets": {"notFoundHandling": "404-page"}},
        {"assets": None},
    ],
)
async def test_what_a_static_version_must_not_have(client: Client, build: Builder, change: dict[str, Any]) -> None:
    """WV-04, WV-05: refused before effects."""
    spec = static(await build.worker(), await bundle_of(client, build))
    for key, value in change.items():
        if value is None:
            del spec[key]
        else:
            spec[key] = spec[key] | value if isinstance(value, dict) and key in spec else value
    secrets = {"A": "1"} if "requiredSensitiveVars" in change else None
    assert (await refused(client.create(VERSION, "version", spec, secrets=secrets))).reason == "invalid_spec"


async def test_assets_are_a_reference(kit: Kit, client: Client, build: Builder) -> None:
    """F-02, F-03: exactly a StaticAssetBundle of the same Space; code is none."""
    worker, code = await build.worker(), await build.bundle()
    for target in (code, worker, "r-unknown"):
        assert (await refused(client.create(VERSION, "v", static(worker, target)))).reason == "dependency_conflict"
    assert (await refused(client.create(VERSION, "v", static(worker, code) | {"bundle": ref(code)}))).reason == (
        "dependency_conflict"
    )
