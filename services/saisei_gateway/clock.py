"""`POST {origin}/test/v1/clock:advance {"seconds": n}`, where the Host was started with a virtual clock (design 6)."""

from __future__ import annotations

from decimal import Decimal

from starlette.responses import Response

from saisei.runtime.v1 import admin_pb2
from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import read_json, read_query
from saisei_gateway.host_api.respond import json_response

MAX_BODY_BYTES = 1024


async def advance(call: Call) -> Response:
    """200 `{nowMs, started}` once everything that became due has been started, not finished."""
    read_query(call.request)
    body = strict_json.parse(await read_json(call.request, MAX_BODY_BYTES))
    seconds = body.get("seconds") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not seconds > 0:
        raise SaiseiError("invalid_request", 'Send {"seconds": n} with a number over 0.')
    answer = await answer_of(
        call.backends.admin.AdvanceClock(
            admin_pb2.AdvanceClockRequest(seconds=float(seconds)),
            metadata=call.gateway.service_metadata,
            timeout=CALL_SECONDS,
        )
    )
    return json_response({"nowMs": answer.now_ms, "started": answer.started})
