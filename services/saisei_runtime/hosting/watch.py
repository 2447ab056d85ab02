"""Follows the assignment log of the control service: history, then live, reconnecting for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from saisei.control.v1 import assignments_pb2 as pb
from saisei_runtime.hosting.state import HostedState
from saisei_service.credentials import service_metadata

if TYPE_CHECKING:
    # Exists in the stubs only: what the generated stub class is on an asyncio channel.
    from saisei.control.v1.assignments_pb2_grpc import AssignmentServiceAsyncStub

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2
# The control service sends a keep-alive every 10 s; a stream that is silent for longer is broken.
SILENCE_SECONDS = 30.0


class AssignmentWatch:
    """Applies assignments to the state as they come and acknowledges what is effective.

    `on_change(worker_uid)` is called after an assignment changed that Worker's allocation, workflows or schedules, and
    with None when the whole history was heard for the first time: what is missing then does not exist.
    """

    def __init__(
        self,
        state: HostedState,
        stub: AssignmentServiceAsyncStub,
        credential: str,
        runtime_id: str,
        on_change: Callable[[str | None], None],
    ) -> None:
        self._state = state
        self._stub = stub
        self._metadata = service_metadata(credential)
        self._runtime_id = runtime_id
        self._on_change = on_change

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self._follow()
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    log.warning("the assignment watch broke", extra={"code": error.code().name})
            except TimeoutError:
                log.warning("the assignment watch was silent for too long")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self) -> None:
        call = self._stub.WatchAssignments(
            pb.WatchAssignmentsRequest(runtime_id=self._runtime_id, after_revision=self._state.revision),
            metadata=self._metadata,
        )
        messages = call.__aiter__()
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await anext(messages)
                knew_all = self._state.complete
                changed = self._state.apply(message)
                if changed is not None:
                    self._on_change(changed)
                if self._state.complete and not knew_all:
                    self._on_change(None)
                # Effective at once: each choice of a Version reads the state anew. So the acknowledgement is true.
                await self._stub.AckAssignment(
                    pb.AckAssignmentRequest(runtime_id=self._runtime_id, revision=self._state.revision),
                    metadata=self._metadata,
                    timeout=10,
                )
        except StopAsyncIteration:
            return
        finally:
            call.cancel()
