"""A strict JSON reader that never recurses: one scanner for request bodies and for workflow documents (H-004, W-047).

The reader of the standard library accepts NaN, lone surrogates and repeated keys, and its recursion ends at about
1,000 levels. This one keeps its own stack, so that 100,000 nested arrays are only a question of the caller's depth
limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

JsonValue: TypeAlias = "bool | int | float | Decimal | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_SPACE = re.compile(r"[ \t\n\r]*+")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_STRING_CHUNK = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_AFTER_NUMBER = frozenset("0123456789.eE+-")
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([\"\\/bfnrt]))"
)
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: dict[str, tuple[str, bool | None]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


class JsonFault(ValueError):  # noqa: N818 - what is wrong with a text, told to a client by others
    """The text is not JSON as the Host reads it.

    The message names the place and the fault and quotes no values but keys.
    """


def decode_utf8(raw: bytes) -> str:
    """The text of `raw`.

    JsonFault when it has a byte order mark or is not strict UTF-8 (encoded surrogates included).
    """
    if raw.startswith(b"\xef\xbb\xbf"):
        raise JsonFault("the text begins with a byte order mark; send plain UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonFault(f"the bytes are not UTF-8 (byte {error.start})") from None


def read(text: str, number: Callable[[str], JsonValue], max_depth: int | None = None) -> JsonValue:
    """The value of a whole JSON text.

    `number` turns a number's spelling into its value and may raise ValueError with a reason. `max_depth` bounds the
    nesting of arrays and objects (None: any). JsonFault names the first fault and its place.
    """
    return _Reader(text, number, max_depth).document()


def where(text: str, position: int) -> str:
    """A place for people: `line 2, column 7`."""
    line_start = text.rfind("\n", 0, position) + 1
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - line_start + 1}"


class _Reader:
    def __init__(self, text: str, number: Callable[[str], JsonValue], max_depth: int | None) -> None:
        self._text = text
        self._number = number
        self._max_depth = max_depth

    def document(self) -> JsonValue:  # noqa: PLR0912 - one loop is the whole machine, and the hot path
        text, skip = self._text, _SPACE.match
        stack: list[Any] = []
        keys: list[str] = []  # the pending key of each object on the stack
        position = self._space(0)
        while True:
            # A value begins at `position`.
            character = text[position : position + 1]
            value: JsonValue
            if character == '"':
                value, position = self._string(position)
            elif character in {"[", "{"}:
                opened: Any = [] if character == "[" else {}
                if self._max_depth is not None and len(stack) >= self._max_depth:
                    raise self._fault(position, f"arrays and objects nest deeper than {self._max_depth} levels")
                position = self._space(position + 1)
                if text[position : position + 1] == ("]" if character == "[" else "}"):
                    position += 1
                    value = opened
                else:
                    stack.append(opened)
                    if character == "{":
                        key, position = self._key(position, opened)
                        keys.append(key)
                    continue
            else:
                value, position = self._scalar(position, character)
            # A value ended at `position`: hand it to its container, and close every container that ends here.
            while True:
                match = skip(text, position)
                assert match is not None
                position = match.end()
                if not stack:
                    if position != len(text):
                        raise self._fault(position, "more text follows the JSON value")
                    return value
                character = text[position : position + 1]
                container = stack[-1]
                is_list = type(container) is list
                if is_list:
                    container.append(value)
                else:
                    container[keys[-1]] = value
                if character == ",":
                    position = self._space(position + 1)
                    if not is_list:
                        keys[-1], position = self._key(position, container)
                    break
                if character != ("]" if is_list else "}"):
                    raise self._fault(position, f"expected ',' or '{']' if is_list else '}'}'")
                position += 1
                value = stack.pop()
                if not is_list:
                    keys.pop()

    def _fault(self, position: int, reason: str) -> JsonFault:
        if position >= len(self._text):
            return JsonFault(f"the text ends early: {reason}" if self._text else "the text is empty")
        return JsonFault(f"{reason} ({where(self._text, position)})")

    def _space(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        assert match is not None
        return match.end()

    def _key(self, position: int, container: dict[str, JsonValue]) -> tuple[str, int]:
        """The key at `position`, and the place of its value. Repeated keys are refused, not overwritten."""
        if self._text[position : position + 1] != '"':
            raise self._fault(position, "expected an object key in double quotes")
        key, end = self._string(position)
        if key in container:
            raise self._fault(position, f"the key {shown(key)} is repeated")
        end = self._space(end)
        if self._text[end : end + 1] != ":":
            raise self._fault(end, "expected ':' after an object key")
        return key, self._space(end + 1)

    def _string(self, position: int) -> tuple[str, int]:
        match = _STRING.match(self._text, position)
        if match is None:
            raise self._string_fault(position)
        value = match.group(1)
        if "\\" in value:
            try:
                value = _ESCAPE.sub(_unescape, value)
            except JsonFault:
                raise self._fault(position, "the string holds a lone surrogate escape") from None
        return value, match.end()

    def _string_fault(self, position: int) -> JsonFault:
        chunk = _STRING_CHUNK.match(self._text, position + 1)
        assert chunk is not None
        end = chunk.end()
        if end >= len(self._text):
            return self._fault(end, "a string is not closed")
        if self._text[end] == "\\":
            return self._fault(end, "the string holds an unknown escape")
        return self._fault(end, "the string holds a raw control character; escape it")

    def _scalar(self, position: int, first: str) -> tuple[JsonValue, int]:
        if first in _LITERALS:
            word, value = _LITERALS[first]
            if self._text.startswith(word, position):
                return value, position + len(word)
        match = _NUMBER.match(self._text, position)
        if match is None:
            raise self._fault(position, "expected a JSON value")
        end = match.end()
        if self._text[end : end + 1] in _AFTER_NUMBER:
            raise self._fault(position, "the number is not spelled as JSON spells numbers")
        try:
            return self._number(match.group()), end
        except ValueError as error:
            raise self._fault(position, str(error)) from None


def _unescape(match: re.Match[str]) -> str:
    high, low, single, short = match.groups()
    if short is not None:
        return _SHORT_ESCAPES[short]
    if high is not None:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    code = int(single, 16)
    if 0xD800 <= code <= 0xDFFF:
        raise JsonFault("lone surrogate")
    return chr(code)


def shown(name: str, limit: int = 64) -> str:
    """A client's own name quoted for a message: as an ASCII JSON string, cut after `limit` characters."""
    return json.dumps(name) if len(name) <= limit else f"{json.dumps(name[:limit])}..."
