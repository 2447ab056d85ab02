"""Bytes of assets on the runtime's disk: fetched once, checked, compressed where it pays, and removed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.asset_store import AssetStore, Variant
from saisei_runtime.hosting.state import HostedAsset

TEXT = b"body { color: teal }\n" * 500


def hosted(data: bytes, media_type: str = "text/css") -> HostedAsset:
    return HostedAsset(hashlib.sha256(data).hexdigest(), media_type, len(data))


class Control:
    """Gives the bytes that it has; counts who asks."""

    def __init__(self, *files: bytes) -> None:
        self.files = {hashlib.sha256(data).hexdigest(): data for data in files}
        self.asked: list[str] = []

    def FetchArtifact(self, request: pb.FetchArtifactRequest, **_: Any) -> AsyncIterator[pb.FetchArtifactResponse]:  # noqa: N802
        self.asked.append(request.sha256)
        return self._parts(request.sha256)

    async def _parts(self, sha256: str) -> AsyncIterator[pb.FetchArtifactResponse]:
        await asyncio.sleep(0)
        data = self.files.get(sha256)
        if data is None:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        for start in range(0, len(data), 1000):
            yield pb.FetchArtifactResponse(data=data[start : start + 1000])


def store_of(folder: Path, control: Control) -> AssetStore:
    return AssetStore(control, "key", folder / "assets")  # type: ignore[arg-type]


async def read(
    store: AssetStore, file: HostedAsset, offset: int = 0, length: int = -1, *, gzipped: bool = False
) -> bytes:
    size = file.size_bytes if length < 0 else length
    return b"".join([part async for part in store.read(file, gzipped=gzipped, offset=offset, length=size)])


async def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    """Issue 7, AR-14: by all who want it together, and never again, a restart included."""
    control, file = Control(TEXT), hosted(TEXT)
    store = store_of(tmp_path, control)
    assert store.ready(file) is None
    variants = await asyncio.gather(*(store.prepare("v", file) for _ in range(10)))
    assert len(set(variants)) == len(control.asked) == 1
    assert store.ready(file) == variants[0]
    assert await read(store, file) == TEXT
    assert await read(store, file, 5, 100) == TEXT[5:105]
    again = store_of(tmp_path, control)
    assert await again.prepare("v", file) == variants[0]
    assert len(control.asked) == 1


async def test_the_variant_is_the_same_content(tmp_path: Path) -> None:
    """Issue 7: gzip of exactly the bytes, under its own digest; none where it saves less than a tenth."""
    noise = os.urandom(5000)
    control = Control(TEXT, noise, b"tiny")
    store = store_of(tmp_path, control)
    file = hosted(TEXT)
    variant = await store.prepare("v", file)
    packed = await read(store, file, 0, variant.size_bytes, gzipped=True)
    assert gzip.decompress(packed) == TEXT
    assert variant == Variant(hashlib.sha256(packed).hexdigest(), len(packed))
    for data, media_type in ((noise, "text/css"), (TEXT, "image/png"), (b"tiny", "text/css")):
        assert await store.prepare("v", hosted(data, media_type)) == Variant()
    assert control.asked.count(file.sha256) == 1


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
async def test_damage_is_mended(tmp_path: Path, ending: str, damage: bytes | None) -> None:
    """AR-14: what a power cut or a hand has changed is found at the next start, and nothing of it is served."""
    control, file = Control(TEXT), hosted(TEXT)
    first = await store_of(tmp_path, control).prepare("v", file)
    path = tmp_path / "assets" / file.sha256[:2] / (file.sha256 + ending)
    if damage is None:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(damage)
    store = store_of(tmp_path, control)
    assert await store.prepare("v", file) == first
    assert await read(store, file) == TEXT
    assert gzip.decompress(await read(store, file, 0, first.size_bytes, gzipped=True)) == TEXT


async def test_bytes_that_cannot_be_had(tmp_path: Path) -> None:
    """AR-14: neither other bytes nor half a file are kept; the next one who asks tries again."""
    control, file = Control(), hosted(TEXT)
    store = store_of(tmp_path, control)
    for wrong in (None, TEXT[:-1], TEXT + b"x"):
        if wrong is not None:
            control.files[file.sha256] = wrong
        with pytest.raises(SaiseiError, match="backend_unavailable"):
            await store.prepare("v", file)
        assert store.ready(file) is None
        assert not [path for path in (tmp_path / "assets").rglob("*") if path.is_file()]
    control.files[file.sha256] = TEXT
    await store.prepare("v", file)
    assert await read(store, file) == TEXT


async def test_a_file_that_vanishes(tmp_path: Path) -> None:
    """Design 6: it is not taken for ready any more, and comes again."""
    control, file = Control(TEXT), hosted(TEXT)
    store = store_of(tmp_path, control)
    await store.prepare("v", file)
    (tmp_path / "assets" / file.sha256[:2] / file.sha256).unlink()
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await read(store, file)
    assert store.ready(file) is None
    await store.prepare("v", file)
    assert await read(store, file) == TEXT


async def test_what_nobody_names_goes(tmp_path: Path) -> None:
    """WV-13: files and variants of Versions that are gone; what is being read is read to its end."""
    kept, dropped = hosted(TEXT), hosted(TEXT + b"x")
    control = Control(TEXT, TEXT + b"x")
    store = store_of(tmp_path, control)
    for file in (kept, dropped):
        await store.prepare("v", file)
    reading = store.read(dropped, gzipped=False, offset=0, length=dropped.size_bytes)
    first = await anext(reading)
    await store.tidy(lambda: {kept.sha256})
    assert first + b"".join([part async for part in reading]) == TEXT + b"x"
    assert {path.name for path in (tmp_path / "assets").rglob("*") if path.is_file()} == {
        kept.sha256,
        f"{kept.sha256}.gz",
    }
    assert store.ready(dropped) is None
    assert store.ready(kept) is not None
