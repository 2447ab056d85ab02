"""A virtual clock is kept by the control service: a runtime that starts again goes on from the instant that it has."""

from __future__ import annotations

import logging

import grpc

from saisei.control.v1 import admin_pb2, admin_pb2_grpc
from saisei_service.clock import VirtualClock
from saisei_service.credentials import service_metadata

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 20.0


async def join(clock: VirtualClock, control: grpc.aio.Channel, credential: str) -> None:
    """Without an answer the next advance brings both together."""
    # The epoch is past: this asks and moves nothing.
    question = admin_pb2.AdvanceClockRequest(to_ms=0)
    try:
        answer = await admin_pb2_grpc.ControlAdminServiceStub(control).AdvanceClock(
            question, metadata=service_metadata(credential), timeout=PATIENCE_SECONDS, wait_for_ready=True
        )
    except grpc.aio.AioRpcError as error:
        _log.warning("the kept virtual time is not known yet: %s", error.code().name)
    else:
        clock.advance_to(answer.now_ms)
