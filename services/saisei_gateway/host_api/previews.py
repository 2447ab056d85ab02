"""`POST {root}/previews`: would this be accepted? (H-160)."""

from __future__ import annotations

from typing import assert_never

from starlette.responses import Response

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract import strict_json
from saisei_contract.records import OperationFailure
from saisei_contract.wire import CreateInput, PreviewDeleteInput, PreviewUpdateInput, parse_preview, preview_json
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import read_json, read_query
from saisei_gateway.host_api.resources import offering_message, private_inputs_message
from saisei_gateway.host_api.respond import json_response
from saisei_gateway.offload import offload


async def preview(call: Call) -> Response:
    """200 with the verdict: nothing is accepted, so neither key nor generation header is looked at."""
    read_query(call.request)
    raw = await read_json(call.request, (await call.gateway.terms.current()).max_request_bytes)
    request = await offload(len(raw), _request, raw)
    answer = await answer_of(
        call.backends.resources.PreviewMutation(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_response(preview_json([OperationFailure(error.code, error.message) for error in answer.errors]))


def _request(raw: bytes) -> pb.PreviewMutationRequest:
    match parse_preview(raw):
        case CreateInput() as wanted:
            create = pb.PreviewCreate(
                form=wanted.form,
                space=wanted.space,
                name=wanted.name,
                spec_json=strict_json.dumps(wanted.spec),
                private_inputs=private_inputs_message(wanted.private_inputs),
                offering=offering_message(wanted.offering),
            )
            return pb.PreviewMutationRequest(create=create)
        case PreviewUpdateInput(uid, generation, wanted):
            update = pb.PreviewUpdate(
                uid=uid,
                expected_generation=generation,
                spec_json=strict_json.dumps(wanted.spec),
                private_inputs=private_inputs_message(wanted.private_inputs),
            )
            return pb.PreviewMutationRequest(update=update)
        case PreviewDeleteInput(uid, generation):
            return pb.PreviewMutationRequest(delete=pb.PreviewDelete(uid=uid, expected_generation=generation))
        case other:
            assert_never(other)
