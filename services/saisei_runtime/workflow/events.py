"""External events: what one costs, which one a wait takes, and who gets a new one (W-060 … W-066). Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from saisei_runtime.isolates.port import Parked, WaitCalled
from saisei_runtime.workflow.commands import (
    Command,
    ContextEnded,
    Decision,
    Done,
    Instant,
    Refused,
    SendEvent,
    StepCalled,
    View,
)
from saisei_runtime.workflow.limits import QUEUED_BYTES, QUEUED_EVENTS
from saisei_runtime.workflow.records import (
    RUNNING,
    STEP_COMPLETE,
    WAIT,
    WAITING,
    Instance,
    QueuedEvent,
    Step,
)

_json = msgspec.json.Encoder().encode


def cost(event_type: str, payload: bytes | None) -> int:
    """Canonical bytes of `{type, payload?}` (W-062)."""
    name = len(_json(event_type))
    return 9 + name if payload is None else 20 + len(payload) + name


def wanted(command: Command, instance: Instance | None, step: Step | None, now: Instant) -> tuple[str, int] | None:
    """Which queued event the machine must be shown: its type and the latest legal acceptance time; None when none.

    A wait that is called, and one that may be about to park, look for the oldest match (W-116, W-066).
    """
    if instance is None or instance.queued_count == 0 or instance.status != RUNNING:
        return None
    if isinstance(command, StepCalled) and isinstance(command.call, WaitCalled):
        if step is None:
            return command.call.event_type, now.ms
        return (step.event_type, step.due_at_ms or 0) if _open_wait(step) and step.event_type is not None else None
    parking = isinstance(command, ContextEnded) and isinstance(command.end.outcome, Parked)
    stranded = not isinstance(command, StepCalled) and instance.pending_step is not None
    if (parking or stranded) and step is not None and _open_wait(step) and step.event_type is not None:
        return step.event_type, step.due_at_ms or 0
    return None


def _open_wait(step: Step) -> bool:
    return step.kind == WAIT and not step.finished


def consume(instance: Instance, event: QueuedEvent) -> Instance:
    """The instance without that queued event (W-064)."""
    return replace(instance, queued_count=instance.queued_count - 1, queued_bytes=instance.queued_bytes - event.cost)


def fulfil(instance: Instance, step: Step, payload: bytes | None) -> tuple[Instance, Step]:
    """Commits an event as the result of a parked wait; the log hears of it when a context resumes (W-061, S-24)."""
    return (
        replace(instance, open_steps=instance.open_steps - 1),
        replace(step, state=STEP_COMPLETE, result=payload, delivered=1),
    )


def accept(view: View, command: SendEvent, now: Instant) -> Decision:
    """A live instance gets an event: straight into a parked wait, else into the queue, else not at all."""
    instance, step = view.instance, view.step
    assert instance is not None
    if (
        instance.status == WAITING
        and step is not None
        and _open_wait(step)
        and step.event_type == command.type
        and now.ms <= (step.due_at_ms or 0)
    ):
        instance, step = fulfil(instance, step, command.payload)
        return Decision(Done(), instance=replace(instance, due_at_ms=now.ms), step=step)
    bytes_needed = cost(command.type, command.payload)
    if instance.queued_count >= QUEUED_EVENTS or instance.queued_bytes + bytes_needed > QUEUED_BYTES:
        return Decision(
            Refused(
                "event_queue_full",
                f"The instance holds {instance.queued_count} unconsumed events of {instance.queued_bytes} bytes; at "
                f"most {QUEUED_EVENTS} events of {QUEUED_BYTES} bytes are kept. Send again once some were consumed.",
            )
        )
    seq = instance.accept_seq + 1
    event = QueuedEvent(instance.incarnation, seq, command.type, command.payload, now.ms, bytes_needed)
    instance = replace(
        instance,
        accept_seq=seq,
        queued_count=instance.queued_count + 1,
        queued_bytes=instance.queued_bytes + bytes_needed,
    )
    return Decision(Done(), instance=instance, queued=event)
