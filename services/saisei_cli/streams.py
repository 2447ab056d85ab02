"""Readers of the two forms of an event stream: server-sent events and newline-delimited JSON (design 6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

END = "end"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a stream. `type` "end" says that there will be no more; `event` then is the closing object."""

    type: str
    event: dict[str, Any]


def lines_of(parts: Iterable[bytes]) -> Iterator[str]:
    """Lines without their ends, of the parts of a UTF-8 body. Only LF ends one, after an optional CR.

    Texts of events may hold U+0085, U+2028 and the like, which Python and its HTTP clients take for ends as well.
    """
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()


def read_sse(lines: Iterable[str]) -> Iterator[Record]:
    """Records of a `text/event-stream` body given as lines without their ends; comments (heartbeats) are dropped.

    A body that is cut yields what was complete: a record counts only with its empty line.
    """
    kind = "message"
    data: list[str] = []
    for line in lines:
        if line == "":
            if data or kind != "message":
                yield Record(kind, _object("\n".join(data)))
            kind = "message"
            data = []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)


def read_ndjson(lines: Iterable[str]) -> Iterator[Record]:
    """Records of an `application/x-ndjson` body; empty lines are heartbeats."""
    for line in lines:
        if line.strip():
            event = _object(line)
            yield Record(str(event.get("type", "message")), event)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}
