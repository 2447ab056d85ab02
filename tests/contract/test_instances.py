"""Bodies about workflow instances."""

from __future__ import annotations

from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_contract.instances import (
    CreateInstanceInput,
    SendEventInput,
    parse_batch_create,
    parse_create_instance,
    parse_send_event,
)


def refused(parse: Any, raw: bytes) -> SaiseiError:
    with pytest.raises(SaiseiError) as caught:
        parse(raw)
    return caught.value


def test_create() -> None:
    """W-020, W-022: id and params are both optional; params become canonical bytes."""
    assert parse_create_instance(b"{}") == CreateInstanceInput(None, None)
    read = parse_create_instance('{"id":"日本","params":{"b":1.0,"a":-0}}'.encode())
    assert read == CreateInstanceInput("日本", b'{"a":0,"b":1}')


def test_deep_params() -> None:
    """W-047: the envelope bounds no nesting."""
    deep = b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert parse_create_instance(b'{"params":' + deep + b"}").params == deep


@pytest.mark.parametrize(
    ("raw", "reason", "word"),
    [
        (b"", "invalid_request", "not valid JSON"),
        (b"[]", "invalid_request", "must be a JSON object"),
        (b'{"x":1}', "invalid_request", 'unknown field "x"'),
        (b'{"id":""}', "invalid_request", "field id must be a string of 1 to 256"),
        (b'{"id":null}', "invalid_request", "field id must not be null"),
        (b'{"id":7}', "invalid_request", "field id"),
        (b'{"id":"' + b"x" * 257 + b'"}', "invalid_request", "field id"),
        (b'{"id":"\\ud800"}', "invalid_request", "lone surrogate"),
        (b'{"params":{"a":1,"a":1}}', "invalid_request", "is repeated"),
        (b'{"params":null}', "invalid_params", "params: A document is a JSON object"),
        (b'{"params":[]}', "invalid_params", "params: A document is a JSON object"),
        (b'{"params":{"a":"' + b"x" * 1_048_576 + b'"}}', "document_too_large", "params: The document has 1,048,584"),
    ],
)
def test_bad_create(raw: bytes, reason: str, word: str) -> None:
    """W-020, W-024, W-025: a broken envelope is invalid_request, a broken document keeps its own name."""
    error = refused(parse_create_instance, raw)
    assert error.reason == reason
    assert word in error.detail


def test_batch() -> None:
    """Design 6: 1 to 100 creates at once; the first bad one is named by its place."""
    assert parse_batch_create(b'{"instances":[{},{"id":"a"}]}') == [
        CreateInstanceInput(None, None),
        CreateInstanceInput("a", None),
    ]
    assert len(parse_batch_create(b'{"instances":[' + b",".join([b"{}"] * 100) + b"]}")) == 100
    for raw in (b'{"instances":[]}', b'{"instances":[' + b",".join([b"{}"] * 101) + b"]}", b'{"instances":{}}', b"{}"):
        assert refused(parse_batch_create, raw).reason == "invalid_request"
    assert "instances[1].id" in refused(parse_batch_create, b'{"instances":[{},{"id":1}]}').detail
    assert "instances[0].params:" in refused(parse_batch_create, b'{"instances":[{"params":1}]}').detail
    assert "instances[0] must be a JSON object" in refused(parse_batch_create, b'{"instances":[1]}').detail


def test_send_event() -> None:
    """W-028: a type of 1-256 scalars and perhaps a payload."""
    assert parse_send_event(b'{"type":"paid"}') == SendEventInput("paid", None)
    assert parse_send_event(b'{"type":" paid ","payload":{}}') == SendEventInput(" paid ", b"{}")
    for raw in (b"{}", b'{"type":""}', b'{"type":null}', b'{"type":1}', b'{"type":"a","x":1}'):
        assert refused(parse_send_event, raw).reason == "invalid_request"
    assert refused(parse_send_event, b'{"type":"a","payload":null}').reason == "invalid_params"
