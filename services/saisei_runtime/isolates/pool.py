"""`IsolatePool`: one Node process for each Worker UID, started when needed, ended when idle (design 3)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import WorkerCode
from saisei_runtime.isolates.code_frames import give_code, require_supported
from saisei_runtime.isolates.contexts import RunningContext
from saisei_runtime.isolates.egress import Egress
from saisei_runtime.isolates.inspection import inspect
from saisei_runtime.isolates.port import (
    BindingCall,
    BindingError,
    BindingHost,
    BindingResult,
    ContextHandle,
    ContextListener,
    FetchHead,
    FetchResult,
    Inspection,
    ServiceCall,
    WorkflowStart,
)
from saisei_runtime.isolates.process import NodeProcess, NodeThread
from saisei_runtime.isolates.runs import BatchSettler, QueueBatch, RunEnd, ScheduledEvent
from saisei_runtime.isolates.serving import Served, ServingLimits
from saisei_runtime.isolates.serving_threads import ServingThreads, ThreadLimits
from saisei_runtime.isolates.settings import IsolateSettings
from saisei_runtime.isolates.workflow_threads import WorkflowThreads
from saisei_service.egress import EgressPolicy

__all__ = ["IsolatePool", "IsolateSettings"]

_log = logging.getLogger(__name__)

# How often a start is tried anew when the Worker's process died while it waited.
_STARTS = 3
# Inspections at once: each is a process of its own.
_INSPECTIONS = 2
# How often a process is looked at of which it is not certain that it lives on.
_CERTAIN_EVERY = 0.05


class _NoBindings:
    async def call(self, call: BindingCall) -> BindingResult:
        raise BindingError("backend_unavailable", "the Host has no Bindings yet")

    async def fetch(self, call: ServiceCall) -> FetchResult:
        raise BindingError("backend_unavailable", "the Host has no Bindings yet")

    def close_scope(self, scope_id: str) -> None:
        return


class WorkerIsolate:
    """The process of one Worker UID and what runs in it."""

    def __init__(
        self,
        process: NodeProcess,
        settings: IsolateSettings,
        bindings: BindingHost,
        egress: Egress | None,
        *,
        once: bool = False,
        thread_limits: ThreadLimits = ThreadLimits(),  # noqa: B008 - frozen
        serving_limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._thread_limits, self._serving_limits = thread_limits, serving_limits
        self.process = process
        self._settings = settings
        self._bindings = bindings
        self._egress = egress
        self.threads = WorkflowThreads(process, settings)
        self.contexts: dict[str, RunningContext] = {}
        self.serving: dict[str, ServingThreads] = {}
        # The process ends with its first context.
        self.once = once
        self.used_at = asyncio.get_running_loop().time()
        process.reaped.add_done_callback(lambda _status: self.threads.close())
        process.has_neighbours = self._has_neighbours

    def _has_neighbours(self) -> bool:
        contexts = any(not context.stopping for context in self.contexts.values())
        return contexts or any(threads.usable for threads in self.serving.values())

    async def start_workflow(self, start: WorkflowStart, listener: ContextListener) -> ContextHandle:
        thread = await self._thread()
        self.used_at = asyncio.get_running_loop().time()

        def ended(reusable: bool) -> None:
            self.contexts.pop(start.context_id, None)
            self.used_at = asyncio.get_running_loop().time()
            self.threads.give_back(thread, reusable=reusable and not self.once)
            if self.once:
                self.process.kill("its only context has ended")

        give_code(thread, start.code)
        context = RunningContext(start, thread, listener, self._bindings, self._egress, ended)
        self.contexts[start.context_id] = context
        return context

    async def _thread(self) -> NodeThread:
        """A thread in a process that lives on, as far as is known: what begins in one that is to be killed is lost."""
        while True:
            while self.process.overdue:  # noqa: ASYNC110 - rare, and over within 3 s
                await asyncio.sleep(_CERTAIN_EVERY)
            thread = await self.threads.take()
            dying = thread.gone or thread.killing  # while it was handed over
            if not dying and not self.process.overdue:
                return thread
            self.threads.give_back(thread, reusable=not dying)

    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult:
        return await (await self._serving_of(code).take()).fetch(request)

    async def run(self, code: WorkerCode, event: ScheduledEvent | QueueBatch, settler: BatchSettler | None) -> RunEnd:
        return await (await self._serving_of(code).take()).run(event, settler)

    def _serving_of(self, code: WorkerCode) -> ServingThreads:
        self.used_at = asyncio.get_running_loop().time()
        threads = self.serving.get(code.version_uid)
        if threads is None:
            served = Served(self.process, code, self._bindings, self._egress, self._serving_limits)
            threads = ServingThreads(served, self._thread_limits)
            self.serving[code.version_uid] = threads
        return threads

    def running(self, version_uid: str) -> int:
        contexts = sum(context.version_uid == version_uid for context in self.contexts.values())
        threads = self.serving.get(version_uid)
        return contexts + (0 if threads is None else threads.invocations)

    async def drain(self, version_uid: str | None) -> int:
        contexts = [c for c in self.contexts.values() if version_uid in (None, c.version_uid)]
        serving = [t for t in self.serving.values() if version_uid in (None, t.version_uid)]
        count = len(contexts) + sum(threads.invocations for threads in serving)
        for context in contexts:
            context.stop()
        await asyncio.gather(*(context.wait_ended() for context in contexts), *(thread.stop() for thread in serving))
        for thread in serving:
            if self.serving.get(thread.version_uid) is thread:
                del self.serving[thread.version_uid]
        return count

    def retire_idle(self, now: float) -> bool:
        """Ends serving threads that nobody uses; True when the whole process has been idle for long."""
        for version_uid, thread in list(self.serving.items()):
            thread.retire_idle(now)
            if not thread.invocations and now - thread.idle_since > self._settings.process_idle_after:
                del self.serving[version_uid]
                stop = asyncio.ensure_future(thread.stop())
                stop.add_done_callback(lambda done: done.cancelled() or done.exception())
        busy = self.contexts or not self.threads.idle or any(t.invocations for t in self.serving.values())
        return not busy and now - self.used_at > self._settings.process_idle_after

    async def end(self, why: str) -> None:
        self.threads.close()
        for context in self.contexts.values():
            context.stop()
        self.process.kill(why)
        await self.process.reaped


class IsolatePool:
    """Implements `ContextPool`. `bind` gives it the Bindings when they can only be built after it."""

    def __init__(
        self,
        settings: IsolateSettings | None = None,
        bindings: BindingHost | None = None,
        *,
        thread_limits: ThreadLimits = ThreadLimits(),  # noqa: B008 - frozen
        serving_limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._settings = settings or IsolateSettings()
        self._thread_limits, self._serving_limits = thread_limits, serving_limits
        self._bindings: BindingHost = bindings or _NoBindings()
        allowed = frozenset(host.lower() for host in self._settings.egress_allowed_hosts)
        silent_after = self._settings.egress_silent_after
        self._egress = Egress(EgressPolicy(allowed), silent_after) if self._settings.egress else None
        self._isolates: dict[str, WorkerIsolate] = {}
        # What still holds a process, also after another has taken its place.
        self._unreaped: set[WorkerIsolate] = set()
        self._starting: dict[str, asyncio.Task[WorkerIsolate]] = {}
        self._inspections = asyncio.Semaphore(_INSPECTIONS)
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def bind(self, bindings: BindingHost) -> None:
        """Before the first start."""
        self._bindings = bindings

    # --- ContextPool ---

    async def start_workflow(self, start: WorkflowStart, listener: ContextListener) -> ContextHandle:
        require_supported(start.code)
        for attempt in range(1, _STARTS + 1):
            isolate = await (self._alone(start) if start.alone else self._isolate(start.code.worker_uid))
            try:
                return await isolate.start_workflow(start, listener)
            except SaiseiError:
                if attempt == _STARTS or self._closed:
                    raise
        raise AssertionError("unreachable")

    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult:
        require_supported(code)
        isolate = await self._isolate(code.worker_uid)
        return await isolate.fetch(code, request)

    async def scheduled(self, code: WorkerCode, event: ScheduledEvent) -> RunEnd:
        """One `scheduled` invocation (MW-27). SaiseiError backend_unavailable when it was cut off, or cannot start."""
        require_supported(code)
        return await (await self._isolate(code.worker_uid)).run(code, event, None)

    async def queue(self, code: WorkerCode, batch: QueueBatch, settler: BatchSettler) -> RunEnd:
        """One `queue` invocation (MW-28 … MW-30): each message is settled through `settler` when this returns.
        SaiseiError backend_unavailable as for `scheduled`, or when the settlement of the rest has failed."""
        require_supported(code)
        return await (await self._isolate(code.worker_uid)).run(code, batch, settler)

    async def inspect(self, code: WorkerCode) -> Inspection:
        async with self._inspections:
            return await inspect(self._settings, code)

    def running(self, worker_uid: str, version_uid: str) -> int:
        return sum(isolate.running(version_uid) for isolate in self._of(worker_uid))

    def _of(self, worker_uid: str) -> list[WorkerIsolate]:
        """The processes of a Worker, those included that are killed and not waited for yet."""
        return [isolate for isolate in self._unreaped if isolate.process.name.partition("/")[0] == worker_uid]

    async def drain(self, worker_uid: str, version_uid: str | None = None) -> int:
        mine = self._of(worker_uid)
        return sum(await asyncio.gather(*(isolate.drain(version_uid) for isolate in mine)))

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for starting in list(self._starting.values()):
            starting.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        isolates = list(self._isolates.values())
        self._isolates.clear()
        await asyncio.gather(*(isolate.end("the runtime is stopping") for isolate in isolates), *self._ending)
        if self._egress is not None:
            await self._egress.close()

    # --- processes ---

    async def _isolate(self, worker_uid: str) -> WorkerIsolate:
        if self._closed:
            raise SaiseiError("backend_unavailable", "the runtime is stopping")
        isolate = self._isolates.get(worker_uid)
        if isolate is not None and not isolate.process.dead:
            return isolate
        task = self._starting.get(worker_uid)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._start(worker_uid))
            self._starting[worker_uid] = task
            task.add_done_callback(lambda _task: self._starting.pop(worker_uid, None))
        return await asyncio.shield(task)

    async def _alone(self, start: WorkflowStart) -> WorkerIsolate:
        """A process for one context that earlier ones of its kind did not survive: it costs nobody else theirs. Without
        room for one more, the Worker's own process."""
        worker_uid = start.code.worker_uid
        others = sum(key.startswith(f"{worker_uid}/") for key in (*self._isolates, *self._starting))
        if others >= self._settings.processes_alone or self._closed:
            return await self._isolate(worker_uid)
        return await self._isolate(f"{worker_uid}/{start.context_id}")

    async def _start(self, worker_uid: str) -> WorkerIsolate:
        once = "/" in worker_uid
        settings = replace(self._settings, warm_threads=1, max_threads=1) if once else self._settings
        process = await NodeProcess.start(settings, worker_uid)
        if self._closed:
            process.kill("the runtime is stopping")
            await process.reaped
            raise SaiseiError("backend_unavailable", "the runtime is stopping")
        isolate = WorkerIsolate(
            process,
            settings,
            self._bindings,
            self._egress,
            once=once,
            thread_limits=self._thread_limits,
            serving_limits=self._serving_limits,
        )
        self._isolates[worker_uid] = isolate
        self._unreaped.add(isolate)
        process.reaped.add_done_callback(lambda _status: self._reaped(worker_uid, isolate))
        if self._timer is None:
            self._look_later()
        return isolate

    def _reaped(self, worker_uid: str, isolate: WorkerIsolate) -> None:
        self._unreaped.discard(isolate)
        self._forget(worker_uid, isolate)

    def _forget(self, worker_uid: str, isolate: WorkerIsolate) -> None:
        if self._isolates.get(worker_uid) is isolate:
            del self._isolates[worker_uid]

    def _look_later(self) -> None:
        delay = max(0.05, self._settings.process_idle_after / 8)
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for worker_uid, isolate in list(self._isolates.items()):
            if isolate.retire_idle(now):
                self._forget(worker_uid, isolate)
                task = asyncio.get_running_loop().create_task(isolate.end("it was idle"))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        if self._isolates and not self._closed:
            self._look_later()
