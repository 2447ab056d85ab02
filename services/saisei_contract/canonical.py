"""RFC 8785 (JSON Canonicalization Scheme) bytes of values of any depth.

The rfc8785 package spells the doubles; it recurses over containers, so they are walked here.
"""

from __future__ import annotations

from decimal import Decimal

import rfc8785

from saisei_contract.json_reader import JsonObject, JsonValue
from saisei_contract.json_writer import write

_EXACT_INTEGERS = 2**53


def canonical_text(value: JsonValue) -> str:
    """As `canonical`, before the encoding to UTF-8."""
    return write(value, number_text, utf16_order)


def canonical(value: JsonValue) -> bytes:
    """The RFC 8785 serialisation. Numbers are IEEE 754 doubles, spelled as ECMAScript spells them.

    ValueError for a number that is no finite double, UnicodeEncodeError (a ValueError) for a lone surrogate.
    """
    return canonical_text(value).encode("utf-8")


def number_text(number: int | float | Decimal) -> str:
    """ECMAScript's spelling of the double nearest to `number`: 1e21, 1e-7, 0.1; -0 becomes 0 (W-047)."""
    try:
        double = float(number)
    except OverflowError:
        raise ValueError("the number is larger than the largest IEEE 754 double") from None
    if -_EXACT_INTEGERS < double < _EXACT_INTEGERS and double.is_integer():
        return str(int(double))
    return rfc8785.dumps(double).decode("ascii")


def utf16_order(item: JsonObject) -> list[str]:
    """The keys in the order of their UTF-16 code units (RFC 8785 3.2.3)."""
    keys = list(item)
    if all(map(str.isascii, keys)):
        return sorted(keys)
    return sorted(keys, key=lambda key: key.encode("utf-16-be"))
