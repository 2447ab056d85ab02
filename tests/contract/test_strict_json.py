"""The strict reader, exact numbers, and equality."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.errors import SaiseiError
from saisei_contract.strict_json import MAX_INTEGER, as_integer, dumps, equality_key, equals, parse, parse_text

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def refusal(raw: bytes, **options: Any) -> str:
    with pytest.raises(SaiseiError) as caught:
        parse(raw, **options)
    assert caught.value.reason == "invalid_request"
    return caught.value.detail


def plain(value: Any) -> Any:
    """Exact numbers as the standard library reads them."""
    match value:
        case Decimal():
            return float(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value


@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_reads_what_the_standard_library_writes(value: Any, indent: int | None, ascii_only: bool) -> None:
    """H-004: on valid JSON the reader agrees with the standard library's."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(parse(text.encode(), max_depth=None)) == plain(json.loads(text))


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\ud8\n\t"', max_size=14))
def test_accepts_nothing_that_the_standard_library_refuses(text: str) -> None:
    """H-004: whatever the reader accepts is JSON; what it refuses beyond that is one of the strict faults."""
    try:
        mine = parse(text.encode())
    except SaiseiError as error:
        try:
            json.loads(text)
        except ValueError:
            return
        strict = ("repeated", "surrogate", "largest IEEE 754", "exponent is out of range")
        assert any(word in error.detail for word in strict), (text, error.detail)
        return
    assert plain(mine) == json.loads(text)


@given(st.binary(max_size=24))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """H-004: no input ends in anything but a value or invalid_request."""
    try:
        value = parse(raw)
    except SaiseiError as error:
        assert error.reason == "invalid_request"
    else:
        assert equals(parse(dumps(value).encode()), value)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8 (byte 6)"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":{"b":[{"c":1,"c":2}]}}', 'the key "c" is repeated (line 1, column 19)'),
        (b'{"a":1,\n "\\u0061":2}', 'the key "a" is repeated (line 2, column 2)'),
        (b'{"a":"\\ud800"}', "lone surrogate"),
        (b'{"\\udfff":1}', "lone surrogate"),
        (b"NaN", "expected a JSON value"),
        (b'{"a":Infinity}', "line 1, column 6"),
        (b"-Infinity", "expected a JSON value"),
        (b"1e309", "largest IEEE 754 double"),
        (b"-" + b"9" * 5000, "largest IEEE 754 double"),
        (b"1e-999999999999999999999", "exponent is out of range"),
        (b"", "the text is empty"),
        (b'{"a":', "the text ends early"),
        (b"{} {}", "more text follows"),
        (b"[1,]", "line 1, column 4"),
    ],
)
def test_refuses_with_the_place(raw: bytes, word: str) -> None:
    """H-004: each fault is invalid_request and says where it is."""
    assert word in refusal(raw)


def test_depth_is_bounded_and_never_crashes() -> None:
    """H-004: 128 levels are read, 129 refused, and 100,000 or a million are refused alike; without a bound they are
    read.
    """
    assert parse(b"[" * 128 + b"]" * 128)
    assert "nest deeper than 128 levels" in refusal(b"[" * 129 + b"]" * 129)
    assert "nest deeper" in refusal(b"[" * 1_000_000)
    assert "nest deeper" in refusal(b'{"a":' * 100_000)
    assert "nest deeper than 2 levels" in refusal(b'{"a":[{}]}', max_depth=2)
    deep = parse(b"[" * 100_000 + b"]" * 100_000, max_depth=None)
    assert dumps(deep) == equality_key(deep) == "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("9007199254740993", 9007199254740993),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("1.0", Decimal("1.0")),
        ("0.1", Decimal("0.1")),
        ("1e2", Decimal("1E+2")),
        ("1e-999999", Decimal("1E-999999")),
        ("0e99999999999999999999999", Decimal(0)),
    ],
)
def test_numbers_are_kept_exactly(text: str, value: Any) -> None:
    """H-140, H-076: an integer's plain spelling is an int, any other a Decimal, and the text that comes back says the
    same.
    """
    read = parse(text.encode())
    assert read == value
    assert type(read) is type(value)
    assert equals(parse(dumps(read).encode()), read)


def test_negative_zero_keeps_its_sign_in_the_text_only() -> None:
    """H-140: -0 is read, given back as -0, and equals 0."""
    zero = parse(b"-0")
    assert dumps(zero) == "-0"
    assert equals(zero, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "1.0"),
        ("1", "1e0"),
        ("1", "10e-1"),
        ("0", "-0"),
        ("0", "0.000e5"),
        ("100", "1E2"),
        ("1e300", "1" + "0" * 300),
        ("0.5", "5e-1"),
        ('"a"', '"\\u0061"'),
        ('{"a":1,"b":2}', '{ "b": 2.0, "a": 1e0 }'),
        ('{"x":[{"b":1,"a":2}]}', '{"x":[{"a":2,"b":1}]}'),
    ],
)
def test_equal_requests(left: str, right: str) -> None:
    """H-140: numbers are compared mathematically; spaces, escapes and key order do not count."""
    assert equality_key(parse_text(left)) == equality_key(parse_text(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "true"),
        ("0", "false"),
        ("1", '"1"'),
        ("null", '"null"'),
        ("true", '"true"'),
        ("[1,2]", "[2,1]"),
        ("[]", "{}"),
        ('{"a":null}', "{}"),
        ('"e\\u0301"', '"\\u00e9"'),
        ("9007199254740993", "9007199254740992"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1e-400", "0"),
        ("1", "-1"),
        ('["a,b"]', '["a","b"]'),
        ('{"a":"1e0"}', '{"a":1}'),
    ],
)
def test_different_requests(left: str, right: str) -> None:
    """H-140: types, presence, array order, scalars without normalisation, and every digit count."""
    assert equality_key(parse_text(left)) != equality_key(parse_text(right))


@given(json_values)
def test_equality_survives_respelling(value: Any) -> None:
    """H-140: another spelling of the same value has the same key."""
    text = json.dumps(value)
    key = equality_key(parse_text(text))
    assert key == equality_key(parse_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)))
    assert key == equality_key(parse_text(dumps(parse_text(text))))
    assert key == equality_key(value)


def test_huge_exponents_cost_nothing() -> None:
    """H-140: the key of an extreme number is as short as its spelling."""
    tiny = parse(b"1e-99999999999999999")
    assert len(equality_key(tiny)) < 30
    assert as_integer(tiny) is None
    assert dumps(tiny) == "1E-99999999999999999"


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("3", 3),
        ("3.0", 3),
        ("3e0", 3),
        ("0.3e1", 3),
        ("-0", 0),
        ("9007199254740991.0", MAX_INTEGER),
        ("1e308", 10**308),
        ("3.5", None),
        ("1e-1", None),
        ("true", None),
        ('"3"', None),
        ("null", None),
        ("[3]", None),
    ],
)
def test_integers_of_any_spelling(text: str, integer: int | None) -> None:
    """H-005, F-01: `3.0` is the integer 3; booleans, strings and fractions are none."""
    assert as_integer(parse_text(text)) == integer


def test_writes_no_value_that_json_does_not_have() -> None:
    """H-001: NaN, infinities and foreign objects are not written."""
    for value in (float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity")):
        with pytest.raises(ValueError, match="no JSON numbers"):
            dumps([value])
    foreign: Any
    for foreign in ({1: 2}, {"a": {1, 2}}, b"x", object()):
        with pytest.raises(TypeError):
            dumps(foreign)


def test_text_comes_back_with_its_order_and_numbers() -> None:
    """H-076: a spec can be shown as the client sent it."""
    text = '{"b":1.50,"a":[1E+2,-0,0.1],"\\u0000":"\\n€😀"}'
    assert dumps(parse_text(text)) == text
