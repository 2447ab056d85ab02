"""WorkerBundle and StaticAssetBundle: acquire, verify, keep (AR-05, AR-06, AR-08 … AR-14)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from saisei_contract.forms.artifact import ArtifactForm
from saisei_control.artifacts.acquire import Acquired, Acquisition, Unobtainable
from saisei_control.artifacts.custody import resource_owner
from saisei_control.operations.outcome import Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.store.rows import exact_spec


class ArtifactEffect:
    """The same for each Form of files; what differs is the manifest's kind."""

    def __init__(self, form: ArtifactForm) -> None:
        self._form = form

    async def apply(self, work: Work) -> Outcome:
        host = work.host
        artifact = self._form.validate(exact_spec(work.resource))
        acquisition = Acquisition(host.store, host.custody, host.public_origin, host.sources)
        try:
            acquired = await acquisition.acquire(artifact, self._form.kind, work.principal, work.resource.uid)
        except Unobtainable as reason:
            return Failed(reason.code, reason.message)
        observed = _observed(acquired)
        return Done(observed=observed, facts={"ready": True, **observed})

    async def remove(self, work: Work) -> Outcome:
        custody = work.host.custody
        owner = resource_owner(work.resource.uid)
        digests = await work.host.store.read(lambda connection: custody.owned_digests(connection, owner))

        def release(connection: Connection) -> None:
            custody.release_rows(connection, owner)

        await work.host.store.write(release)
        await custody.sweep(digests)
        return Done()


def _observed(acquired: Acquired) -> dict[str, Any]:
    """AR-08. Only a WorkerBundle has an entrypoint."""
    files = zip(acquired.manifest.files, acquired.files, strict=True)
    entrypoint = acquired.manifest.entrypoint
    return {
        "manifestSha256": acquired.manifest_held.sha256,
        "fileCount": len(acquired.files),
        "totalBytes": acquired.total_bytes,
        "files": [
            {"path": file.path, "sha256": file.sha256, "mediaType": file.media_type, "byteSize": held.size_bytes}
            for file, held in files
        ],
    } | ({} if entrypoint is None else {"entrypoint": entrypoint})
