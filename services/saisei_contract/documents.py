"""Workflow documents that arrive as JSON: params and event payloads over HTTP and gRPC (W-040 … W-049).

Inside a Worker the isolate makes the canonical bytes; this is the same rule for documents that no isolate has seen.
"""

from __future__ import annotations

import math

from saisei_contract.canonical import canonical
from saisei_contract.errors import SaiseiError
from saisei_contract.json_reader import JsonFault, JsonValue, decode_utf8, read

MAX_ROOT_PROPERTIES = 1024
MAX_DOCUMENT_BYTES = 1_048_576


def canonical_document(raw: bytes) -> bytes:
    """The canonical bytes of a document given as JSON text; canonical bytes come back as they are.

    SaiseiError invalid_params when the text is not strict JSON (H-004), when the root is no object (W-040), or when
    the root has over 1,024 properties (W-049); document_too_large over 1,048,576 canonical bytes (W-041). Nesting has
    no limit (W-047).
    """
    try:
        value = read_document(raw)
    except JsonFault as fault:
        raise SaiseiError("invalid_params", f"The document is not valid JSON: {fault}.") from None
    return canonical_value(value)


def read_document(raw: bytes) -> JsonValue:
    """JSON text of any nesting with its numbers as doubles, for documents and bodies that carry some. JsonFault."""
    return read(decode_utf8(raw), _double)


def canonical_value(value: JsonValue) -> bytes:
    """The canonical bytes of a document that was read already, such as one member of a larger body. Errors as above."""
    if not isinstance(value, dict):
        raise SaiseiError("invalid_params", "A document is a JSON object; arrays and plain values can stand inside it.")
    if len(value) > MAX_ROOT_PROPERTIES:
        raise SaiseiError(
            "invalid_params",
            f"The document's root has {len(value):,} properties; at most {MAX_ROOT_PROPERTIES:,} are allowed.",
        )
    try:
        encoded = canonical(value)
    except ValueError:
        raise SaiseiError(
            "invalid_params", "The document holds a number that is not finite, or a string with a lone surrogate."
        ) from None
    check_size(encoded)
    return encoded


def check_size(canonical_bytes: bytes) -> None:
    """SaiseiError document_too_large over 1,048,576 canonical bytes (W-041)."""
    if len(canonical_bytes) > MAX_DOCUMENT_BYTES:
        raise SaiseiError(
            "document_too_large",
            f"The document has {len(canonical_bytes):,} canonical bytes; at most {MAX_DOCUMENT_BYTES:,} are allowed.",
        )


def _double(spelling: str) -> float:
    double = float(spelling)
    if math.isinf(double):
        raise ValueError("the number is larger than the largest IEEE 754 double")
    return double
