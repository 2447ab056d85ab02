"""The gateway as a process: `python -m saisei_gateway`."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from saisei_gateway.access import Authenticator
from saisei_gateway.admin import admin_app
from saisei_gateway.app import GatewayApp
from saisei_gateway.assets import AssetServer
from saisei_gateway.backends import backends
from saisei_gateway.calls import Gateway
from saisei_gateway.event_feed import Feed
from saisei_gateway.event_readers import Readers
from saisei_gateway.host_api.discovery import Terms
from saisei_gateway.locate import Locator
from saisei_gateway.metrics import Metrics
from saisei_gateway.server import HttpServer
from saisei_gateway.settings import GatewaySettings, split_address
from saisei_gateway.tls import server_context
from saisei_service.collector import keep_what_is_loaded
from saisei_service.credentials import service_metadata
from saisei_service.logs import configure_logs
from saisei_service.rpc import open_channel

log = logging.getLogger(__name__)


def main() -> None:
    settings = GatewaySettings()  # type: ignore[call-arg]  # the environment gives the rest
    configure_logs("gateway", settings.log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    keep_what_is_loaded()
    uvloop.run(run(settings))


async def run(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(settings) as (server, _):
        log.info("the gateway serves", extra={"origin": settings.public_origin, "port": server.port})
        await stop.wait()
        log.info("the gateway stops")


@asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncIterator[tuple[HttpServer, Gateway]]:
    """The gateway while the block runs; then event streams end at once, other exchanges within `shutdown_seconds`."""
    tls = settings.channel_credentials()
    control, runtime = open_channel(settings.control(), tls), open_channel(settings.runtime(), tls)
    stubs, credential, metrics = backends(control, runtime), settings.credential(), Metrics()
    own = service_metadata(credential)
    gateway = Gateway(
        settings=settings,
        backends=stubs,
        authenticator=Authenticator(stubs.access, credential),
        terms=Terms(stubs.support, settings),
        metrics=metrics,
        readers=Readers(Feed(stubs.feed, own), settings.heartbeat_seconds, metrics),
        locator=Locator(stubs.invocations, own),
        assets=AssetServer(stubs.invocations, own, settings.asset_memory_bytes),
        service_metadata=own,
    )
    server = HttpServer(
        GatewayApp(gateway),
        split_address(settings.gateway_listen),
        tls=server_context(settings.tls_cert_file, settings.tls_key_file),
        grace_seconds=settings.shutdown_seconds,
        on_stop=gateway.drain,
    )
    servers = [server]
    host, port = split_address(settings.admin_listen)
    if port:
        admin = admin_app(gateway.metrics, {"control": control, "runtime": runtime}, gateway.draining)
        servers.append(HttpServer(admin, (host, port), grace_seconds=1))
    tasks = [asyncio.create_task(each.serve()) for each in servers]
    try:
        await _until_started(servers, tasks)
        yield server, gateway
    finally:
        for each in servers:
            each.stop()
        await asyncio.gather(*tasks)
        await gateway.readers.stop()
        await gateway.locator.stop()
        await asyncio.gather(control.close(), runtime.close())


async def _until_started(servers: list[HttpServer], tasks: list[asyncio.Task[None]]) -> None:
    while not all(server.started for server in servers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)
