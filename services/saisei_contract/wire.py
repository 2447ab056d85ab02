"""Host API envelopes: reading request bodies strictly, and writing records under the field names of contract 1.

Readers raise SaiseiError invalid_request and name the field. Writers give JSON-able dicts; `strict_json.dumps` keeps
their numbers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import format_ms, is_form_url, is_uid
from saisei_contract.json_reader import JsonObject, JsonValue, shown
from saisei_contract.json_writer import Verbatim
from saisei_contract.records import (
    DiscoveryRecord,
    Offering,
    OfferingRecord,
    OperationFailure,
    OperationRecord,
    ResourceRecord,
    SupportRecord,
)
from saisei_contract.shapes import closed, text

API = "forms.takoform.com/v2"
OPERATION_NAMES = ("create", "read", "update", "delete")
_FORM_URL = "an ASCII absolute https URL without userinfo, query and fragment"


@dataclass(frozen=True, slots=True)
class CreateInput:
    """H-080. `private_inputs` tells an empty map from none (H-151)."""

    form: str
    space: str
    name: str
    spec: JsonObject
    private_inputs: dict[str, str] | None = field(default=None, repr=False)
    offering: Offering | None = None


@dataclass(frozen=True, slots=True)
class UpdateInput:
    """H-100."""

    spec: JsonObject
    private_inputs: dict[str, str] | None = field(default=None, repr=False)


def parse_create(raw: bytes) -> CreateInput:
    """The body of `POST /resources` (H-004, H-006, H-008 … H-012, H-080, H-150)."""
    return _create(strict_json.parse(raw), "")


def parse_update(raw: bytes) -> UpdateInput:
    """The body of `PUT /resources/{uid}` (H-100, H-150)."""
    return _update(strict_json.parse(raw), "")


def parse_private_inputs(raw: bytes) -> dict[str, str]:
    """The body of `PUT /operations/{id}/private-inputs`: the entire original map (H-154)."""
    inputs = _private_inputs(_closed(strict_json.parse(raw), "", ("privateInputs",)))
    assert inputs is not None, "the envelope requires the field"
    return inputs


@dataclass(frozen=True, slots=True)
class PreviewUpdateInput:
    """H-160. The UID as it was given: what is none is not found."""

    uid: str
    expected_generation: int
    wanted: UpdateInput


@dataclass(frozen=True, slots=True)
class PreviewDeleteInput:
    """H-160."""

    uid: str
    expected_generation: int


def parse_preview(raw: bytes) -> CreateInput | PreviewUpdateInput | PreviewDeleteInput:
    """The body of `POST /previews` (H-160): one of three closed envelopes by `action`."""
    body = strict_json.parse(raw)
    action = body.get("action") if isinstance(body, dict) else None
    match action:
        case "create":
            closed_body = _closed(body, "", ("action", "input"))
            return _create(closed_body["input"], "input")
        case "update":
            closed_body = _closed(body, "", ("action", "uid", "expectedGeneration", "input"))
            wanted = _update(closed_body["input"], "input")
            return PreviewUpdateInput(_uid(closed_body), _generation(closed_body), wanted)
        case "delete":
            closed_body = _closed(body, "", ("action", "uid", "expectedGeneration"))
            return PreviewDeleteInput(_uid(closed_body), _generation(closed_body))
        case _:
            raise bad_request("action", "must be create, update or delete")


def _uid(body: JsonObject) -> str:
    return _identifier(body["uid"], "uid")


def _generation(body: JsonObject) -> int:
    """H-005: any JSON spelling of an integer."""
    value = body["expectedGeneration"]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= strict_json.MAX_INTEGER:
        raise bad_request("expectedGeneration", "must be an integer from 0 to 9007199254740991")
    return value


def parse_query(pairs: Iterable[tuple[str, str]], known: Container[str] = ()) -> dict[str, str]:
    """A request's query parameters. SaiseiError invalid_request for an unknown or a repeated one (H-009)."""
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise SaiseiError("invalid_request", f"The query parameter {shown(name)} is not known here.")
        if name in query:
            raise SaiseiError("invalid_request", f"The query parameter {name} is given more than once.")
        query[name] = value
    return query


def parse_spec_text(text: str) -> JsonObject:
    """A spec that comes as JSON text in a gRPC field, under the same rules (H-004, H-012)."""
    return _object(strict_json.parse_text(text), "spec")


def resource_json(record: ResourceRecord) -> JsonObject:
    """contract 1.7. The documents are texts that only `strict_json.dumps` writes as what they are."""
    body: JsonObject = {"uid": record.uid, "form": record.form, "space": record.space, "name": record.name}
    if record.offering is not None:
        body["offering"] = {"id": record.offering.id, "revision": record.offering.revision}
    return body | {
        "generation": record.generation,
        "observedGeneration": record.observed_generation,
        "observedAt": None if record.observed_at_ms is None else format_ms(record.observed_at_ms),
        "phase": record.phase.value,
        "spec": Verbatim(record.spec_json),
        "observed": Verbatim(record.observed_json),
        "output": Verbatim(record.output_json),
        "lastOperation": record.last_operation,
    }


def operation_json(record: OperationRecord) -> JsonObject:
    """contract 1.11."""
    body: JsonObject = {
        "id": record.id,
        "resourceUid": record.resource_uid,
        "action": record.action.value,
        "generation": record.generation,
        "status": record.status.value,
        "effect": record.effect.value,
        "createdAt": format_ms(record.created_at_ms),
        "updatedAt": format_ms(record.updated_at_ms),
        "retainUntil": format_ms(record.retain_until_ms),
    }
    if record.error is not None:
        body["error"] = {"code": record.error.code, "message": record.error.message}
    if record.input_required is not None:
        names: list[JsonValue] = list(record.input_required.names)
        body["inputRequired"] = {"names": names, "reason": record.input_required.reason.value}
    if record.warnings:
        body["warnings"] = [{"code": warning.code, "message": warning.message} for warning in record.warnings]
    return body


def support_json(record: SupportRecord) -> JsonObject:
    """contract 1.5."""
    return {
        "form": record.form,
        "supported": record.supported,
        "operations": list(OPERATION_NAMES) if record.supported else [],
        "privateInputs": record.supported and record.private_inputs,
    }


def discovery_json(record: DiscoveryRecord) -> JsonObject:
    """contract 1.4."""
    return {
        "api": API,
        "baseUrl": record.base_url,
        "documentation": record.documentation,
        "authentication": {
            "schemes": list(record.authentication_schemes),
            "documentation": record.authentication_documentation,
        },
        "capabilities": {
            "offerings": record.offerings,
            "previews": record.previews,
            "privateInputs": record.private_inputs,
        },
        "limits": {
            "maxRequestBytes": record.max_request_bytes,
            "maxPageSize": record.max_page_size,
            "replayWindowSeconds": record.replay_window_seconds,
        },
    }


def page_json(items: list[JsonValue], next_cursor: str | None) -> JsonObject:
    """H-093: both fields always present."""
    return {"items": items, "nextCursor": next_cursor}


def problem(error: SaiseiError) -> JsonObject:
    """The Problem of a refusal (H-180). `operationId` comes from the error's metadata, where there is one."""
    body: JsonObject = {
        "type": "about:blank",
        "title": error.kind.title,
        "status": error.kind.http_status,
        "code": error.reason,
    }
    if error.detail:
        body["detail"] = error.detail
    if "operationId" in error.metadata:
        body["operationId"] = error.metadata["operationId"]
    return body


def bad_request(path: str, rule: str) -> SaiseiError:
    """The refusal of a body, naming the field (H-009, H-011)."""
    return SaiseiError("invalid_request", f"{f'The field {path}' if path else 'The body'} {rule}.")


def preview_json(errors: Iterable[OperationFailure]) -> JsonObject:
    """H-160."""
    listed: list[JsonValue] = [{"code": error.code, "message": error.message} for error in errors]
    return {"valid": not listed, "errors": listed}


def offering_json(record: OfferingRecord) -> JsonObject:
    """H-062."""
    body: JsonObject = {
        "id": record.id,
        "revision": record.revision,
        "form": record.form,
        "label": record.label,
        "description": record.description,
    }
    if record.terms_url is not None:
        body["termsUrl"] = record.terms_url
    return body


def _create(value: JsonValue, path: str) -> CreateInput:
    """`path` is where the envelope lies in the body: empty or a field's name."""
    body = _closed(value, path, ("form", "space", "name", "spec"), ("offering", "privateInputs"))
    prefix = f"{path}." if path else ""
    return CreateInput(
        form=text(body["form"], f"{prefix}form", is_form_url, _FORM_URL, bad_request),
        space=_identifier(body["space"], f"{prefix}space"),
        name=_identifier(body["name"], f"{prefix}name"),
        spec=_object(body["spec"], f"{prefix}spec"),
        private_inputs=_private_inputs(body),
        offering=_offering(body),
    )


def _update(value: JsonValue, path: str) -> UpdateInput:
    body = _closed(value, path, ("spec",), ("privateInputs",))
    spec = _object(body["spec"], f"{path}.spec" if path else "spec")
    return UpdateInput(spec=spec, private_inputs=_private_inputs(body))


def _closed(value: JsonValue, path: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> JsonObject:
    return closed(value, path, required, optional, bad_request)


def _object(value: JsonValue, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise bad_request(path, "must be a JSON object")
    return value


def _identifier(value: JsonValue, path: str) -> str:
    return text(
        value, path, is_uid, "1 to 128 characters of A-Z a-z 0-9 . _ -, beginning with a letter or digit", bad_request
    )


def _private_inputs(body: JsonObject) -> dict[str, str] | None:
    """H-150. Messages name keys, never values (H-153)."""
    if "privateInputs" not in body:
        return None
    inputs: dict[str, str] = {}
    for key, value in _object(body["privateInputs"], "privateInputs").items():
        if not isinstance(value, str):
            raise bad_request(f"privateInputs.{shown(key)}", "must be a string")
        inputs[key] = value
    return inputs


def _offering(body: JsonObject) -> Offering | None:
    if "offering" not in body:
        return None
    offering = _closed(body["offering"], "offering", ("id", "revision"))
    revision = text(offering["revision"], "offering.revision", bool, "a string that is not empty", bad_request)
    return Offering(_identifier(offering["id"], "offering.id"), revision)
