"""What a WorkerVersion needs of its StaticAssetBundle before it is stored (WV-05)."""

from __future__ import annotations

from sqlalchemy import Connection

from saisei_contract.errors import SaiseiError
from saisei_contract.forms.worker_version import SINGLE_PAGE_APPLICATION, WorkerVersionSpec
from saisei_contract.records import Phase
from saisei_control.store.rows import live_resource

ROOT_INDEX = "index.html"


def admit(connection: Connection, spec: WorkerVersionSpec) -> None:
    """SaiseiError dependency_conflict when the fallback to index.html can find none; resource_busy while that is open.

    Without the fallback an unverified bundle is waited for by the Operation.
    """
    if spec.assets is None or spec.assets.not_found_handling != SINGLE_PAGE_APPLICATION:
        return
    uid = spec.assets.bundle_uid
    bundle = live_resource(connection, uid)
    assert bundle is not None, "references were checked in this transaction"
    if bundle.facts.get("ready"):
        if not any(file["path"] == ROOT_INDEX for file in bundle.facts["files"]):
            raise SaiseiError(
                "dependency_conflict",
                f"spec.assets.notFoundHandling needs a file index.html at the root of the StaticAssetBundle {uid}, and "
                "there is none",
            )
    elif bundle.record.phase is Phase.ERROR:
        raise SaiseiError(
            "dependency_conflict", f"the StaticAssetBundle {uid} is not verified: its last Operation failed"
        )
    else:
        raise SaiseiError(
            "resource_busy",
            f"the StaticAssetBundle {uid} is still being verified; with the fallback to index.html a WorkerVersion is "
            "made once its Operation has succeeded",
        )
