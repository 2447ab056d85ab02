"""The runtime process: puts the rooms together, starts them in order, stops them in the reverse one."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import uvloop

from saisei.control.v1 import access_pb2_grpc, assignments_pb2_grpc
from saisei.runtime.v1 import admin_pb2_grpc, feed_pb2_grpc, invocation_pb2_grpc, workflows_pb2_grpc
from saisei_runtime.access import Authenticator
from saisei_runtime.api.admin_service import RuntimeAdminServicer
from saisei_runtime.api.feed_service import FeedServicer
from saisei_runtime.api.invocation_service import InvocationServicer
from saisei_runtime.api.workflow_service import WorkflowServicer
from saisei_runtime.bindings.host import Bindings
from saisei_runtime.bindings.service import ServiceBindings
from saisei_runtime.bindings.workflow import WorkflowBindings
from saisei_runtime.cron.runs import CronRuns
from saisei_runtime.cron.scheduler import CronScheduler
from saisei_runtime.hosting import virtual_time
from saisei_runtime.hosting.asset_store import AssetStore
from saisei_runtime.hosting.code_store import CodeStore
from saisei_runtime.hosting.retirement import Retirement
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.hosting.use import VersionUse
from saisei_runtime.hosting.watch import AssignmentWatch
from saisei_runtime.isolates.metrics import metrics
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.serving.assets import Assets
from saisei_runtime.serving.invoke import Serving
from saisei_runtime.settings import RuntimeSettings
from saisei_runtime.store import migrate_runtime
from saisei_runtime.workflow.engine import EngineSettings, WorkflowEngine
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.replay_check import ReplayCheck
from saisei_service.clock import Clock, SystemClock, VirtualClock
from saisei_service.collector import keep_what_is_loaded
from saisei_service.database import open_database
from saisei_service.logs import configure_logs
from saisei_service.rpc import RpcServer, open_channel
from saisei_service.settings import listen_addresses

log = logging.getLogger(__name__)

# How long a start waits for the children of a killed predecessor to be gone. The kernel kills them with their parent.
PREDECESSOR_SECONDS = 30.0


class ReplicaLock:
    """An exclusive lock that this process and each of its Node children hold together.

    The kernel releases it when the last of them is gone, so holding it proves that no code of a killed predecessor
    with the same runtime id runs any more: its instances may be taken over at once instead of after their leases.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = -1

    def __enter__(self) -> ReplicaLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self.fd)
                    raise SystemExit(
                        f"another runtime, or a process that it started, still holds {self._path}; stop it first"
                    ) from None
                time.sleep(0.01)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)


class RuntimeApp:
    """`start()` returns once the service answers; `stop()` drains contexts and gives running instances back."""

    def __init__(self, settings: RuntimeSettings, lock_fd: int) -> None:
        self._settings = settings
        credential = settings.credential()
        self.clock: Clock = VirtualClock() if settings.virtual_clock else SystemClock()
        self._channel = open_channel(settings.control(), settings.channel_credentials())
        assignments = assignments_pb2_grpc.AssignmentServiceStub(self._channel)
        self.state = HostedState()
        self._code = CodeStore(self.state, assignments, credential, settings.data_dir / "runtime-code")
        self._database = open_database(settings.database_url())
        migrate_runtime(self._database)
        # The pool calls Bindings, Bindings call the engine, the engine starts contexts in the pool.
        isolates = IsolateSettings(
            inherit_fd=lock_fd,
            filtered=settings.system_call_filter,
            egress=settings.egress,
            egress_allowed_hosts=settings.allowed_hosts(),
        )
        self.pool = IsolatePool(isolates)
        self.engine = WorkflowEngine(
            database=self._database,
            clock=self.clock,
            pool=self.pool,
            code=self._code,
            allocations=self.state,
            settings=EngineSettings(
                runtime_id=settings.runtime_id,
                max_contexts=settings.max_contexts,
                max_contexts_per_worker=settings.max_contexts_per_worker,
            ),
        )
        store = AssetStore(assignments, credential, settings.data_dir / "runtime-assets")
        self._assets = Assets(self.state, store)
        serving = Serving(self.state, self._code, self.pool, self._assets)
        services = ServiceBindings(self.state, serving)
        self.pool.bind(Bindings(WorkflowBindings(self.engine, self.state), services))
        self._crons = CronScheduler(
            CronRuns(self._database, settings.runtime_id), self.state, serving.scheduled, self.clock
        )
        use = VersionUse(self.engine, serving, self.pool, self._assets, self.state)
        self._retirement = Retirement(self.state, self.clock, use.end)
        self._reads = Reads(self._database)
        alone = replace(isolates, egress=False, warm_threads=2, max_threads=2)
        replays = ReplayCheck(self._reads, self._code, lambda bindings: IsolatePool(alone, bindings))
        self._watch = AssignmentWatch(
            self.state, assignments, credential, settings.runtime_id, self._assignments_changed
        )
        self._watching: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._server = RpcServer()
        access = Authenticator(access_pb2_grpc.AccessServiceStub(self._channel), credential)
        self._server.register(
            workflows_pb2_grpc.add_WorkflowServiceServicer_to_server,
            WorkflowServicer(self.engine, self.state, access),
            "saisei.runtime.v1.WorkflowService",
        )
        self._server.register(
            feed_pb2_grpc.add_EventFeedServiceServicer_to_server,
            FeedServicer(self.engine, self.state, access, credential),
            "saisei.runtime.v1.EventFeedService",
        )
        self._server.register(
            invocation_pb2_grpc.add_InvocationServiceServicer_to_server,
            InvocationServicer(serving, self._assets, credential),
            "saisei.runtime.v1.InvocationService",
        )
        self._server.register(
            admin_pb2_grpc.add_RuntimeAdminServiceServicer_to_server,
            RuntimeAdminServicer(
                self.engine, self.state, self._code, self.pool, use, replays, self._crons, self.clock, credential
            ),
            "saisei.runtime.v1.RuntimeAdminService",
        )

    def _assignments_changed(self, worker_uid: str | None) -> None:
        if worker_uid is None:
            self.engine.assignments_complete()
            # What was deleted while this runtime was away.
            self._tidying = asyncio.create_task(self._assets.tidy(), name="tidy-assets")
        else:
            self.engine.deployment_changed(worker_uid)
            self._retirement.changed(worker_uid)
            self._crons.changed()

    async def start(self) -> list[int]:
        """Returns the bound ports (1 for a unix socket)."""
        await self.engine.start()
        self._retirement.start()
        self._watching = asyncio.create_task(self._watch.run(), name="assignment-watch")
        ports = await self._server.start(
            listen_addresses(self._settings.runtime_listen, self._settings.runtime()),
            self._settings.listener_credentials(),
        )
        if isinstance(self.clock, VirtualClock):
            await virtual_time.join(self.clock, self._channel, self._settings.credential())
        # After the time is right: a schedule that is met for the first time counts from then on.
        self._crons.start()
        listen = self._settings.metrics_address()
        if listen is not None:
            metrics.serve(*listen)
        log.info("the runtime is ready", extra={"runtime_id": self._settings.runtime_id})
        return ports

    async def stop(self) -> None:
        await self._server.stop()
        for task in (self._watching, self._tidying):
            if task is not None:
                task.cancel()
        await self._retirement.stop()
        await self._crons.stop()
        await self.engine.stop()
        await self.pool.close()
        self._reads.close()
        await self._channel.close()
        self._database.close()


async def _serve(settings: RuntimeSettings, lock_fd: int) -> None:
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    app = RuntimeApp(settings, lock_fd)
    await app.start()
    await stopping.wait()
    await app.stop()


def main() -> None:
    settings = RuntimeSettings()
    configure_logs("runtime", settings.log_level)
    with ReplicaLock(settings.data_dir / "run" / f"{settings.runtime_id}.lock") as lock:
        keep_what_is_loaded()
        uvloop.run(_serve(settings, lock.fd))
