"""The life of an Operation: status × effect as a pure machine (H-110 … H-118, H-147)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from saisei_contract.records import (
    Action,
    Effect,
    InputRequired,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    Phase,
)

DEFAULT_REPLAY_WINDOW_SECONDS = 86_400

TRANSITIONS: dict[OperationStatus, frozenset[OperationStatus]] = {
    OperationStatus.QUEUED: frozenset({OperationStatus.RUNNING, OperationStatus.WAITING_INPUT}),
    OperationStatus.RUNNING: frozenset(
        {
            OperationStatus.SUCCEEDED,
            OperationStatus.FAILED,
            OperationStatus.RECONCILING,
            OperationStatus.WAITING_INPUT,
        }
    ),
    OperationStatus.WAITING_INPUT: frozenset({OperationStatus.QUEUED}),
    OperationStatus.RECONCILING: frozenset(
        {OperationStatus.RUNNING, OperationStatus.SUCCEEDED, OperationStatus.FAILED}
    ),
    OperationStatus.SUCCEEDED: frozenset(),
    OperationStatus.FAILED: frozenset(),
}
"""H-111, the complete list."""


class IllegalTransition(ValueError):  # noqa: N818 - the name says what happened; it is a fault of the Host, never of a client
    """The event does not fit the Operation's state; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Start:
    """A worker took the Operation up: queued or reconciling → running."""


@dataclass(frozen=True, slots=True)
class Progress:
    """More is known of the effect, the status stays (running or reconciling).

    `unknown` before a dispatch whose answer may be lost.
    """

    effect: Effect


@dataclass(frozen=True, slots=True)
class NeedInput:
    """Private inputs are gone, and no step of uncertain dispatch remains (H-114): queued or running → waiting_input."""

    required: InputRequired


@dataclass(frozen=True, slots=True)
class InputSupplied:
    """The original inputs were given again (H-154): waiting_input → queued."""


@dataclass(frozen=True, slots=True)
class Reconcile:
    """The outcome is not established (H-112, H-118): running → reconciling. `effect` is anything but none."""

    effect: Effect
    error: OperationFailure | None = None


@dataclass(frozen=True, slots=True)
class Succeed:
    """The effect is complete and confirmed: running or reconciling → succeeded."""


@dataclass(frozen=True, slots=True)
class Fail:
    """It ended without its effect: running or reconciling → failed. `effect` is none (proven, H-116) or partial."""

    error: OperationFailure
    effect: Effect


OperationEvent: TypeAlias = Start | Progress | NeedInput | InputSupplied | Reconcile | Succeed | Fail


def accepted(
    operation_id: str,
    resource_uid: str,
    action: Action,
    generation: int,
    now_ms: int,
    *,
    replay_window_seconds: int = DEFAULT_REPLAY_WINDOW_SECONDS,
) -> OperationRecord:
    """The Operation of a mutation accepted now: queued, no effect, kept for the replay window (H-082, H-147)."""
    return OperationRecord(
        id=operation_id,
        resource_uid=resource_uid,
        action=action,
        generation=generation,
        status=OperationStatus.QUEUED,
        effect=Effect.NONE,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        retain_until_ms=now_ms + replay_window_seconds * 1000,
    )


def transition(
    record: OperationRecord,
    event: OperationEvent,
    now_ms: int,
    *,
    replay_window_seconds: int = DEFAULT_REPLAY_WINDOW_SECONDS,
) -> OperationRecord:
    """The Operation after `event`. IllegalTransition when H-111 or H-112 does not allow it.

    A terminal transition keeps the Operation for at least another full window from now; nothing ever shortens a
    retention (H-147, H-043). `updatedAt` never runs backwards.
    """
    match event:
        case Start():
            after = _move(record, OperationStatus.RUNNING)
        case Progress(effect):
            after = _progress(record, effect)
        case NeedInput(required):
            after = _wait_for_input(record, required)
        case InputSupplied():
            after = _move(record, OperationStatus.QUEUED)
        case Reconcile(effect, error):
            if effect is Effect.NONE:
                raise IllegalTransition("while reconciling the effect is not none")
            after = _move(record, OperationStatus.RECONCILING, effect=effect, error=error)
        case Succeed():
            after = _move(record, OperationStatus.SUCCEEDED, effect=Effect.COMPLETE)
        case Fail(error, effect):
            if effect not in {Effect.NONE, Effect.PARTIAL}:
                raise IllegalTransition(f"a failed Operation's effect is none or partial, not {effect.value}")
            after = _move(record, OperationStatus.FAILED, effect=effect, error=error)
        case _:
            assert_never(event)
    updated = max(now_ms, record.updated_at_ms)
    retain = record.retain_until_ms
    if after.status.is_terminal:
        retain = max(retain, updated + replay_window_seconds * 1000)
    return replace(after, updated_at_ms=updated, retain_until_ms=retain)


def phase_of(action: Action, status: OperationStatus) -> Phase:
    """The Resource's phase while this is its last Operation (H-074). A Resource whose delete succeeded is gone."""
    match status:
        case OperationStatus.SUCCEEDED:
            return Phase.DELETING if action is Action.DELETE else Phase.IDLE
        case OperationStatus.FAILED:
            return Phase.ERROR
        case _:
            return Phase.DELETING if action is Action.DELETE else Phase.PENDING


def is_discardable(record: OperationRecord, now_ms: int) -> bool:
    """Whether the record and its replay mapping may be forgotten: terminal, and past its retention (H-147, H-148)."""
    return record.status.is_terminal and now_ms > record.retain_until_ms


def _move(
    record: OperationRecord,
    status: OperationStatus,
    *,
    effect: Effect | None = None,
    error: OperationFailure | None = None,
    input_required: InputRequired | None = None,
) -> OperationRecord:
    """`error` and `inputRequired` belong to the status that they explain and go with it (H-113, H-114)."""
    if status not in TRANSITIONS[record.status]:
        raise IllegalTransition(f"an Operation does not go from {record.status.value} to {status.value}")
    return replace(record, status=status, effect=effect or record.effect, error=error, input_required=input_required)


def _wait_for_input(record: OperationRecord, required: InputRequired) -> OperationRecord:
    if record.effect in {Effect.UNKNOWN, Effect.COMPLETE}:
        raise IllegalTransition(f"no input is asked for while the effect is {record.effect.value}")
    if not required.names:
        raise IllegalTransition("waiting_input names at least one input")
    return _move(record, OperationStatus.WAITING_INPUT, input_required=required)


def _progress(record: OperationRecord, effect: Effect) -> OperationRecord:
    if record.status not in {OperationStatus.RUNNING, OperationStatus.RECONCILING}:
        raise IllegalTransition(f"an Operation makes no progress while {record.status.value}")
    if record.status is OperationStatus.RECONCILING and effect is Effect.NONE:
        raise IllegalTransition("while reconciling the effect is not none")
    return replace(record, effect=effect)
