"""`saisei.control.v1.ControlAdminService`: what operators do. Takes the service credential."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import Connection

from saisei.control.v1 import admin_pb2 as pb
from saisei.control.v1 import admin_pb2_grpc as rpc
from saisei.control.v1 import resources_pb2
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import format_ms
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control import virtual_time
from saisei_control.access import audit
from saisei_control.access.audit import OPERATOR, Deed
from saisei_control.access.rights import Caller
from saisei_control.api.callers import Callers, Context
from saisei_control.api.convert import operation_message
from saisei_control.operations import retention
from saisei_control.operations.resolve import Resolution, Resolver
from saisei_control.secrets.vault import Vault
from saisei_control.store.store import Store
from saisei_service.clock import VirtualClock
from saisei_service.credentials import is_service, require_service

log = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 1000
_AUDIT_LIMIT = 100
_MAX_AUDIT_LIMIT = 1000
_RESOLUTIONS = {
    pb.RESOLUTION_SUCCEEDED: Resolution.SUCCEEDED,
    pb.RESOLUTION_FAILED_NONE: Resolution.FAILED_NONE,
    pb.RESOLUTION_FAILED_PARTIAL: Resolution.FAILED_PARTIAL,
}


class ControlAdminServicer(rpc.ControlAdminServiceServicer):
    def __init__(
        self,
        callers: Callers,
        store: Store,
        clock: Clock,
        vault: Vault,
        resolver: Resolver,
        credential: str,
        audit_days: int,
    ) -> None:
        self._callers = callers
        self._vault = vault
        self._resolver = resolver
        self._store = store
        self._clock = clock
        self._credential = credential
        self._audit_days = audit_days

    async def AdvanceClock(self, request: pb.AdvanceClockRequest, context: Context) -> pb.AdvanceClockResponse:
        require_service(context, self._credential)
        if not isinstance(self._clock, VirtualClock):
            raise SaiseiError("capability_unavailable", "this Host does not run on a virtual clock")
        if not 0 <= request.to_ms <= MAX_INTEGER:
            raise SaiseiError("invalid_request", "to_ms must be epoch milliseconds")
        await self._store.write(lambda connection: virtual_time.keep(connection, request.to_ms))
        now = self._clock.advance_to(request.to_ms)
        await retention.sweep_all(self._store, now, self._audit_days)
        return pb.AdvanceClockResponse(now_ms=now)

    async def ResolveOperation(self, request: pb.ResolveOperationRequest, context: Context) -> resources_pb2.Operation:
        """H-118."""
        caller = await self._caller(context)
        resolution = _RESOLUTIONS.get(request.outcome)
        if resolution is None:
            raise SaiseiError("invalid_request", "outcome must be succeeded, failed-none or failed-partial")
        reason = request.reason.strip()
        if not 1 <= len(reason) <= _MAX_REASON_CHARACTERS or not reason.isprintable():
            raise SaiseiError("invalid_request", f"reason must have 1 to {_MAX_REASON_CHARACTERS} printable characters")
        return operation_message(await self._resolver.resolve(request.id, resolution, reason, caller))

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context) -> pb.ListAuditResponse:
        caller = await self._caller(context)
        space = request.space if request.HasField("space") else None
        if caller is not None:
            if space is None:
                raise SaiseiError("invalid_request", "name the Space whose audit log to read")
            caller.require_admin(space)
        limit = request.limit if request.HasField("limit") else _AUDIT_LIMIT
        if not 1 <= limit <= _MAX_AUDIT_LIMIT:
            raise SaiseiError("invalid_request", f"limit must be from 1 to {_MAX_AUDIT_LIMIT}")
        found = await self._store.read(
            lambda connection: audit.entries(
                connection,
                space=space,
                principal=request.principal if request.HasField("principal") else None,
                operation_id=request.operation_id if request.HasField("operation_id") else None,
                before_id=request.before_id if request.HasField("before_id") else None,
                limit=limit,
            )
        )
        return pb.ListAuditResponse(entries=[_entry_message(entry) for entry in found])

    async def RotateSealingKey(
        self, request: pb.RotateSealingKeyRequest, context: Context
    ) -> pb.RotateSealingKeyResponse:
        """A crash at any point leaves each value with a key that opens it: keys are added first and dropped last."""
        require_service(context, self._credential)
        now = self._clock.now_ms()

        def work(connection: Connection) -> tuple[int, set[str]]:
            resealed = self._vault.reseal(connection)
            audit.record(connection, Deed(OPERATOR, "secrets.rotate_key", detail=f"{resealed} values"), now)
            return resealed, self._vault.needed_keys(connection)

        try:
            await asyncio.to_thread(self._vault.add_key)
            resealed, needed = await self._store.write(work)
            done = await asyncio.to_thread(self._vault.drop_keys, needed, resealed)
        except OSError:
            log.exception("the ring of sealing keys does not answer")
            raise SaiseiError("backend_unavailable", "the ring of sealing keys does not answer; try again") from None
        return pb.RotateSealingKeyResponse(key_id=done.key_id, resealed=done.resealed, keys=done.keys)

    async def _caller(self, context: Context) -> Caller | None:
        """None for the operator, who has the service credential."""
        return None if is_service(context, self._credential) else await self._callers.of(context)


def _entry_message(entry: audit.Entry) -> pb.AuditEntry:
    deed = entry.deed
    return pb.AuditEntry(
        id=entry.id,
        at=format_ms(entry.at_ms),
        principal=deed.principal,
        action=deed.action,
        space=deed.space or "",
        resource_uid=deed.resource_uid or "",
        operation_id=deed.operation_id or "",
        detail=deed.detail or "",
    )
