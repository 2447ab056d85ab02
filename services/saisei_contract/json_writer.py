"""A JSON writer that never recurses, with the number spelling and the key order as parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal

from saisei_contract.json_reader import JsonObject, JsonValue

# Exactly the escapes of RFC 8785 3.2.2.2: the two-character ones, \u00xx in lower case for other controls, nothing
# else.
_quote = json.JSONEncoder(ensure_ascii=False).encode


def write(
    value: JsonValue,
    number: Callable[[int | float | Decimal], str],
    order: Callable[[JsonObject], list[str]] | None = None,
) -> str:
    """The JSON text of `value` without any space.

    `order` gives the sequence of an object's keys (None: as they stand). TypeError for anything that is no JSON
    value; ValueError for what `number` refuses.
    """
    parts: list[str] = []
    # Each frame: the members still to write, and the text that closes the container.
    stack: list[tuple[Iterator[tuple[str, JsonValue]], str]] = []
    todo: tuple[str, JsonValue] | None = ("", value)
    while True:
        if todo is None:
            if not stack:
                return "".join(parts)
            members, close = stack[-1]
            todo = next(members, None)
            if todo is None:
                parts.append(close)
                stack.pop()
            continue
        prefix, item = todo
        todo = None
        parts.append(prefix)
        match item:
            case str():
                parts.append(_quote(item))
            case None:
                parts.append("null")
            case True:
                parts.append("true")
            case False:
                parts.append("false")
            case int() | float() | Decimal():
                parts.append(number(item))
            case list() | tuple():
                parts.append("[")
                stack.append((_elements(item), "]"))
            case dict():
                parts.append("{")
                stack.append((_members(item, order(item) if order else list(item)), "}"))
            case _:
                raise TypeError(f"{type(item).__name__} is no JSON value")


def _elements(items: list[JsonValue] | tuple[JsonValue, ...]) -> Iterator[tuple[str, JsonValue]]:
    prefix = ""
    for item in items:
        yield prefix, item
        prefix = ","


def _members(item: JsonObject, keys: list[str]) -> Iterator[tuple[str, JsonValue]]:
    comma = ""
    for key in keys:
        if not isinstance(key, str):
            raise TypeError("the keys of a JSON object are strings")
        yield f"{comma}{_quote(key)}:", item[key]
        comma = ","
