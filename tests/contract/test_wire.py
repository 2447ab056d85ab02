"""Envelopes of the Host API, and records under their field names."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from saisei_contract import strict_json, wire
from saisei_contract.errors import ERROR_KINDS, SaiseiError
from saisei_contract.records import (
    Action,
    DiscoveryRecord,
    Effect,
    InputReason,
    InputRequired,
    Offering,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    Phase,
    ResourceRecord,
    SupportRecord,
)

FORM = "https://edge.forms.takoform.com/forms/ModuleWorker/0.3.0/"
CREATE: dict[str, Any] = {"form": FORM, "space": "s", "name": "n", "spec": {}}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def refused(parse: Any, value: Any) -> str:
    with pytest.raises(SaiseiError) as caught:
        parse(value if isinstance(value, bytes) else encoded(value))
    assert caught.value.reason == "invalid_request"
    return caught.value.detail


def test_create() -> None:
    """H-080: form, space, name and spec, numbers kept exactly."""
    body = wire.parse_create(b'{"form":"%s","space":"s","name":"n","spec":{"a":1.0}}' % FORM.encode())
    assert body == wire.CreateInput(FORM, "s", "n", {"a": Decimal("1.0")})


def test_private_inputs_and_offering() -> None:
    """H-151, H-062: an empty map is not the same as none; an Offering is a pair."""
    assert wire.parse_create(encoded(CREATE)).private_inputs is None
    assert wire.parse_create(encoded(CREATE | {"privateInputs": {}})).private_inputs == {}
    full = wire.parse_create(encoded(CREATE | {"privateInputs": {"A": "x"}, "offering": {"id": "o", "revision": "7"}}))
    assert full.private_inputs == {"A": "x"}
    assert full.offering == Offering("o", "7")


def test_secrets_are_not_shown() -> None:
    """H-153: a value with private inputs can be printed without them."""
    full = wire.parse_create(encoded(CREATE | {"privateInputs": {"A": "hunter2"}}))
    assert "hunter2" not in repr(full)
    assert "hunter2" not in repr(wire.UpdateInput({}, {"A": "hunter2"}))


@pytest.mark.parametrize("key", ["form", "space", "name", "spec"])
def test_missing_and_null_fields(key: str) -> None:
    """H-011: every field without `?` is required, and none takes null."""
    assert refused(wire.parse_create, {k: v for k, v in CREATE.items() if k != key}) == f"The field {key} is missing."
    assert refused(wire.parse_create, CREATE | {key: None}) == f"The field {key} must not be null."


@pytest.mark.parametrize("key", ["offering", "privateInputs"])
def test_null_optional_fields(key: str) -> None:
    """H-011: omission and null differ for optional fields too."""
    assert refused(wire.parse_create, CREATE | {key: None}) == f"The field {key} must not be null."
    assert "is missing" not in refused(wire.parse_create, CREATE | {key: 1})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"extra": 1}, 'has the unknown field "extra"'),
        ({"uid": "u"}, 'has the unknown field "uid"'),
        ({"form": "http://h/"}, "field form must be an ASCII absolute https URL"),
        ({"form": 1}, "field form"),
        ({"space": ""}, "field space must be 1 to 128 characters"),
        ({"name": "a\n"}, "field name"),
        ({"name": 7}, "field name"),
        ({"spec": []}, "field spec must be a JSON object"),
        ({"spec": "x"}, "field spec must be a JSON object"),
        ({"spec": 1}, "field spec must be a JSON object"),
        ({"privateInputs": []}, "field privateInputs must be a JSON object"),
        ({"privateInputs": {"A": 1}}, 'field privateInputs."A" must be a string'),
        ({"privateInputs": {"A": None}}, 'field privateInputs."A" must be a string'),
        ({"offering": {"id": "o"}}, "field offering.revision is missing"),
        ({"offering": {"id": "o", "revision": "1", "x": 1}}, 'field offering has the unknown field "x"'),
        ({"offering": {"id": "-", "revision": "1"}}, "field offering.id"),
        ({"offering": {"id": "o", "revision": 1}}, "field offering.revision"),
        ({"offering": {"id": "o", "revision": None}}, "field offering.revision must not be null"),
    ],
)
def test_bad_create(change: dict[str, Any], word: str) -> None:
    """H-006, H-008, H-009, H-011, H-012, H-150: the refusal names the field."""
    assert word in refused(wire.parse_create, CREATE | change)


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'"x"', b"1", b"", b"{", b'{"spec":{},"spec":{}}', b'{"spec":{"a":1,"a":2}}']
)
def test_bodies_that_are_no_envelope(body: bytes) -> None:
    """H-004, H-009: not JSON, not an object, or a key repeated at any depth."""
    refused(wire.parse_create, body)
    refused(wire.parse_update, body)


def test_update() -> None:
    """H-100: spec and perhaps private inputs, nothing else."""
    assert wire.parse_update(b'{"spec":{"a":[]}}') == wire.UpdateInput({"a": []}, None)
    assert wire.parse_update(b'{"spec":{},"privateInputs":{}}').private_inputs == {}
    assert 'unknown field "name"' in refused(wire.parse_update, {"spec": {}, "name": "n"})
    assert refused(wire.parse_update, {}) == "The field spec is missing."


def test_replenishment() -> None:
    """H-154: the entire map is required."""
    assert wire.parse_private_inputs(b'{"privateInputs":{"A":"x"}}') == {"A": "x"}
    assert refused(wire.parse_private_inputs, {}) == "The field privateInputs is missing."


def test_spec_text() -> None:
    """H-012: a spec as text is read as strictly as a body."""
    assert wire.parse_spec_text('{"a":1e2}') == {"a": Decimal("1E+2")}
    for text in ("[]", "null", "", '{"a":1,"a":1}', '{"a":NaN}'):
        with pytest.raises(SaiseiError, match="invalid_request"):
            wire.parse_spec_text(text)


def test_query() -> None:
    """H-009: unknown and repeated parameters are refused; a route without any takes none."""
    assert wire.parse_query([("a", "1"), ("b", "")], {"a", "b"}) == {"a": "1", "b": ""}
    for pairs, known in (([("x", "1")], {"a"}), ([("a", "1"), ("a", "1")], {"a"}), ([("a", "1")], set())):
        with pytest.raises(SaiseiError, match="invalid_request"):
            wire.parse_query(pairs, known)


def test_resource_record() -> None:
    """H-070, H-073, H-076: the fields of contract 1.7, numbers as they came."""
    record = ResourceRecord(
        "u", FORM, "s", "n", 2, 1, 0, Phase.IDLE, '{"a":1.0}', '{"ready":true}', "{}", "op", Offering("o", "1")
    )
    assert strict_json.dumps(wire.resource_json(record)) == (
        f'{{"uid":"u","form":"{FORM}","space":"s","name":"n","offering":{{"id":"o","revision":"1"}},"generation":2,'
        '"observedGeneration":1,"observedAt":"1970-01-01T00:00:00.000Z","phase":"idle","spec":{"a":1.0},'
        '"observed":{"ready":true},"output":{},"lastOperation":"op"}'
    )


def test_documents_are_passed_on_as_they_are() -> None:
    """H-076: the stored text itself goes out, with a gRPC client's spacing and escapes, and is JSON in its place."""
    spec = ' { "\\u00e9" : [ 1.0 , 1e2 , "\\ud83d\\ude00" ] } '
    record = ResourceRecord("u", FORM, "s", "n", 1, 0, None, Phase.PENDING, spec, "{}", "{}", "op")
    text = strict_json.dumps(wire.page_json([wire.resource_json(record), wire.resource_json(record)], None))
    assert text.count(f'"spec":{spec},"observed":{{}}') == 2
    assert json.loads(text)["items"][1]["spec"] == {"é": [1.0, 100.0, "😀"]}
    # A text is a document only where the record says so.
    assert strict_json.dumps({"a": "{}"}) == '{"a":"{}"}'


def test_unobserved_resource() -> None:
    """H-070, H-077: observedAt is null before the first observation; offering is the only absent field."""
    record = ResourceRecord("u", FORM, "s", "n", 1, 0, None, Phase.PENDING, "{}", "{}", "{}", "op")
    body = wire.resource_json(record)
    assert body["observedAt"] is None
    assert "offering" not in body
    assert len(body) == 12


def test_operation_record() -> None:
    """H-110, H-113, H-114: error and inputRequired only where there are some."""
    plain = OperationRecord("o", "u", Action.CREATE, 1, OperationStatus.QUEUED, Effect.NONE, 0, 1, 2)
    assert wire.operation_json(plain) == {
        "id": "o",
        "resourceUid": "u",
        "action": "create",
        "generation": 1,
        "status": "queued",
        "effect": "none",
        "createdAt": "1970-01-01T00:00:00.000Z",
        "updatedAt": "1970-01-01T00:00:00.001Z",
        "retainUntil": "1970-01-01T00:00:00.002Z",
    }
    failed = OperationRecord(
        "o", "u", Action.DELETE, 1, OperationStatus.FAILED, Effect.PARTIAL, 0, 0, 0, OperationFailure("c", "m")
    )
    assert wire.operation_json(failed)["error"] == {"code": "c", "message": "m"}
    waiting = OperationRecord(
        "o", "u", Action.UPDATE, 1, OperationStatus.WAITING_INPUT, Effect.NONE, 0, 0, 0, None,
        InputRequired(("A", "B"), InputReason.EXPIRED),
    )  # fmt: skip
    assert wire.operation_json(waiting)["inputRequired"] == {"names": ["A", "B"], "reason": "expired"}


def test_support_record() -> None:
    """H-051, H-052, H-053: the asked URL, each operation once, nothing for an unsupported Form."""
    assert wire.support_json(SupportRecord(FORM, True, True)) == {
        "form": FORM,
        "supported": True,
        "operations": ["create", "read", "update", "delete"],
        "privateInputs": True,
    }
    assert wire.support_json(SupportRecord("https://x", False, True)) == {
        "form": "https://x",
        "supported": False,
        "operations": [],
        "privateInputs": False,
    }


def test_discovery_record() -> None:
    """H-040: every field of contract 1.4."""
    record = DiscoveryRecord("https://h/r", "https://d", ("Bearer",), "https://a", False, False, True, 10, 20, 30)
    assert wire.discovery_json(record) == {
        "api": "forms.takoform.com/v2",
        "baseUrl": "https://h/r",
        "documentation": "https://d",
        "authentication": {"schemes": ["Bearer"], "documentation": "https://a"},
        "capabilities": {"offerings": False, "previews": False, "privateInputs": True},
        "limits": {"maxRequestBytes": 10, "maxPageSize": 20, "replayWindowSeconds": 30},
    }


def test_page() -> None:
    """H-093: both fields always."""
    assert wire.page_json([], None) == {"items": [], "nextCursor": None}


def test_problems() -> None:
    """H-180: type, title, status and code; detail and operationId where there are some, other metadata never."""
    error = SaiseiError("private_inputs_unverifiable", "Lost.", {"operationId": "o", "internal": "x"})
    assert wire.problem(error) == {
        "type": "about:blank",
        "title": "The private inputs can no longer be compared",
        "status": 409,
        "code": "private_inputs_unverifiable",
        "detail": "Lost.",
        "operationId": "o",
    }
    assert "detail" not in wire.problem(SaiseiError("gone"))
    for reason, kind in ERROR_KINDS.items():
        assert wire.problem(SaiseiError(reason))["status"] == kind.http_status


HOST_API_CODES = {
    400: {"invalid_request"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"not_found", "capability_unavailable"},
    405: {"method_not_allowed"},
    409: {
        "name_conflict", "generation_conflict", "resource_busy", "idempotency_conflict", "offering_changed",
        "dependency_conflict", "private_inputs_conflict", "private_inputs_unverifiable", "operation_terminal",
        "cursor_expired",
    },
    410: {"gone"},
    413: {"request_too_large"},
    415: {"unsupported_media_type"},
    422: {"unsupported_form", "invalid_spec", "capability_required"},
    428: {"expected_generation_required"},
    429: {"rate_limited"},
    500: {"internal_error"},
    503: {"temporarily_unavailable"},
}  # fmt: skip


def test_the_table_of_codes() -> None:
    """H-180: each code of the Host API stands in the one table under its HTTP status."""
    for status, codes in HOST_API_CODES.items():
        for code in codes:
            assert ERROR_KINDS[code].http_status == status
            assert ERROR_KINDS[code].title


def test_unknown_reasons_cannot_be_raised() -> None:
    """H-180: those are the only classes."""
    with pytest.raises(ValueError, match="no_such_code"):
        SaiseiError("no_such_code")
    assert str(SaiseiError("gone", "Deleted.")) == "gone: Deleted."
