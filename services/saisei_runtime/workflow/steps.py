"""What a step call of the running owner does to the journal (W-090 … W-122). Pure; the fence was checked before."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from saisei_runtime.isolates.port import (
    DoFailed,
    DoStarted,
    DoSucceeded,
    Park,
    Reject,
    Resolve,
    RetryPolicy,
    SleepCalled,
    StepCall,
    Stop,
    WaitCalled,
)
from saisei_runtime.workflow import log
from saisei_runtime.workflow.commands import Decision, Instant, View
from saisei_runtime.workflow.events import consume
from saisei_runtime.workflow.limits import STEPS
from saisei_runtime.workflow.outcome import LIFETIME, MISMATCH, STEP_LIMIT
from saisei_runtime.workflow.records import (
    DO,
    PENDING,
    RETRY_WAIT,
    SLEEP,
    STEP_COMPLETE,
    STEP_ERRORED,
    STEP_WAITING,
    WAIT,
    Instance,
    Step,
)
from saisei_runtime.workflow.retries import delay_seconds

_KINDS: dict[type, str] = {DoStarted: DO, DoSucceeded: DO, DoFailed: DO, SleepCalled: SLEEP, WaitCalled: WAIT}


def called(view: View, call: StepCall, now: Instant) -> Decision:
    """One call of the current owner. Replies Resolve, Reject, Park or Stop (uncatchable ends: W-121)."""
    instance, step = view.instance, view.step
    assert instance is not None
    if instance.verdict is not None:
        return Decision(Stop())
    if step is None:
        if isinstance(call, DoSucceeded | DoFailed):
            # Its DoStarted was refused, so this context is being stopped already.
            return Decision(Stop())
        if instance.step_count >= STEPS:
            return Decision(Stop(), instance=replace(instance, verdict=STEP_LIMIT))
    elif not step.finished and step.kind != _KINDS[type(call)]:
        return Decision(Stop(), instance=replace(instance, verdict=MISMATCH))
    elif step.finished:
        return _replay(step)
    match call:
        case DoStarted():
            return _do_started(instance, step, call, now)
        case DoSucceeded():
            assert step is not None
            return _do_succeeded(instance, step, call)
        case DoFailed():
            assert step is not None
            return _do_failed(instance, step, call, now)
        case SleepCalled():
            return _sleep(instance, step, call, now)
        case WaitCalled():
            return _wait(instance, step, call, view, now)
        case _:
            assert_never(call)


def _replay(step: Step) -> Decision:
    """W-094: a finished name gives its recorded outcome, whatever asks."""
    if step.state == STEP_COMPLETE:
        return Decision(Resolve(step.result))
    return Decision(Reject(step.error or "step_failed"))


def _registered(instance: Instance) -> Instance:
    return replace(instance, step_count=instance.step_count + 1, open_steps=instance.open_steps + 1)


def _closed(instance: Instance) -> Instance:
    """A step has an outcome: nothing is pending, and the instance makes progress."""
    return replace(instance, open_steps=instance.open_steps - 1, pending_step=None, losses=0)


def _do_started(instance: Instance, step: Step | None, call: DoStarted, now: Instant) -> Decision:
    facts: tuple[log.Fact, ...] = ()
    row: Instance | None = None
    if step is None:
        step = _new_do(instance, call.name, call.policy, now)
        row = _registered(instance)
        facts = (log.step_started(step),)
    attempt = step.failed_attempts + 1
    if step.attempts_started >= attempt:
        # W-107, S-14: the attempt was announced by a context that was lost.
        return Decision(Resolve())
    return Decision(
        Resolve(),
        instance=instance if row is None else row,
        step=replace(step, state=PENDING, due_at_ms=None, attempts_started=attempt),
        facts=(*facts, log.attempt_started(step.name, attempt)),
    )


def _new_do(instance: Instance, name: str, policy: RetryPolicy, now: Instant) -> Step:
    return Step(
        instance.incarnation,
        name,
        instance.step_count + 1,
        DO,
        now.ms,
        max_attempts=policy.max_attempts,
        initial_delay_seconds=policy.initial_delay_seconds,
        backoff=policy.backoff,
        max_delay_seconds=policy.max_delay_seconds,
    )


def _do_succeeded(instance: Instance, step: Step, call: DoSucceeded) -> Decision:
    attempt = step.failed_attempts + 1
    return Decision(
        Resolve(call.result),
        instance=_closed(instance),
        step=replace(step, state=STEP_COMPLETE, result=call.result),
        facts=(log.attempt_completed(step.name, attempt), log.step_completed(step.name, call.result)),
    )


def _do_failed(instance: Instance, step: Step, call: DoFailed, now: Instant) -> Decision:
    attempt = step.failed_attempts + 1
    if attempt >= step.max_attempts:
        return Decision(
            Reject("step_failed"),
            instance=_closed(instance),
            # What the last attempt failed with is kept as the failed step's result: replay tells it in the same words.
            step=replace(
                step,
                state=STEP_ERRORED,
                failed_attempts=attempt,
                error="step_failed",
                result=log.error_json(call.error_name, call.error_message),
            ),
            facts=(
                log.attempt_errored(step.name, attempt, None, call.error_name, call.error_message),
                log.step_errored(step.name),
            ),
        )
    delay_ms = delay_seconds(step, attempt) * 1000
    due = now.ms + delay_ms
    late = due > instance.deadline_at_ms
    return Decision(
        Stop() if late else Park(),
        instance=replace(instance, pending_step=step.name, losses=0, verdict=LIFETIME if late else None),
        step=replace(step, state=RETRY_WAIT, failed_attempts=attempt, due_at_ms=due),
        facts=(log.attempt_errored(step.name, attempt, delay_ms, call.error_name, call.error_message),),
    )


def _sleep(instance: Instance, step: Step | None, call: SleepCalled, now: Instant) -> Decision:
    facts: tuple[log.Fact, ...] = ()
    fresh = step is None
    if step is None:
        due = now.ms + call.seconds * 1000
        step = Step(instance.incarnation, call.name, instance.step_count + 1, SLEEP, now.ms, due_at_ms=due)
        instance = _registered(instance)
        facts = (log.sleep_started(call.name, call.seconds),)
    assert step.due_at_ms is not None
    if now.ms >= step.due_at_ms:
        return Decision(
            Resolve(),
            instance=_closed(instance),
            step=replace(step, state=STEP_COMPLETE),
            facts=(*facts, log.sleep_completed(step.name)),
        )
    late = step.due_at_ms > instance.deadline_at_ms
    return Decision(
        Stop() if late else Park(),
        instance=replace(instance, pending_step=step.name, verdict=LIFETIME if late else None),
        step=step if fresh else None,
        facts=facts,
    )


def _wait(instance: Instance, step: Step | None, call: WaitCalled, view: View, now: Instant) -> Decision:
    facts: tuple[log.Fact, ...] = ()
    fresh = step is None
    if step is None:
        step = Step(
            instance.incarnation,
            call.name,
            instance.step_count + 1,
            WAIT,
            now.ms,
            event_type=call.event_type,
            state=STEP_WAITING,
            due_at_ms=now.ms + call.timeout_seconds * 1000,
        )
        instance = _registered(instance)
        facts = (log.wait_started(call.name, call.event_type),)
    assert step.due_at_ms is not None
    if view.match is not None:
        return Decision(
            Resolve(view.match.payload),
            instance=_closed(consume(instance, view.match)),
            step=replace(step, state=STEP_COMPLETE, result=view.match.payload),
            facts=(*facts, log.wait_completed(step.name)),
            consumed=view.match,
        )
    if now.ms > step.due_at_ms:
        # W-118: strictly after, and only when no event was accepted in time.
        return Decision(
            Reject("wait_timeout"),
            instance=_closed(instance),
            step=replace(step, state=STEP_ERRORED, error="wait_timeout"),
            facts=(*facts, log.wait_timed_out(step.name)),
        )
    return Decision(
        Park(),
        instance=replace(instance, pending_step=step.name),
        step=step if fresh else None,
        facts=facts,
    )
