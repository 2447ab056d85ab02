"""Bytes of static assets: from the control service, kept on disk by digest, read in pieces and never as a whole.

Beside each file that it pays to compress lies its gzip variant, made once when the file came. Nothing is used before
its digest was checked in this process: a torn or damaged file is fetched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import secrets
import zlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import grpc

from saisei.control.v1 import assignments_pb2 as pb
from saisei_contract.artifacts import MAX_FILE_BYTES
from saisei_contract.asset_responses import pays_to_compress
from saisei_contract.errors import SaiseiError
from saisei_runtime.hosting.state import HostedAsset
from saisei_service.credentials import service_metadata

if TYPE_CHECKING:
    # Exists in the stubs only: what the generated stub class is on an asyncio channel.
    from saisei.control.v1.assignments_pb2_grpc import AssignmentServiceAsyncStub

CHUNK_BYTES = 256 * 1024
FETCH_SECONDS = 60.0
# A variant is kept when it saves at least a tenth.
_WORTH = 0.9
_GZIP_LEVEL = 6
_REMOVED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Variant:
    """The gzip variant of a file that is here; no digest and 0 bytes when there is none."""

    sha256: str = ""
    size_bytes: int = 0


class AssetStore:
    """`folder` is this runtime's alone."""

    def __init__(self, stub: AssignmentServiceAsyncStub, credential: str, folder: Path) -> None:
        self._stub = stub
        self._metadata = service_metadata(credential)
        self._folder = folder
        # By digest and whether a variant was looked for: the same bytes may have two media types.
        self._ready: dict[tuple[str, bool], Variant] = {}
        self._coming: dict[tuple[str, bool], asyncio.Task[Variant]] = {}

    def ready(self, file: HostedAsset) -> Variant | None:
        """The variant of a file whose bytes are here and checked; None for one that `prepare` is needed for."""
        return self._ready.get(_key(file))

    async def prepare(self, version_uid: str, file: HostedAsset) -> Variant:
        """Returns once the bytes are here. SaiseiError backend_unavailable when they cannot be had now."""
        key = _key(file)
        found = self._ready.get(key)
        if found is not None:
            return found
        task = self._coming.get(key)
        if task is None:
            task = asyncio.create_task(self._prepare(version_uid, file, key))
            self._coming[key] = task
            task.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(task)

    async def read(self, file: HostedAsset, *, gzipped: bool, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        """`length` bytes from `offset` on of a ready file, in pieces of at most 256 KiB.

        SaiseiError backend_unavailable when the file has gone or ends early.
        """
        if length == 0:
            return
        path = self._gzip(file.sha256) if gzipped else self._file(file.sha256)
        try:
            opened = await asyncio.to_thread(_open, path, offset)
        except OSError:
            self._forget(file.sha256)
            raise SaiseiError("backend_unavailable", "the asset is being fetched again; try again") from None
        try:
            while length > 0:
                chunk = await asyncio.to_thread(opened.read, min(length, CHUNK_BYTES))
                if not chunk:
                    self._forget(file.sha256)
                    raise SaiseiError("backend_unavailable", "the stored asset ends early")
                length -= len(chunk)
                yield chunk
        finally:
            opened.close()

    async def tidy(self, named: Callable[[], set[str]]) -> None:
        """Removes the files whose digests are not in `named()`, which is asked anew after each pause."""
        paths = await asyncio.to_thread(lambda: list(self._folder.glob("*/*")))
        for start in range(0, len(paths), _REMOVED_AT_ONCE):
            wanted = named() | {digest for digest, _ in self._coming}
            for path in paths[start : start + _REMOVED_AT_ONCE]:
                digest = path.name[:64]
                if digest not in wanted:
                    self._forget(digest)
                    path.unlink(missing_ok=True)
            await asyncio.sleep(0)

    def _came(self, key: tuple[str, bool], task: asyncio.Task[Variant]) -> None:
        del self._coming[key]
        if not task.cancelled() and task.exception() is None:
            self._ready[key] = task.result()

    def _forget(self, digest: str) -> None:
        for compressible in (False, True):
            self._ready.pop((digest, compressible), None)

    async def _prepare(self, version_uid: str, file: HostedAsset, key: tuple[str, bool]) -> Variant:
        path = self._file(file.sha256)
        if not await asyncio.to_thread(_is_intact, path, file.sha256):
            await self._fetch(version_uid, file, path)
        if not key[1]:
            return Variant()
        return await asyncio.to_thread(_variant, path, self._gzip(file.sha256), file)

    async def _fetch(self, version_uid: str, file: HostedAsset, path: Path) -> None:
        # A cache: no fsync. A torn file fails its digest and is fetched again.
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        digest, size = hashlib.sha256(), 0
        request = pb.FetchArtifactRequest(sha256=file.sha256, version_uid=version_uid)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as target:
                async for part in self._stub.FetchArtifact(request, metadata=self._metadata, timeout=FETCH_SECONDS):
                    size += len(part.data)
                    if size > MAX_FILE_BYTES:
                        break
                    digest.update(part.data)
                    target.write(part.data)
            if digest.hexdigest() != file.sha256:
                raise SaiseiError("backend_unavailable", "the bytes of an asset did not match their digest")
            draft.replace(path)
        except (grpc.aio.AioRpcError, OSError) as error:
            raise SaiseiError("backend_unavailable", "the bytes of the asset cannot be had now; try again") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()

    def _file(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def _gzip(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / f"{sha256}.gz"


def _key(file: HostedAsset) -> tuple[str, bool]:
    return file.sha256, pays_to_compress(file.media_type, file.size_bytes)


def _open(path: Path, offset: int) -> BinaryIO:
    opened = path.open("rb", buffering=0)
    opened.seek(offset)
    return opened


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _variant(path: Path, target: Path, file: HostedAsset) -> Variant:
    """The variant that lies there, if it is right, or a new one."""
    if not _expands_to(target, file):
        _compress(path, target)
    size = target.stat().st_size
    if size > file.size_bytes * _WORTH:
        return Variant()
    with target.open("rb") as opened:
        return Variant(hashlib.file_digest(opened, "sha256").hexdigest(), size)


def _expands_to(target: Path, file: HostedAsset) -> bool:
    digest, size = hashlib.sha256(), 0
    try:
        with gzip.open(target) as expanded:
            while chunk := expanded.read(CHUNK_BYTES):
                size += len(chunk)
                if size > file.size_bytes:
                    return False
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return False
    return digest.hexdigest() == file.sha256


def _compress(path: Path, target: Path) -> None:
    draft = target.with_name(f"{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with (
            path.open("rb") as source,
            draft.open("wb") as raw,
            # No name and no date: the same bytes have the same variant.
            gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed,
        ):
            while chunk := source.read(CHUNK_BYTES):
                packed.write(chunk)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
