"""DurableWorkflow: admit instances, or stop and purge them all (DW-04, DW-05, DW-08)."""

from __future__ import annotations

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei.runtime.v1 import admin_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms.durable_workflow import FORM, DurableWorkflowSpec
from saisei_control.operations.outcome import Again, Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.resources.allocation import Requirement
from saisei_control.store.rows import exact_spec

STATUSES = ("queued", "running", "sleeping", "waiting", "complete", "errored", "terminated")
_OBSERVE_SECONDS = 5.0


class DurableWorkflowEffect:
    async def apply(self, work: Work) -> Outcome:
        spec = FORM.validate(exact_spec(work.resource))
        other = await work.put_into_effect(lambda connection: _admit(connection, work, spec))
        if other is not None:
            return other
        try:
            found = await work.host.fleet.observe(work.resource.uid, _OBSERVE_SECONDS)
        except SaiseiError as error:
            return Again("backend_unavailable", error.detail or error.kind.title, dispatched=True)
        return Done(observed=observed(found))

    async def remove(self, work: Work) -> Outcome:
        revision = await work.unpublish()
        if revision is not None:
            waiting = await work.until_effective(revision)
            if waiting is not None:
                return waiting
            try:
                await work.host.fleet.purge(work.resource.uid, work.operation.id)
            except SaiseiError as error:
                # DW-08: without the proof the same Operation goes on.
                return Again("backend_unavailable", error.detail or error.kind.title, dispatched=True)
        return Done()


def observed(found: admin_pb2.ObserveResponse) -> dict[str, object]:
    """DW-05: all seven keys, always."""
    return {
        "ready": found.ready,
        "instanceCounts": {status: found.instance_counts.get(status, 0) for status in STATUSES},
    }


def _admit(connection: Connection, work: Work, spec: DurableWorkflowSpec) -> int | Failed:
    """Checks against the effective allocation and publishes in one transaction (DW-04, WD-06)."""
    deployment = allocation.active_deployment(connection, spec.worker_uid)
    if deployment is not None:
        requirement = Requirement(classes=frozenset({spec.class_name}))
        found = allocation.fit(connection, allocation.active_versions(deployment), requirement)
        if found.conflict is not None:
            return Failed("dependency_conflict", f"The active allocation does not fit: {found.conflict}.")
    body = assignments_pb2.WorkflowAssignment(worker_uid=spec.worker_uid, class_name=spec.class_name)
    return work.publish_in(connection, assignments_pb2.Assignment(workflow=body))
