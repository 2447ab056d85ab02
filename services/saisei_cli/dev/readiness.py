"""When a service is ready: what a client of it would find, asked the way a client asks."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from saisei_service.rpc import open_channel

_POLL_SECONDS = 0.05
_CALL_SECONDS = 2.0
DISCOVERY_PATH = "/.well-known/takoform/v2"


async def until_serving(address: str) -> None:
    """Returns once the gRPC health service at `address` says SERVING; the caller bounds the wait."""
    if address.startswith("unix:"):
        # A socket is shown once its server answers; who tries before has to back off first.
        while not Path(address.removeprefix("unix:")).exists():  # noqa: ASYNC110, ASYNC240 - a look at a local file
            await asyncio.sleep(_POLL_SECONDS)
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CALL_SECONDS)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(_POLL_SECONDS)


async def until_discovered(origin: str, ca_file: Path) -> str:
    """Returns the `baseUrl` of discovery once the gateway answers over TLS (H-040); the caller bounds the wait."""
    context = ssl.create_default_context(cafile=str(ca_file))
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=_CALL_SECONDS) as client:
        while True:
            try:
                answer = await client.get(origin + DISCOVERY_PATH)
                if answer.status_code == httpx.codes.OK:
                    return str(answer.json()["baseUrl"])
            except (httpx.HTTPError, OSError, ValueError, KeyError):
                pass
            await asyncio.sleep(_POLL_SECONDS)
