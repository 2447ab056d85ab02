"""`saisei.control.v1.ControlAdminService`: what operators do. Takes the service credential."""

from __future__ import annotations

from saisei.control.v1 import admin_pb2 as pb
from saisei.control.v1 import admin_pb2_grpc as rpc
from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_contract.strict_json import MAX_INTEGER
from saisei_control import virtual_time
from saisei_control.api.callers import Context
from saisei_control.operations import retention
from saisei_control.store.store import Store
from saisei_service.clock import VirtualClock
from saisei_service.credentials import require_service


class ControlAdminServicer(rpc.ControlAdminServiceServicer):
    def __init__(self, store: Store, clock: Clock, credential: str) -> None:
        self._store = store
        self._clock = clock
        self._credential = credential

    async def AdvanceClock(self, request: pb.AdvanceClockRequest, context: Context) -> pb.AdvanceClockResponse:
        require_service(context, self._credential)
        if not isinstance(self._clock, VirtualClock):
            raise SaiseiError("capability_unavailable", "this Host does not run on a virtual clock")
        if not 0 <= request.to_ms <= MAX_INTEGER:
            raise SaiseiError("invalid_request", "to_ms must be epoch milliseconds")
        await self._store.write(lambda connection: virtual_time.keep(connection, request.to_ms))
        now = self._clock.advance_to(request.to_ms)
        await retention.sweep_all(self._store, now)
        return pb.AdvanceClockResponse(now_ms=now)
