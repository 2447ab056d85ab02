"""uvicorn in our own event loop: limits on heads, problems for what is no HTTP, a stop that ends streams at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from asyncio import TimerHandle
from collections.abc import Callable, Iterator, Mapping
from socket import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from saisei_contract.errors import SaiseiError
from saisei_gateway.host_api.respond import problem_body

MAX_HEAD_BYTES = 64 * 1024
# From the connection, or from the first byte of a request, until its head is complete.
HEAD_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 75
# What a client that does not read an event stream has waiting for it here, beyond one batch.
STREAM_BUFFER_BYTES = 64 * 1024

_CONNECTION = "saisei.connection"


class _HeadTooLarge(Exception):  # noqa: N818 - a signal through the parser
    pass


class BoundedProtocol(HttpToolsProtocol):
    """httptools itself takes heads of any size and waits for them for ever."""

    _head_bytes = 0
    _head_timer: TimerHandle | None = None
    _fault = "The bytes are no HTTP/1.1 request."
    _on_gone: Callable[[], None] | None = None
    _on_writable: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        # The scope knows this object; without that ring, both are freed at once and not when the collector comes by.
        self.scope = self.cycle = None  # type: ignore[assignment]
        if self._on_gone is not None:
            self._on_gone()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._on_writable is not None:
            self._on_writable()

    @contextlib.contextmanager
    def streaming(self, *, on_gone: Callable[[], None], on_writable: Callable[[], None]) -> Iterator[None]:
        """While the block runs, the body of a response whose head was sent is written by `write` and not as messages.

        That costs no task for each end of the stream. `on_gone` may be called before the block begins.
        """
        self._on_gone, self._on_writable = on_gone, on_writable
        self.transport.set_write_buffer_limits(STREAM_BUFFER_BYTES)
        if self.transport.is_closing():
            on_gone()
        try:
            yield
        finally:
            self._on_gone = self._on_writable = None
            self.transport.set_write_buffer_limits()

    def write(self, framed: bytes) -> None:
        """Whole chunks of the body. Nothing happens once the client has gone."""
        if not self.transport.is_closing():
            self.transport.write(framed)

    @property
    def paused(self) -> bool:
        """The client has more than STREAM_BUFFER_BYTES waiting for it."""
        return self.flow.write_paused

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._arm()
        super().on_message_begin()
        self.scope["state"][_CONNECTION] = self

    def on_body(self, body: bytes) -> None:
        # A stream has no use for a body, and would not see its client go while one is waiting to be read.
        if self._on_gone is None:
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


class HttpServer(uvicorn.Server):
    """Leaves signals to the process, so that a stop ends with status 0. `on_stop` runs when the stop begins."""

    def __init__(
        self,
        app: ASGIApp,
        address: tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        grace_seconds: int = 5,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        host, port = address
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        super().__init__(config)
        self._on_stop = on_stop
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Wakes once a second for the Date header, and at once to stop; uvicorn's own loop wakes ten times a second."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @property
    def port(self) -> int:
        """The bound port, once `started`."""
        return int(self.servers[0].sockets[0].getsockname()[1])
