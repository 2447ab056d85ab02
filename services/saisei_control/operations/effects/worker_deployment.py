"""WorkerDeployment: switch the whole allocation at once, or stop everything (WD-05 … WD-09)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms.worker_deployment import FORM, WorkerDeploymentSpec
from saisei_contract.records import OperationWarning
from saisei_control.operations.effects import module_worker, replay_words
from saisei_control.operations.outcome import Again, Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.resources.allocation import Fit, Requirement
from saisei_control.store.rows import dump, exact_spec, update_operation, update_resource, warnings_value


class WorkerDeploymentEffect:
    async def apply(self, work: Work) -> Outcome:
        spec = FORM.validate(exact_spec(work.resource))
        # WD-07: a Version that is still being verified is waited for; no traffic meanwhile.
        verified = await work.until(lambda connection: _decided(connection, spec))
        if verified is None:
            return Again("dependency_pending", "a weighted WorkerVersion is not verified yet", dispatched=False)
        if verified.conflict is not None:
            return Failed("dependency_conflict", f"Not activated: {verified.conflict}.")
        replayed = await _replayed(work, spec)
        if isinstance(replayed, Failed | Again):
            return replayed
        other = await work.put_into_effect(lambda connection: _activate(connection, work, spec, replayed))
        if other is not None:
            return other
        return Done(
            observed={
                "ready": True,
                "active": True,
                "selectedVersions": [
                    {"resourceUid": item.version_uid, "weight": item.weight} for item in spec.versions
                ],
            },
            facts=_active(spec),
        )

    async def remove(self, work: Work) -> Outcome:
        host = work.host
        spec = FORM.validate(exact_spec(work.resource))
        revision = await host.store.write(lambda connection: _close(connection, work, spec))
        if revision is not None:
            waiting = await work.until_effective(revision)
            if waiting is not None:
                return waiting
            try:
                await host.fleet.drain(spec.worker_uid)
            except SaiseiError as error:
                return Again("backend_unavailable", error.detail or error.kind.title, dispatched=True)
        return Done()


async def _replayed(work: Work, spec: WorkerDeploymentSpec) -> Failed | Again | Sequence[OperationWarning]:
    """WD-10: what is known not to fit a recorded history is not activated; of what is not known to fit, it is told."""
    selected = {item["uid"] for item in work.resource.facts.get("active", [])}
    coming = [item.version_uid for item in spec.versions if item.version_uid not in selected]
    if not coming:
        return ()
    try:
        found = await work.host.fleet.check_replay(spec.worker_uid, coming, work.attempt)
    except SaiseiError as error:
        return Again("backend_unavailable", error.detail or error.kind.title, dispatched=False)
    if found.mismatches:
        return Failed(replay_words.INCOMPATIBLE, replay_words.incompatible(found.mismatches))
    return replay_words.unconfirmed(found.doubts)


def _decided(connection: Connection, spec: WorkerDeploymentSpec) -> Fit | None:
    found = _fit(connection, spec)
    return found if found.conflict is not None or found.holds else None


def _fit(connection: Connection, spec: WorkerDeploymentSpec) -> Fit:
    requirement: Requirement = allocation.required_by_attachments(connection, spec.worker_uid)
    return allocation.fit(connection, [item.version_uid for item in spec.versions], requirement)


def _activate(
    connection: Connection, work: Work, spec: WorkerDeploymentSpec, warnings: Sequence[OperationWarning]
) -> int | Failed:
    """Checks once more and switches in one transaction: an attachment accepted meanwhile is seen here (WD-06).

    The warnings are written with the switch: a later attempt sees the Versions selected, and replays nothing again.
    """
    found = _fit(connection, spec)
    if not found.holds:
        return Failed(
            "dependency_conflict", f"Not activated: {found.conflict or 'a WorkerVersion lost its readiness'}."
        )
    body = assignments_pb2.DeploymentAssignment(
        worker_uid=spec.worker_uid,
        versions=[
            assignments_pb2.WeightedVersion(version_uid=item.version_uid, weight=item.weight) for item in spec.versions
        ],
    )
    revision = work.publish_in(connection, assignments_pb2.Assignment(deployment=body))
    update_resource(connection, work.resource.uid, {"facts_json": dump(_active(spec))})
    if warnings:
        update_operation(connection, work.operation.id, {"warnings_json": warnings_value(warnings)})
    module_worker.refresh(connection, spec.worker_uid, work.host.clock.now_ms())
    return revision


def _close(connection: Connection, work: Work, spec: WorkerDeploymentSpec) -> int | None:
    """WD-09: nothing is selected from here on, before anything is stopped."""
    revision = work.unpublish_in(connection)
    update_resource(connection, work.resource.uid, {"facts_json": "{}"})
    module_worker.refresh(connection, spec.worker_uid, work.host.clock.now_ms())
    return revision


def _active(spec: WorkerDeploymentSpec) -> dict[str, object]:
    return {"active": [{"uid": item.version_uid, "weight": item.weight} for item in spec.versions]}
