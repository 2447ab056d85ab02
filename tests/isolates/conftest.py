"""A laboratory for isolates: the real pool and real Node, with a stand-in for the engine that answers by rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from tests.support.stopwatch import Stopwatch

from saisei_runtime.code import Binding, Module, WorkerCode
from saisei_runtime.isolates.pool import IsolatePool, IsolateSettings
from saisei_runtime.isolates.port import (
    BindingCall,
    BindingResult,
    ContextEnd,
    ContextHandle,
    DoFailed,
    DoStarted,
    DoSucceeded,
    FetchResult,
    HistoryStep,
    Park,
    Reject,
    Resolve,
    ServiceCall,
    SleepCalled,
    StepCall,
    StepReply,
    WaitCalled,
    WorkflowStart,
)
from saisei_runtime.isolates.serving import ServingLimits
from saisei_runtime.isolates.serving_threads import ThreadLimits

JAVASCRIPT = "application/javascript+module"
# The loop of these tests stands still while one without a loop runs: that silence is nobody's death. Nor is a machine
# that is busy with other things a reason to kill a process instead of joining its thread.
PATIENT = {"orphaned_after": 600.0, "heartbeat_missed_after": 60.0, "join_within": 15.0}


def answer(call: StepCall) -> StepReply | None:
    """What an engine with an empty event queue would answer."""
    match call:
        case DoStarted():
            return None
        case DoSucceeded(result=result):
            return Resolve(result)
        case DoFailed(attempt=attempt, policy=policy):
            return Reject("step_failed") if attempt >= policy.max_attempts else Park()
        case SleepCalled(seconds=seconds):
            return Resolve() if seconds == 0 else Park()
        case WaitCalled():
            return Park()


@dataclass(eq=False)
class Run:
    """One started context: what it asked so far, and how it ended."""

    reply: Callable[[StepCall], StepReply | None]
    ended: asyncio.Future[ContextEnd]
    calls: list[StepCall] = field(default_factory=list)
    ends: int = 0
    handle: ContextHandle | None = None
    # From the start to the end, in seconds.
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    took: float = 0.0
    early: list[tuple[int, StepReply]] = field(default_factory=list)

    def on_step(self, _context_id: str, call_id: int, call: StepCall) -> None:
        self.calls.append(call)
        reply = self.reply(call)
        if reply is None:
            return
        if self.handle is None:
            self.early.append((call_id, reply))
        else:
            self.handle.reply(call_id, reply)

    def on_ended(self, _context_id: str, end: ContextEnd) -> None:
        self.ends += 1
        self.took = self.stopwatch.seconds()
        self.ended.set_result(end)

    def named(self, kind: type) -> list[Any]:
        return [call for call in self.calls if isinstance(call, kind)]


class Bindings:
    """Records calls; `reply` answers them."""

    def __init__(self) -> None:
        self.calls: list[BindingCall] = []
        self.closed: list[str] = []
        self.reply: Callable[[BindingCall], BindingResult] = lambda _call: BindingResult()
        self.service: Callable[[ServiceCall], Awaitable[FetchResult]] | None = None

    async def call(self, call: BindingCall) -> BindingResult:
        self.calls.append(call)
        return self.reply(call)

    async def fetch(self, call: ServiceCall) -> FetchResult:
        assert self.service is not None
        return await self.service(call)

    def close_scope(self, scope_id: str) -> None:
        self.closed.append(scope_id)


class Lab:
    """The pool and short ways to use it. Each source is a Version of its own; all belong to one Worker."""

    def __init__(
        self,
        settings: IsolateSettings,
        threads: ThreadLimits = ThreadLimits(patience=60.0),  # noqa: B008 - frozen; one thread, however busy the machine
        serving: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.bindings = Bindings()
        self.pool = IsolatePool(settings, self.bindings, thread_limits=threads, serving_limits=serving)
        self._versions: dict[object, str] = {}
        self._contexts = 0

    def code(
        self,
        source: str | bytes,
        *,
        modules: Mapping[str, Module | str] | None = None,
        vars_json: bytes = b"{}",
        secrets: Mapping[str, str] | None = None,
        bindings: tuple[Binding, ...] = (),
        worker: str = "worker",
        entrypoint: str = "main.mjs",
    ) -> WorkerCode:
        files = {entrypoint: Module(JAVASCRIPT, source.encode() if isinstance(source, str) else source)}
        for path, module in (modules or {}).items():
            files[path] = Module(JAVASCRIPT, module.encode()) if isinstance(module, str) else module
        facts = (
            worker,
            entrypoint,
            tuple((path, m.media_type, m.data) for path, m in files.items()),
            vars_json,
            tuple((secrets or {}).items()),
            bindings,
        )
        version = self._versions.setdefault(facts, f"version-{len(self._versions)}")
        return WorkerCode(version, worker, entrypoint, files, frozenset(), vars_json, secrets or {}, bindings)

    async def start(
        self,
        code: WorkerCode | str,
        *,
        params: bytes | None = None,
        history: Sequence[HistoryStep] = (),
        class_name: str = "W",
        reply: Callable[[StepCall], StepReply | None] = answer,
        alone: bool = False,
    ) -> Run:
        code = self.code(code) if isinstance(code, str) else code
        self._contexts += 1
        run = Run(reply, asyncio.get_running_loop().create_future())
        name = f"context-{self._contexts}"
        run.stopwatch = self.stopwatch()
        run.handle = await self.pool.start_workflow(
            WorkflowStart(name, code, class_name, "instance-1", params, history, alone=alone), run
        )
        for call_id, early in run.early:
            run.handle.reply(call_id, early)
        return run

    def stopwatch(self) -> Stopwatch:
        """Waits of the Node processes for a CPU do not count, nor those of this one."""
        return Stopwatch(isolate.process.pid for isolate in self.pool._isolates.values())

    async def run(self, code: WorkerCode | str, **options: Any) -> tuple[ContextEnd, Run]:
        """Starts a context and waits for its end."""
        run = await self.start(code, **options)
        end = await asyncio.wait_for(asyncio.shield(run.ended), 60)
        return end, run

    async def body(self, statements: str, **options: Any) -> tuple[ContextEnd, Run]:
        """Runs `statements` as the body of `run(event, step)`."""
        return await self.run(workflow(statements), **options)


def workflow(statements: str, *, before: str = "") -> str:
    return (
        f"{before}\nexport class W {{ constructor(env) {{ this.env = env; }}\n"
        f"async run(event, step) {{\n{statements}\n}} }}\nexport default {{}};\n"
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab() -> AsyncIterator[Lab]:
    """One pool for most tests: their contexts follow each other in the same threads, as in life."""
    made = Lab(IsolateSettings(warm_threads=2, max_threads=8, **PATIENT))
    yield made
    await made.pool.close()


@pytest.fixture(scope="session")
def make_lab() -> Callable[..., Lab]:
    """Makes a pool with settings of its own; who calls it closes it."""
    patient = {"warm_threads": 1, "max_threads": 4, "quiet_within": 10.0, **PATIENT}

    def make(threads: ThreadLimits | None = None, serving: ServingLimits | None = None, **settings: Any) -> Lab:
        limits = threads or ThreadLimits(patience=60.0)
        return Lab(IsolateSettings(**{**patient, **settings}), limits, serving or ServingLimits())

    return make


@pytest_asyncio.fixture(loop_scope="session")
async def own_lab(make_lab: Callable[..., Lab]) -> AsyncIterator[Callable[..., Lab]]:
    """Makes pools with settings of their own, closed after the test."""
    made: list[Lab] = []

    def make(**settings: Any) -> Lab:
        made.append(make_lab(**settings))
        return made[-1]

    yield make
    for one in made:
        await one.pool.close()


@pytest.fixture
def make_workflow() -> Callable[..., str]:
    return workflow
