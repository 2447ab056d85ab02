"""How the records of an event stream look on the wire, and which way a client prefers (design 5, 6)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

END_JSON = b'{"type":"end"}'

_MEDIA_RANGE = re.compile(r"\s*([^\s;,]+)\s*(?:;(.*))?\Z", re.DOTALL)
_QUALITY = re.compile(r"\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*\Z", re.IGNORECASE)


class Framing(ABC):
    """How records look on the wire."""

    media_type: str
    heartbeat: bytes
    end: bytes

    @abstractmethod
    def record(self, event_id: int, event_type: str, event_json: bytes) -> bytes: ...


class ServerSentEvents(Framing):
    """`id` is the eventId, so that a browser sends it back as Last-Event-ID; heartbeats are comments."""

    media_type = "text/event-stream"
    heartbeat = b": heartbeat\n\n"
    end = b"event: end\ndata: " + END_JSON + b"\n\n"

    def record(self, event_id: int, event_type: str, event_json: bytes) -> bytes:
        # Canonical JSON has no line breaks of its own.
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, event_type.encode(), event_json)


class JsonLines(Framing):
    """One event a line; heartbeats are empty lines."""

    media_type = "application/x-ndjson"
    heartbeat = b"\n"
    end = END_JSON + b"\n"

    def record(self, event_id: int, event_type: str, event_json: bytes) -> bytes:
        return event_json + b"\n"


SSE, NDJSON = ServerSentEvents(), JsonLines()


def framing_for(accept: list[str]) -> Framing:
    """NDJSON when the client prefers it, else SSE: who accepts neither still gets an answer that can be read."""
    ranges: dict[str, float] = {}
    for part in ",".join(accept).split(","):
        match = _MEDIA_RANGE.match(part)
        if match is None:
            continue
        parameters = [_QUALITY.match(parameter) for parameter in (match.group(2) or "").split(";")]
        ranges[match.group(1).lower()] = next((float(found.group(1)) for found in parameters if found), 1.0)

    def weight(exact: str, *wildcards: str) -> tuple[float, bool]:
        """Quality first; at equal quality a type that is named wins over one that a wildcard covers."""
        if exact in ranges:
            return ranges[exact], True
        return next((ranges[name] for name in wildcards if name in ranges), 0.0), False

    lines = weight("application/x-ndjson", "application/*", "*/*")
    return NDJSON if lines > weight("text/event-stream", "text/*", "*/*") else SSE
