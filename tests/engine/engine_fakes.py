"""Contexts scripted in Python, with the shim's side of the port: replay, one step at a time, park, stop.

A program is a generator function `program(event, step)`: it yields steps and gets their results sent in.

    def program(event, step):
        greeting = yield step.do("greet", lambda: b'{"hello":1}')
        yield step.sleep("rest", 60)
        return greeting
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import WorkerCode
from saisei_runtime.isolates.port import (
    Completed,
    ContextEnd,
    ContextListener,
    ContextOutcome,
    DoFailed,
    DoStarted,
    DoSucceeded,
    Failed,
    HistoryStep,
    Lost,
    Park,
    Parked,
    ProofKind,
    Recall,
    Reject,
    Resolve,
    RetryPolicy,
    SleepCalled,
    StepReply,
    Stop,
    Stopped,
    StopProof,
    WaitCalled,
    WorkflowStart,
)
from saisei_runtime.workflow.engine import EngineSettings, WorkflowEngine
from saisei_service.clock import Clock, SystemClock, VirtualClock
from saisei_service.database import Database


class StepError(Exception):
    """What a Host step error is inside a program: `code` is step_failed or wait_timeout."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class CrashError(Exception):
    """Raised in a program: the process dies."""


@dataclass(frozen=True)
class Hold:
    """Yielded: never goes on by itself, like a busy loop or held I/O."""


@dataclass(frozen=True)
class End:
    """Yielded: the shim ends the run with this failure."""

    reason: str


@dataclass(frozen=True)
class Do:
    name: str
    effect: Callable[[], bytes | None]
    policy: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class Sleep:
    name: str
    seconds: int


@dataclass(frozen=True)
class Wait:
    name: str
    event_type: str
    timeout_seconds: int


class StepApi:
    do = Do
    sleep = Sleep
    wait = Wait


@dataclass(frozen=True)
class Event:
    instance_id: str
    params: bytes | None


Program = Callable[[Event, StepApi], Generator[Any, Any, bytes | None]]


class Context:
    """One running program. `manual_stop` contexts prove their stop only when the test says so."""

    def __init__(self, pool: ScriptedPool, start: WorkflowStart, listener: ContextListener, program: Program) -> None:
        self.context_id = start.context_id
        self.start = start
        self._pool = pool
        self._listener = listener
        self._history = {step.name: step for step in start.history}
        self._run = program(Event(start.instance_id, start.params), StepApi())
        self._calls = 0
        self._name = ""
        self.ended = False
        # Gives the proof of an end that the pool holds back.
        self.proof: Callable[[], None] | None = None

    def begin(self) -> None:
        self._send(None)

    def reply(self, call_id: int, reply: StepReply) -> None:
        if self.ended:
            return
        match reply:
            case Resolve(result):
                self._history[self._name] = HistoryStep(self._name, "", "complete", result)
                self._send(result)
            case Reject(code):
                self._history[self._name] = HistoryStep(self._name, "", "errored", error=code)
                self._throw(StepError(code))
            case Park():
                self.finish(Parked())
            case Stop():
                self.finish(Stopped())

    def stop(self) -> None:
        self._pool.stops.append(self.context_id)
        if not self.ended and not self._pool.unstoppable:
            self.finish(Stopped())

    def finish(self, outcome: ContextOutcome) -> None:
        if self.ended:
            return
        if self._pool.unproven:
            # The code has stopped, and nobody has the proof yet.
            self.proof = lambda: self.finish(outcome)
            return
        self.ended = True
        self._pool.running.pop(self.context_id, None)
        end = ContextEnd(outcome, StopProof(ProofKind.QUIESCENT, self.context_id))
        asyncio.get_running_loop().call_soon(self._listener.on_ended, self.context_id, end)

    def _send(self, value: Any) -> None:
        self._advance(lambda: self._run.send(value))

    def _throw(self, error: StepError) -> None:
        self._advance(lambda: self._run.throw(error))

    def _advance(self, go: Callable[[], Any]) -> None:
        try:
            step = go()
        except StopIteration as done:
            self.finish(Completed(done.value))
        except StepError as error:
            self.finish(Failed("step_failed") if error.code == "step_failed" else Failed("run_threw", error.code))
        except CrashError:
            self.finish(Lost("crashed"))
        except Exception as error:
            self.finish(Failed("run_threw", str(error)))
        else:
            asyncio.get_running_loop().call_soon(self._perform, step)

    def _perform(self, step: Any) -> None:
        if self.ended or isinstance(step, Hold):
            return
        if isinstance(step, End):
            self.finish(Failed(step.reason))
            return
        self._name = step.name
        known = self._history.get(step.name)
        if known is not None and known.state == "complete":
            if known.deferred:
                self._calls += 1
                self._listener.on_step(self.context_id, self._calls, Recall(step.name))
            else:
                self._send(known.result)
            return
        if known is not None and known.state == "errored":
            self._throw(StepError(known.error or ""))
            return
        self._calls += 1
        match step:
            case Do():
                self._do(step, 1 if known is None else known.failed_attempts + 1)
            case Sleep():
                self._listener.on_step(self.context_id, self._calls, SleepCalled(step.name, step.seconds))
            case Wait():
                call = WaitCalled(step.name, step.event_type, step.timeout_seconds)
                self._listener.on_step(self.context_id, self._calls, call)

    def _do(self, step: Do, attempt: int) -> None:
        self._listener.on_step(self.context_id, 0, DoStarted(step.name, attempt, step.policy))
        try:
            result = step.effect()
        except CrashError:
            self.finish(Lost("crashed"))
            return
        except Exception as error:
            failed = DoFailed(step.name, attempt, step.policy, type(error).__name__, str(error))
            self._listener.on_step(self.context_id, self._calls, failed)
            return
        if isinstance(result, Hold):
            return
        self._listener.on_step(self.context_id, self._calls, DoSucceeded(step.name, attempt, result))


class ScriptedPool:
    """ContextPool, as far as the engine uses it."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.running: dict[str, Context] = {}
        self.started: list[WorkflowStart] = []
        self.stops: list[str] = []
        self.unstoppable = False
        # Ends are held back until `prove_all`.
        self.unproven = False
        self.unavailable = False
        self.peak = 0

    async def start_workflow(self, start: WorkflowStart, listener: ContextListener) -> Context:
        if self.unavailable:
            raise SaiseiError("backend_unavailable", "no thread")
        context = Context(self, start, listener, self.programs[start.class_name])
        self.running[start.context_id] = context
        self.peak = max(self.peak, len(self.running))
        self.started.append(start)
        asyncio.get_running_loop().call_soon(context.begin)
        return context

    def prove_all(self) -> None:
        self.unproven = False
        for context in list(self.running.values()):
            if context.proof is not None:
                context.proof()

    def kill_all(self, why: str = "killed") -> None:
        for context in list(self.running.values()):
            context.finish(Lost(why))


class Deployments:
    """Allocations and CodeSource of fixed workflows: workflow UID → (Worker UID, class name)."""

    def __init__(self) -> None:
        self.workflows: dict[str, tuple[str, str, str]] = {}
        self.versions: dict[str, str] = {}
        self.broken: set[str] = set()

    def pick(self, worker_uid: str) -> str | None:
        return self.versions.get(worker_uid)

    complete = True

    def selects(self, worker_uid: str, version_uid: str) -> bool:
        return self.versions.get(worker_uid) == version_uid

    def workflow(self, workflow_uid: str) -> tuple[str, str, str] | None:
        return self.workflows.get(workflow_uid)

    async def load(self, version_uid: str) -> WorkerCode:
        if version_uid in self.broken:
            raise SaiseiError("backend_unavailable", "no code")
        return WorkerCode(version_uid, "worker", "main.js", {})


@dataclass
class Host:
    """An engine with everything around it."""

    database: Database
    clock: Clock = field(default_factory=SystemClock)
    settings: EngineSettings = field(default_factory=lambda: EngineSettings("runtime-1"))
    pool: Any = field(default_factory=ScriptedPool)
    deployments: Deployments = field(default_factory=Deployments)
    engine: WorkflowEngine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = WorkflowEngine(
            self.database,
            self.clock,
            self.pool,
            self.deployments,
            self.deployments,
            self.settings,
        )

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        self.pool.unstoppable = False
        await self.engine.stop()

    def define(self, program: Program, workflow: str = "wf", worker: str = "worker") -> str:
        self.pool.programs[workflow] = program
        self.deployments.workflows[workflow] = (worker, workflow, "space")
        self.deployments.versions[worker] = f"{worker}-v1"
        return workflow

    def deploy(self, worker: str, version: str | None) -> None:
        if version is None:
            self.deployments.versions.pop(worker, None)
        else:
            self.deployments.versions[worker] = version
        self.engine.deployment_changed(worker)

    async def until(self, instance_id: str, *statuses: str, workflow: str = "wf") -> Any:
        """The view once the status is one of those; AssertionError after 30 s or more."""
        view = None
        for _ in range(3000):
            view = await self.engine.get(workflow, instance_id)
            if view.status in statuses:
                return view
            await asyncio.sleep(0.01)
        raise AssertionError(f"{view} is not {statuses}")

    async def until_steps(self, instance_id: str, count: int, workflow: str = "wf") -> None:
        """Until so many steps are journaled; AssertionError after 30 s or more."""
        for _ in range(3000):
            if len((await self.engine.steps(workflow, instance_id))[0]) == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{instance_id} never had {count} steps")

    async def idle_writes(self) -> None:
        """Until everything that was asked of the journal by now is committed and told."""
        await self.engine._journal.transact(lambda connection: None)
        await asyncio.sleep(0)

    async def until_counted(self, status: str, count: int, workflow: str = "wf") -> None:
        """Until so many instances have the status; AssertionError after 30 s or more."""
        counts: dict[str, int] = {}
        for _ in range(3000):
            counts = await self.engine.counts(workflow)
            if counts[status] == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{counts}, not {count} {status}")

    def lease_until_ms(self) -> int:
        """The lease of the one instance that has one."""
        with self.database.reader.connect() as connection:
            found = connection.exec_driver_sql("SELECT max(lease_until_ms) FROM workflow_instances").scalar()
        assert found is not None
        return int(found)

    async def eventually_complete(self, instance_id: str, workflow: str = "wf") -> None:
        """Like `until` complete, through an outage."""
        for _ in range(1500):
            with contextlib.suppress(SaiseiError):
                if (await self.engine.get(workflow, instance_id)).status == "complete":
                    return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{instance_id} never completed")

    async def events(self, instance_id: str, workflow: str = "wf", cursor: int = 0) -> list[Any]:
        """The recorded events of an instance that has ended."""
        subscription = await self.engine.subscribe(workflow, instance_id, cursor)
        found = []
        while (record := await asyncio.wait_for(subscription.next(), 30)) is not None:
            found.append(record)
        return found

    async def types(self, instance_id: str, workflow: str = "wf") -> list[str]:
        return [record.type for record in await self.events(instance_id, workflow)]

    async def idle(self) -> None:
        """Until no context runs, after whatever was just due had its chance to start."""
        for _ in range(5):
            await self.engine.counts("wf")
        await self.eventually(lambda: not self.pool.running)

    async def eventually(self, condition: Callable[[], bool]) -> None:
        """Polls a condition for 30 s or more."""
        for _ in range(6000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("the condition never held")

    def fall_silent(self) -> None:
        """As if the process were dead or cut off: no claim, no lease, no notice; its contexts stay as they are."""
        self.engine._scheduler.close()
        self.engine._contexts.check = lambda: None
        self.engine._contexts.verify = lambda incarnation: None

    def reborn(self, **changes: Any) -> Host:
        """Another engine of the same runtime on the same database, with the same programs."""
        other = type(self)(self.database, clock=self.clock, settings=replace(self.settings, **changes))
        other.pool.programs.update(self.pool.programs)
        other.deployments.workflows.update(self.deployments.workflows)
        other.deployments.versions.update(self.deployments.versions)
        return other


@dataclass
class VirtualHost(Host):
    """On a clock that a test advances."""

    clock: VirtualClock = field(default_factory=VirtualClock)


# --- common programs and words ----------------------------------------------------------------------------------------

YEAR = 31_536_000
MONTH = 2_592_000


def returns_nothing(event, step):
    yield step.do("only", lambda: b"{}")


def holds(event, step):
    yield Hold()


def sleeps(event, step):
    yield step.sleep("rest", 3600)
    return b'{"rested":true}'


async def refused(call: Awaitable[Any]) -> str:
    """The reason of the SaiseiError that the call must fail with."""
    with pytest.raises(SaiseiError) as caught:
        await call
    return caught.value.reason
