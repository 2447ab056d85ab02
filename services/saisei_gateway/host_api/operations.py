"""`GET {root}/operations/{id}`, and how an accepted mutation is answered (H-023, H-024, H-030)."""

from __future__ import annotations

from starlette.responses import Response

from saisei.control.v1 import resources_pb2
from saisei_contract.wire import operation_json
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.records import operation_record
from saisei_gateway.host_api.request import read_query
from saisei_gateway.host_api.respond import RETRY_SECONDS, json_response


async def get_operation(call: Call) -> Response:
    """H-090: a read, whatever the Operation's state."""
    read_query(call.request)
    request = resources_pb2.GetOperationRequest(id=call.identifier("id"))
    operation = await answer_of(
        call.backends.operations.GetOperation(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_response(operation_json(operation_record(operation)))


def mutation_response(call: Call, message: resources_pb2.Operation) -> Response:
    """202 while the Operation is unfinished, 200 once it is settled, succeeded or failed."""
    record = operation_record(message)
    headers = {"location": f"{call.gateway.settings.base_url}/operations/{record.id}"}
    if record.status.is_terminal:
        return json_response(operation_json(record), 200, headers)
    return json_response(operation_json(record), 202, {**headers, "retry-after": str(RETRY_SECONDS)})
