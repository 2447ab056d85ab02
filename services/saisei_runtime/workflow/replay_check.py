"""Whether recorded histories fit a Version that is about to be selected (WD-10), found by replaying some of them.

A history is replayed in a context of a process of its own, which reaches no network and answers no Binding call. No
effect runs either, because the context is told that its instance has all the steps that an instance may have, and that
the step it is in was begun with a method that does not exist: a call of a new name ends it as one step too many, a call
of that step ends it as a mismatch, both before anything is performed. What the mismatch says of the method is compared
with the one that really began the step. A definite contradiction is known; everything else proves nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, zip_longest
from typing import Final, NoReturn

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource, WorkerCode
from saisei_runtime.isolates.port import (
    BindingCall,
    BindingHost,
    BindingResult,
    ContextEnd,
    ContextHandle,
    ContextPool,
    Failed,
    FetchResult,
    HistoryStep,
    ServiceCall,
    StepCall,
    WorkflowStart,
)
from saisei_runtime.workflow.limits import STEPS
from saisei_runtime.workflow.outcome import MISMATCH
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import DO, SLEEP, SLEEPING, WAIT, WAITING, Instance

_log = logging.getLogger(__name__)

SAMPLE: Final = 200
SECONDS: Final = 10.0
# One replay that neither ends nor calls a step by then says nothing.
EACH_SECONDS: Final = 2.0
AT_ONCE: Final = 4
# Parked instances of one workflow among which the sample is chosen: those that go on first.
WINDOW: Final = 5_000
# What tenants print while their code is only being tried is for nobody.
SCOPE: Final = "replay-"

METHODS: Final = {DO: "step.do", SLEEP: "step.sleep", WAIT: "step.waitForEvent"}
_DISGUISE: Final = "replayed"
# The words of the isolates for a step that is called with another method than the one that began it.
_CALLED: Final = re.compile(
    r'^step (".*") is unfinished and was begun with .*; now (step\.\w+) uses its name$', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Replayable:
    """A workflow whose histories are looked at."""

    uid: str
    class_name: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`version_uid` calls `step_name` with the method `called_with`; the instance is in it since `begun_with`."""

    version_uid: str
    workflow_uid: str
    instance_id: str
    step_name: str
    begun_with: str
    called_with: str


class Unsure(Enum):
    """What a replay can be besides a mismatch."""

    FITS = "fits"
    UNKNOWN = "unknown"


Verdict = Mismatch | Unsure


@dataclass(frozen=True, slots=True)
class Findings:
    """`unknown` proves nothing either way, and is never shown as fitting."""

    mismatches: Sequence[Mismatch] = ()
    fitting: int = 0
    unknown: int = 0


class ReplayCheck:
    """`make_pool(bindings)` gives a pool without egress that runs nothing else; it is closed after each check."""

    def __init__(self, reads: Reads, code: CodeSource, make_pool: Callable[[BindingHost], ContextPool]) -> None:
        self._reads = reads
        self._code = code
        self._make_pool = make_pool
        # One at a time: deploys wait rather than take the cores from what runs.
        self._turn = asyncio.Lock()
        logging.getLogger("saisei_runtime.worker").addFilter(_is_no_replay)

    async def check(
        self, workflows: Sequence[Replayable], version_uids: Sequence[str], seconds: float = SECONDS
    ) -> Findings:
        """At most SAMPLE replays in about `seconds`. SaiseiError backend_unavailable: nothing can be said now."""
        sample = await self._sample(workflows, SAMPLE // max(1, len(version_uids)))
        if not sample or not version_uids:
            return Findings()
        async with self._turn:
            codes = [await self._code.load(uid) for uid in version_uids]
            replays = [(code, *one) for one in sample for code in codes]
            verdicts = await self._replay_all(replays, seconds)
        mismatches = tuple(verdict for verdict in verdicts if isinstance(verdict, Mismatch))
        fitting = verdicts.count(Unsure.FITS)
        found = Findings(mismatches, fitting, len(replays) - len(mismatches) - fitting)
        about = {"versions": list(version_uids), "mismatches": len(mismatches)}
        _log.info("recorded histories were replayed: %d fit, %d say nothing", fitting, found.unknown, extra=about)
        return found

    async def _sample(self, workflows: Sequence[Replayable], most: int) -> list[tuple[Replayable, Instance]]:
        """Of each workflow the same number, and of its instances as many different steps as there are."""
        if not workflows:
            return []
        share = max(1, most // len(workflows))
        found: list[tuple[Replayable, Instance]] = []
        for workflow in workflows:
            by_step: dict[str, list[str]] = defaultdict(list)
            for incarnation, step in await self._reads.parked(workflow.uid, WINDOW):
                by_step[step].append(incarnation)
            chosen = [one for one in chain(*zip_longest(*by_step.values())) if one is not None][:share]
            for instance in await self._reads.by_incarnations(chosen):
                if instance.status in (SLEEPING, WAITING) and len(found) < most:
                    found.append((workflow, instance))
        return found

    async def _replay_all(
        self, replays: Sequence[tuple[WorkerCode, Replayable, Instance]], seconds: float
    ) -> list[Verdict]:
        bindings = _Silence()
        pool = self._make_pool(bindings)
        verdicts: list[Verdict] = []
        left = iter(enumerate(replays))

        async def _work() -> None:
            for number, (code, workflow, instance) in left:
                verdicts.append(await self._replay(pool, bindings, f"{SCOPE}{number}", code, workflow, instance))

        workers = [asyncio.create_task(_work()) for _ in range(min(AT_ONCE, len(replays)))]
        try:
            _, pending = await asyncio.wait(workers, timeout=seconds)
            for task in pending:
                task.cancel()
            for outcome in await asyncio.gather(*workers, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
        finally:
            await pool.close()
        return verdicts

    async def _replay(
        self,
        pool: ContextPool,
        bindings: _Silence,
        context_id: str,
        code: WorkerCode,
        workflow: Replayable,
        instance: Instance,
    ) -> Verdict:
        params, history = await self._reads.start_of(instance)
        open_steps = {step.name: step for step in history if step.state == "open"}
        start = WorkflowStart(
            context_id, code, workflow.class_name, instance.instance_id, params, disguised(history), workflow.uid
        )
        ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        bindings.expect(context_id, ended)
        handle: ContextHandle | None = None
        try:
            handle = await pool.start_workflow(start, _Listener(ended))
            async with asyncio.timeout(EACH_SECONDS):
                said = await ended
        except (TimeoutError, SaiseiError):
            return Unsure.UNKNOWN
        finally:
            bindings.forget(context_id)
            if handle is not None:
                handle.stop()
        called = None if said is None else _CALLED.match(said)
        step = None if called is None else open_steps.get(json.loads(called[1]))
        if called is None or step is None:
            return Unsure.UNKNOWN
        begun = METHODS[step.kind]
        if called[2] == begun:
            return Unsure.FITS
        return Mismatch(code.version_uid, workflow.uid, instance.instance_id, step.name, begun, called[2])


def disguised(history: Sequence[HistoryStep]) -> list[HistoryStep]:
    """The history for a replay that may perform nothing: no open step has a method, no new one has a place."""
    steps = [replace(step, kind=_DISGUISE) if step.state == "open" else step for step in history]
    names = {step.name for step in steps}
    number = 0
    while len(steps) < STEPS:
        number += 1
        if f"\0{number}" not in names:
            steps.append(HistoryStep(f"\0{number}", DO, "complete"))
    return steps


class _Listener:
    """What the replay came to: the words of its mismatch, or None."""

    def __init__(self, ended: asyncio.Future[str | None]) -> None:
        self._ended = ended

    def on_step(self, context_id: str, call_id: int, call: StepCall) -> None:
        self._settle(None)

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        outcome = end.outcome
        self._settle(outcome.message if isinstance(outcome, Failed) and outcome.reason == MISMATCH else None)

    def _settle(self, said: str | None) -> None:
        if not self._ended.done():
            self._ended.set_result(said)


class _Silence:
    """Bindings of a replay: a call outside of steps is never answered, and the replay then says nothing."""

    def __init__(self) -> None:
        self._replays: dict[str, asyncio.Future[str | None]] = {}

    def expect(self, context_id: str, ended: asyncio.Future[str | None]) -> None:
        self._replays[context_id] = ended

    def forget(self, context_id: str) -> None:
        self._replays.pop(context_id, None)

    async def call(self, call: BindingCall) -> BindingResult:
        return await self._silence(call.scope_id)

    async def fetch(self, call: ServiceCall) -> FetchResult:
        return await self._silence(call.scope_id)

    async def _silence(self, scope_id: str) -> NoReturn:
        ended = self._replays.get(scope_id)
        if ended is not None and not ended.done():
            ended.set_result(None)
        never: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        await never
        raise AssertionError("unreachable")

    def close_scope(self, scope_id: str) -> None:
        return


def _is_no_replay(record: logging.LogRecord) -> bool:
    return not str(getattr(record, "scope", "")).startswith(SCOPE)
