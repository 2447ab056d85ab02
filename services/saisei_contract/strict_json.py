"""Request JSON: strict reading, exact numbers, and equality as H-140 wants it.

Numbers are kept exactly: a plain integer spelling (`12`, `-3`) becomes `int`, every other one (`1.0`, `1e0`, `-0`) a
`Decimal`, so that a spec can be given back as it came and compared mathematically.
"""

from __future__ import annotations

import math
from decimal import Decimal

from saisei_contract.errors import SaiseiError
from saisei_contract.json_reader import JsonFault, JsonObject, JsonValue, decode_utf8, read
from saisei_contract.json_writer import write

__all__ = [
    "DEFAULT_MAX_DEPTH",
    "MAX_INTEGER",
    "JsonObject",
    "JsonValue",
    "as_integer",
    "dumps",
    "equality_key",
    "equals",
    "parse",
    "parse_text",
]

DEFAULT_MAX_DEPTH = 128
MAX_INTEGER = 9_007_199_254_740_991
"""The largest integer of the common API (H-005)."""

# The largest double has 309 integer digits.
_MAX_INTEGER_DIGITS = 309
# Decimal holds exponents of up to 18 digits; a number beyond them is refused rather than rounded.
_MAX_EXPONENT_DIGITS = 17


def parse(raw: bytes, *, max_depth: int | None = DEFAULT_MAX_DEPTH) -> JsonValue:
    """The JSON value of a request body (H-004).

    SaiseiError invalid_request, with the place and the key where there is one, for: bytes that are not strict UTF-8,
    a byte order mark, malformed JSON, a repeated key at any depth, a lone surrogate, NaN or Infinity, a number over
    the largest double, nesting over `max_depth` levels (None: any).
    """
    try:
        return read(decode_utf8(raw), _exact_number, max_depth)
    except JsonFault as fault:
        raise SaiseiError("invalid_request", f"The body is not valid JSON: {fault}.") from None


def parse_text(text: str, *, max_depth: int | None = DEFAULT_MAX_DEPTH) -> JsonValue:
    """As `parse`, for a text that is decoded already (a gRPC string, a stored column)."""
    try:
        return read(text, _exact_number, max_depth)
    except JsonFault as fault:
        raise SaiseiError("invalid_request", f"The text is not valid JSON: {fault}.") from None


def dumps(value: JsonValue) -> str:
    """JSON text with the numbers as they were read and the keys in their order. ValueError for NaN and infinities."""
    return write(value, _spelling)


def equality_key(value: JsonValue) -> str:
    """A string that is equal for two values exactly when H-140 calls them equal.

    1 = 1.0 = 1e0 and -0 = 0; `true` differs from 1; key order does not count, array order does. Its length is that of
    the spelling: 1e300000 is written as one digit and an exponent.
    """
    return write(value, _number_key, sorted)


def equals(left: JsonValue, right: JsonValue) -> bool:
    """H-140 equality of two JSON values."""
    return equality_key(left) == equality_key(right)


def as_integer(value: JsonValue) -> int | None:
    """The integer that `value` spells (`3`, `3.0`, `3e0`), or None: booleans, strings and fractions are none (H-005,
    F-01).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, int):
        return value
    sign, digits, exponent = _normalised(value)
    if exponent < 0 or exponent + len(digits) > _MAX_INTEGER_DIGITS:
        return None
    return sign * int(digits + "0" * exponent)


def _exact_number(spelling: str) -> int | Decimal:
    mantissa, _, exponent = spelling.lower().partition("e")
    if not mantissa.strip("-0."):
        # Zero, whatever the exponent says.
        return 0 if spelling == "0" else Decimal(mantissa)
    if math.isinf(float(spelling)):
        raise ValueError("the number is larger than the largest IEEE 754 double")
    if spelling.lstrip("-").isdigit():
        return int(spelling)
    if len(exponent.lstrip("+-").lstrip("0")) > _MAX_EXPONENT_DIGITS:
        raise ValueError("the number's exponent is out of range")
    return Decimal(spelling)


def _spelling(number: int | float | Decimal) -> str:
    if isinstance(number, int):
        return str(number)
    if not math.isfinite(number):
        raise ValueError("NaN and infinities are no JSON numbers")
    return repr(number) if isinstance(number, float) else str(number)


def _number_key(number: int | float | Decimal) -> str:
    sign, digits, exponent = _normalised(number)
    return f"{'-' if sign < 0 else ''}{digits}e{exponent}"


def _normalised(number: int | float | Decimal) -> tuple[int, str, int]:
    """Sign, digits without outer zeros, exponent of ten; zero is (1, "0", 0)."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise ValueError("NaN and infinities are no JSON numbers")
        # The shortest spelling is what a double means in JSON.
        number = Decimal(repr(number))
    if isinstance(number, int):
        text, exponent, negative = str(abs(number)), 0, number < 0
    else:
        parts = number.as_tuple()
        assert isinstance(parts.exponent, int), "the reader makes finite numbers only"
        text, exponent, negative = "".join(map(str, parts.digits)), parts.exponent, parts.sign == 1
    digits = text.strip("0")
    if not digits:
        return 1, "0", 0
    exponent += len(text) - len(text.rstrip("0"))
    return (-1 if negative else 1), digits, exponent
