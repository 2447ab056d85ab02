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
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


class Incoming:
    """Bytes on their way in, in a file that is gone after the `with` block; what was kept has a link of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / secrets.token_hex(16)
        self._file = self.path.open("xb")
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._digest.update(chunk)
        self._file.write(chunk)

    def restart(self) -> None:
        """Forgets what came so far."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.size = 0

    async def end(self) -> str:
        """The digest, once all bytes are on the disk; no more may come."""
        self._file.flush()
        await asyncio.to_thread(os.fsync, self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()


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
        with self.incoming() as incoming:
            async for chunk in chunks:
                if incoming.size + len(chunk) > MAX_ARTIFACT_BYTES:
                    raise SaiseiError("request_too_large", f"an artifact has at most {MAX_ARTIFACT_BYTES:,} bytes")
                incoming.write(chunk)
            found = await incoming.end()
            if found != sha256:
                raise SaiseiError(
                    "invalid_request",
                    f"the {incoming.size:,} bytes received have the SHA-256 {found}, not the announced one",
                )
            held = Held(sha256, incoming.size)
            (created,) = await self.keep({held: incoming.path}, principal_owner(principal))
        return held, created

    def incoming(self) -> Incoming:
        """A place for bytes that are not verified yet."""
        return Incoming(self._incoming)

    async def keep(self, files: Mapping[Held, Path], owner: str) -> list[bool]:
        """Takes verified files into custody for an owner, all at once; False for each that it owned already.

        Bytes that lie here damaged are replaced.
        """
        damaged = {
            held.sha256
            for held in files
            if self.path(held.sha256).exists() and not await asyncio.to_thread(self.is_intact, held.sha256)
        }

        def take(connection: Connection) -> list[bool]:
            folders = set()
            for held, path in files.items():
                final = self.path(held.sha256)
                if final.exists() and held.sha256 not in damaged:
                    continue
                final.parent.mkdir(exist_ok=True)
                # A link, so that a second run of this transaction finds its input again; under another name first,
                # so that readers meet either the old bytes or the new ones.
                link = path.with_suffix(".link")
                link.unlink(missing_ok=True)
                os.link(path, link)
                link.replace(final)
                folders.add(final.parent)
            for folder in folders:
                _sync_folder(folder)
            return [self.add_owner(connection, held, owner) for held in files]

        return await self._store.write(take)

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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
