"""Taking a bundle in: every byte is verified and in the Resource's own custody before anything is shown.

AR-08 … AR-13.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from saisei_contract.artifacts import (
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_TOTAL_BYTES,
    Manifest,
    ManifestError,
    ManifestKind,
    check_sizes,
    parse_manifest,
)
from saisei_contract.forms.artifact import ArtifactSpec
from saisei_control.artifacts.custody import Custody, Held, Incoming, principal_owner, resource_owner
from saisei_control.artifacts.sources import Sources, Unfetchable
from saisei_control.store.store import Store

_HELD_HERE = re.compile(r"(https://[^/]+)/artifacts/v1/sha256/([0-9a-f]{64})\Z")
_FETCHES_AT_ONCE = 8
# How often a file is asked for while its source seems to have a passing trouble, and the pause before, in seconds.
_TRIES = 3
_PAUSE = 0.3
# All files of a bundle; what has come until then is gone before it counts as abandoned (custody.py).
_SECONDS = 1200.0


class Unobtainable(Exception):  # noqa: N818 - what it is to the caller: a reason, not a fault
    """The bytes cannot be had, or are not what they should be. `code` is the Operation's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Acquired:
    """Verified bytes: the manifest and, in its order, its files."""

    manifest_held: Held
    manifest: Manifest
    files: tuple[Held, ...]

    @property
    def total_bytes(self) -> int:
        return sum(held.size_bytes for held in self.files)


@dataclass(frozen=True, slots=True)
class Acquisition:
    """`public_origin` is this Host's own; when empty, the artifact path of any origin means bytes held here."""

    store: Store
    custody: Custody
    public_origin: str
    sources: Sources

    async def acquire(self, artifact: ArtifactSpec, kind: ManifestKind, principal: str, resource_uid: str) -> Acquired:
        """Verifies everything and takes custody for the Resource. Raises Unobtainable; nothing is kept then."""
        owner = resource_owner(resource_uid)
        with contextlib.ExitStack() as stack:
            attempt = _Attempt(self, [owner, principal_owner(principal)], stack)
            try:
                manifest_held = await attempt.manifest(artifact)
                raw = await asyncio.to_thread(attempt.read, manifest_held)
                manifest = parse_manifest(raw, kind)
                files = await attempt.files(manifest)
                check_sizes([held.size_bytes for held in files])
            except ManifestError as error:
                raise Unobtainable(error.code, error.message) from None
            acquired = Acquired(manifest_held, manifest, tuple(files))
            if attempt.fetched:
                await self.custody.keep(attempt.fetched, owner)
            await self._own({manifest_held, *files} - attempt.fetched.keys(), owner)
        return acquired

    async def _own(self, everything: Iterable[Held], owner: str) -> None:
        def own(connection: Connection) -> None:
            for held in everything:
                self.custody.add_owner(connection, held, owner)

        await self.store.write(own)


@dataclass(slots=True)
class _Wanted:
    url: str
    sha256: str
    # As messages name it.
    what: str


@dataclass(slots=True)
class _Attempt:
    """What one acquisition has so far. Fetched files are gone with `stack`."""

    host: Acquisition
    owners: list[str]
    stack: contextlib.ExitStack
    fetched: dict[Held, Path] = field(default_factory=dict)
    # How many bytes of files may still be fetched.
    left: int = MAX_TOTAL_BYTES

    async def manifest(self, artifact: ArtifactSpec) -> Held:
        wanted = _Wanted(artifact.url, artifact.sha256, "The manifest")
        held = await self._held(wanted)
        if held is None:
            held = await self._fetched(wanted, MAX_MANIFEST_BYTES)
            self.left = MAX_TOTAL_BYTES
        return held

    def read(self, held: Held) -> bytes:
        path = self.fetched.get(held)
        return self.host.custody.read(held.sha256) if path is None else path.read_bytes()

    async def files(self, manifest: Manifest) -> list[Held]:
        """In the manifest's order. What is held here is not fetched, and nothing is fetched twice."""
        found = {held.sha256: held for held in self.fetched}
        missing: dict[str, _Wanted] = {}
        for file in manifest.files:
            if file.sha256 in found or file.sha256 in missing:
                continue
            wanted = _Wanted(file.url, file.sha256, f"The file {file.path}")
            held = await self._held(wanted)
            if held is None:
                missing[file.sha256] = wanted
            else:
                found[file.sha256] = held
                self.left -= held.size_bytes
        turns = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def fetch(wanted: _Wanted) -> None:
            async with turns:
                found[wanted.sha256] = await self._fetched(wanted, MAX_FILE_BYTES)

        try:
            async with asyncio.timeout(_SECONDS), asyncio.TaskGroup() as group:
                for wanted in missing.values():
                    group.create_task(fetch(wanted))
        except* Unobtainable as reasons:
            reason = reasons.exceptions[0]
            while isinstance(reason, BaseExceptionGroup):
                reason = reason.exceptions[0]
            failed = reason
        except* TimeoutError:
            failed = Unobtainable("artifact_unavailable", f"The files could not be fetched within {_SECONDS:g} s.")
        else:
            return [found[file.sha256] for file in manifest.files]
        raise failed

    async def _held(self, wanted: _Wanted) -> Held | None:
        """AR-11 (1): bytes that this principal sent, or that the Resource has already. None: they lie elsewhere."""
        custody = self.host.custody
        source = _HELD_HERE.match(wanted.url)
        here = source is not None and self.host.public_origin in ("", source.group(1))
        if source is not None and here and source.group(2) != wanted.sha256:
            raise Unobtainable("artifact_invalid", f"{wanted.what} has a URL whose digest is not its sha256.")
        held = await self.host.store.read(
            lambda connection: custody.held_by(connection, wanted.sha256, self.owners),
        )
        if held is None and here:
            raise Unobtainable(
                "artifact_unavailable",
                f"{wanted.what} ({wanted.sha256}) was not uploaded to this Host by the calling principal.",
            )
        if held is not None and not await asyncio.to_thread(custody.is_intact, wanted.sha256):
            raise Unobtainable(
                "artifact_unavailable", f"{wanted.what} ({wanted.sha256}) is damaged in custody; upload it again."
            )
        return held

    async def _fetched(self, wanted: _Wanted, limit: int) -> Held:
        """AR-11 (2, 3), AR-12: verified bytes in a file of their own."""
        incoming = self.stack.enter_context(self.host.custody.incoming())
        for left in reversed(range(_TRIES)):
            try:
                await self._fetch_once(wanted, limit, incoming)
                break
            except Unfetchable as reason:
                if reason.too_large:
                    raise Unobtainable(
                        "artifact_invalid", f"{wanted.what} cannot be taken: {reason.message}."
                    ) from None
                if not left or not reason.passing:
                    raise Unobtainable(
                        "artifact_unavailable",
                        f"{wanted.what} cannot be fetched: {reason.message}. Bytes can also be uploaded to this Host's "
                        "own {origin}/artifacts/v1/sha256/{digest}.",
                    ) from None
            self.left += incoming.size
            incoming.restart()
            await asyncio.sleep(_PAUSE)
        digest = await incoming.end()
        if digest != wanted.sha256:
            raise Unobtainable(
                "artifact_invalid",
                f"{wanted.what} has the SHA-256 {digest} ({incoming.size:,} bytes), not {wanted.sha256}.",
            )
        held = Held(wanted.sha256, incoming.size)
        self.fetched[held] = incoming.path
        return held

    async def _fetch_once(self, wanted: _Wanted, limit: int, incoming: Incoming) -> None:
        def write(chunk: bytes) -> None:
            # The others that are under way take from the same.
            if len(chunk) > self.left:
                raise Unobtainable("artifact_invalid", f"The files have more than {MAX_TOTAL_BYTES:,} bytes in total.")
            self.left -= len(chunk)
            incoming.write(chunk)

        await self.host.sources.fetch(wanted.url, min(limit, self.left), write)
