"""Whether recorded histories fit a Version that is about to be selected (WD-10), found by replaying some of them.

A history is replayed in a context of a process of its own, which reaches no network and answers no Binding call. No
effect runs either, because the context is told that its instance has all the steps that an instance may have, and that
the step it is in was begun with a method that does not exist: a call of a new name ends it as one step too many, a call
of that step ends it as a mismatch, both before anything is performed. The method of that call is compared with the one
that really began the step. A definite contradiction is known; whatever else a replay comes to proves nothing, and is
told with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, zip_longest
from typing import Final, NoReturn

from msgspec import structs

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
    Lost,
    Recall,
    Resolve,
    ServiceCall,
    StepCall,
    Stopped,
    WorkflowStart,
)
from saisei_runtime.workflow.limits import STEPS
from saisei_runtime.workflow.outcome import MISMATCH
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import DO, PARKED, SLEEP, WAIT, Instance

_log = logging.getLogger(__name__)

SAMPLE: Final = 200
SECONDS: Final = 10.0
# One replay that neither ends nor calls a step by then says nothing.
EACH_SECONDS: Final = 2.0
AT_ONCE: Final = 4
# Parked instances of one workflow among which the sample is chosen: those that go on first.
WINDOW: Final = 5_000
# Instances that are named for each reason for which nothing is known of them.
NAMED: Final = 20
# What tenants print while their code is only being tried is for nobody.
SCOPE: Final = "replay-"

METHODS: Final = {DO: "step.do", SLEEP: "step.sleep", WAIT: "step.waitForEvent"}
_DISGUISE: Final = "replayed"


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


class Why(Enum):
    """Why a replay proves nothing."""

    # The code calls a name that the history does not have, before the step that the instance is in.
    NEW_STEP = "new_step"
    # `run` came to an end, or failed, without that step.
    ENDED = "ended"
    # What the code does depends on a `fetch` or on a Binding, which a replay does not have.
    ASKED_OUTSIDE = "asked_outside"
    # It did not get there in time, or its turn did not come.
    TIME = "time"
    # The context could not be started, or its process was lost.
    NOT_RUN = "not_run"
    # There are more parked instances than are replayed.
    NOT_SAMPLED = "not_sampled"


@dataclass(frozen=True, slots=True)
class Doubt:
    """An instance of which nothing is known, in the step `step_name`; `new_step` is the name that came instead."""

    why: Why
    workflow_uid: str
    instance_id: str
    step_name: str = ""
    new_step: str = ""


@dataclass(frozen=True, slots=True)
class Fits:
    """The code came back to the step that the instance is in, with the method that began it."""


Verdict = Mismatch | Doubt | Fits


@dataclass(frozen=True, slots=True)
class Findings:
    """`doubts` prove nothing either way, and are never shown as fitting.

    Each replay is in one of the three. `not_sampled` counts the instances besides; some of them are among `named`.
    """

    mismatches: Sequence[Mismatch] = ()
    fitting: int = 0
    doubts: Sequence[Doubt] = ()
    not_sampled: int = 0
    named: Sequence[Doubt] = ()

    def unconfirmed(self) -> dict[Why, list[Doubt]]:
        """The doubts by reason, one for each instance; of those that were not sampled only the named ones."""
        found: dict[Why, dict[tuple[str, str], Doubt]] = defaultdict(dict)
        for doubt in (*self.doubts, *self.named):
            found[doubt.why].setdefault((doubt.workflow_uid, doubt.instance_id), doubt)
        return {why: list(found[why].values()) for why in Why if why in found}


@dataclass(frozen=True, slots=True)
class _Sample:
    """The instances to replay, and what is told of the others."""

    chosen: Sequence[tuple[Replayable, Instance]] = ()
    others: int = 0
    named: Sequence[Doubt] = ()


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
        self,
        workflows: Sequence[Replayable],
        version_uids: Sequence[str],
        seconds: float = SECONDS,
        each_seconds: float = EACH_SECONDS,
    ) -> Findings:
        """At most SAMPLE replays in about `seconds`. SaiseiError backend_unavailable: nothing can be said now."""
        if not workflows or not version_uids:
            return Findings()
        sample = await self._sample(workflows, SAMPLE // len(version_uids))
        if not sample.chosen:
            return Findings((), 0, (), sample.others, sample.named)
        async with self._turn:
            codes = [await self._code.load(uid) for uid in version_uids]
            replays = [(code, *one) for one in sample.chosen for code in codes]
            verdicts = await self._replay_all(replays, seconds, each_seconds)
        mismatches = tuple(verdict for verdict in verdicts if isinstance(verdict, Mismatch))
        doubts = tuple(verdict for verdict in verdicts if isinstance(verdict, Doubt))
        fitting = len(verdicts) - len(mismatches) - len(doubts)
        about = {"versions": list(version_uids), "mismatches": len(mismatches)}
        _log.info("recorded histories were replayed: %d fit, %d say nothing", fitting, len(doubts), extra=about)
        return Findings(mismatches, fitting, doubts, sample.others, sample.named)

    async def _sample(self, workflows: Sequence[Replayable], most: int) -> _Sample:
        """Of each workflow the same number, and of its instances as many different steps as there are."""
        share = max(1, most // len(workflows))
        found: list[tuple[Replayable, Instance]] = []
        others, named = 0, list[Doubt]()
        for workflow in workflows:
            by_step: dict[str, list[str]] = defaultdict(list)
            for incarnation, step in await self._reads.parked(workflow.uid, WINDOW):
                by_step[step].append(incarnation)
            varied = [one for one in chain(*zip_longest(*by_step.values())) if one is not None]
            count = min(share, most - len(found))
            chosen, rest = varied[:count], varied[count:]
            found += [(workflow, instance) for instance in await self._still_parked(chosen)]
            if rest:
                counts = await self._reads.counts(workflow.uid)
                others += max(len(rest), sum(counts[status] for status in PARKED) - len(chosen))
                for instance in await self._still_parked(rest[: NAMED - len(named)]):
                    doubt = Doubt(Why.NOT_SAMPLED, workflow.uid, instance.instance_id, instance.pending_step or "")
                    named.append(doubt)
        return _Sample(found, others, tuple(named))

    async def _still_parked(self, incarnations: Sequence[str]) -> Iterable[Instance]:
        found = await self._reads.by_incarnations(incarnations) if incarnations else []
        return [instance for instance in found if instance.status in PARKED]

    async def _replay_all(
        self, replays: Sequence[tuple[WorkerCode, Replayable, Instance]], seconds: float, each_seconds: float
    ) -> list[Verdict]:
        bindings = _Silence()
        pool = self._make_pool(bindings)
        verdicts: list[Verdict] = [
            Doubt(Why.TIME, workflow.uid, instance.instance_id, instance.pending_step or "")
            for _, workflow, instance in replays
        ]
        left = iter(enumerate(replays))

        async def _work() -> None:
            for number, (code, workflow, instance) in left:
                context_id = f"{SCOPE}{number}"
                verdicts[number] = await self._replay(
                    pool, bindings, context_id, code, workflow, instance, each_seconds
                )

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
        seconds: float,
    ) -> Verdict:
        params, history = await self._reads.start_of(instance)
        start = WorkflowStart(
            context_id, code, workflow.class_name, instance.instance_id, params, disguised(history), workflow.uid
        )
        ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        bindings.expect(context_id, ended)
        handle: ContextHandle | None = None
        recalls: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        answering: asyncio.Task[None] | None = None
        why = Why.NOT_RUN
        try:
            handle = await pool.start_workflow(start, _Listener(ended, lambda *call: recalls.put_nowait(call)))
            answering = asyncio.create_task(self._answer(handle, recalls, instance.incarnation))
            why = Why.TIME
            async with asyncio.timeout(seconds):
                end = await ended
        except (TimeoutError, SaiseiError):
            end = why
        finally:
            bindings.forget(context_id)
            if answering is not None:
                answering.cancel()
            if handle is not None:
                handle.stop()
        return judge(end, code.version_uid, workflow.uid, instance, history)

    async def _answer(self, handle: ContextHandle, recalls: asyncio.Queue[tuple[int, str]], incarnation: str) -> None:
        """Gives large results on; without one the replay ends for want of time."""
        while True:
            call_id, name = await recalls.get()
            with contextlib.suppress(SaiseiError):
                handle.reply(call_id, Resolve(await self._reads.result_of(incarnation, name)))


def judge(
    end: _End, version_uid: str, workflow_uid: str, instance: Instance, history: Sequence[HistoryStep]
) -> Verdict:
    """What the end of a replay says of the real history."""
    doubt = Doubt(Why.ENDED, workflow_uid, instance.instance_id, instance.pending_step or "")
    if isinstance(end, Why):
        return replace(doubt, why=end)
    outcome = end.outcome
    if isinstance(outcome, Lost | Stopped):
        return replace(doubt, why=Why.NOT_RUN)
    if end.fetched:
        # It may have gone where it went only because nothing was answered.
        return replace(doubt, why=Why.ASKED_OUTSIDE)
    if not isinstance(outcome, Failed) or not outcome.called:
        return doubt
    if outcome.reason != MISMATCH:
        return replace(doubt, why=Why.NEW_STEP, new_step=outcome.step)
    began = next((step for step in history if step.state == "open" and step.name == outcome.step), None)
    if began is None:
        return doubt
    if outcome.called == began.kind:
        return Fits()
    begun_with, called_with = METHODS[began.kind], METHODS[outcome.called]
    return Mismatch(version_uid, workflow_uid, instance.instance_id, began.name, begun_with, called_with)


def disguised(history: Sequence[HistoryStep]) -> list[HistoryStep]:
    """The history for a replay that may perform nothing: no open step has a method, no new one has a place."""
    steps = [structs.replace(step, kind=_DISGUISE) if step.state == "open" else step for step in history]
    names = {step.name for step in steps}
    number = 0
    while len(steps) < STEPS:
        number += 1
        if f"\0{number}" not in names:
            steps.append(HistoryStep(f"\0{number}", DO, "complete"))
    return steps


# How the context of a replay ended, or why nobody waited for that.
_End = ContextEnd | Why


class _Listener:
    def __init__(self, ended: asyncio.Future[_End], recall: Callable[[int, str], None]) -> None:
        self._ended = ended
        self._recall = recall

    def on_step(self, context_id: str, call_id: int, call: StepCall | Recall) -> None:
        """No step is performed in a disguised history: a thread that tries is not what it should be."""
        if isinstance(call, Recall):
            self._recall(call_id, call.name)
        else:
            self._settle(Why.NOT_RUN)

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        self._settle(end)

    def _settle(self, end: _End) -> None:
        if not self._ended.done():
            self._ended.set_result(end)


class _Silence:
    """Bindings of a replay: a call outside of steps is never answered, and the replay then says nothing."""

    def __init__(self) -> None:
        self._replays: dict[str, asyncio.Future[_End]] = {}

    def expect(self, context_id: str, ended: asyncio.Future[_End]) -> None:
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
            ended.set_result(Why.ASKED_OUTSIDE)
        never: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        await never
        raise AssertionError("unreachable")

    def close_scope(self, scope_id: str) -> None:
        return


def _is_no_replay(record: logging.LogRecord) -> bool:
    return not str(getattr(record, "scope", "")).startswith(SCOPE)
