"""WorkerCronTrigger: a schedule for the Worker's active allocation (CR-01, CR-05, CR-07)."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei_contract.cron import parse_cron
from saisei_contract.forms.worker_cron_trigger import FORM, WorkerCronTriggerSpec
from saisei_control.assignments.log import is_assigned
from saisei_control.operations.outcome import Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.resources.allocation import Requirement
from saisei_control.store.rows import StoredResource, exact_spec


class WorkerCronTriggerEffect:
    async def apply(self, work: Work) -> Outcome:
        spec = FORM.validate(exact_spec(work.resource))
        # Each runtime takes the new expression in place of the old one: from there on none fires by that (CR-07).
        other = await work.put_into_effect(lambda connection: _attach(connection, work, spec))
        if other is not None:
            return other
        return Done(observed=_observed(spec.cron, work.host.clock.now_ms(), ready=True))

    async def remove(self, work: Work) -> Outcome:
        revision = await work.unpublish()
        if revision is not None:
            waiting = await work.until_effective(revision)
            if waiting is not None:
                return waiting
        return Done()


def observe(connection: Connection, resource: StoredResource, now_ms: int) -> dict[str, object]:
    """What holds now of a settled trigger: registered, and for an allocation that takes runs (WD-11)."""
    spec = FORM.validate(exact_spec(resource))
    active = allocation.active_deployment(connection, spec.worker_uid) is not None
    return _observed(spec.cron, now_ms, ready=active and is_assigned(connection, resource.uid))


def _observed(cron: str, now_ms: int, *, ready: bool) -> dict[str, object]:
    """CR-07."""
    found: dict[str, object] = {"cron": cron, "timezone": "UTC", "scheduleReady": ready}
    next_ms = parse_cron(cron).next_after(now_ms)
    if next_ms is not None:
        found["nextMatchAt"] = datetime.fromtimestamp(next_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _attach(connection: Connection, work: Work, spec: WorkerCronTriggerSpec) -> int | Failed:
    """Checks against the effective allocation and publishes in one transaction (WD-06)."""
    deployment = allocation.active_deployment(connection, spec.worker_uid)
    if deployment is None:
        return Failed("dependency_conflict", "The Worker has no active WorkerDeployment any more.")
    requirement = Requirement(handlers=frozenset({"scheduled"}))
    found = allocation.fit(connection, allocation.active_versions(deployment), requirement)
    if found.conflict is not None:
        return Failed("dependency_conflict", f"The active allocation does not fit: {found.conflict}.")
    body = assignments_pb2.CronAssignment(worker_uid=spec.worker_uid, cron=spec.cron)
    return work.publish_in(connection, assignments_pb2.Assignment(cron=body))
