"""A JSON writer that never recurses, with the number spelling and the key order as parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from saisei_contract.json_reader import JsonObject, JsonValue

# Exactly the escapes of RFC 8785 3.2.2.2: the two-character ones, \u00xx in lower case for other
# controls, nothing else.
_quote: Callable[[str], str] = encode_basestring
_END = object()


class Verbatim(str):
    """A JSON text that is written as it is: a document that was read strictly and stored, and is only passed on."""

    __slots__ = ()


def write(
    value: JsonValue,
    number: Callable[[int | float | Decimal], str],
    order: Callable[[JsonObject], list[str]] = list,
) -> str:
    """The JSON text of `value` without any space.

    `order` gives the sequence of an object's keys. TypeError for anything that is no JSON value; ValueError for what
    `number` refuses.
    """
    parts: list[str] = []
    # The open containers: what is left of an array's items or an object's keys, and the object itself.
    stack: list[tuple[Iterator[Any], JsonObject | None]] = []
    item: Any = value
    while True:
        kind = type(item)
        if kind is str:
            parts.append(_quote(item))
        elif kind is Verbatim:
            parts.append(item)
        elif isinstance(item, dict) and item:
            stack.append((iter(order(item)), item))
            parts.append("{")
        elif isinstance(item, list | tuple) and item:
            stack.append((iter(item), None))
            parts.append("[")
        else:
            parts.append(_leaf(item, number))
        # The next item to write, after closing every container that has no more.
        separator = "" if parts[-1] in {"{", "["} else ","
        while True:
            if not stack:
                return "".join(parts)
            rest, members = stack[-1]
            item = next(rest, _END)
            if item is not _END:
                break
            stack.pop()
            parts.append("]" if members is None else "}")
            separator = ","
        if members is None:
            parts.append(separator)
        else:
            if not isinstance(item, str):
                raise TypeError("the keys of a JSON object are strings")
            parts.append(f"{separator}{_quote(item)}:")
            item = members[item]


def _leaf(item: Any, number: Callable[[int | float | Decimal], str]) -> str:
    match item:
        case str():
            return _quote(item)
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case int() | float() | Decimal():
            return number(item)
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
        case _:
            raise TypeError(f"{type(item).__name__} is no JSON value")
