"""`POST {origin}/test/v1/clock:advance {"seconds": n}`, where the Host was started with a virtual clock (design 6)."""

from __future__ import annotations

from decimal import Decimal

from starlette.responses import Response

from saisei.control.v1 import admin_pb2 as control_pb
from saisei.runtime.v1 import admin_pb2 as runtime_pb
from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import read_json, read_query
from saisei_gateway.host_api.respond import json_response
from saisei_service.clock import ADVANCE_SECONDS_MAX

MAX_BODY_BYTES = 1024


async def advance(call: Call) -> Response:
    """200 `{nowMs, started}` once everything that became due has been started, not finished.

    The runtime says which instant it is then, and control goes to the same. Only after a restart of the runtime can
    control be ahead, for it keeps the virtual time; then the runtime catches up.
    """
    read_query(call.request)
    body = strict_json.parse(await read_json(call.request, MAX_BODY_BYTES))
    seconds = body.get("seconds") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 < seconds <= ADVANCE_SECONDS_MAX:
        most = f"{ADVANCE_SECONDS_MAX:,} (100 years)"
        raise SaiseiError("invalid_request", f'Send {{"seconds": n}} with a number over 0 and at most {most}.')
    moved = await _advance_runtime(call, float(seconds))
    now_ms, started = moved.now_ms, moved.started
    kept_ms = await _advance_control(call, now_ms)
    if kept_ms > now_ms:
        started += (await _advance_runtime(call, (kept_ms - now_ms) / 1000)).started
    return json_response({"nowMs": kept_ms, "started": started})


async def _advance_runtime(call: Call, seconds: float) -> runtime_pb.AdvanceClockResponse:
    return await answer_of(
        call.backends.admin.AdvanceClock(
            runtime_pb.AdvanceClockRequest(seconds=seconds),
            metadata=call.gateway.service_metadata,
            timeout=CALL_SECONDS,
        )
    )


async def _advance_control(call: Call, to_ms: int) -> int:
    answer = await answer_of(
        call.backends.control_admin.AdvanceClock(
            control_pb.AdvanceClockRequest(to_ms=to_ms),
            metadata=call.gateway.service_metadata,
            timeout=CALL_SECONDS,
        )
    )
    return answer.now_ms
