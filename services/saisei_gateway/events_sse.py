"""`GET …/instances/{id}/events`: history, then live, as server-sent events or JSON lines (S-01 … S-13, design 6).

A stream that is done says so in its last record, `end`. One without it was cut: go on from the last event id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import grpc
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from saisei.runtime.v1 import workflows_pb2 as pb
from saisei_contract.events import parse_cursor, parse_filter
from saisei_gateway.backends import CALL_SECONDS, answer_of
from saisei_gateway.calls import Call
from saisei_gateway.host_api.request import header_values, read_query
from saisei_gateway.host_api.respond import NO_STORE
from saisei_gateway.streams import until_gone
from saisei_gateway.workflows import instance_id
from saisei_service.rpc_errors import from_rpc_error

log = logging.getLogger(__name__)

END_JSON = b'{"type":"end"}'

_MEDIA_RANGE = re.compile(r"\s*([^\s;,]+)\s*(?:;(.*))?\Z", re.DOTALL)
_QUALITY = re.compile(r"\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*\Z", re.IGNORECASE)


class Framing(ABC):
    """How records look on the wire."""

    media_type: str
    heartbeat: bytes
    end: bytes

    @abstractmethod
    def record(self, event: pb.InstanceEvent) -> bytes: ...


class ServerSentEvents(Framing):
    """`id` is the eventId, so that a browser sends it back as Last-Event-ID; heartbeats are comments."""

    media_type = "text/event-stream"
    heartbeat = b": heartbeat\n\n"
    end = b"event: end\ndata: " + END_JSON + b"\n\n"

    def record(self, event: pb.InstanceEvent) -> bytes:
        # Canonical JSON has no line breaks of its own.
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, event.type.encode(), event.event_json)


class JsonLines(Framing):
    """One event a line; heartbeats are empty lines."""

    media_type = "application/x-ndjson"
    heartbeat = b"\n"
    end = END_JSON + b"\n"

    def record(self, event: pb.InstanceEvent) -> bytes:
        return event.event_json + b"\n"


async def subscribe(call: Call) -> Response:
    query = read_query(call.request, ("cursor", "filter"))
    cursor = parse_cursor(query.get("cursor"))
    # A browser reconnects with the URL that it began with: what it saw since is in the header.
    for seen in header_values(call.request, "last-event-id"):
        cursor = parse_cursor(seen)
    names = parse_filter(query.get("filter"))
    request = pb.SubscribeEventsRequest(
        workflow_uid=call.identifier("uid"),
        id=instance_id(call),
        cursor=cursor,
        filter=None if names is None else pb.EventFilter(types=sorted(names)),
    )
    # A live stream may stay silent for long, so its existence is asked for before 200 is said.
    known = pb.GetInstanceRequest(workflow_uid=request.workflow_uid, id=request.id)
    await answer_of(call.backends.workflows.GetInstance(known, metadata=call.metadata, timeout=CALL_SECONDS))
    return EventStream(call, request, framing_for(header_values(call.request, "accept")))


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
    return JsonLines() if lines > weight("text/event-stream", "text/*", "*/*") else ServerSentEvents()


class EventStream(Response):
    """Ends when the instance has ended, the client has gone, or the gateway is told to stop."""

    def __init__(self, call: Call, request: pb.SubscribeEventsRequest, framing: Framing) -> None:
        headers = {**NO_STORE, "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, framing.media_type)
        del self.headers["content-length"]
        self._call = call
        self._request = request
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._call.gateway
        rpc = self._call.backends.workflows.SubscribeEvents(self._request, metadata=self._call.metadata)
        with gateway.metrics.stream("events"):
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                gone = await until_gone(receive, gateway.draining, self._relay(rpc, send))
            finally:
                rpc.cancel()
        if not gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _relay(self, rpc: Any, send: Send) -> None:
        pulse = _Pulse(self._call.gateway.settings.heartbeat_seconds, self._framing.heartbeat, send)
        beating = asyncio.create_task(pulse.beat())
        try:
            async for event in rpc:
                await pulse.send(self._framing.record(event))
            await pulse.send(self._framing.end)
        except grpc.aio.AioRpcError as error:
            # 200 is said already; the missing end record tells the client that this was a cut.
            log.info("an event stream was cut", extra={"reason": from_rpc_error(error).reason})
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating


class _Pulse:
    """Sends records, and a heartbeat whenever nothing was sent for a whole interval."""

    def __init__(self, interval: float, heartbeat: bytes, send: Send) -> None:
        self._interval = interval
        self._heartbeat = heartbeat
        self._send = send
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._last = self._clock()

    async def send(self, record: bytes) -> None:
        self._last = self._clock()
        await self._send({"type": "http.response.body", "body": record, "more_body": True})

    async def beat(self) -> None:
        while True:
            rest = self._last + self._interval - self._clock()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self.send(self._heartbeat)
