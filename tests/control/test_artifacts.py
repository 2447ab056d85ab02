"""Bytes by digest, and bundles made of them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.control.kit import ORIGIN, Builder, Client, Kit, artifact, manifest_of, ref, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

CODE = b'{"handlers": []}'
BUNDLE = urls.WORKER_BUNDLE


def stored_files(kit: Kit) -> set[str]:
    return {path.name for path in (kit.folder / "artifacts" / "sha256").rglob("*") if path.is_file()}


async def failure(client: Client, manifest: bytes, name: str = "bundle") -> pb.OperationError:
    operation = await client.settled(await client.create(BUNDLE, name, artifact(manifest)))
    assert (operation.status, operation.effect) == (pb.OPERATION_STATUS_FAILED, pb.EFFECT_NONE)
    found = await client.get(operation.resource_uid)
    assert (found.phase, found.observed_json, found.observed_generation) == (pb.PHASE_ERROR, "{}", 0)
    return operation.error


async def test_uploads_are_checked_and_idempotent(kit: Kit, client: Client) -> None:
    """AR-01, AR-09: the digest is over exactly the bytes; sending again changes nothing."""
    assert (await client.put(CODE)).created
    again = await client.put(CODE)
    assert (again.created, again.size_bytes) == (False, len(CODE))
    assert not (await client.put(b"")).size_bytes
    other = hashlib.sha256(b"other").hexdigest()
    assert (await refused(client.put(CODE, other))).reason == "invalid_request"
    assert (await refused(client.put(CODE, other.upper()))).reason == "invalid_request"
    assert other not in stored_files(kit)
    assert list((kit.folder / "artifacts" / "incoming").iterdir()) == []


async def test_an_upload_has_a_limit(kit: Kit, client: Client) -> None:
    """AR-02: 16,777,216 bytes are taken, one more is request_too_large."""
    assert (await client.put(bytes(16_777_216))).size_bytes == 16_777_216
    assert (await refused(client.put(bytes(16_777_217)))).reason == "request_too_large"


async def test_an_upload_needs_a_right_to_write(kit: Kit) -> None:
    """H-044: a token that may only read keeps no bytes here."""
    reader = await kit.client("reader", main="read,use")
    assert (await refused(reader.put(CODE))).reason == "forbidden"
    assert stored_files(kit) == set()


async def test_a_bundle_shows_what_was_verified(client: Client) -> None:
    """AR-08: sizes, digests and types in the manifest's order, no URLs."""
    files = {"z.js": CODE, "lib/a.js": b"export {};"}
    manifest = manifest_of(files, "z.js")
    for data in (*files.values(), manifest):
        await client.put(data)
    uid = await client.made(BUNDLE, "bundle", artifact(manifest))
    assert json.loads((await client.get(uid)).observed_json) == {
        "manifestSha256": hashlib.sha256(manifest).hexdigest(),
        "fileCount": 2,
        "totalBytes": len(CODE) + 10,
        "files": [
            {
                "path": path,
                "sha256": hashlib.sha256(data).hexdigest(),
                "mediaType": "application/javascript+module",
                "byteSize": len(data),
            }
            for path, data in files.items()
        ],
        "entrypoint": "z.js",
    }


async def test_a_digest_authorises_nobody(kit: Kit, client: Client) -> None:
    """AR-11: bytes that another principal sent are not this one's to use."""
    manifest = manifest_of({"main.js": CODE})
    await client.put(manifest)
    bob = await kit.client("bob")
    await bob.put(CODE)
    error = await failure(client, manifest)
    assert error.code == "artifact_unavailable"
    assert "main.js" in error.message


async def test_a_foreign_source_is_said_plainly(client: Client) -> None:
    """AR-11, AR-13: a source that cannot be asked is artifact_unavailable, with a way that always works."""
    manifest = manifest_of({"main.js": CODE})
    await client.put(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    for number, url in enumerate(
        (
            f"https://elsewhere.test/artifacts/v1/sha256/{digest}",
            f"{ORIGIN}/other/{digest}",
            f"{ORIGIN}/artifacts/v1/sha256/{digest}/",
        )
    ):
        spec = {"artifact": {"url": url, "sha256": digest}}
        operation = await client.settled(await client.create(BUNDLE, f"bundle-{number}", spec))
        assert operation.error.code == "artifact_unavailable"
        assert "upload" in operation.error.message


async def test_a_bad_manifest_is_invalid(client: Client) -> None:
    """AR-02, AR-05: what the manifest breaks is the Operation's error, and nothing is shown."""
    for number, manifest in enumerate((b"{", b'{"files":[]}', manifest_of({"main.js": CODE}, "other.js"))):
        await client.put(manifest)
        error = await failure(client, manifest, f"bundle-{number}")
        assert error.code == "artifact_invalid"
        assert error.message


async def test_a_failed_bundle_is_repaired_by_an_equal_update(client: Client) -> None:
    """F-09, H-108, H-194: once the bytes are here, PUT of the same UID with the same spec converges."""
    manifest = manifest_of({"main.js": CODE})
    await client.put(manifest)
    operation = await client.settled(await client.create(BUNDLE, "bundle", artifact(manifest)))
    assert operation.error.code == "artifact_unavailable"
    await client.put(CODE)
    again = await client.settled(await client.update(operation.resource_uid, 1, artifact(manifest)))
    assert again.status == pb.OPERATION_STATUS_SUCCEEDED
    assert (await client.get(operation.resource_uid)).phase == pb.PHASE_IDLE


async def test_a_bundle_is_immutable(client: Client, build: Builder) -> None:
    """AR-09, F-06: another digest is refused and takes no generation; an equal PUT verifies custody again."""
    uid = await build.bundle()
    other = artifact(b"other")
    assert (await refused(client.update(uid, 1, other))).reason == "invalid_spec"
    spec = json.loads((await client.get(uid)).spec_json)
    assert (await client.settled(await client.update(uid, 1, spec))).generation == 2


async def test_damage_is_found_by_an_equal_update(kit: Kit, client: Client, build: Builder) -> None:
    """AR-09, AR-14: an identifier never maps to other bytes; lost custody fails the verification."""
    uid = await build.bundle()
    spec = json.loads((await client.get(uid)).spec_json)
    digest = json.loads((await client.get(uid)).observed_json)["files"][0]["sha256"]
    path: Path = kit.folder / "artifacts" / "sha256" / digest[:2] / digest
    path.write_bytes(b"damaged")
    operation = await client.settled(await client.update(uid, 1, spec))
    assert (operation.status, operation.error.code) == (pb.OPERATION_STATUS_FAILED, "artifact_unavailable")
    assert (await client.get(uid)).observed_generation == 1


async def test_custody_is_released_with_its_last_owner(kit: Kit, client: Client) -> None:
    """AR-10: a shared blob outlives one owner, an exclusive one does not."""
    shared, manifest = CODE, manifest_of({"main.js": CODE})
    other = manifest_of({"main.js": CODE, "b.js": b"b"})
    for data in (shared, manifest, other, b"b"):
        await client.put(data)
    first = await client.made(BUNDLE, "first", artifact(manifest))
    second = await client.made(BUNDLE, "second", artifact(other))
    assert kit.app is not None
    custody = kit.app.custody
    everything = stored_files(kit)
    # The principal gives its own copies up, so that the bundles alone own them.
    digests = [hashlib.sha256(data).hexdigest() for data in (shared, manifest, other, b"b")]
    await custody.release("principal:alice")
    await custody.sweep(digests)
    assert stored_files(kit) == everything
    await client.deleted(second)
    assert stored_files(kit) == {digests[0], digests[1]}
    await client.deleted(first)
    assert stored_files(kit) == set()


async def test_custody_survives_a_restart(kit: Kit, client: Client, build: Builder) -> None:
    """AR-14: after a restart the bytes are here, for a Version made then."""
    worker = await build.worker()
    bundle = await build.bundle()
    await kit.restart()
    spec = {"worker": ref(worker), "bundle": ref(bundle), "handlers": []}
    assert await client.made(urls.WORKER_VERSION, "version", spec)


async def test_leftovers_of_a_killed_process_are_removed(kit: Kit, client: Client) -> None:
    """AR-10, AR-14: files that no row names and uploads cut off long ago go; all else stays."""
    await client.put(CODE)
    orphan = "f" * 64
    artifacts = kit.folder / "artifacts"
    (artifacts / "sha256" / "ff").mkdir()
    (artifacts / "sha256" / "ff" / orphan).write_bytes(b"nobody's")
    cut_off, under_way = artifacts / "incoming" / "old", artifacts / "incoming" / "new"
    cut_off.write_bytes(b"x")
    under_way.write_bytes(b"y")
    os.utime(cut_off, (1, 1))
    assert kit.app is not None
    await kit.app.custody.tidy()
    assert stored_files(kit) == {hashlib.sha256(CODE).hexdigest()}
    assert list((artifacts / "incoming").iterdir()) == [under_way]
