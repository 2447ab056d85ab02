"""WorkerVersion: inspect the code, compare what it exports, publish it (MW-10, MW-14, WV-04, WV-10, WV-13)."""

from __future__ import annotations

import json

from sqlalchemy import Connection

from saisei.control.v1 import assignments_pb2
from saisei.runtime.v1 import admin_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.worker_version import FORM, WorkerVersionSpec
from saisei_control.assignments.log import is_assigned
from saisei_control.operations.effects import bundles, module_worker
from saisei_control.operations.effects.bundles import Bundles, Facts
from saisei_control.operations.outcome import Again, Done, Failed, Outcome
from saisei_control.operations.work import Work
from saisei_control.resources import allocation
from saisei_control.resources.allocation import Requirement
from saisei_control.secrets.vault import SecretsLost
from saisei_control.store.rows import dump, exact_spec, update_resource

_BINDING_KINDS = {
    "kvBindings": assignments_pb2.BINDING_KIND_KV,
    "sqliteBindings": assignments_pb2.BINDING_KIND_SQLITE,
    "bucketBindings": assignments_pb2.BINDING_KIND_BUCKET,
    "queueProducerBindings": assignments_pb2.BINDING_KIND_QUEUE,
    "serviceBindings": assignments_pb2.BINDING_KIND_SERVICE,
    "actorBindings": assignments_pb2.BINDING_KIND_ACTOR,
    "workflowBindings": assignments_pb2.BINDING_KIND_WORKFLOW,
}


class WorkerVersionEffect:
    async def apply(self, work: Work) -> Outcome:
        spec = FORM.validate(exact_spec(work.resource))
        if not await work.host.store.read(lambda connection: _has_secrets(connection, work, spec)):
            return Failed(
                "secrets_unavailable",
                "The secrets of this WorkerVersion are lost on this Host; create a new one with its secrets.",
                also=lambda connection: _drop_readiness(connection, work, spec),
            )
        files = await bundles.verified(work, spec)
        if not isinstance(files, Bundles):
            return files
        classes: list[str] = []
        if files.code is not None:
            try:
                found = await work.host.fleet.inspect(_inspection(work.resource.uid, spec, files.code), work.attempt)
            except SaiseiError as error:
                return Again("backend_unavailable", error.detail or error.kind.title, dispatched=False)
            problem = _problem(found) or _difference(spec, found)
            if problem is not None:
                return problem
            classes = sorted(found.workflow_classes)
        unfit = await work.host.store.write(lambda connection: _publish(connection, work, spec, files))
        if unfit is not None:
            return unfit
        observed = {"ready": True, "resolvedBindings": True}
        return Done(
            observed=observed if files.code is None else observed | {"bundleVerified": True},
            facts={
                "ready": True,
                "handlers": sorted(spec.handlers),
                "workflowClasses": classes,
                "assets": files.assets is not None,
            },
        )

    async def remove(self, work: Work) -> Outcome:
        host = work.host
        spec = FORM.validate(exact_spec(work.resource))
        if await work.host.store.read(lambda connection: is_assigned(connection, work.resource.uid)):
            waiting = await _in_use(work, spec)
            if waiting is not None:
                return waiting
        revision = await work.unpublish()
        if revision is not None:
            waiting = await work.until_effective(revision)
            if waiting is not None:
                return waiting
            try:
                await host.fleet.drain(spec.worker_uid, work.resource.uid)
            except SaiseiError as error:
                # WV-13: not deleted while a context on it may still run.
                return Again("backend_unavailable", error.detail or error.kind.title, dispatched=True)
        return Done(also=lambda connection: host.vault.forget(connection, work.resource.uid))


async def _in_use(work: Work, spec: WorkerVersionSpec) -> Outcome | None:
    """WV-13: acceptance refuses what is known to be in use; what began or was not known then is waited for."""
    try:
        count = await work.host.fleet.in_use(spec.worker_uid, work.resource.uid)
    except SaiseiError as error:
        return Again("backend_unavailable", error.detail or error.kind.title, dispatched=False)
    if count == 0:
        return None
    return Again("dependency_pending", "contexts of the WorkerVersion are still running", dispatched=False)


def _publish(connection: Connection, work: Work, spec: WorkerVersionSpec, files: Bundles) -> Failed | None:
    """Checks what its service Bindings aim at and publishes in one transaction (WD-06)."""
    for worker_uid in sorted(spec.services):
        deployment = allocation.active_deployment(connection, worker_uid)
        versions = [] if deployment is None else allocation.active_versions(deployment)
        found = allocation.fit(connection, versions, Requirement(http=True))
        if found.conflict is not None:
            return Failed("dependency_conflict", f"A service Binding does not fit: {found.conflict}.")
    work.publish_in(connection, assignments_pb2.Assignment(version=_assignment(spec, files)))
    return None


def _has_secrets(connection: Connection, work: Work, spec: WorkerVersionSpec) -> bool:
    try:
        return work.host.vault.load(connection, work.resource.uid).keys() == spec.required_sensitive_vars
    except SecretsLost:
        return False


def _drop_readiness(connection: Connection, work: Work, spec: WorkerVersionSpec) -> None:
    """WV-08: not selectable any more; what is uncertain is not shown at all (F-11).

    WD-11: what had selected it, and its Worker, show that they are not ready.
    """
    uid, now = work.resource.uid, work.host.clock.now_ms()
    update_resource(connection, uid, {"facts_json": "{}", "observed_json": "{}"})
    for deployment in allocation.attached(connection, spec.worker_uid, urls.WORKER_DEPLOYMENT):
        if uid in allocation.active_versions(deployment):
            observed = json.loads(deployment.record.observed_json) | {"ready": False}
            update_resource(connection, deployment.uid, {"observed_json": dump(observed), "observed_at": now})
    module_worker.refresh(connection, spec.worker_uid, now)


def _inspection(version_uid: str, spec: WorkerVersionSpec, facts: Facts) -> admin_pb2.InspectVersionRequest:
    return admin_pb2.InspectVersionRequest(
        version_uid=version_uid,
        worker_uid=spec.worker_uid,
        entrypoint=facts["entrypoint"],
        files=[
            admin_pb2.CodeFile(path=file["path"], media_type=file["mediaType"], sha256=file["sha256"])
            for file in facts["files"]
        ],
        handlers=sorted(spec.handlers),
    )


def _problem(found: admin_pb2.InspectVersionResponse) -> Failed | None:
    """MW-13, MW-14: the first problem's own code, with the place."""
    if found.loads and not found.problems:
        return None
    if not found.problems:
        return Failed("evaluation_threw", "The code does not load.")
    first = found.problems[0]
    place = f"module {first.module}" if first.module else ""
    if first.module and first.line:
        place += f" line {first.line}"
    more = len(found.problems) - 1
    suffix = f" (and {more} more {'problem' if more == 1 else 'problems'})" if more else ""
    return Failed(first.code, f"{place}: {first.message}{suffix}" if place else first.message + suffix)


def _difference(spec: WorkerVersionSpec, found: admin_pb2.InspectVersionResponse) -> Failed | None:
    """MW-10: the declared set equals the exported one."""
    exported = set(found.handlers)
    missing = sorted(spec.handlers - exported)
    if missing:
        return Failed(
            "handlers_mismatch",
            f"The default export has no own method {', '.join(missing)}, which the handlers of the Version declare.",
        )
    undeclared = sorted(exported - spec.handlers)
    if undeclared:
        return Failed(
            "handlers_mismatch",
            f"The default export has the method {', '.join(undeclared)}, which the Version's handlers do not declare.",
        )
    return None


def _assignment(spec: WorkerVersionSpec, files: Bundles) -> assignments_pb2.VersionAssignment:
    return assignments_pb2.VersionAssignment(
        worker_uid=spec.worker_uid,
        entrypoint="" if files.code is None else files.code["entrypoint"],
        files=bundles.hosted_files(files.code),
        handlers=sorted(spec.handlers),
        vars_json=spec.vars_json.decode(),
        secret_names=sorted(spec.required_sensitive_vars),
        bindings=[
            assignments_pb2.BindingAssignment(
                name=item.name, kind=_BINDING_KINDS[item.kind], resource_uid=item.resource_uid
            )
            for item in spec.bindings
        ],
        assets=bundles.hosted_assets(spec, files.assets),
    )
