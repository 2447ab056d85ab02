"""One running workflow context: what its thread says becomes calls of the listener, its end is reported with proof."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import assert_never

from saisei_runtime.isolates.calls import BindingCalls
from saisei_runtime.isolates.egress import Egress, EgressCalls
from saisei_runtime.isolates.lineage import Lineage
from saisei_runtime.isolates.metrics import metrics
from saisei_runtime.isolates.port import (
    BindingHost,
    Completed,
    ContextEnd,
    ContextListener,
    ContextOutcome,
    DoFailed,
    DoStarted,
    DoSucceeded,
    Failed,
    Lost,
    Park,
    Parked,
    ProofKind,
    Recall,
    Reject,
    Resolve,
    SleepCalled,
    StepCall,
    StepReply,
    Stop,
    Stopped,
    WaitCalled,
    WorkflowStart,
)
from saisei_runtime.isolates.process import NodeThread
from saisei_runtime.isolates.proof import prove
from saisei_runtime.isolates.protocol import (
    DEFERRED,
    Call,
    DoFailedFrame,
    DoStartedFrame,
    DoSucceededFrame,
    Ended,
    FromThread,
    Log,
    RecallFrame,
    Reply,
    Settled,
    SleepFrame,
    Start,
    StepHead,
    WaitFrame,
)
from saisei_runtime.isolates.services import ServiceCalls

_worker_log = logging.getLogger("saisei_runtime.worker")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NOTHING: Mapping[str, str] = {}


def log_worker_line(worker_uid: str, scope: str, level: str, text: str, about: Mapping[str, str] = _NOTHING) -> None:
    """A line that tenant code wrote to `console`, or that concerns it."""
    extra = {"worker": worker_uid, "scope": scope, **about}
    _worker_log.log(_LEVELS.get(level, logging.INFO), "%s", text, extra=extra)


def start_frame(start: WorkflowStart) -> tuple[Start, bytes]:
    body = [start.params or b""]
    history: list[StepHead] = []
    for step in start.history:
        length = len(step.result) if step.result is not None else DEFERRED if step.deferred else -1
        history.append(StepHead(step.name, step.kind, step.state, step.error or "", step.failed_attempts, length))
        body.append(step.result or b"")
    params_length = -1 if start.params is None else len(start.params)
    head = Start(start.context_id, start.code.version_uid, start.class_name, start.instance_id, params_length, history)
    return head, b"".join(body)


class RunningContext:
    """Implements `ContextHandle`. `on_end(reusable)` tells the thread's owner, before the listener hears of it."""

    def __init__(
        self,
        start: WorkflowStart,
        thread: NodeThread,
        listener: ContextListener,
        bindings: BindingHost,
        egress: Egress | None,
        on_end: Callable[[bool], None],
    ) -> None:
        self.context_id = start.context_id
        self.version_uid = start.code.version_uid
        self._worker_uid = start.code.worker_uid
        # Who speaks, on each line of its log.
        self._about = {
            "version": start.code.version_uid,
            "workflow": start.workflow_uid,
            "class": start.class_name,
            "instance": start.instance_id,
        }
        self._thread = thread
        self._listener = listener
        self._on_end = on_end
        self._calls = BindingCalls(bindings, start.code, start.context_id, thread.send)
        self._egress = egress
        self._fetches: EgressCalls | None = None
        self._services = ServiceCalls(bindings, start.code, start.context_id, Lineage())
        self._loop = asyncio.get_running_loop()
        # What the context will end as, once it is proven to have stopped.
        self._outcome: ContextOutcome | None = None
        self._asked: ContextOutcome | None = None
        self._decided_at = 0.0
        self._grace: asyncio.TimerHandle | None = None
        self.ended = False
        self.finished: asyncio.Future[None] | None = None
        thread.on_frame = self._receive
        thread.on_gone = self._gone
        thread.send(*start_frame(start))

    @property
    def stopping(self) -> bool:
        """Its thread is being terminated."""
        return self._thread.killing

    # --- ContextHandle ---

    def reply(self, call_id: int, reply: StepReply) -> None:
        if self.ended or self._asked is not None or self._outcome is not None:
            return
        match reply:
            case Resolve(result=result):
                self._thread.send(Reply(call_id, "resolve", "", result is not None), result or b"")
            case Reject(code=code):
                self._thread.send(Reply(call_id, "reject", code, False))
            case Park():
                self._leave(call_id, "park", Parked())
            case Stop():
                self._leave(call_id, "stop", Stopped())
            case _:
                assert_never(reply)

    def stop(self) -> None:
        if self.ended:
            return
        if self._outcome is None and not isinstance(self._asked, Stopped):
            self._asked = Stopped()
            self._decide()
        self._thread.terminate()

    # --- what the thread says ---

    def _receive(self, frame: FromThread, body: bytes) -> None:
        match frame:
            case Settled():
                self._settled(frame, body)
            case Ended():
                self._fell_silent(frame)
            case Call():
                if self._asked is None:
                    self._calls.begin(frame, body)
            case Log():
                log_worker_line(self._worker_uid, frame.scope, frame.level, frame.text, self._about)
            case _:
                self._receive_step(frame, body)

    def _receive_step(self, frame: FromThread, body: bytes) -> None:
        match frame:
            case DoStartedFrame():
                self._step(0, DoStarted(frame.name, frame.attempt, frame.policy))
            case DoSucceededFrame():
                result = body if frame.has else None
                self._step(frame.call, DoSucceeded(frame.name, frame.attempt, result))
            case DoFailedFrame():
                call = DoFailed(frame.name, frame.attempt, frame.policy, frame.error_name, frame.error_message)
                self._step(frame.call, call)
            case SleepFrame():
                self._step(frame.call, SleepCalled(frame.name, frame.seconds))
            case WaitFrame():
                self._step(frame.call, WaitCalled(frame.name, frame.type, frame.timeout_seconds))
            case RecallFrame():
                self._step(frame.call, Recall(frame.name))
            case _:
                if self._fetches is None:
                    self._fetches = EgressCalls(self._egress, self._thread.send, lambda _scope: self._services)
                if not self._fetches.receive(frame, body):
                    self._thread.terminate()  # not a frame of this role: the thread is not trusted any more

    def _step(self, call_id: int, call: StepCall | Recall) -> None:
        if self._asked is None and self._outcome is None:
            self._listener.on_step(self.context_id, call_id, call)

    def _settled(self, frame: Settled, body: bytes) -> None:
        # A context that was stopped has no outcome of its own; one that was parked may have settled just before.
        if isinstance(self._asked, Stopped) or self._outcome is not None:
            return
        if frame.outcome == "completed":
            self._outcome = Completed(body if frame.has else None)
        else:
            self._outcome = Failed(frame.reason, frame.message or None, frame.step, frame.called)
        self._decide()
        self._await_silence()

    def _leave(self, call_id: int, kind: str, outcome: ContextOutcome) -> None:
        self._asked = outcome
        self._decide()
        self._thread.send(Reply(call_id, kind, "", False))
        self._await_silence()

    def _decide(self) -> None:
        if self._decided_at == 0.0:
            self._decided_at = time.perf_counter()

    def _await_silence(self) -> None:
        if self._grace is None:
            within = self._thread.process.settings.quiet_within
            self._grace = self._loop.call_later(within, self._thread.terminate, "it did not fall silent")

    # --- the end ---

    def _fell_silent(self, frame: Ended) -> None:
        metrics.checked(frame.took)
        if self._thread.killing or not (frame.quiescent and frame.pristine):
            # A changed realm may run the tenant's code whenever the host's runs: only a join proves the stop.
            self._thread.terminate(frame.why)
            return
        self._end(ProofKind.QUIESCENT, frame.why, reusable=not frame.worn_out)

    def _gone(self, kind: ProofKind, why: str) -> None:
        self._end(kind, why, reusable=False)

    def _end(self, kind: ProofKind, why: str, *, reusable: bool) -> None:
        if self.ended:
            return
        self.ended = True
        if self._grace is not None:
            self._grace.cancel()
        self._calls.close()
        if self._fetches is not None:
            self._fetches.close()
        self._services.close()
        took = (time.perf_counter() - self._decided_at) * 1000 if self._decided_at else 0.0
        proof = prove(kind, self.context_id, took, why)
        outcome = self._outcome or self._asked or Lost(why or "the thread ended by itself")
        metrics.context_ended(outcome, kind, why or self._thread.why, took / 1000)
        self._on_end(reusable)
        self._listener.on_ended(self.context_id, ContextEnd(outcome, proof, fetched=self._fetches is not None))
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    async def wait_ended(self) -> None:
        if not self.ended:
            if self.finished is None:
                self.finished = self._loop.create_future()
            await self.finished
