"""Whether a mutation may be accepted, given the other Resources: references, each Form's conditions (F-02 … F-05).

Everything here runs inside the accepting write transaction, so that of two conflicting requests one sees the other
(WD-06, H-109).
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.base import Reference
from saisei_contract.forms.durable_workflow import DurableWorkflowSpec
from saisei_contract.forms.worker_cron_trigger import WorkerCronTriggerSpec
from saisei_contract.forms.worker_deployment import WorkerDeploymentSpec
from saisei_contract.forms.worker_endpoint import WorkerEndpointSpec
from saisei_contract.forms.worker_version import WorkerVersionSpec
from saisei_contract.records import Phase
from saisei_control.access.rights import Caller
from saisei_control.resources import allocation, assets
from saisei_control.resources.allocation import Requirement
from saisei_control.resources.references import referrer_forms
from saisei_control.store.rows import live_resource


def conflict(detail: str) -> SaiseiError:
    return SaiseiError("dependency_conflict", detail)


def check_references(connection: Connection, caller: Caller, space: str, references: Iterable[Reference]) -> None:
    """F-02, F-03: every target exists in the Space, has exactly the Form, is not going away, and the caller may use it.

    One message for all reasons, so that nothing is learned about what the caller may not see.
    """
    rights = caller.in_space(space)
    for reference in references:
        target = live_resource(connection, reference.uid)
        usable = (
            target is not None
            and target.record.space == space
            and target.record.form == reference.target_form_url
            and target.record.phase is not Phase.DELETING
            and rights.use
        )
        if not usable:
            raise conflict(
                f"{reference.path} names {reference.uid}, which is not a usable Resource of the Form "
                f"{reference.target_form_url} in this Space"
            )


def check_deletable(connection: Connection, uid: str) -> None:
    """H-106, MW-03, WV-13, WV-14, AR-10, DW-07: no undeleted Resource refers to it."""
    forms = referrer_forms(connection, uid)
    if forms:
        names = ", ".join(form.split("/")[-3] for form in forms)
        raise conflict(f"undeleted Resources refer to this one ({names}); delete those first")


def admit(connection: Connection, spec: object, *, own_uid: str | None) -> None:
    """The Form's conditions on other Resources. `own_uid` is None on create."""
    match spec:
        case WorkerDeploymentSpec():
            _admit_deployment(connection, spec, own_uid)
        case DurableWorkflowSpec():
            _admit_workflow(connection, spec)
        case WorkerEndpointSpec():
            _admit_endpoint(connection, spec, own_uid)
        case WorkerCronTriggerSpec():
            _admit_cron(connection, spec)
        case WorkerVersionSpec():
            assets.admit(connection, spec)
            _admit_version(connection, spec)
        case _:
            pass


def _admit_deployment(connection: Connection, spec: WorkerDeploymentSpec, own_uid: str | None) -> None:
    """WD-02, WD-03, WD-05, WD-06. A Version that is still being verified is waited for by the Operation."""
    others = allocation.attached(connection, spec.worker_uid, urls.WORKER_DEPLOYMENT)
    if any(item.uid != own_uid for item in others):
        raise conflict("the Worker has a WorkerDeployment already; update or delete that one")
    for item in spec.versions:
        version = live_resource(connection, item.version_uid)
        assert version is not None, "references were checked in this transaction"
        if version.spec["worker"]["resourceUid"] != spec.worker_uid:
            raise conflict(f"the WorkerVersion {item.version_uid} belongs to another Worker")
    requirement = allocation.required_by_attachments(connection, spec.worker_uid)
    found = allocation.fit(connection, [item.version_uid for item in spec.versions], requirement)
    if found.conflict is not None:
        raise conflict(found.conflict)


def _admit_workflow(connection: Connection, spec: DurableWorkflowSpec) -> None:
    """DW-03: against the effective allocation and each one that is on its way."""
    requirement = Requirement(classes=frozenset({spec.class_name}))
    _refuse_unfit(connection, spec.worker_uid, requirement)


def _admit_endpoint(connection: Connection, spec: WorkerEndpointSpec, own_uid: str | None) -> None:
    """EP-01, EP-02."""
    others = allocation.attached(connection, spec.worker_uid, urls.WORKER_ENDPOINT)
    if any(item.uid != own_uid for item in others):
        raise conflict("the Worker has a WorkerEndpoint already")
    _refuse_unfit(connection, spec.worker_uid, Requirement(http=True))
    _refuse_inactive(connection, spec.worker_uid, "answer HTTP")


def _admit_cron(connection: Connection, spec: WorkerCronTriggerSpec) -> None:
    """CR-01: the effective Versions, and those on their way, have the handler."""
    _refuse_unfit(connection, spec.worker_uid, Requirement(handlers=frozenset({"scheduled"})))
    _refuse_inactive(connection, spec.worker_uid, "run on a schedule")


def _refuse_inactive(connection: Connection, worker_uid: str, purpose: str) -> None:
    if allocation.active_deployment(connection, worker_uid) is None:
        if allocation.coming_allocations(connection, worker_uid):
            raise SaiseiError(
                "resource_busy",
                "the Worker's WorkerDeployment is not active yet; try again once its Operation has succeeded",
            )
        raise conflict(f"the Worker has no active WorkerDeployment that could {purpose}")


def _admit_version(connection: Connection, spec: WorkerVersionSpec) -> None:
    """WD-06: what it calls through service Bindings answers HTTP, now and by each allocation that is on its way.

    A Worker without any is bound all the same; its Deployment is checked against this Version when it comes.
    """
    for worker_uid in sorted(spec.services):
        _refuse_unfit(connection, worker_uid, Requirement(http=True))


def _refuse_unfit(connection: Connection, worker_uid: str, requirement: Requirement) -> None:
    deployment = allocation.active_deployment(connection, worker_uid)
    allocations = [] if deployment is None else [allocation.active_versions(deployment)]
    allocations += allocation.coming_allocations(connection, worker_uid)
    fits = [allocation.fit(connection, versions, requirement) for versions in allocations]
    for found in fits:
        if found.conflict is not None:
            raise conflict(found.conflict)
    for found in fits:
        if found.unverified is not None:
            raise SaiseiError(
                "resource_busy",
                f"the WorkerVersion {found.unverified} of a WorkerDeployment is still being verified; try again later",
            )
