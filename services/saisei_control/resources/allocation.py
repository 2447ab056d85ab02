"""What a Worker has selected and what its attachments need: the facts behind WD-05, WD-06, DW-03 and EP-01."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from saisei_contract.forms import urls
from saisei_contract.forms.durable_workflow import FORM as DURABLE_WORKFLOW
from saisei_contract.forms.worker_deployment import FORM as WORKER_DEPLOYMENT
from saisei_contract.records import Action, Phase
from saisei_control.store.rows import StoredResource, exact_spec, live_resource, resource_of, unfinished_operation
from saisei_control.store.schema import reference_edges, resources
from saisei_control.store.statements import Statement

_ATTACHED = Statement(
    select(resources)
    .join(reference_edges, reference_edges.c.referrer == resources.c.uid)
    .where(
        reference_edges.c.target == bindparam("worker"),
        resources.c.form == bindparam("form"),
        resources.c.deleted_at.is_(None),
    )
    .order_by(resources.c.uid)
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What each weighted Version must provide."""

    classes: frozenset[str] = frozenset()
    http: bool = False
    # Such as "scheduled".
    handlers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fit:
    """`conflict` says what is definitely missing; `unverified` names a Version of which too little is known yet."""

    conflict: str | None = None
    unverified: str | None = None

    @property
    def holds(self) -> bool:
        return self.conflict is None and self.unverified is None


def attached(connection: Connection, worker_uid: str, form: str) -> list[StoredResource]:
    """Undeleted Resources of one Form that refer to the Worker, in any phase."""
    return [resource_of(row) for row in _ATTACHED.rows(connection, {"worker": worker_uid, "form": form})]


def active_versions(deployment: StoredResource) -> list[str]:
    """UIDs of the effective allocation; empty when none is."""
    return [item["uid"] for item in deployment.facts.get("active", [])]


def active_deployment(connection: Connection, worker_uid: str) -> StoredResource | None:
    """The Deployment whose allocation is effective now."""
    for deployment in attached(connection, worker_uid, urls.WORKER_DEPLOYMENT):
        if active_versions(deployment):
            return deployment
    return None


def coming_allocations(connection: Connection, worker_uid: str) -> list[list[str]]:
    """What each accepted and unfinished Deployment create or update will install (DW-03 b)."""
    coming = []
    for deployment in attached(connection, worker_uid, urls.WORKER_DEPLOYMENT):
        operation = unfinished_operation(connection, deployment.uid)
        if operation is not None and operation.record.action is not Action.DELETE:
            coming.append(selected_by(deployment))
    return coming


def selected_by(deployment: StoredResource) -> list[str]:
    """The Version UIDs of a Deployment's current spec."""
    spec = WORKER_DEPLOYMENT.validate(exact_spec(deployment))
    return [item.version_uid for item in spec.versions]


def required_by_attachments(connection: Connection, worker_uid: str) -> Requirement:
    """What the undeleted Resources of the Worker need of every weighted Version, accepted creates included (WD-05)."""
    workflows = attached(connection, worker_uid, urls.DURABLE_WORKFLOW)
    return Requirement(
        classes=frozenset(DURABLE_WORKFLOW.validate(exact_spec(item)).class_name for item in workflows),
        http=bool(attached(connection, worker_uid, urls.WORKER_ENDPOINT)) or _is_called(connection, worker_uid),
        handlers=frozenset({"scheduled"} if attached(connection, worker_uid, urls.WORKER_CRON_TRIGGER) else ()),
    )


def _is_called(connection: Connection, worker_uid: str) -> bool:
    """Whether an undeleted WorkerVersion of any Worker, selected or not, has a service Binding to this one."""
    for version in attached(connection, worker_uid, urls.WORKER_VERSION):
        bindings = version.spec.get("serviceBindings", [])
        if any(binding["resource"]["resourceUid"] == worker_uid for binding in bindings):
            return True
    return False


def fit(connection: Connection, version_uids: Iterable[str], requirement: Requirement) -> Fit:
    """Whether each of the Versions provides what is required; a definite conflict outweighs what is not known."""
    unverified = None
    for uid in version_uids:
        version = live_resource(connection, uid)
        if version is None:
            return Fit(conflict=f"the WorkerVersion {uid} no longer exists")
        facts = version.facts
        if not facts.get("ready"):
            if version.record.phase is Phase.ERROR:
                return Fit(conflict=f"the WorkerVersion {uid} is not ready: its last Operation failed")
            unverified = unverified or uid
            continue
        missing = sorted(requirement.classes - set(facts["workflowClasses"]))
        if missing:
            exported = ", ".join(facts["workflowClasses"]) or "none"
            return Fit(
                conflict=f"the main module of the WorkerVersion {uid} exports no workflow class {missing[0]!r} with a "
                f"method run (those that it exports: {exported})"
            )
        if requirement.http and "fetch" not in facts["handlers"] and not facts.get("assets"):
            return Fit(
                conflict=f"the WorkerVersion {uid} does not answer HTTP: it declares no fetch handler and has no assets"
            )
        if undeclared := sorted(requirement.handlers - set(facts["handlers"])):
            return Fit(conflict=f"the WorkerVersion {uid} declares no handler {undeclared[0]}")
    return Fit(unverified=unverified)
