"""The one check of closed objects, for envelopes, specs and manifests alike (H-009, H-011, F-01, AR-02)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from saisei_contract.json_reader import JsonObject, JsonValue, shown

Refuse = Callable[[str, str], Exception]
"""Makes the error of a reader from a path (empty for the whole value) and the rule that it breaks."""


def closed(
    value: JsonValue,
    path: str,
    required: Iterable[str],
    optional: Container[str],
    refuse: Refuse,
    *,
    nullable: Container[str] = (),
) -> JsonObject:
    """`value` as an object with exactly the known keys, none of them null but those in `nullable`."""
    if not isinstance(value, dict):
        raise refuse(path, "must be a JSON object")
    required = tuple(required)
    for key, member in value.items():
        if key not in required and key not in optional:
            raise refuse(path, f"has the unknown field {shown(key)}")
        if member is None and key not in nullable:
            raise refuse(join(path, key), "must not be null")
    for key in required:
        if key not in value:
            raise refuse(join(path, key), "is missing")
    return value


def text(value: JsonValue, path: str, grammar: Callable[[str], bool], rule: str, refuse: Refuse) -> str:
    """A string that `grammar` accepts; `rule` completes "must be …"."""
    if not isinstance(value, str) or not grammar(value):
        raise refuse(path, f"must be {rule}")
    return value


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
