"""uvicorn in our own event loop, with connections of ours and a stop that ends streams at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from saisei_gateway.connection import BoundedProtocol

KEEP_ALIVE_SECONDS = 75


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
