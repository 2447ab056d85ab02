"""Content-addressed files with owners (AR-09 … AR-11, AR-14).

A file is `{folder}/<first two digits>/<digest>`, complete or absent. Rows say who owns it; bytes without an owner are
removed under the write lock, so that a simultaneous upload of the same bytes never loses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, delete, exists, insert, select

from saisei_contract.errors import SaiseiError
from saisei_control.store.schema import artifact_owners, artifacts
from saisei_control.store.store import Store

MAX_ARTIFACT_BYTES = 16_777_216
_CHUNK = 256 * 1024
_SWEPT_AT_ONCE = 200
_ABANDONED_SECONDS = 3600.0


def principal_owner(principal: str) -> str:
    return f"principal:{principal}"


def resource_owner(uid: str) -> str:
    return f"resource:{uid}"


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes in custody."""

    sha256: str
    size_bytes: int


class Custody:
    """`folder` is this Host's alone."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._incoming = folder.parent / "incoming"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    async def put(self, sha256: str, chunks: AsyncIterable[bytes], principal: str) -> tuple[Held, bool]:
        """Stores bytes for a principal; the second value is False when it held them already.

        SaiseiError invalid_request when the bytes do not have the digest, request_too_large over 16,777,216 bytes.
        """
        incoming = self._incoming / secrets.token_hex(16)
        try:
            with incoming.open("xb") as file:
                size = await _receive(file, chunks, sha256)
                await asyncio.to_thread(os.fsync, file.fileno())
            owner = principal_owner(principal)
            created = await self._store.write(lambda connection: self._take(connection, incoming, sha256, size, owner))
        finally:
            incoming.unlink(missing_ok=True)
        return Held(sha256, size), created

    def _take(self, connection: Connection, incoming: Path, sha256: str, size: int, owner: str) -> bool:
        final = self.path(sha256)
        if not final.exists():
            final.parent.mkdir(exist_ok=True)
            # A link, so that a second run of this transaction finds its input again.
            os.link(incoming, final)
            _sync_folder(final.parent)
        return self.add_owner(connection, Held(sha256, size), owner)

    def add_owner(self, connection: Connection, held: Held, owner: str) -> bool:
        """Adds an owner to bytes that are here; False when it owned them already."""
        known = connection.execute(select(artifacts.c.sha256).where(artifacts.c.sha256 == held.sha256)).first()
        if known is None:
            connection.execute(insert(artifacts).values(sha256=held.sha256, size_bytes=held.size_bytes))
        owned = connection.execute(
            select(artifact_owners.c.owner).where(
                artifact_owners.c.sha256 == held.sha256, artifact_owners.c.owner == owner
            )
        ).first()
        if owned is not None:
            return False
        connection.execute(insert(artifact_owners).values(sha256=held.sha256, owner=owner))
        return True

    def held_by(self, connection: Connection, sha256: str, owners: Iterable[str]) -> Held | None:
        """The bytes, if one of the owners has them and the file is there."""
        row = connection.execute(
            select(artifacts.c.size_bytes)
            .join(artifact_owners, artifact_owners.c.sha256 == artifacts.c.sha256)
            .where(artifacts.c.sha256 == sha256, artifact_owners.c.owner.in_(list(owners)))
        ).first()
        if row is None or not self.path(sha256).exists():
            return None
        return Held(sha256, row.size_bytes)

    def read(self, sha256: str) -> bytes:
        """All bytes, checked against their digest; OSError or ValueError when custody is damaged."""
        data = self.path(sha256).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("stored bytes do not have their digest")
        return data

    def is_intact(self, sha256: str) -> bool:
        """Reads the whole file and compares its digest."""
        try:
            with self.path(sha256).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == sha256
        except OSError:
            return False

    def chunks(self, sha256: str) -> Iterator[bytes]:
        """The bytes in pieces of at most 256 KiB; at least one piece."""
        with self.path(sha256).open("rb") as file:
            chunk = file.read(_CHUNK)
            yield chunk
            while chunk := file.read(_CHUNK):
                yield chunk

    async def release(self, owner: str) -> None:
        """Ends all custody of an owner and removes the bytes that nobody owns any more (AR-10)."""
        await self._store.write(lambda connection: self.release_rows(connection, owner))

    def release_rows(self, connection: Connection, owner: str) -> None:
        owned = list(
            connection.execute(select(artifact_owners.c.sha256).where(artifact_owners.c.owner == owner)).scalars()
        )
        connection.execute(delete(artifact_owners).where(artifact_owners.c.owner == owner))
        for sha256 in owned:
            connection.execute(
                delete(artifacts).where(
                    artifacts.c.sha256 == sha256,
                    ~exists(select(artifact_owners.c.owner).where(artifact_owners.c.sha256 == sha256)),
                )
            )

    async def sweep(self, digests: Iterable[str]) -> None:
        """Removes the files among `digests` that have no row.

        The write lock keeps uploads of the same bytes out meanwhile.
        """
        wanted = list(digests)

        def remove(connection: Connection) -> None:
            for sha256 in wanted:
                if connection.execute(select(artifacts.c.sha256).where(artifacts.c.sha256 == sha256)).first() is None:
                    self.path(sha256).unlink(missing_ok=True)

        await self._store.write(remove)

    async def tidy(self) -> None:
        """Removes what a killed process left: uploads cut off an hour ago or earlier, and files that no row names."""
        digests = await asyncio.to_thread(self._leftovers)
        for start in range(0, len(digests), _SWEPT_AT_ONCE):
            await self.sweep(digests[start : start + _SWEPT_AT_ONCE])

    def _leftovers(self) -> list[str]:
        """Removes the cut-off uploads; returns the digests of all files."""
        old = time.time() - _ABANDONED_SECONDS
        for path in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < old:
                    path.unlink()
        return [path.name for path in self._folder.glob("*/*")]

    def owned_digests(self, connection: Connection, owner: str) -> list[str]:
        return list(
            connection.execute(select(artifact_owners.c.sha256).where(artifact_owners.c.owner == owner)).scalars()
        )


async def _receive(file: BinaryIO, chunks: AsyncIterable[bytes], sha256: str) -> int:
    digest = hashlib.sha256()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_ARTIFACT_BYTES:
            raise SaiseiError("request_too_large", f"an artifact has at most {MAX_ARTIFACT_BYTES:,} bytes")
        digest.update(chunk)
        file.write(chunk)
    file.flush()
    if digest.hexdigest() != sha256:
        raise SaiseiError(
            "invalid_request",
            f"the {size:,} bytes received have the SHA-256 {digest.hexdigest()}, not the announced one",
        )
    return size


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
