"""One client's connection: uvicorn's protocol with bounded heads, whose idle responses need neither task nor request.

Thousands of clients keep a connection open and say nothing, most of them in the middle of an event stream. uvicorn
keeps a request with its headers until the next one comes, and the application's task until its response is complete:
two thirds of what a connection costs beyond TLS. Here either is let go as soon as nobody can ask for it any more.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Mapping
from typing import Any, Protocol, cast

from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from saisei_contract.errors import SaiseiError
from saisei_gateway.host_api.respond import problem_body

MAX_HEAD_BYTES = 64 * 1024
# From the connection, or from the first byte of a request, until its head is complete.
HEAD_SECONDS = 10.0
# What a client that does not read an event stream has waiting for it here, beyond one batch.
STREAM_BUFFER_BYTES = 64 * 1024

_CONNECTION = "saisei.connection"
_LAST_CHUNK = b"0\r\n\r\n"


class Stream(Protocol):
    """Who writes the body of a response that was handed over. Neither method waits or raises."""

    def resume(self) -> None:
        """The client can take more, after the connection was `paused`."""

    def close(self) -> None:
        """The client has gone."""


class _HeadTooLarge(Exception):  # noqa: N818 - a signal through the parser
    pass


class _Remainder:
    """What uvicorn may still ask of an exchange, instead of its request, buffers and application."""

    __slots__ = ("disconnected", "keep_alive", "more_body", "response_complete")

    # Nobody waits for it.
    message_event = asyncio.Event()

    def __init__(self, *, keep_alive: bool, response_complete: bool) -> None:
        self.keep_alive = keep_alive
        self.response_complete = response_complete
        self.disconnected = False
        self.more_body = True


_DONE = _Remainder(keep_alive=True, response_complete=True)


class _Pipeline(list[Any]):
    """Of uvicorn's deque, what it uses. Nearly always empty, which takes a deque 760 bytes."""

    def appendleft(self, waiting: Any) -> None:
        self.insert(0, waiting)


class _Flow(FlowControl):
    """Has its event, as large as that, from the first time on that somebody may have to wait."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False

    def pause_writing(self) -> None:
        if not self.write_paused:
            self._is_writable_event = asyncio.Event()
            self.write_paused = True


class BoundedProtocol(HttpToolsProtocol):
    """httptools itself takes heads of any size and waits for them for ever."""

    # Beside the attributes of uvicorn, more would cost each connection a table of names of its own.
    __slots__ = ("_answering", "_fault", "_head_bytes", "_head_timer", "_stream")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._head_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._fault = "The bytes are no HTTP/1.1 request."
        # The exchange whose response is being made: `cycle` may be one that waits behind it.
        self._answering: RequestResponseCycle | None = None
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn tells the newest request only, which may be waiting behind this one.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        # The scope knows this object; without that ring, both are freed at once and not when the collector comes by.
        self.scope = self.cycle = self._answering = None  # type: ignore[assignment]
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stream is not None:
            self._stream.resume()
        elif isinstance(self._answering, _Remainder):
            self._complete(self._answering)

    # --- a response without an application ---

    def hand_over(self, stream: Stream) -> None:
        """The response whose head was sent is written by `stream` with `write`, until it says `finish`.

        The application returns at once. `stream` is closed before this returns if the client has gone already.
        """
        answering = self._answering
        if answering is not None:
            # Else uvicorn takes offence at an application that returns before its response is complete.
            answering.disconnected = True
        if answering is None or self.transport.is_closing():
            stream.close()
            return
        left = _Remainder(keep_alive=answering.keep_alive, response_complete=False)
        self._answering = cast(RequestResponseCycle, left)
        self._stream = stream
        self.transport.set_write_buffer_limits(STREAM_BUFFER_BYTES)
        if self.cycle is answering:
            self._forget(left)

    def write(self, framed: bytes) -> None:
        """Whole chunks of the body. Nothing happens once the client has gone."""
        if not self.transport.is_closing():
            self.transport.write(framed)

    def finish(self) -> None:
        """The body is complete. Nothing happens once the client has gone."""
        if self._stream is not None:
            self._stream = None
            if not self.flow.write_paused:
                self._complete(cast(_Remainder, self._answering))

    @property
    def paused(self) -> bool:
        """The client has more than STREAM_BUFFER_BYTES waiting for it."""
        return self.flow.write_paused

    def _complete(self, left: _Remainder) -> None:
        """Once the client has taken what was there: the time that an idle connection is kept begins now."""
        if left.response_complete or self.transport.is_closing():
            return
        left.response_complete = True
        self.transport.set_write_buffer_limits()
        self.transport.write(_LAST_CHUNK)
        if not left.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._answering = None
            self._forget(_DONE)

    def _forget(self, left: _Remainder) -> None:
        self.cycle = cast(RequestResponseCycle, left)
        if self._head_timer is None:
            # Else the head of the next request has begun to come.
            self.scope, self.headers, self.url = None, [], b""  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answering = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    # --- what the parser finds ---

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._arm()
        super().on_message_begin()
        self.scope["state"][_CONNECTION] = self

    def on_body(self, body: bytes) -> None:
        # A stream has no use for a body, and would not see its client go while one is waiting to be read.
        if not isinstance(self.cycle, _Remainder):
            super().on_body(body)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        body = problem_body(SaiseiError("invalid_request", self._fault))
        self.transport.write(
            STATUS_LINE[400]
            + b"content-type: application/problem+json\r\ncache-control: no-store\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked (RFC 9110 7.8)."""

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fault = f"The request line and headers have more than {MAX_HEAD_BYTES:,} octets."
            raise _HeadTooLarge

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        self.transport.close()


def connection_of(scope: Mapping[str, Any]) -> BoundedProtocol:
    """The connection of a request."""
    connection: BoundedProtocol = scope["state"][_CONNECTION]
    return connection
