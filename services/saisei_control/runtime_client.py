"""The runtime replicas as the control service calls them: each call takes the service credential and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from saisei.runtime.v1 import admin_pb2, admin_pb2_grpc
from saisei_contract.errors import SaiseiError
from saisei_service.credentials import service_metadata
from saisei_service.rpc import open_channel
from saisei_service.rpc_errors import from_rpc_error

T = TypeVar("T")

# Both are the first attempt's, doubled with each further one: this work begins anew each time, and on a slow machine
# one deadline for all of them would let none end.
INSPECT_SECONDS = 60.0
# It ends by itself after about 10 s of replays, and a start of their process comes before.
REPLAY_SECONDS = 30.0
MAX_SECONDS = 960.0
STOP_SECONDS = 30.0
USE_SECONDS = 5.0


class RuntimeFleet:
    """Every call fails with SaiseiError, backend_unavailable when a replica cannot be reached in time."""

    def __init__(self, addresses: Sequence[str], credential: str, tls: grpc.ChannelCredentials | None = None) -> None:
        self._channels = [open_channel(address, tls) for address in addresses]
        self._stubs: list[Any] = [admin_pb2_grpc.RuntimeAdminServiceStub(channel) for channel in self._channels]
        self._metadata = service_metadata(credential)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def inspect(
        self, request: admin_pb2.InspectVersionRequest, attempt: int = 1
    ) -> admin_pb2.InspectVersionResponse:
        """Any replica can answer. `attempt` counts from 1."""
        seconds = _patience(INSPECT_SECONDS, attempt)
        return await self._first(lambda stub: stub.InspectVersion(request, timeout=seconds, metadata=self._metadata))

    async def observe(self, workflow_uid: str, seconds: float) -> admin_pb2.ObserveResponse:
        request = admin_pb2.ObserveRequest(workflow_uid=workflow_uid)
        return await self._first(lambda stub: stub.Observe(request, timeout=seconds, metadata=self._metadata))

    async def check_replay(
        self, worker_uid: str, version_uids: Sequence[str], attempt: int = 1
    ) -> admin_pb2.CheckReplayResponse:
        """Recorded histories against Versions (WD-10). Any replica can answer. `attempt` counts from 1."""
        seconds = _patience(REPLAY_SECONDS, attempt)
        request = admin_pb2.CheckReplayRequest(worker_uid=worker_uid, version_uids=version_uids)
        return await self._first(lambda stub: stub.CheckReplay(request, timeout=seconds, metadata=self._metadata))

    async def in_use(self, worker_uid: str, version_uid: str) -> int:
        """Contexts and invocations of a Version that are under way in all replicas (WV-13)."""
        request = admin_pb2.ObserveVersionRequest(worker_uid=worker_uid, version_uid=version_uid)
        found = await self._each(
            lambda stub: stub.ObserveVersion(request, timeout=USE_SECONDS, metadata=self._metadata)
        )
        return sum(one.contexts + one.invocations for one in found)

    async def drain(self, worker_uid: str, version_uid: str = "") -> None:
        """Returns once every replica has proved that no context of it runs (WD-09, WV-13)."""
        request = admin_pb2.DrainRequest(worker_uid=worker_uid, version_uid=version_uid)
        await self._each(lambda stub: stub.Drain(request, timeout=STOP_SECONDS, metadata=self._metadata))

    async def purge(self, workflow_uid: str, operation_id: str) -> None:
        """Returns once every replica has stopped the workflow's contexts and its rows are gone (DW-08)."""
        request = admin_pb2.PurgeRequest(workflow_uid=workflow_uid, operation_id=operation_id)
        await self._each(lambda stub: stub.Purge(request, timeout=STOP_SECONDS, metadata=self._metadata))

    async def _first(self, call: Callable[[Any], Awaitable[T]]) -> T:
        failure = SaiseiError("backend_unavailable", "no runtime answers; try again")
        for stub in self._stubs:
            try:
                return await call(stub)
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
        raise failure

    async def _each(self, call: Callable[[Any], Awaitable[T]]) -> list[T]:
        try:
            return await asyncio.gather(*(call(stub) for stub in self._stubs))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


def _patience(first_seconds: float, attempt: int) -> float:
    return min(first_seconds * 2.0 ** min(attempt - 1, 10), MAX_SECONDS)
