"""Random input for the pure rules: the JSON reader and the spec validators never do anything but answer or refuse."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from saisei_contract import strict_json
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import registry, urls
from saisei_contract.wire import parse_create, parse_update

# About two seconds for each of these on a busy machine; --long plays on.
EXAMPLES = 400
COMMON = settings(
    max_examples=EXAMPLES, deadline=timedelta(seconds=20), suppress_health_check=list(HealthCheck), database=None
)

scalars = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(scalars, inner, max_size=5),
    max_leaves=20,
)


def refused_or_read(raw: bytes) -> Any:
    """The value, or None when it was refused as the contract says."""
    try:
        return strict_json.parse(raw)
    except SaiseiError as error:
        assert error.reason == "invalid_request"
        return None


@COMMON
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 5000)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """H-004: bytes that a careless reader takes are taken only when they are strict."""
    value = refused_or_read(raw)
    if value is not None:
        assert json.loads(raw.decode("utf-8", "strict")) == _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


@COMMON
@given(values, st.sampled_from([None, 1, 3]), st.booleans())
def test_what_is_written_is_read_back(value: Any, indent: int | None, ascii_only: bool) -> None:
    """H-004, H-076: every JSON text of every value is read, and written again with the same meaning."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assume(len(text) < 100_000)
    read = strict_json.parse(text.encode())
    assert _plain(read) == value
    again = strict_json.parse(strict_json.dumps(read).encode())
    assert strict_json.equals(read, again)


@COMMON
@given(values)
def test_equality_ignores_spelling_only(value: Any) -> None:
    """H-140: keys in another order and integers as floats are equal; a boolean is no number."""
    reordered = json.dumps(value, sort_keys=True, indent=2).encode()
    assert strict_json.equals(strict_json.parse(json.dumps(value).encode()), strict_json.parse(reordered))
    if isinstance(value, bool):
        assert not strict_json.equals(value, int(value))


@COMMON
@given(st.integers(-(10**30), 10**30), st.integers(0, 6))
def test_numbers_are_exact(number: int, zeros: int) -> None:
    """H-140, H-005: an integer equals itself with a fraction of zeros or an exponent, and not its neighbour."""
    spellings = [f"{number}", f"{number}.{'0' * (zeros + 1)}", f"{number}{'0' * zeros}e-{zeros}"]
    read = [strict_json.parse(text.encode()) for text in spellings]
    assert len({strict_json.equality_key(value) for value in read}) == 1
    assert all(strict_json.as_integer(value) == number for value in read)
    assert not strict_json.equals(read[0], strict_json.parse(f"{number + 1}".encode()))
    assert math.isfinite(float(number))


@COMMON
@given(st.data())
def test_one_changed_byte_never_escapes_the_rules(data: st.DataObject) -> None:
    """H-004, H-009, H-011: a create with any byte changed, removed or doubled is read or refused, and nothing else."""
    envelope = {"form": urls.MODULE_WORKER, "space": "a", "name": "b", "spec": {"x": [1.5, "é", None]}}
    raw = bytearray(json.dumps(envelope, ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from("crd")):
            case "c":
                raw[index] = data.draw(st.integers(0, 255))
            case "r":
                del raw[index]
            case _:
                raw[index:index] = raw[index : index + 5]
    for parse in (parse_create, parse_update):
        try:
            parse(bytes(raw))
        except SaiseiError as error:
            assert error.reason == "invalid_request"


uids = st.sampled_from(["r-1", "r-2", "", "a b", "a\n"]) | scalars
references = st.fixed_dictionaries({"resourceUid": uids}) | values
names = st.sampled_from(["A", "_x", "1", "", "a-b", "Ａ"]) | scalars
keys = st.sampled_from(
    ["worker", "bundle", "className", "handlers", "vars", "requiredSensitiveVars", "versions", "artifact", "assets"]
    + [f"{kind}Bindings" for kind in ("kv", "workflow", "service", "queue", "bucket", "actor", "sqlite")]
)
members: st.SearchStrategy[Any] = st.one_of(
    references,
    names,
    st.lists(st.sampled_from(["fetch", "scheduled", "queue", "x"]) | names, max_size=4),
    st.lists(st.fixed_dictionaries({"name": names, "resource": references}), max_size=3),
    st.lists(st.fixed_dictionaries({"workerVersion": references, "weight": numbers}), max_size=3),
    st.fixed_dictionaries({"url": scalars, "sha256": st.text("0123456789abcdef", min_size=64, max_size=64)}),
    st.dictionaries(names, values, max_size=3),
    values,
)
specs = st.dictionaries(keys | scalars, members, max_size=6)


@pytest.mark.parametrize("url", sorted(registry.FORMS))
@COMMON
@given(spec=specs)
def test_any_spec_is_valid_or_refused(url: str, spec: dict[str, Any]) -> None:
    """F-01, F-02, H-180: a Form's rules answer or refuse with invalid_spec; a valid spec equals itself in every way."""
    form = registry.FORMS[url]
    read = strict_json.parse(json.dumps(spec).encode())
    assert isinstance(read, dict)
    try:
        form.validate(read)
    except SaiseiError as error:
        assert error.reason == "invalid_spec"
        assert error.detail
        return
    assert form.equal(read, read)
    form.immutable(read, read)
    assert form.equal(form.normalise(read), read)
    for reference in form.references(read):
        assert reference.target_form_url in urls.ALL_FORMS
