"""The state machine of an instance: stored rows, a command and the time in, changes and a reply out. Pure.

No I/O, no clock, no randomness. `decide` is all there is; `steps`, `events` and `outcome` hold the rules of their own.
"""

from __future__ import annotations

from collections.abc import Container
from typing import assert_never

from msgspec.structs import replace

from saisei_runtime.isolates.port import Completed, DoStarted, Failed, Lost, Parked, StepCall, Stop, Stopped
from saisei_runtime.workflow import events, log, outcome, steps
from saisei_runtime.workflow.commands import (
    Claim,
    Claimed,
    Command,
    ContextEnded,
    Create,
    Created,
    Decision,
    Done,
    Ended,
    Expire,
    Instant,
    NotClaimed,
    Reclaim,
    Refused,
    Release,
    RenewLease,
    Requeue,
    SendEvent,
    Stale,
    StepCalled,
    Stopping,
    Terminate,
    View,
)
from saisei_runtime.workflow.limits import LIFETIME_MS
from saisei_runtime.workflow.records import QUEUED, RUNNING, SLEEPING, WAIT, WAITING, Instance, LogEntry
from saisei_runtime.workflow.retries import loss_backoff_ms

_STEPLESS = (Create, Terminate, RenewLease, Expire)
_UNKNOWN = Refused("unknown_instance", "The workflow has no instance of that id.")
_TERMINAL = Refused("instance_terminal", "The instance has ended or is being terminated; it takes no more events.")


def step_needed(command: Command, instance: Instance | None) -> str | None:
    """The name of the step whose row `decide` must be shown, if any."""
    if isinstance(command, StepCalled):
        return command.call.name
    if instance is None or isinstance(command, _STEPLESS):
        return None
    return instance.pending_step


def decide(view: View, command: Command, now: Instant) -> Decision:
    """The one entry. Never raises for a command that may be sent; a command that no longer fits changes nothing."""
    match command:
        case StepCalled() | RenewLease() | ContextEnded() | Release():
            return _from_owner(view, command, now)
        case Create():
            return _create(view.instance, command, now)
        case Claim():
            return _claim(view, command, now)
        case SendEvent():
            return _send_event(view, command, now)
        case Terminate():
            return _terminate(view, now)
        case Expire():
            return _expire(view, now)
        case Reclaim():
            return _reclaim(view, command, now)
        case Requeue():
            return _requeue(view, now)
        case _:
            assert_never(command)


def _from_owner(view: View, command: StepCalled | RenewLease | ContextEnded | Release, now: Instant) -> Decision:
    match command:
        case StepCalled():
            # W-004: only the fenced owner writes, and only while it may.
            if not _owns(view.instance, command, now):
                return Decision(Stop())
            if command.begun is not None:
                return _both(view, command.begun, command.call, now)
            return steps.called(view, command.call, now)
        case RenewLease():
            if not _owns(view.instance, command, now):
                return Decision(Stale())
            assert view.instance is not None
            return Decision(Done(), instance=replace(view.instance, lease_until_ms=now.wall_ms + command.lease_ms))
        case ContextEnded():
            return _context_ended(view, command, now)
        case Release():
            return _release(view, command, now)
        case _:
            assert_never(command)


def _both(view: View, begun: DoStarted, call: StepCall, now: Instant) -> Decision:
    """An attempt's beginning, and its outcome on what that left."""
    first = steps.called(view, begun, now)
    if first.instance is None and first.step is None:
        return steps.called(view, call, now)
    between = replace(view, instance=first.instance or view.instance, step=first.step or view.step)
    second = steps.called(between, call, now)
    return replace(
        second,
        instance=second.instance or first.instance,
        step=second.step or first.step,
        facts=first.facts + second.facts,
    )


def _held(view: View, now: Instant) -> bool:
    """Whether code of the instance may still run: the owner's lease, or a context that this runtime has not ended."""
    return view.instance is not None and (view.alive or view.instance.held(now.wall_ms))


def numbered(instance: Instance, facts: tuple[log.Fact, ...], now: Instant) -> tuple[Instance, list[LogEntry]]:
    """Gives new facts their numbers and time: dense from 1, never back in time (S-04, S-16)."""
    at = max(now.ms, instance.event_at_ms)
    seq = instance.event_seq
    entries = [
        LogEntry(instance.incarnation, seq + number, fact.type, at, fact.body)
        for number, fact in enumerate(facts, start=1)
    ]
    return replace(instance, event_seq=seq + len(entries), event_at_ms=at), entries


def _is_of(instance: Instance | None, command: StepCalled | ContextEnded | Release | RenewLease) -> bool:
    return (
        instance is not None
        and instance.status == RUNNING
        and instance.epoch == command.epoch
        and instance.owner == command.owner
    )


def _owns(instance: Instance | None, command: StepCalled | RenewLease, now: Instant) -> bool:
    """The whole fence of W-004."""
    return (
        instance is not None
        and _is_of(instance, command)
        and not instance.termination_requested
        and instance.held(now.wall_ms)
        and now.ms < instance.deadline_at_ms
    )


def _create(existing: Instance | None, command: Create, now: Instant) -> Decision:
    if existing is not None:
        return Decision(Refused("instance_exists", "The workflow keeps an instance of that id; choose another id."))
    instance = Instance(
        command.incarnation,
        command.workflow_uid,
        command.instance_id,
        now.ms,
        now.ms + LIFETIME_MS,
        has_params=int(command.params is not None),
        due_at_ms=now.ms,
    )
    return Decision(Created(command.instance_id), instance=instance, facts=(log.QUEUED_FACT,), params=command.params)


def _claim(view: View, command: Claim, now: Instant) -> Decision:
    instance = view.instance
    if instance is None or instance.terminal or _held(view, now):
        return Decision(NotClaimed())
    # From here on nothing of the instance runs: it is parked, queued, or its owner's lease is over (W-150).
    decided = _decided(instance, now)
    if decided is not None:
        return replace(decided, reply=NotClaimed())
    if instance.status == RUNNING and instance.owner is not None and instance.pending_step is not None:
        # The lost owner had been told to park: a retry may not start before it is due (W-104).
        return replace(_park(view, instance, now), reply=NotClaimed())
    paused = instance.lease_until_ms is not None and instance.lease_until_ms > now.wall_ms
    if paused or (instance.due_at_ms is not None and instance.due_at_ms > now.ms):
        return Decision(NotClaimed())
    facts: list[log.Fact] = [] if instance.started else [log.started(view.params)]
    facts.append(log.RUNNING_FACT)
    step = view.step
    if step is not None and step.delivered:
        facts.append(log.wait_completed(step.name))
        step = replace(step, delivered=0)
    else:
        step = None
    instance = replace(
        instance,
        status=RUNNING,
        due_at_ms=None,
        epoch=instance.epoch + 1,
        owner=command.owner,
        runtime_id=command.runtime_id,
        lease_until_ms=now.wall_ms + command.lease_ms,
        started=1,
        pending_step=None,
        version_uid=command.version_uid,
        stop_proof=None,
    )
    return Decision(Claimed(instance), instance=instance, step=step, facts=tuple(facts))


def _context_ended(view: View, command: ContextEnded, now: Instant) -> Decision:
    if not _is_of(view.instance, command):
        return Decision(Stale())
    assert view.instance is not None
    proof = command.end.proof
    held = view.instance.held(now.wall_ms)
    instance = replace(_freed(view.instance), stop_proof=f"{proof.kind.value}:{proof.context_id}")
    result = command.end.outcome
    if held and isinstance(result, Completed | Failed):
        return outcome.settled(instance, result, now)
    decided = _decided(instance, now)
    if decided is not None:
        return decided
    match result:
        case Lost():
            return _lost(view, instance, now)
        case Parked() if held:
            return _park(view, instance, now)
        case Parked() | Stopped() | Completed() | Failed():
            # Stopped by the Host, or too late: what a lapsed owner has to say changes nothing (W-087, W-152).
            return _requeued(view, instance, now)
        case _:
            assert_never(result)


def _freed(instance: Instance) -> Instance:
    """Without an owner: nothing of the instance runs any more."""
    return replace(instance, owner=None, runtime_id=None, lease_until_ms=None)


def _decided(instance: Instance, now: Instant) -> Decision | None:
    """The end that is due now that nothing runs, in the order of W-140; None when the instance goes on."""
    if outcome.overdue(instance, now):
        return outcome.lifetime_exceeded(instance, now)
    if instance.termination_requested:
        return outcome.terminated(instance, now)
    if instance.verdict is not None:
        return outcome.settled(instance, Failed(instance.verdict), now)
    return None


def _park(view: View, instance: Instance, now: Instant) -> Decision:
    """Publishes `sleeping` or `waiting` for the pending step; looks once more for a queued match (W-066)."""
    step = view.step
    instance = _freed(instance)
    if step is None or step.finished or step.due_at_ms is None:
        return Decision(Done(), instance=replace(instance, status=QUEUED, due_at_ms=now.ms, pending_step=None))
    if step.kind != WAIT:
        due = min(step.due_at_ms, instance.deadline_at_ms)
        return Decision(Done(), instance=replace(instance, status=SLEEPING, due_at_ms=due), facts=(log.WAITING_FACT,))
    if view.match is None:
        due = min(step.due_at_ms + 1, instance.deadline_at_ms)
        return Decision(Done(), instance=replace(instance, status=WAITING, due_at_ms=due), facts=(log.WAITING_FACT,))
    instance, step = events.fulfil(events.consume(instance, view.match), step, view.match.payload)
    return Decision(
        Done(),
        instance=replace(instance, status=WAITING, due_at_ms=now.ms),
        step=step,
        facts=(log.WAITING_FACT,),
        consumed=view.match,
    )


def _lost(view: View, instance: Instance, now: Instant) -> Decision:
    """The status stays `running` until a successor is claimed (contract 3.3); a death that repeats waits longer."""
    if instance.pending_step is not None:
        return _park(view, instance, now)
    losses = instance.losses + 1
    row = _later(replace(instance, losses=losses), loss_backoff_ms(losses), now)
    return Decision(Done(), instance=row)


def _later(instance: Instance, delay_ms: int, now: Instant) -> Instance:
    """Free to claim after a pause of the machine's time: trouble passes by the wall clock, not by a virtual one.

    Without an owner `lease_until_ms` is the end of the pause, and the row has no due time until then.
    """
    if delay_ms == 0:
        return replace(instance, due_at_ms=now.ms)
    return replace(instance, due_at_ms=None, lease_until_ms=now.wall_ms + delay_ms)


def _requeued(view: View, instance: Instance, now: Instant) -> Decision:
    if instance.pending_step is not None:
        return _park(view, instance, now)
    return Decision(Done(), instance=replace(instance, status=QUEUED, due_at_ms=now.ms))


def _release(view: View, command: Release, now: Instant) -> Decision:
    if not _is_of(view.instance, command):
        return Decision(Stale())
    assert view.instance is not None
    instance = _freed(view.instance)
    decided = _decided(instance, now)
    if decided is not None:
        return decided
    return Decision(Done(), instance=_later(replace(instance, status=QUEUED), command.delay_ms, now))


def _reclaim(view: View, command: Reclaim, now: Instant) -> Decision:
    instance = view.instance
    if instance is None or instance.status != RUNNING or instance.runtime_id != command.runtime_id:
        return Decision(Done())
    instance = _freed(instance)
    decided = _decided(instance, now)
    if decided is not None:
        return decided
    if instance.pending_step is not None:
        return _park(view, instance, now)
    return Decision(Done(), instance=replace(instance, due_at_ms=now.ms))


def _requeue(view: View, now: Instant) -> Decision:
    instance = view.instance
    if instance is None or instance.status not in (RUNNING, QUEUED) or _held(view, now):
        return Decision(Done())
    paused = instance.owner is None and instance.lease_until_ms is not None
    if instance.status == QUEUED:
        # Nobody would claim it when its pause is over: then it is as due as any other.
        over = paused and not instance.paused(now.wall_ms)
        return Decision(Done(), instance=replace(_freed(instance), due_at_ms=now.ms) if over else None)
    decided = _decided(instance, now)
    if decided is not None:
        return decided
    if paused and instance.paused(now.wall_ms):
        # The pause after a loss goes on.
        return Decision(Done(), instance=replace(instance, status=QUEUED))
    return _requeued(view, _freed(instance), now)


def _send_event(view: View, command: SendEvent, now: Instant) -> Decision:
    instance = view.instance
    if instance is None:
        return Decision(_UNKNOWN)
    if instance.terminal or instance.termination_requested:
        return Decision(_TERMINAL)
    if outcome.overdue(instance, now):
        expired = _expire(view, now)
        return replace(expired, reply=_TERMINAL)
    return events.accept(view, command, now)


def _terminate(view: View, now: Instant) -> Decision:
    instance = view.instance
    if instance is None:
        return Decision(_UNKNOWN)
    if instance.terminal:
        return Decision(Ended(instance))
    if not _held(view, now):
        if outcome.overdue(instance, now):
            return outcome.lifetime_exceeded(instance, now)
        return outcome.terminated(replace(instance, termination_requested=1), now)
    if instance.termination_requested:
        return Decision(Stopping(instance))
    instance = replace(instance, termination_requested=1)
    return Decision(Stopping(instance), instance=instance)


def _expire(view: View, now: Instant) -> Decision:
    instance = view.instance
    if instance is None or not outcome.overdue(instance, now):
        return Decision(Done())
    if instance.terminal:
        return Decision(Ended(instance))
    if _held(view, now):
        return Decision(Stopping(instance))
    return outcome.lifetime_exceeded(instance, now)


def closed(command: Command, instance: Instance | None, workflows: Container[str]) -> Refused | NotClaimed | None:
    """DW-08: a workflow whose DELETE was accepted admits no create, event or wake. None: go on."""
    match command:
        case Create() if command.workflow_uid in workflows:
            return Refused("backend_unavailable", "The workflow is being deleted; it takes no more instances.")
        case SendEvent() | Terminate() if command.workflow_uid in workflows:
            return _UNKNOWN
        case Claim() if instance is not None and instance.workflow_uid in workflows:
            return NotClaimed()
        case _:
            return None
