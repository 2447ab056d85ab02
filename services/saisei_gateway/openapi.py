"""The OpenAPI 3.1 document at `{origin}/openapi.json`: the Host API and what this Host adds to it (design 5)."""

from __future__ import annotations

from typing import Any, TypeAlias

from saisei_contract.errors import ERROR_KINDS
from saisei_contract.events import EVENT_TYPES
from saisei_contract.json_reader import JsonObject
from saisei_gateway.settings import HOST_API_ROOT
from saisei_service.clock import ADVANCE_SECONDS_MAX

Schema: TypeAlias = dict[str, Any]

INSTANCES = "/apis/saisei/v1/workflows/{uid}/instances"
NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


def document(origin: str, *, virtual_clock: bool) -> JsonObject:
    """The whole document. `virtual_clock`: with the route that exists only then."""
    paths: Schema = {**_host_paths(), **_extension_paths()}
    if virtual_clock:
        paths["/test/v1/clock:advance"] = {
            "post": _operation(
                "Advance the virtual clock",
                body=_object(
                    {"seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": ADVANCE_SECONDS_MAX}}, ["seconds"]
                ),
                answers={"200": _json("Everything that became due has been started", _object({"nowMs": _INTEGER}))},
            )
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Saisei",
            "version": "0.1.0",
            "description": "Takoform Host API v2, and workflow instances. A refusal is a Problem with a stable code.",
        },
        "servers": [{"url": origin}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made with `saisei token create`; grants rights in named Spaces.",
                }
            },
            "schemas": _schemas(),
        },
    }


_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991}
_TIME: Schema = {"type": "string", "format": "date-time"}
_IDENTIFIER: Schema = {"type": "string", "pattern": NAME}
_FORM: Schema = {"type": "string", "format": "uri", "description": "Exact Form URL, trailing slash included"}
_DOCUMENT: Schema = {"type": "object", "maxProperties": 1024, "description": "At most 1,048,576 canonical bytes"}
_INSTANCE_ID: Schema = {"type": "string", "minLength": 1, "maxLength": 256}

_PRIVATE_INPUTS: Schema = {"type": "object", "additionalProperties": _STRING}
_CHOICE: Schema = {
    "type": "object",
    "properties": {"id": _IDENTIFIER, "revision": _STRING},
    "required": ["id", "revision"],
}

_KEY = {"name": "Idempotency-Key", "in": "header", "required": True}
_KEY_PARAMETER: Schema = {**_KEY, "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{15,127}$"}}
_GENERATION_PARAMETER: Schema = {
    "name": "Takoform-Expected-Generation",
    "in": "header",
    "required": True,
    "schema": _INTEGER,
}


def _host_paths() -> Schema:
    resource = {"200": _json("The Resource", _ref("Resource"))}
    operation = {"200": _json("The Operation", _ref("Operation"))}
    accepted = {**operation, "202": _json("The unfinished Operation; ask again after Retry-After", _ref("Operation"))}
    by_uid = [_path("uid", _IDENTIFIER)]
    changing = [*by_uid, _KEY_PARAMETER, _GENERATION_PARAMETER]
    return {
        "/.well-known/takoform/v2": {
            "get": {
                **_operation("Discovery", answers={"200": _json("Connection data", _ref("Discovery"))}),
                "security": [],
            }
        },
        HOST_API_ROOT + "/support": {
            "get": _operation(
                "Support of a Form",
                parameters=[{**_query("form", _FORM), "required": True}],
                answers={"200": _json("Also for a Form that is not supported", _ref("Support"))},
            )
        },
        HOST_API_ROOT + "/resources": {
            "get": _operation(
                "List Resources",
                parameters=[
                    _query("space", _IDENTIFIER),
                    _query("name", _IDENTIFIER),
                    _query("form", _FORM),
                    _query("limit", {"type": "integer", "minimum": 1}),
                    _query("cursor", _STRING),
                ],
                answers={"200": _json("One page, ascending by UID", _page(_ref("Resource")))},
            ),
            "post": _operation("Create a Resource", [_KEY_PARAMETER], _ref("CreateResource"), accepted),
        },
        HOST_API_ROOT + "/resources/{uid}": {
            "get": _operation("Read a Resource", by_uid, answers=resource),
            "put": _operation("Replace the spec", changing, _ref("UpdateResource"), accepted),
            "delete": _operation("Delete a Resource", changing, answers=accepted),
        },
        HOST_API_ROOT + "/operations/{id}": {
            "get": _operation("Read an Operation", [_path("id", _IDENTIFIER)], answers=operation)
        },
        HOST_API_ROOT + "/operations/{id}/private-inputs": {
            "put": _operation(
                "Give the original private inputs again",
                [_path("id", _IDENTIFIER)],
                _object({"privateInputs": _PRIVATE_INPUTS}, ["privateInputs"]),
                operation,
            )
        },
        HOST_API_ROOT + "/previews": {
            "post": _operation(
                "Would this be accepted?",
                body=_ref("PreviewRequest"),
                answers={"200": _json("The verdict; no promise", _ref("Preview"))},
            )
        },
        HOST_API_ROOT + "/offerings": {
            "get": _operation(
                "List Offerings, where the Host has some",
                parameters=[
                    {**_query("form", _FORM), "required": True},
                    {**_query("space", _IDENTIFIER), "required": True},
                    _query("limit", {"type": "integer", "minimum": 1}),
                    _query("cursor", _STRING),
                ],
                answers={"200": _json("One page, ascending by id", _page(_ref("Offering")))},
            )
        },
    }


def _extension_paths() -> Schema:
    uid = _path("uid", _IDENTIFIER)
    one = [uid, _path("id", {**_INSTANCE_ID, "description": "Percent-encoded, slashes and colons too"})]
    digest = _path("digest", {"type": "string", "pattern": "^[0-9a-f]{64}$"})
    held = _object({"sha256": _STRING, "size": _INTEGER}, ["sha256", "size"])
    upload = _operation(
        "Upload bytes into the caller's custody",
        [digest],
        answers={"201": _json("Stored", held), "200": _json("Held already", held)},
    )
    upload["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    created = _json("Durably queued", _object({"id": _INSTANCE_ID, "status": _ref("InstanceStatus")}, ["id", "status"]))
    batch = _object(
        {"instances": {"type": "array", "minItems": 1, "maxItems": 100, "items": _ref("NewInstance")}}, ["instances"]
    )
    outcomes = _object({"items": {"type": "array", "items": _ref("BatchOutcome")}}, ["items"])
    status = {**_query("status", _ref("InstanceStatus"))}
    limit = _query("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 100})
    page = {"200": _json("One page, ascending by creation", _page(_ref("Instance")))}
    event = _object({"type": {"type": "string", "minLength": 1, "maxLength": 256}, "payload": _DOCUMENT}, ["type"])
    events: Schema = {
        "description": "History after the cursor, then live. The last record is `end`; without it the stream was cut.",
        "content": {
            "text/event-stream": {"schema": _STRING},
            "application/x-ndjson": {"schema": _ref("InstanceEvent")},
        },
    }
    event_query: list[Schema] = [
        _query("cursor", {**_INTEGER, "description": "Last event id seen; Last-Event-ID wins"}),
        _query("filter", {"type": "string", "description": "Comma-separated event types; empty matches nothing"}),
    ]
    ended = _json("The instance has ended", _object({"id": _INSTANCE_ID, "status": _ref("InstanceStatus")}))
    queued = {"type": "array", "items": _object({"type": _STRING, "acceptedAt": _TIME}, ["type", "acceptedAt"])}
    steps_page = _page(_ref("Step"))
    steps_page["properties"]["queuedEvents"] = {**queued, "description": "On the last page: what no wait has taken"}
    steps = _json("In order of first registration", steps_page)
    return {
        "/artifacts/v1/sha256/{digest}": {"put": upload},
        INSTANCES: {
            "get": _operation("List instances", [uid, status, limit, _query("cursor", _STRING)], answers=page),
            "post": _operation("Create an instance", [uid], _ref("NewInstance"), {"201": created}),
        },
        INSTANCES + ":batchCreate": {
            "post": _operation("Create up to 100 instances", [uid], batch, {"200": _json("In input order", outcomes)})
        },
        INSTANCES + "/{id}": {
            "get": _operation("Status", one, answers={"200": _json("The instance", _ref("Instance"))})
        },
        INSTANCES + "/{id}/events": {
            "get": _operation("Subscribe", [*one, *event_query], answers={"200": events}),
            "post": _operation("Send an event", one, event, {"200": _json("Durably accepted", _object({}))}),
        },
        INSTANCES + "/{id}:terminate": {"post": _operation("Terminate", one, answers={"200": ended})},
        INSTANCES + "/{id}/steps": {
            "get": _operation("Step journal", [*one, _query("cursor", _STRING)], answers={"200": steps})
        },
    }


def _schemas() -> Schema:
    return {
        "Problem": _object(
            {
                "type": {"const": "about:blank"},
                "title": _STRING,
                "status": _INTEGER,
                "code": {"enum": sorted(ERROR_KINDS)},
                "detail": _STRING,
                "operationId": _STRING,
            },
            ["type", "title", "status", "code"],
        ),
        "Discovery": _object(
            {
                "api": {"const": "forms.takoform.com/v2"},
                "baseUrl": _STRING,
                "documentation": _STRING,
                "authentication": {"type": "object"},
                "capabilities": {"type": "object"},
                "limits": {"type": "object"},
            },
            ["api", "baseUrl", "documentation", "authentication", "capabilities", "limits"],
        ),
        "Support": _object(
            {"form": _FORM, "supported": {"type": "boolean"}, "operations": {"type": "array", "items": _STRING}}
            | {"privateInputs": {"type": "boolean"}},
            ["form", "supported", "operations", "privateInputs"],
        ),
        "CreateResource": _object(
            {"form": _FORM, "space": _IDENTIFIER, "name": _IDENTIFIER, "spec": {"type": "object"}}
            | {"privateInputs": _PRIVATE_INPUTS, "offering": _CHOICE},
            ["form", "space", "name", "spec"],
        ),
        "UpdateResource": _object(
            {"spec": {"type": "object"}, "privateInputs": _PRIVATE_INPUTS},
            ["spec"],
        ),
        "PreviewRequest": {"oneOf": [_preview("create"), _preview("update"), _preview("delete")]},
        "Preview": _object(
            {"valid": {"type": "boolean"}, "errors": {"type": "array", "items": _ref("Failure")}}, ["valid", "errors"]
        ),
        "Failure": _object({"code": _STRING, "message": _STRING}, ["code", "message"]),
        "Offering": _object(
            {"id": _IDENTIFIER, "revision": _STRING, "form": _FORM, "label": _STRING, "description": _STRING}
            | {"termsUrl": _STRING},
            ["id", "revision", "form", "label", "description"],
        ),
        "Resource": _object(
            {
                "uid": _IDENTIFIER,
                "form": _FORM,
                "space": _IDENTIFIER,
                "name": _IDENTIFIER,
                "generation": _INTEGER,
                "observedGeneration": _INTEGER,
                "observedAt": {"type": ["string", "null"], "format": "date-time"},
                "phase": {"enum": ["pending", "idle", "deleting", "error"]},
                "spec": {"type": "object"},
                "observed": {"type": "object"},
                "output": {"type": "object"},
                "lastOperation": _IDENTIFIER,
                "offering": _CHOICE,
            }
        ),
        "Operation": _object(
            {
                "id": _IDENTIFIER,
                "resourceUid": _IDENTIFIER,
                "action": {"enum": ["create", "update", "delete"]},
                "generation": _INTEGER,
                "status": {"enum": ["queued", "running", "waiting_input", "reconciling", "succeeded", "failed"]},
                "effect": {"enum": ["none", "unknown", "partial", "complete"]},
                "createdAt": _TIME,
                "updatedAt": _TIME,
                "retainUntil": _TIME,
                "error": _ref("Failure"),
                "inputRequired": {"type": "object"},
                "warnings": {"type": "array", "items": _ref("Failure")},
            }
        ),
        "InstanceStatus": {"enum": ["queued", "running", "sleeping", "waiting", "complete", "errored", "terminated"]},
        "NewInstance": _object({"id": _INSTANCE_ID, "params": _DOCUMENT}),
        "BatchOutcome": {
            "oneOf": [
                _object({"id": _INSTANCE_ID, "status": _ref("InstanceStatus")}, ["id", "status"]),
                _object({"code": _STRING, "title": _STRING, "detail": _STRING}, ["code", "title"]),
            ]
        },
        "Instance": _object(
            {
                "id": _INSTANCE_ID,
                "status": _ref("InstanceStatus"),
                "output": {"type": "object"},
                "error": _object({"reason": _STRING, "message": _STRING}, ["reason"]),
                "createdAt": {**_TIME, "description": "In lists"},
                "endedAt": {**_TIME, "description": "In lists"},
            },
            ["id", "status"],
        ),
        "InstanceEvent": {
            "type": "object",
            "properties": {
                "instanceId": _INSTANCE_ID,
                "eventId": _INTEGER,
                "timestamp": _INTEGER,
                "type": {"enum": [*sorted(EVENT_TYPES), "end"]},
            },
            "required": ["type"],
        },
        "Step": _object(
            {
                "name": _STRING,
                "kind": {"enum": ["do", "sleep", "wait"]},
                "state": {"enum": ["pending", "retry_wait", "waiting", "complete", "errored"]},
                "failedAttempts": _INTEGER,
                "createdAt": _TIME,
                "dueAt": _TIME,
                "result": {"type": "object"},
                "error": _STRING,
            },
            ["name", "kind", "state", "failedAttempts", "createdAt"],
        ),
    }


def _preview(action: str) -> Schema:
    properties: Schema = {"action": {"const": action}}
    if action != "create":
        properties |= {"uid": _IDENTIFIER, "expectedGeneration": _INTEGER}
    if action != "delete":
        properties["input"] = _ref(f"{action.capitalize()}Resource")
    return _object(properties, list(properties))


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _page(item: Schema) -> Schema:
    properties: Schema = {"items": {"type": "array", "items": item}, "nextCursor": {"type": ["string", "null"]}}
    return _object(properties, ["items", "nextCursor"])


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _path(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "schema": schema}


def _operation(
    summary: str,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    answers: Schema | None = None,
) -> Schema:
    problem: Schema = {
        "description": "A refusal",
        "content": {"application/problem+json": {"schema": _ref("Problem")}},
    }
    described: Schema = {"summary": summary, "responses": {**(answers or {}), "default": problem}}
    if parameters:
        described["parameters"] = list(parameters)
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return described
