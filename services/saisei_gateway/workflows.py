"""`{origin}/apis/saisei/v1/workflows/{uid}/instances`: instances of a DurableWorkflow over HTTP (design 5, 6).

Documents go into answers as the canonical bytes that they are stored in; nothing here parses them.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from saisei.common.v1.common_pb2 import Document
from saisei.runtime.v1 import workflows_pb2 as pb
from saisei_contract import strict_json
from saisei_contract.errors import ERROR_KINDS, SaiseiError
from saisei_contract.grammar import format_ms, is_instance_id, parse_page_limit
from saisei_contract.instances import CreateInstanceInput, parse_batch_create, parse_create_instance, parse_send_event
from saisei_contract.json_reader import JsonObject, JsonValue
from saisei_contract.shapes import closed
from saisei_contract.wire import bad_request
from saisei_gateway.backends import CALL_SECONDS, TERMINATE_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import header_values, read_body, read_json, read_query, require_json
from saisei_gateway.host_api.respond import json_bytes
from saisei_gateway.offload import offload

# One 1 MiB document may take several times its canonical size in escapes and spaces; a batch shares the same limit.
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_PAGE = 500
DEFAULT_PAGE = 100

_STATUSES = {
    "queued": pb.INSTANCE_STATUS_QUEUED,
    "running": pb.INSTANCE_STATUS_RUNNING,
    "sleeping": pb.INSTANCE_STATUS_SLEEPING,
    "waiting": pb.INSTANCE_STATUS_WAITING,
    "complete": pb.INSTANCE_STATUS_COMPLETE,
    "errored": pb.INSTANCE_STATUS_ERRORED,
    "terminated": pb.INSTANCE_STATUS_TERMINATED,
}
_STATUS_NAMES: dict[int, str] = {number: name for name, number in _STATUSES.items()}


async def list_instances(call: Call) -> Response:
    query = read_query(call.request, ("status", "limit", "cursor"))
    status = query.get("status")
    if status is not None and status not in _STATUSES:
        raise SaiseiError("invalid_request", f"The query parameter status must be one of {', '.join(_STATUSES)}.")
    request = pb.ListInstancesRequest(
        workflow_uid=call.identifier("uid"),
        status=_STATUSES[status] if status is not None else pb.INSTANCE_STATUS_UNSPECIFIED,
        limit=parse_page_limit([query["limit"]], MAX_PAGE) if "limit" in query else DEFAULT_PAGE,
        cursor=query.get("cursor"),
    )
    page = await answer_of(call.backends.workflows.ListInstances(request, metadata=call.metadata, timeout=CALL_SECONDS))
    items = b",".join(instance_json(item, with_times=True) for item in page.items)
    return json_bytes(_page_json(items, page))


async def create_instance(call: Call) -> Response:
    read_query(call.request)
    raw = await read_json(call.request, MAX_BODY_BYTES)
    body = await offload(len(raw), parse_create_instance, raw)
    request = _create_request(body, call.identifier("uid"))
    created = await answer_of(
        call.backends.workflows.CreateInstance(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_bytes(_created_json(created), 201)


async def create_batch(call: Call) -> Response:
    """`{instances: [{id?, params?}, …]}` → 200 `{items: [{id, status} | {code, title}, …]}`, in input order."""
    read_query(call.request)
    raw = await read_json(call.request, MAX_BODY_BYTES)
    items = await offload(len(raw), parse_batch_create, raw)
    uid = call.identifier("uid")
    request = pb.BatchCreateInstancesRequest(workflow_uid=uid, items=[_create_request(item, uid) for item in items])
    answer = await answer_of(
        call.backends.workflows.BatchCreateInstances(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_bytes(b'{"items":[' + b",".join(map(_outcome_json, answer.outcomes)) + b"]}")


async def get_instance(call: Call) -> Response:
    read_query(call.request)
    request = pb.GetInstanceRequest(workflow_uid=call.identifier("uid"), id=instance_id(call))
    instance = await answer_of(
        call.backends.workflows.GetInstance(request, metadata=call.metadata, timeout=CALL_SECONDS)
    )
    return json_bytes(instance_json(instance))


async def send_event(call: Call) -> Response:
    """`{type, payload?}` → 200 `{}` once the event is durably accepted (W-060)."""
    read_query(call.request)
    raw = await read_json(call.request, MAX_BODY_BYTES)
    body = await offload(len(raw), parse_send_event, raw)
    request = pb.SendEventRequest(
        workflow_uid=call.identifier("uid"), id=instance_id(call), type=body.type, payload=_document(body.payload)
    )
    await answer_of(call.backends.workflows.SendEvent(request, metadata=call.metadata, timeout=CALL_SECONDS))
    return json_bytes(b"{}")


async def terminate(call: Call) -> Response:
    """No body, or `{}` → 200 `{id, status}` once the instance has ended, whichever way it did (W-070, W-072)."""
    read_query(call.request)
    if header_values(call.request, "content-type"):
        require_json(call.request)
    raw = await read_body(call.request, MAX_BODY_BYTES)
    if raw:
        closed(strict_json.parse(raw), "", (), (), bad_request)
    request = pb.TerminateRequest(workflow_uid=call.identifier("uid"), id=instance_id(call))
    ended = await answer_of(
        call.backends.workflows.Terminate(request, metadata=call.metadata, timeout=TERMINATE_SECONDS)
    )
    return json_bytes(_state_json(request.id, ended.status))


async def list_steps(call: Call) -> Response:
    """`{items, nextCursor, queuedEvents?}`: on the last page also the events that no wait has taken, if any."""
    query = read_query(call.request, ("cursor",))
    request = pb.ListStepsRequest(workflow_uid=call.identifier("uid"), id=instance_id(call), cursor=query.get("cursor"))
    page = await answer_of(call.backends.workflows.ListSteps(request, metadata=call.metadata, timeout=CALL_SECONDS))
    body = _page_json(b",".join(map(step_json, page.steps)), page)
    if page.queued_events:
        queued: list[JsonValue] = [
            {"type": event.type, "acceptedAt": format_ms(event.accepted_at_ms)} for event in page.queued_events
        ]
        body = body[:-1] + b',"queuedEvents":' + strict_json.dumps(queued).encode() + b"}"
    return json_bytes(body)


def _page_json(items: bytes, page: pb.ListInstancesResponse | pb.ListStepsResponse) -> bytes:
    cursor = _text(page.next_cursor) if page.HasField("next_cursor") else b"null"
    return b'{"items":[' + items + b'],"nextCursor":' + cursor + b"}"


def instance_id(call: Call) -> str:
    """The instance id of the path; SaiseiError invalid_request unless it has 1 to 256 scalars (W-020, W-027)."""
    value = call.text("id")
    if not is_instance_id(value):
        raise SaiseiError("invalid_request", "An instance id has 1 to 256 Unicode characters.")
    return value


def instance_json(instance: pb.Instance, *, with_times: bool = False) -> bytes:
    """`{id, status, output?, error?}`; lists add createdAt and, once ended, endedAt."""
    body = _state_json(instance.id, instance.status)[:-1]
    if with_times:
        body += b',"createdAt":' + _text(format_ms(instance.created_at_ms))
        if instance.ended_at_ms:
            body += b',"endedAt":' + _text(format_ms(instance.ended_at_ms))
    if instance.HasField("output"):
        body += b',"output":' + instance.output.canonical_json
    if instance.HasField("error"):
        body += b',"error":{"reason":' + _text(instance.error.reason)
        if instance.error.HasField("message"):
            body += b',"message":' + _text(instance.error.message)
        body += b"}"
    return body + b"}"


def step_json(step: pb.Step) -> bytes:
    """`{name, kind, state, failedAttempts, createdAt, dueAt?, result?, error?}`."""
    head: JsonObject = {
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "failedAttempts": step.failed_attempts,
        "createdAt": format_ms(step.created_at_ms),
    }
    if step.due_at_ms:
        head["dueAt"] = format_ms(step.due_at_ms)
    if step.HasField("error"):
        head["error"] = step.error
    body = strict_json.dumps(head).encode()
    if step.HasField("result"):
        body = body[:-1] + b',"result":' + step.result.canonical_json + b"}"
    return body


def _create_request(body: CreateInstanceInput, workflow_uid: str) -> pb.CreateInstanceRequest:
    return pb.CreateInstanceRequest(workflow_uid=workflow_uid, id=body.id, params=_document(body.params))


def _document(canonical: bytes | None) -> Document | None:
    return None if canonical is None else Document(canonical_json=canonical)


def _outcome_json(outcome: pb.BatchCreateOutcome) -> bytes:
    if outcome.WhichOneof("outcome") == "created":
        return _created_json(outcome.created)
    refused = SaiseiError(outcome.refused if outcome.refused in ERROR_KINDS else "internal_error")
    return strict_json.dumps({"code": refused.reason, "title": refused.kind.title}).encode()


def _created_json(created: pb.CreateInstanceResponse) -> bytes:
    return _state_json(created.id, created.status)


def _state_json(name: str, status: int) -> bytes:
    return b'{"id":' + _text(name) + b',"status":' + _text(_STATUS_NAMES[status]) + b"}"


def _text(value: str) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
