"""ModuleWorker: an identity and nothing else (MW-02, MW-03)."""

from __future__ import annotations

from sqlalchemy import Connection

from saisei_control.operations.outcome import Done, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.store.rows import dump, live_resource, update_resource


class ModuleWorkerEffect:
    async def apply(self, work: Work) -> Outcome:
        observed = await work.host.store.peek(lambda connection: observe(connection, work.resource.uid))
        return Done(observed=observed)

    async def remove(self, work: Work) -> Outcome:
        # Every execution belongs to a Version or a Deployment; those are gone, with their stop proven (WD-09, WV-13).
        return Done()


def observe(connection: Connection, worker_uid: str) -> dict[str, object]:
    """MW-01, WD-11: ready while each Version that is selected is."""
    deployment = allocation.active_deployment(connection, worker_uid)
    if deployment is None:
        return {"activeDeploymentUid": None, "ready": False}
    versions = [live_resource(connection, uid) for uid in allocation.active_versions(deployment)]
    ready = all(version is not None and bool(version.facts.get("ready")) for version in versions)
    return {"activeDeploymentUid": deployment.uid, "ready": ready}


def refresh(connection: Connection, worker_uid: str, now_ms: int) -> None:
    """Shows a changed allocation on its Worker, unless the Worker was never observed."""
    worker = live_resource(connection, worker_uid)
    if worker is not None and worker.record.observed_generation > 0:
        observed = dump(observe(connection, worker_uid))
        update_resource(connection, worker_uid, {"observed_json": observed, "observed_at": now_ms})
