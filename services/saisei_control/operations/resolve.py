"""An operator's word on an Operation whose outcome the Host cannot establish (H-118)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from sqlalchemy import Connection

from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.worker_deployment import FORM as WORKER_DEPLOYMENT
from saisei_contract.grammar import is_uid
from saisei_contract.records import Action, Effect, OperationRecord, OperationStatus
from saisei_control.access import audit
from saisei_control.access.audit import OPERATOR, Deed
from saisei_control.access.rights import Caller
from saisei_control.artifacts.custody import resource_owner
from saisei_control.assignments import log
from saisei_control.operations.effects import module_worker
from saisei_control.operations.outcome import Done, Failed
from saisei_control.operations.settle import settle
from saisei_control.operations.work import Host
from saisei_control.store.rows import (
    StoredResource,
    exact_spec,
    find_operation,
    find_resource,
    operation_values,
    update_operation,
    update_resource,
)


class Resolution(Enum):
    SUCCEEDED = "succeeded"
    FAILED_NONE = "failed-none"
    FAILED_PARTIAL = "failed-partial"


@dataclass(frozen=True, slots=True)
class Resolver:
    """`end_attempt` stops what this process still does for an Operation."""

    host: Host
    end_attempt: Callable[[str], None]

    async def resolve(
        self, operation_id: str, resolution: Resolution, reason: str, caller: Caller | None
    ) -> OperationRecord:
        """Settles a reconciling Operation and writes down who said so. `caller` None is the operator.

        SaiseiError not_found, forbidden, operation_terminal, or resource_busy while the Host may settle it itself.
        """
        settled = await self.host.store.write(
            lambda connection: self._settle(connection, operation_id, resolution, reason, caller)
        )
        self.end_attempt(operation_id)
        return settled

    def _settle(
        self, connection: Connection, operation_id: str, resolution: Resolution, reason: str, caller: Caller | None
    ) -> OperationRecord:
        stored = find_operation(connection, operation_id) if is_uid(operation_id) else None
        resource = None if stored is None else find_resource(connection, stored.record.resource_uid)
        if stored is None or resource is None:
            raise SaiseiError("not_found", "there is no such Operation")
        if caller is not None:
            _require_admin(caller, resource)
        record = stored.record
        if record.status.is_terminal:
            raise SaiseiError("operation_terminal", "the Operation has ended; nothing is left to settle")
        if record.status is not OperationStatus.RECONCILING:
            raise SaiseiError(
                "resource_busy", f"the Operation is {record.status.value}; only a reconciling one is settled by hand"
            )
        now = self.host.clock.now_ms()
        settled = settle(connection, record, resource, self._outcome(record, resource, resolution, reason), now)
        update_operation(connection, record.id, {"lease_owner": None, "lease_until": None, **operation_values(settled)})
        who = OPERATOR if caller is None else caller.principal
        detail = f"{resolution.value}: {reason}"
        deed = Deed(who, "operation.resolve", resource.record.space, resource.uid, record.id, detail)
        audit.record(connection, deed, now)
        return settled

    def _outcome(
        self, record: OperationRecord, resource: StoredResource, resolution: Resolution, reason: str
    ) -> Done | Failed:
        message = f"An operator settled it: {reason}"
        match resolution:
            case Resolution.SUCCEEDED if record.action is Action.DELETE:
                return Done(also=lambda connection: self._let_go(connection, resource))
            case Resolution.SUCCEEDED:
                return Done()
            case Resolution.FAILED_NONE if record.action is Action.CREATE:
                return Failed(
                    "settled_by_operator", message, also=lambda connection: self._take_back(connection, resource)
                )
            case Resolution.FAILED_NONE if record.action is Action.UPDATE:
                raise SaiseiError(
                    "invalid_request",
                    "the Host itself has told its runtimes to host the new generation already, so something of the "
                    "update is or will be there: settle it as failed-partial or succeeded",
                )
            case Resolution.FAILED_NONE:
                return Failed("settled_by_operator", message)
            case Resolution.FAILED_PARTIAL:
                return Failed("settled_by_operator", message, Effect.PARTIAL)
            case _:
                assert_never(resolution)

    def _take_back(self, connection: Connection, resource: StoredResource) -> None:
        """What does not exist is not to come about later: nothing is hosted until a PUT of the same UID (H-108)."""
        log.unpublish(connection, resource)
        update_resource(connection, resource.uid, {"facts_json": "{}"})
        if resource.record.form == urls.WORKER_DEPLOYMENT:
            worker_uid = WORKER_DEPLOYMENT.validate(exact_spec(resource)).worker_uid
            module_worker.refresh(connection, worker_uid, self.host.clock.now_ms())

    def _let_go(self, connection: Connection, resource: StoredResource) -> None:
        """What the Host itself still keeps for a Resource that is gone."""
        log.unpublish(connection, resource)
        self.host.vault.forget(connection, resource.uid)
        self.host.custody.release_rows(connection, resource_owner(resource.uid))


def _require_admin(caller: Caller, resource: StoredResource) -> None:
    rights = caller.in_space(resource.record.space)
    if rights.admin:
        return
    if rights.read or rights.write:
        caller.require_admin(resource.record.space)
    raise SaiseiError("not_found", "there is no such Operation")
