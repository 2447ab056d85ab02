"""`{root}/resources` and `{root}/resources/{uid}` (H-020 … H-023, H-030 … H-036, H-090 … H-096)."""

from __future__ import annotations

from starlette.responses import Response

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_uid, parse_page_limit, require_generation, require_idempotency_key
from saisei_contract.json_reader import JsonValue
from saisei_contract.records import Offering
from saisei_contract.wire import page_json, parse_create, parse_update, resource_json
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.operations import mutation_response
from saisei_gateway.host_api.records import resource_record
from saisei_gateway.host_api.request import header_values, read_json, read_query, refuse_body
from saisei_gateway.host_api.respond import json_bytes
from saisei_gateway.host_api.support import checked_form
from saisei_gateway.offload import offload


async def list_resources(call: Call) -> Response:
    query = read_query(call.request, ("space", "name", "form", "limit", "cursor"))
    for name in ("space", "name"):
        if name in query and not is_uid(query[name]):
            raise SaiseiError("invalid_request", f"The query parameter {name} is not a name of the Host API.")
    if "form" in query:
        checked_form(query["form"])
    max_page_size = (await call.gateway.terms.current()).max_page_size
    request = pb.ListResourcesRequest(
        space=query.get("space"),
        name=query.get("name"),
        form=query.get("form"),
        limit=parse_page_limit([query["limit"]] if "limit" in query else [], max_page_size),
        cursor=query.get("cursor"),
    )
    page = await answer_of(call.backends.resources.ListResources(request, metadata=call.metadata, timeout=CALL_SECONDS))
    return json_bytes(await offload(page.ByteSize(), _page_body, page))


async def get_resource(call: Call) -> Response:
    read_query(call.request)
    request = pb.GetResourceRequest(uid=call.identifier("uid"))
    resource = await answer_of(
        call.backends.resources.GetResource(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_bytes(await offload(resource.ByteSize(), _resource_body, resource))


async def create_resource(call: Call) -> Response:
    read_query(call.request)
    key = require_idempotency_key(header_values(call.request, "idempotency-key"))
    raw = await read_json(call.request, await _max_request_bytes(call))
    request = await offload(len(raw), _create_request, key, raw)
    answer = await answer_of(
        call.backends.resources.CreateResource(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return mutation_response(call, answer.operation)


async def update_resource(call: Call) -> Response:
    read_query(call.request)
    key = require_idempotency_key(header_values(call.request, "idempotency-key"))
    generation = require_generation(header_values(call.request, "takoform-expected-generation"))
    raw = await read_json(call.request, await _max_request_bytes(call))
    request = await offload(len(raw), _update_request, key, generation, raw)
    request.uid = call.identifier("uid")
    answer = await answer_of(
        call.backends.resources.UpdateResource(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return mutation_response(call, answer.operation)


async def delete_resource(call: Call) -> Response:
    read_query(call.request)
    key = require_idempotency_key(header_values(call.request, "idempotency-key"))
    generation = require_generation(header_values(call.request, "takoform-expected-generation"))
    await refuse_body(call.request)
    request = pb.DeleteResourceRequest(idempotency_key=key, uid=call.identifier("uid"), expected_generation=generation)
    answer = await answer_of(
        call.backends.resources.DeleteResource(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return mutation_response(call, answer.operation)


async def _max_request_bytes(call: Call) -> int:
    return (await call.gateway.terms.current()).max_request_bytes


def _create_request(key: str, raw: bytes) -> pb.CreateResourceRequest:
    body = parse_create(raw)
    return pb.CreateResourceRequest(
        idempotency_key=key,
        form=body.form,
        space=body.space,
        name=body.name,
        spec_json=strict_json.dumps(body.spec),
        private_inputs=private_inputs_message(body.private_inputs),
        offering=offering_message(body.offering),
    )


def _update_request(key: str, generation: int, raw: bytes) -> pb.UpdateResourceRequest:
    """Without the UID, which is looked at after the envelope (H-035)."""
    body = parse_update(raw)
    return pb.UpdateResourceRequest(
        idempotency_key=key,
        expected_generation=generation,
        spec_json=strict_json.dumps(body.spec),
        private_inputs=private_inputs_message(body.private_inputs),
    )


def private_inputs_message(values: dict[str, str] | None) -> pb.PrivateInputs | None:
    """Presence survives: an empty map is not the same as none (H-151)."""
    return None if values is None else pb.PrivateInputs(values=values)


def offering_message(offering: Offering | None) -> pb.Offering | None:
    return None if offering is None else pb.Offering(id=offering.id, revision=offering.revision)


def _resource_body(resource: pb.Resource) -> bytes:
    return strict_json.dumps(resource_json(resource_record(resource))).encode()


def _page_body(page: pb.ListResourcesResponse) -> bytes:
    items: list[JsonValue] = [resource_json(resource_record(item)) for item in page.items]
    return strict_json.dumps(page_json(items, page.next_cursor if page.HasField("next_cursor") else None)).encode()
