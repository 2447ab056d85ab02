"""Execution contexts of this runtime: started after a claim, answered after a commit, ended with proof (W-080 … W-089).

Nothing here decides anything about an instance: calls become commands, replies of the machine become answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource
from saisei_runtime.isolates.contexts import log_worker_line
from saisei_runtime.isolates.port import (
    ContextEnd,
    ContextHandle,
    ContextPool,
    DoStarted,
    Lost,
    Park,
    ProofKind,
    Recall,
    Reject,
    Resolve,
    StepCall,
    StepReply,
    Stop,
    WorkflowStart,
)
from saisei_runtime.workflow.commands import ContextEnded, Release, RenewLease, Stale, StepCalled
from saisei_runtime.workflow.journal import Journal, Outcome
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import Instance
from saisei_service.clock import wall_ms

_log = logging.getLogger(__name__)

# A write of an end that could not be committed, and a stop that was not proven, are tried again this often.
RETRY_SECONDS = 1.0
# How long a claimed instance waits after no context could be had for it.
START_BACKOFF_MS = 1_000
# An instance whose contexts were lost so often in a row, without a step in between, is kept away from the others.
LOSSES_ALONE = 2
# Where other runtimes may take over, a context is stopped while so much of its lease is left that the proof comes
# first: it is had within 3 s of the 10 s that a lease has. Until then it is renewed in good time, more than once.
STOP_SHARE = 0.35
# For so long the beginning of an attempt waits for its outcome, which comes within 0.1 ms when the effect waits for
# nothing: in one command, both take the journal and the event loop half of the CPU.
BEGUN_SECONDS = 0.001
# For isinstance: a union would be built anew at each check.
_ANSWERS: Final = (Resolve, Reject, Park, Stop)
RENEW_SHARE = 0.6


@dataclass(slots=True, eq=False)
class Run:
    """One claimed instance and its context. `handle` is None until the pool has started it."""

    incarnation: str
    workflow_uid: str
    instance_id: str
    worker_uid: str
    version_uid: str
    epoch: int
    owner: str
    context_id: str
    deadline_at_ms: int
    lease_until_ms: int
    handle: ContextHandle | None = None
    stopping: bool = False
    # Answers that were ready before the pool gave the handle.
    early: list[tuple[int, StepReply]] = field(default_factory=list)


class Contexts:
    """The engine's side of the isolates' port. `freed` is called once for each run, when its place is free again."""

    def __init__(
        self,
        journal: Journal,
        reads: Reads,
        pool: ContextPool,
        code: CodeSource,
        clock: Clock,
        *,
        lease_ms: int,
        shared: bool,
        freed: Callable[[Run], None],
        runs: dict[str, Run],
    ) -> None:
        self._journal = journal
        self._reads = reads
        self._pool = pool
        self._code = code
        self._clock = clock
        self._lease_ms = lease_ms
        self._stop_ms = lease_ms * STOP_SHARE if shared else 0.0
        self._freed = freed
        # By incarnation; the journal's writer looks here for what is alive.
        self.runs = runs
        self._by_context: dict[str, Run] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._recalls: set[asyncio.Task[None]] = set()
        # How many claims have come to a start, since the process began.
        self.begun = 0
        self._tick: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        # Attempts whose beginning is not with the journal yet.
        self._begun: dict[Run, DoStarted] = {}

    @property
    def starting(self) -> bool:
        """Whether some claimed instance has no context yet."""
        return bool(self._starting)

    # --- starting ---

    def begin(self, instance: Instance, worker_uid: str, class_name: str) -> None:
        """Starts the context of an instance that was just claimed for this runtime."""
        assert instance.owner is not None and instance.version_uid is not None and instance.lease_until_ms is not None
        run = Run(
            instance.incarnation,
            instance.workflow_uid,
            instance.instance_id,
            worker_uid,
            instance.version_uid,
            instance.epoch,
            instance.owner,
            f"{instance.incarnation}-{instance.epoch}",
            instance.deadline_at_ms,
            instance.lease_until_ms,
        )
        self.begun += 1
        if instance.losses >= LOSSES_ALONE:
            self._tell_losses(run, instance, class_name)
        self.runs[run.incarnation] = run
        self._by_context[run.context_id] = run
        task = asyncio.get_running_loop().create_task(self._start(run, instance, class_name))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        if self._tick is None:
            self._schedule_tick()

    def _tell_losses(self, run: Run, instance: Instance, class_name: str) -> None:
        """Where the Worker's own lines are, so that its author sees what the Host sees."""
        text = (
            f"the instance's context was lost {instance.losses} times in a row, without a step that ended in between: "
            "does its code run out of memory? It is tried again, after a longer pause each time"
        )
        about = {
            "version": run.version_uid,
            "workflow": run.workflow_uid,
            "class": class_name,
            "instance": run.instance_id,
        }
        log_worker_line(run.worker_uid, run.context_id, "warning", text, about)

    def _tell_lost(self, run: Run, why: str) -> None:
        """Neither the history nor `maxAttempts` knows of an attempt that ended with its process (W-107, S-14)."""
        text = f"the instance's context was lost ({why}): what it was in is done again, under the same attempt number"
        about = {"version": run.version_uid, "workflow": run.workflow_uid, "instance": run.instance_id}
        log_worker_line(run.worker_uid, run.context_id, "warning", text, about)

    async def _start(self, run: Run, instance: Instance, class_name: str) -> None:
        try:
            code = await self._code.load(run.version_uid)
            params, history = await self._reads.start_of(instance)
            if run.stopping:
                self._not_started(run, 0)
                return
            start = WorkflowStart(
                run.context_id,
                code,
                class_name,
                instance.instance_id,
                params,
                history,
                run.workflow_uid,
                alone=instance.losses >= LOSSES_ALONE,
            )
            handle = await self._pool.start_workflow(start, self)
        except SaiseiError as error:
            _log.info("context %s could not be started: %s", run.context_id, error)
            self._not_started(run, START_BACKOFF_MS)
            return
        except Exception:
            _log.exception("context %s could not be started", run.context_id)
            self._not_started(run, START_BACKOFF_MS)
            return
        run.handle = handle
        for call_id, reply in run.early:
            handle.reply(call_id, reply)
        run.early.clear()
        if run.stopping:
            handle.stop()

    def _not_started(self, run: Run, delay_ms: int) -> None:
        if self._forget(run):
            self._release(run, delay_ms)

    def decline(self, instance: Instance) -> None:
        """Gives a claim back before anything was started for it."""
        assert instance.owner is not None
        command = Release(instance.incarnation, instance.epoch, instance.owner, 0)
        self._journal.submit(command, partial(self._retry, partial(self.decline, instance)))

    def _release(self, run: Run, delay_ms: int, outcome: Outcome | None = None) -> None:
        if outcome is None or isinstance(outcome, SaiseiError):
            command = Release(run.incarnation, run.epoch, run.owner, delay_ms)
            again = partial(self._retry, partial(self._release, run, delay_ms))
            self._journal.submit(command, again)

    def _retry(self, again: Callable[[], None], outcome: Outcome) -> None:
        """An end that could not be written is written later; until then the lease keeps others away."""
        if isinstance(outcome, SaiseiError):
            asyncio.get_running_loop().call_later(RETRY_SECONDS, again)

    # --- the listener ---

    def on_step(self, context_id: str, call_id: int, call: StepCall | Recall) -> None:
        run = self._by_context.get(context_id)
        if run is None:
            return
        if isinstance(call, Recall):
            task = asyncio.get_running_loop().create_task(self._recall(run, call_id, call.name))
            self._recalls.add(task)
            task.add_done_callback(self._recalls.discard)
            return
        begun = self._begun.pop(run, None)
        if isinstance(call, DoStarted) and begun is None:
            # Nobody waits for it, and most outcomes are there at once: both are one command then.
            if not self._begun:
                asyncio.get_running_loop().call_later(BEGUN_SECONDS, self._tell_begun)
            self._begun[run] = call
        else:
            command = StepCalled(run.incarnation, run.epoch, run.owner, call, begun)
            self._journal.submit(command, partial(self._answer, run, call_id))

    def _tell_begun(self) -> None:
        """Attempts that go on for longer: they are announced now."""
        begun, self._begun = self._begun, {}
        for run, call in begun.items():
            self._submit_begun(run, call)

    def _submit_begun(self, run: Run, call: DoStarted) -> None:
        command = StepCalled(run.incarnation, run.epoch, run.owner, call)
        self._journal.submit(command, partial(self._answer, run, 0))

    async def _recall(self, run: Run, call_id: int, name: str) -> None:
        """A large result of a finished step, out of the table: nothing is held for a context that may never ask."""
        try:
            self._answer(run, call_id, Resolve(await self._reads.result_of(run.incarnation, name)))
        except SaiseiError as error:
            self._answer(run, call_id, error)

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        run = self._by_context.get(context_id)
        if run is None:
            return
        level = logging.DEBUG if end.proof.kind is ProofKind.QUIESCENT else logging.INFO
        if _log.isEnabledFor(level):
            about = {
                "context": context_id,
                "workflow_uid": run.workflow_uid,
                "instance_id": run.instance_id,
                "proof": end.proof.kind.value,
                "stop_ms": round(end.proof.milliseconds, 3),
            }
            # Before its end is committed, and so before anyone can see it (W-014).
            _log.log(level, "the instance's code has stopped", extra=about)
        if isinstance(end.outcome, Lost):
            self._tell_lost(run, end.outcome.why)
        begun = self._begun.pop(run, None)
        if begun is not None:
            # Its effect may have run.
            self._submit_begun(run, begun)
        self._forget(run)
        self._ended(run, end)

    def _ended(self, run: Run, end: ContextEnd) -> None:
        command = ContextEnded(run.incarnation, run.epoch, run.owner, end)
        self._journal.submit(command, partial(self._retry, partial(self._ended, run, end)))

    def _answer(self, run: Run, call_id: int, outcome: Outcome) -> None:
        if isinstance(outcome, _ANSWERS):
            if call_id == 0:
                if isinstance(outcome, Stop):
                    self._stop(run)
            elif run.handle is None:
                run.early.append((call_id, outcome))
            else:
                run.handle.reply(call_id, outcome)
        else:
            # W-089: trouble of the Host is no error of the step; the context is stopped and starts anew later.
            self._stop(run)

    def _forget(self, run: Run) -> bool:
        if self._by_context.pop(run.context_id, None) is None:
            return False
        self.runs.pop(run.incarnation, None)
        if not self.runs:
            self._idle.set()
        self._freed(run)
        return True

    # --- stopping, leases, lifetimes ---

    def stop(self, incarnation: str) -> bool:
        """Stops the context of an instance if this runtime has one; its end is reported as always."""
        run = self.runs.get(incarnation)
        if run is not None:
            self._stop(run)
        return run is not None

    def stop_where(self, condition: Callable[[Run], bool]) -> None:
        for run in list(self.runs.values()):
            if condition(run):
                self._stop(run)

    async def stop_all(self, condition: Callable[[Run], bool], seconds: float) -> bool:
        """Stops what the condition names, until nothing of it is left and all ends are written (or a write of one is
        tried again). False: after `seconds` the stop of some is not proven."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while any(condition(run) for run in self.runs.values()):
            if loop.time() > until:
                return False
            self.stop_where(condition)
            await asyncio.sleep(0.01)
        await self._journal.transact(lambda connection: None)
        return True

    def _stop(self, run: Run) -> None:
        run.stopping = True
        if run.handle is not None:
            run.handle.stop()

    def _schedule_tick(self) -> None:
        if not self.runs:
            self._tick = None
            return
        now = self._clock.now_ms()
        nearest = min(run.deadline_at_ms - now for run in self.runs.values())
        delay = max(0.001, min(1.0, self._lease_ms / 4000, nearest / 1000))
        self._tick = asyncio.get_running_loop().call_later(delay, self._on_tick)

    def _on_tick(self) -> None:
        self.check()
        self._schedule_tick()

    def check(self) -> None:
        """Renews leases in good time, stops what is over its lifetime or about to lose its lease, insists on stops."""
        now, wall = self._clock.now_ms(), wall_ms()
        for run in list(self.runs.values()):
            left = run.lease_until_ms - wall
            if run.stopping or now >= run.deadline_at_ms or left <= self._stop_ms:
                self._stop(run)
            elif left <= self._lease_ms * RENEW_SHARE:
                self.verify(run.incarnation)

    def verify(self, incarnation: str) -> None:
        """Another runtime touched the row of a running context: stop it if it was fenced, otherwise nothing changes."""
        run = self.runs.get(incarnation)
        if run is not None and not run.stopping:
            until = wall_ms() + self._lease_ms
            command = RenewLease(run.incarnation, run.epoch, run.owner, self._lease_ms)
            self._journal.submit(command, partial(self._renewed, run, until))

    def _renewed(self, run: Run, until_ms: int, outcome: Outcome) -> None:
        if isinstance(outcome, Stale):
            self._stop(run)
        elif not isinstance(outcome, SaiseiError):
            run.lease_until_ms = until_ms

    async def drain(self, seconds: float) -> bool:
        """Stops every context and waits for the ends; False when some are not proven in time."""
        self.stop_where(lambda run: True)
        if self.runs:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        return not self.runs
