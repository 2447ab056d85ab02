"""gRPC servers and channels of the services: one set of options, health and reflection on, errors in one form."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from saisei_service.rpc_errors import ServicerErrors

log = logging.getLogger(__name__)

# A 1 MiB document with its envelope must pass each hop; a request body of the Host API too.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024 + 64 * 1024

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)
_SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    *_OPTIONS,
    # Beyond 1,000 calls that wait for the event loop, gRPC cancels new ones at random. Thousands of readers that come
    # back together after a restart are no overload: they are to wait their turn.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)
_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    *_OPTIONS,
    # A killed service is back within a second; the default back-off would keep its clients away for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # For how long a server may take to answer a new connection, too: one that is busy, or on its way up, is not away.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Channels inside one installation never share a subchannel with another by accident.
    ("grpc.use_local_subchannel_pool", 1),
)


class RpcServer:
    """One grpc.aio server. `register` adds servicers; `start(address)` listens on `unix:/path` or `host:port`."""

    def __init__(self) -> None:
        self.server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._errors = ServicerErrors(self.server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self._names: list[str] = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._sockets: list[UnixSocket] = []

    def register(self, add: Callable[[Any, Any], None], servicer: Any, full_name: str) -> None:
        """`add` is the generated add_…_to_server; `full_name` e.g. "saisei.control.v1.ResourceService"."""
        descriptor_pool.Default().FindServiceByName(full_name)  # a misspelled name fails at start, not at reflection
        add(servicer, self._errors)
        self._names.append(full_name)

    async def start(self, addresses: Sequence[str], credentials: grpc.ServerCredentials | None = None) -> list[int]:
        """Listens and serves; returns the bound ports (1 for a unix socket)."""
        reflection.enable_server_reflection(self._names, self.server)
        ports = []
        for address in addresses:
            if address.startswith("unix:"):
                socket = UnixSocket(Path(address.removeprefix("unix:")))
                self._sockets.append(socket)
                ports.append(self.server.add_insecure_port(f"unix:{socket.draft}"))
            elif credentials is not None:
                ports.append(self.server.add_secure_port(address, credentials))
            else:
                log.warning("gRPC without TLS on a network address", extra={"address": address})
                ports.append(self.server.add_insecure_port(address))
        for name in ["", *self._names]:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self.server.start()
        for socket in self._sockets:
            socket.publish()
        return ports

    async def stop(self, grace_seconds: float = 2.0) -> None:
        await self._health.enter_graceful_shutdown()
        for socket in self._sockets:
            socket.withdraw()
        await self.server.stop(grace_seconds)


class UnixSocket:
    """The file of a listening socket: bound under a draft name, shown under its own one once the server answers.

    gRPC removes the file that it bound some time after its server stopped, on a thread of its own. Under the address
    itself, that would take away the socket of a successor that is listening there by then, for good.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = path.with_name(f".{secrets.token_hex(3)}")
        self._inode: int | None = None

    def publish(self) -> None:
        """Clients reach this server from now on, and the one before it no more."""
        self._inode = self.draft.stat().st_ino
        self.draft.replace(self.path)

    def withdraw(self) -> None:
        """Removes the file, unless it is a successor's already."""
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            pass


def open_channel(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A channel to `unix:/path` or `host:port`; it reconnects by itself, within a second."""
    if credentials is not None and not address.startswith("unix:"):
        return grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
