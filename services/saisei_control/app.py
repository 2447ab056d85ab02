"""The control process: puts the rooms together, starts them in order, stops them in the reverse one."""

from __future__ import annotations

import asyncio
import logging
import signal

import uvloop

from saisei.control.v1 import (
    access_pb2_grpc,
    admin_pb2_grpc,
    artifacts_pb2_grpc,
    assignments_pb2_grpc,
    resources_pb2_grpc,
)
from saisei_contract.rate import RateLimit
from saisei_control.access.oidc import Oidc, load_providers
from saisei_control.api.access_service import AccessServicer
from saisei_control.api.admin_service import ControlAdminServicer
from saisei_control.api.artifact_service import ArtifactServicer
from saisei_control.api.assignment_service import AssignmentServicer
from saisei_control.api.callers import Callers
from saisei_control.api.operation_service import OperationServicer
from saisei_control.api.resource_service import ResourceServicer
from saisei_control.api.support_service import SupportServicer
from saisei_control.artifacts.custody import Custody
from saisei_control.assignments.watch import Replicas
from saisei_control.operations import retention
from saisei_control.operations.executor import Executor
from saisei_control.operations.resolve import Resolver
from saisei_control.operations.work import Host
from saisei_control.resources.accept import Acceptance
from saisei_control.resources.cursors import Cursors, load_or_create_key
from saisei_control.resources.gate import SpaceGate
from saisei_control.resources.offerings import Offerings
from saisei_control.resources.read import Reader
from saisei_control.runtime_client import RuntimeFleet
from saisei_control.secrets.vault import Vault
from saisei_control.settings import ControlSettings
from saisei_control.store.store import Store
from saisei_control.virtual_time import open_virtual_clock
from saisei_service.clock import Clock, SystemClock
from saisei_service.collector import keep_what_is_loaded
from saisei_service.logs import configure_logs
from saisei_service.rpc import RpcServer
from saisei_service.settings import listen_addresses

log = logging.getLogger(__name__)


class ControlApp:
    """`start()` returns once the service answers; `stop()` gives leases back. Both databases are opened by `open`."""

    def __init__(self, settings: ControlSettings, store: Store, cursor_key: bytes, clock: Clock) -> None:
        self._settings = settings
        self.store = store
        self.clock = clock
        system = SystemClock()
        credential = settings.credential()
        self.custody = custody = Custody(store, settings.data_dir / "artifacts" / "sha256")
        vault = Vault(settings.key_ring())
        self._fleet = RuntimeFleet(settings.runtimes(), credential, settings.channel_credentials())
        self.replicas = Replicas(store, system)
        self._sources = settings.sources()
        host = Host(store, custody, vault, self.replicas, self._fleet, clock, self._sources, settings.public_origin)
        self._executor = Executor(host, settings.control_id, system)
        self._retention: asyncio.Task[None] | None = None
        limit = RateLimit(settings.rate_per_second, settings.rate_burst)
        oidc = None if settings.oidc_file is None else Oidc(load_providers(settings.oidc_file))
        callers = Callers(store, clock, limit, oidc)
        cursors = Cursors(cursor_key)
        reader = Reader(store, cursors, self._fleet, clock)
        offerings = Offerings() if settings.offerings_file is None else Offerings.load(settings.offerings_file)
        acceptance = Acceptance(
            store,
            vault,
            clock,
            settings.workers_domain,
            settings.preview_forms,
            offerings,
            SpaceGate(settings.space_concurrency),
            self._fleet.in_use,
        )
        self._server = RpcServer()
        for add, servicer, name in (
            (
                resources_pb2_grpc.add_ResourceServiceServicer_to_server,
                ResourceServicer(callers, acceptance, reader),
                "ResourceService",
            ),
            (
                resources_pb2_grpc.add_OperationServiceServicer_to_server,
                OperationServicer(callers, acceptance, reader),
                "OperationService",
            ),
            (
                resources_pb2_grpc.add_SupportServiceServicer_to_server,
                SupportServicer(callers, clock, cursors, offerings, previews=settings.preview_forms),
                "SupportService",
            ),
            (
                artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server,
                ArtifactServicer(callers, custody),
                "ArtifactService",
            ),
            (
                access_pb2_grpc.add_AccessServiceServicer_to_server,
                AccessServicer(callers, store, clock, credential),
                "AccessService",
            ),
            (
                assignments_pb2_grpc.add_AssignmentServiceServicer_to_server,
                AssignmentServicer(store, self.replicas, custody, vault, credential),
                "AssignmentService",
            ),
            (
                admin_pb2_grpc.add_ControlAdminServiceServicer_to_server,
                ControlAdminServicer(
                    callers,
                    store,
                    clock,
                    vault,
                    Resolver(host, self._executor.end_attempt),
                    credential,
                    settings.audit_days,
                ),
                "ControlAdminService",
            ),
        ):
            self._server.register(add, servicer, f"saisei.control.v1.{name}")

    @classmethod
    async def open(cls, settings: ControlSettings) -> ControlApp:
        """Opens the database and brings its schema to the newest version."""
        store = await asyncio.to_thread(Store.open, settings.database_url())
        key = await store.write(load_or_create_key)
        return cls(settings, store, key, await open_virtual_clock(store) if settings.virtual_clock else SystemClock())

    async def start(self) -> list[int]:
        """Returns the bound ports (1 for a unix socket)."""
        await self._executor.start()
        self._retention = asyncio.create_task(
            retention.run(self.store, self.custody, self.clock, self._settings.audit_days)
        )
        ports = await self._server.start(
            listen_addresses(self._settings.control_listen, self._settings.control()),
            self._settings.listener_credentials(),
        )
        log.info("the control service is ready", extra={"control_id": self._settings.control_id})
        return ports

    async def stop(self) -> None:
        self.replicas.stop()
        await self._server.stop()
        if self._retention is not None:
            self._retention.cancel()
        await self._executor.stop()
        await self._fleet.close()
        await self._sources.close()
        await self.store.close()


async def _serve(settings: ControlSettings) -> None:
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    app = await ControlApp.open(settings)
    await app.start()
    await stopping.wait()
    await app.stop()


def main() -> None:
    settings = ControlSettings()
    configure_logs("control", settings.log_level)
    keep_what_is_loaded()
    uvloop.run(_serve(settings))
