"""The real gateway on a real port with TLS, between a test's client and the fakes."""

from __future__ import annotations

import contextlib
import inspect
import random
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gateway.certificates import Certificates, make_certificates
from tests.gateway.fakes import CREDENTIAL, FakeControl, FakeRuntime
from tests.gateway.waiting import eventually

from saisei_gateway.calls import Gateway
from saisei_gateway.main import serving
from saisei_gateway.server import HttpServer
from saisei_gateway.settings import GatewaySettings
from saisei_service.rpc import RpcServer

ROOT = "/apis/forms.takoform.com/v2"


@dataclass
class Host:
    """`client` sends the writer's token to the origin; `worker` speaks to a Worker's hostname."""

    settings: GatewaySettings
    server: HttpServer
    gateway: Gateway
    control: FakeControl
    runtime: FakeRuntime
    client: httpx.AsyncClient
    tls: ssl.SSLContext
    servers: dict[str, RpcServer]

    @property
    def origin(self) -> str:
        return self.settings.public_origin

    @property
    def port(self) -> int:
        return int(self.origin.rsplit(":", 1)[1])

    def is_idle(self) -> bool:
        """Nothing streams through it."""
        runtime, metrics = self.runtime, self.gateway.metrics
        return runtime.open_streams == runtime.open_fetches == metrics.open_streams("events") == 0

    def worker(self, method: str, path: str, hostname: str = "hello.workers.localhost", **options: Any) -> Any:
        headers = {"host": f"{hostname}:{self.port}"} | options.pop("headers", {})
        request = self.client.build_request(method, path, headers=headers, **options)
        request.headers.pop("authorization", None)
        request.extensions["sni_hostname"] = "hello.workers.localhost"
        return self.client.send(request, stream=True)


HostFactory = Callable[..., Any]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def free_port() -> int:
    """Below the range from which the kernel takes a port for whoever asks for any: nobody else gets it meanwhile."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def run_host(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> HostFactory:
    """Starts a Host with settings of the test's own."""

    @asynccontextmanager
    async def run(**overrides: Any) -> AsyncIterator[Host]:
        folder = tmp_path_factory.mktemp("host")
        (folder / "service.key").write_text(CREDENTIAL + "\n")
        control, runtime = FakeControl(), FakeRuntime()
        servers = {"control": RpcServer(), "runtime": RpcServer()}
        control.register(servers["control"])
        runtime.register(servers["runtime"])
        for name, server in servers.items():
            await server.start([f"unix:{folder}/{name}.sock"])
        port = free_port()
        settings = GatewaySettings(
            data_dir=folder,
            control_address=f"unix:{folder}/control.sock",
            runtime_address=f"unix:{folder}/runtime.sock",
            gateway_listen=f"127.0.0.1:{port}",
            public_origin=f"https://localhost:{port}",
            tls_cert_file=certificates.cert_file,
            tls_key_file=certificates.key_file,
            **{"shutdown_seconds": 2, **overrides},
        )
        tls = ssl.create_default_context(cafile=str(certificates.ca_file))
        client = httpx.AsyncClient(
            verify=tls,
            base_url=settings.public_origin,
            headers={"authorization": "Bearer writer"},
            timeout=30,
            trust_env=False,
        )
        async with serving(settings) as (http, gateway), client:
            yield Host(settings, http, gateway, control, runtime, client, tls, servers)
        for server in servers.values():
            await server.stop(0)

    return run


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_host(run_host: HostFactory) -> AsyncIterator[Host]:
    async with run_host() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def host(shared_host: Host) -> Host:
    """One Host for all tests that leave it whole, with fakes as new."""
    # What the test before has left is on its way to its end; it would be counted in this one.
    with contextlib.suppress(AssertionError):
        await eventually(shared_host.is_idle)
    shared_host.control.reset()
    shared_host.runtime.reset()
    return shared_host


@pytest_asyncio.fixture(loop_scope="session")
async def own_host(run_host: HostFactory) -> AsyncIterator[Host]:
    """A Host that the test may break."""
    async with run_host() as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests share the loop of the Host that they share."""
    for item in items:
        if item.path.parent == Path(__file__).parent and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
