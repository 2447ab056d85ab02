"""The admin port, plain HTTP for the operator's own network: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from saisei_gateway.metrics import CONTENT_TYPE, Metrics

PROBE_SECONDS = 1.0


def admin_app(metrics: Metrics, channels: Mapping[str, grpc.aio.Channel], draining: asyncio.Event) -> Starlette:
    """`channels` by service name: each must report SERVING for this gateway to be ready."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        serving = await asyncio.gather(*map(_is_serving, channels.values()))
        services = dict(zip(channels, serving, strict=True))
        ready = all(serving) and not draining.is_set()
        return JSONResponse({"ready": ready, "services": services}, 200 if ready else 503)

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)],
    )


async def _is_serving(channel: grpc.aio.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
