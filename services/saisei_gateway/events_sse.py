"""`GET …/instances/{id}/events`: history, then live, as server-sent events or JSON lines (S-01 … S-13, design 6).

A stream that is done says so in its last record, `end`. One without it was cut: go on from the last event id.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from saisei.runtime.v1 import feed_pb2 as pb
from saisei_contract.events import parse_cursor, parse_filter
from saisei_gateway.calls import Call
from saisei_gateway.connection import connection_of
from saisei_gateway.event_readers import Reader
from saisei_gateway.framing import Framing, framing_for
from saisei_gateway.host_api.request import header_values, read_query
from saisei_gateway.host_api.respond import NO_STORE
from saisei_gateway.workflows import instance_id


async def subscribe(call: Call) -> Response:
    query = read_query(call.request, ("cursor", "filter"))
    cursor = parse_cursor(query.get("cursor"))
    # A browser reconnects with the URL that it began with: what it saw since is in the header.
    for seen in header_values(call.request, "last-event-id"):
        cursor = parse_cursor(seen)
    types = parse_filter(query.get("filter"))
    framing = framing_for(header_values(call.request, "accept"))
    name = (call.identifier("uid"), instance_id(call))
    reader = call.gateway.readers.open(name, cursor, types, framing, call.caller.token)
    # Its first batch, which may be empty: 200 is said only of an instance that exists and may be read.
    opened = reader.opened
    assert opened is not None
    try:
        first = await opened
    except BaseException:
        reader.close()
        raise
    return EventStream(reader, first, framing)


class EventStream(Response):
    """The head. What follows goes from the reader to the connection, until the instance has ended, the client has gone,
    or the gateway is told to stop."""

    def __init__(self, reader: Reader, first: pb.FeedBatch, framing: Framing) -> None:
        headers = {**NO_STORE, "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, framing.media_type)
        del self.headers["content-length"]
        self._reader = reader
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, connection = self._reader, connection_of(scope)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        except BaseException:
            reader.close()
            raise
        connection.hand_over(reader)
        reader.start(connection, self._first)
