"""Taking a bundle in: every byte is verified and in the Resource's own custody before anything is shown.

AR-08 … AR-13.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from sqlalchemy import Connection

from saisei_contract.artifacts import Manifest, ManifestError, ManifestKind, check_sizes, parse_manifest
from saisei_contract.forms.worker_bundle import ArtifactSpec
from saisei_control.artifacts.custody import Custody, Held, principal_owner, resource_owner
from saisei_control.store.store import Store

_HELD_HERE = re.compile(r"(https://[^/]+)/artifacts/v1/sha256/([0-9a-f]{64})\Z")


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

    async def acquire(self, artifact: ArtifactSpec, kind: ManifestKind, principal: str, resource_uid: str) -> Acquired:
        """Verifies everything and takes custody for the Resource. Raises Unobtainable; nothing is kept then."""
        owners = [resource_owner(resource_uid), principal_owner(principal)]
        manifest_held = await self._obtain(artifact.url, artifact.sha256, owners, "The manifest")
        raw = await asyncio.to_thread(self.custody.read, manifest_held.sha256)
        try:
            manifest = parse_manifest(raw, kind)
            files = [
                await self._obtain(file.url, file.sha256, owners, f"The file {file.path}") for file in manifest.files
            ]
            check_sizes([held.size_bytes for held in files])
        except ManifestError as error:
            raise Unobtainable(error.code, error.message) from None
        acquired = Acquired(manifest_held, manifest, tuple(files))
        await self._take_custody(acquired, resource_owner(resource_uid))
        return acquired

    async def _obtain(self, url: str, sha256: str, owners: list[str], what: str) -> Held:
        """AR-11 (1): bytes that this principal sent, or that the Resource has already."""
        source = _HELD_HERE.match(url)
        if source is None or (self.public_origin and source.group(1) != self.public_origin):
            raise Unobtainable(
                "artifact_unavailable",
                f"{what} cannot be fetched: this Host takes artifacts only from its own "
                "{origin}/artifacts/v1/sha256/{digest}; upload the bytes there first.",
            )
        if source.group(2) != sha256:
            raise Unobtainable("artifact_invalid", f"{what} has a URL whose digest is not its sha256.")
        held = await self.store.read(lambda connection: self.custody.held_by(connection, sha256, owners))
        if held is None:
            raise Unobtainable(
                "artifact_unavailable", f"{what} ({sha256}) was not uploaded to this Host by the calling principal."
            )
        if not await asyncio.to_thread(self.custody.is_intact, sha256):
            raise Unobtainable("artifact_unavailable", f"{what} ({sha256}) is damaged in custody; upload it again.")
        return held

    async def _take_custody(self, acquired: Acquired, owner: str) -> None:
        everything = {held.sha256: held for held in (acquired.manifest_held, *acquired.files)}

        def take(connection: Connection) -> None:
            for held in everything.values():
                self.custody.add_owner(connection, held, owner)

        await self.store.write(take)
