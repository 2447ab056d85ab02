"""Bodies about workflow instances over HTTP (design 6): envelopes like the Host API's, around documents of any nesting.

An envelope that is broken is `invalid_request`; a document that is broken is `invalid_params` or `document_too_large`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from saisei_contract.documents import canonical_value, read_document
from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_event_type, is_instance_id
from saisei_contract.json_reader import JsonFault, JsonObject, JsonValue
from saisei_contract.shapes import closed, join, text
from saisei_contract.wire import bad_request

MAX_BATCH = 100

_DOCUMENTS = ("params", "payload")
_SHORT_TEXT = "a string of 1 to 256 Unicode scalars"


@dataclass(frozen=True, slots=True)
class CreateInstanceInput:
    """`id` None: the Host issues one (W-020). `params` are canonical bytes, None when there are none (W-049)."""

    id: str | None
    params: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendEventInput:
    """`payload` as `params` above (W-028)."""

    type: str
    payload: bytes | None = field(repr=False)


def parse_create_instance(raw: bytes) -> CreateInstanceInput:
    """The body `{id?, params?}` (W-020, W-024, W-025)."""
    return _create(_read(raw), "")


def parse_batch_create(raw: bytes) -> list[CreateInstanceInput]:
    """The body `{instances: [{id?, params?}, …]}` with 1-100 entries; the first bad entry refuses the whole batch."""
    listed = _envelope(_read(raw), "", ("instances",), ())["instances"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_BATCH:
        raise bad_request("instances", f"must be an array of 1 to {MAX_BATCH} entries")
    return [_create(entry, f"instances[{index}]") for index, entry in enumerate(listed)]


def parse_send_event(raw: bytes) -> SendEventInput:
    """The body `{type, payload?}` (W-028)."""
    body = _envelope(_read(raw), "", ("type",), ("payload",))
    event_type = text(body["type"], "type", is_event_type, _SHORT_TEXT, bad_request)
    return SendEventInput(event_type, _document(body, "payload", ""))


def _create(value: JsonValue, path: str) -> CreateInstanceInput:
    body = _envelope(value, path, (), ("id", "params"))
    instance_id = None
    if "id" in body:
        instance_id = text(body["id"], join(path, "id"), is_instance_id, _SHORT_TEXT, bad_request)
    return CreateInstanceInput(instance_id, _document(body, "params", path))


def _read(raw: bytes) -> JsonValue:
    try:
        return read_document(raw)
    except JsonFault as fault:
        raise SaiseiError("invalid_request", f"The body is not valid JSON: {fault}.") from None


def _envelope(value: JsonValue, path: str, required: tuple[str, ...], optional: tuple[str, ...]) -> JsonObject:
    # A document that is null breaks a rule of documents, and is told as such.
    return closed(value, path, required, optional, bad_request, nullable=_DOCUMENTS)


def _document(body: JsonObject, key: str, path: str) -> bytes | None:
    if key not in body:
        return None
    try:
        return canonical_value(body[key])
    except SaiseiError as error:
        raise SaiseiError(error.reason, f"{join(path, key)}: {error.detail}") from None
