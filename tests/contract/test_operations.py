"""The life of an Operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.operations import (
    TRANSITIONS,
    Fail,
    IllegalTransition,
    InputSupplied,
    NeedInput,
    Progress,
    Reconcile,
    Start,
    Succeed,
    accepted,
    is_discardable,
    phase_of,
    transition,
)
from saisei_contract.records import (
    Action,
    Effect,
    InputReason,
    InputRequired,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    Phase,
)

S = OperationStatus
WHY = OperationFailure("backend_failed", "The backend refused.")
NEED = NeedInput(InputRequired(("TOKEN",), InputReason.EXPIRED))
EVENTS: dict[Any, OperationStatus] = {
    Start(): S.RUNNING,
    NEED: S.WAITING_INPUT,
    InputSupplied(): S.QUEUED,
    Reconcile(Effect.UNKNOWN): S.RECONCILING,
    Succeed(): S.SUCCEEDED,
    Fail(WHY, Effect.NONE): S.FAILED,
}


def fresh() -> OperationRecord:
    return accepted("o", "u", Action.CREATE, 1, 1000, replay_window_seconds=10)


def after(*events: Any, now_ms: int = 2000) -> OperationRecord:
    record = fresh()
    for event in events:
        record = transition(record, event, now_ms, replay_window_seconds=10)
    return record


def test_acceptance() -> None:
    """H-082, H-147: queued, no effect, kept for the window after acceptance."""
    record = fresh()
    assert (record.status, record.effect) == (S.QUEUED, Effect.NONE)
    assert (record.created_at_ms, record.updated_at_ms, record.retain_until_ms) == (1000, 1000, 11_000)


def test_the_list_of_transitions() -> None:
    """H-111: queued→running, waiting_input; running→succeeded, failed, reconciling, waiting_input;
    waiting_input→queued; reconciling→running, succeeded, failed; terminal: none."""
    assert {
        S.QUEUED: {S.RUNNING, S.WAITING_INPUT},
        S.RUNNING: {S.SUCCEEDED, S.FAILED, S.RECONCILING, S.WAITING_INPUT},
        S.WAITING_INPUT: {S.QUEUED},
        S.RECONCILING: {S.RUNNING, S.SUCCEEDED, S.FAILED},
        S.SUCCEEDED: set(),
        S.FAILED: set(),
    } == TRANSITIONS


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("event", list(EVENTS), ids=lambda event: type(event).__name__)
def test_each_event_in_each_status(status: OperationStatus, event: Any) -> None:
    """H-111: what the list does not allow is refused, and what it allows leads where it says."""
    effect = {S.SUCCEEDED: Effect.COMPLETE, S.RECONCILING: Effect.PARTIAL}.get(status, Effect.NONE)
    record = replace(fresh(), status=status, effect=effect)
    if EVENTS[event] in TRANSITIONS[status]:
        assert transition(record, event, 2000).status is EVENTS[event]
    else:
        with pytest.raises(IllegalTransition):
            transition(record, event, 2000)


def test_identity_never_changes() -> None:
    """H-110: id, resourceUid, action, generation and createdAt stay."""
    before, later = fresh(), after(Start(), Reconcile(Effect.PARTIAL), Start(), Succeed())
    for name in ("id", "resource_uid", "action", "generation", "created_at_ms"):
        assert getattr(before, name) == getattr(later, name)


def test_effects_of_the_terminal_statuses() -> None:
    """H-112: succeeded is complete; failed is none or partial, never unknown or complete."""
    assert after(Start(), Succeed()).effect is Effect.COMPLETE
    for effect in (Effect.NONE, Effect.PARTIAL):
        assert after(Start(), Fail(WHY, effect)).effect is effect
    for effect in (Effect.UNKNOWN, Effect.COMPLETE):
        with pytest.raises(IllegalTransition):
            after(Start(), Fail(WHY, effect))


def test_reconciling_never_claims_no_effect() -> None:
    """H-112, H-116: while reconciling the effect is not none, neither on entry nor later."""
    with pytest.raises(IllegalTransition):
        after(Start(), Reconcile(Effect.NONE))
    with pytest.raises(IllegalTransition):
        after(Start(), Reconcile(Effect.UNKNOWN), Progress(Effect.NONE))
    assert after(Start(), Reconcile(Effect.UNKNOWN), Progress(Effect.PARTIAL)).effect is Effect.PARTIAL


def test_errors_stand_where_they_may() -> None:
    """H-113: required on failed, optional on reconciling, gone elsewhere."""
    assert after(Start(), Fail(WHY, Effect.NONE)).error == WHY
    assert after(Start(), Reconcile(Effect.UNKNOWN, WHY)).error == WHY
    assert after(Start(), Reconcile(Effect.UNKNOWN)).error is None
    assert after(Start(), Reconcile(Effect.UNKNOWN, WHY), Progress(Effect.PARTIAL)).error == WHY
    assert after(Start(), Reconcile(Effect.UNKNOWN, WHY), Start()).error is None
    assert after(Start(), Reconcile(Effect.UNKNOWN, WHY), Succeed()).error is None


def test_input_is_required_exactly_while_waiting() -> None:
    """H-114: inputRequired with at least one name, and only on waiting_input."""
    assert after(NEED).input_required == NEED.required
    assert after(NEED, InputSupplied()).input_required is None
    with pytest.raises(IllegalTransition):
        after(NeedInput(InputRequired((), InputReason.EXPIRED)))


def test_no_input_is_asked_for_while_a_dispatch_is_uncertain() -> None:
    """H-114: entering waiting_input needs proof that no step of uncertain dispatch remains."""
    with pytest.raises(IllegalTransition):
        after(Start(), Progress(Effect.UNKNOWN), NEED)
    assert after(Start(), Progress(Effect.PARTIAL), NEED).status is S.WAITING_INPUT


def test_progress_only_while_work_goes_on() -> None:
    """H-115: the effect is learnt while running or reconciling."""
    assert after(Start(), Progress(Effect.UNKNOWN)).effect is Effect.UNKNOWN
    with pytest.raises(IllegalTransition):
        after(Progress(Effect.UNKNOWN))
    with pytest.raises(IllegalTransition):
        after(Start(), Succeed(), Progress(Effect.NONE))


def test_retention_is_extended_by_the_end_alone() -> None:
    """H-147: another full window from the terminal transition; other events extend nothing, and nothing shortens it."""
    assert after(Start(), now_ms=9_000_000).retain_until_ms == 11_000
    done = after(Start(), Succeed(), now_ms=5000)
    assert done.retain_until_ms - done.updated_at_ms == 10_000
    promised = replace(after(Start()), retain_until_ms=99_000_000)
    assert transition(promised, Succeed(), 3000, replay_window_seconds=10).retain_until_ms == 99_000_000


def test_updated_at_never_runs_backwards() -> None:
    """H-110: a clock that was set back does not make a change older than the last one."""
    assert after(Start(), now_ms=500).updated_at_ms == 1000


def test_only_ended_operations_are_forgotten() -> None:
    """H-147: unfinished Operations are never discarded, ended ones not before retainUntil."""
    assert not is_discardable(after(Start(), Reconcile(Effect.UNKNOWN)), 10**15)
    done = after(Start(), Succeed(), now_ms=5000)
    assert not is_discardable(done, 15_000)
    assert is_discardable(done, 15_001)


@pytest.mark.parametrize(
    ("action", "status", "phase"),
    [
        (Action.CREATE, S.QUEUED, Phase.PENDING),
        (Action.UPDATE, S.RECONCILING, Phase.PENDING),
        (Action.CREATE, S.WAITING_INPUT, Phase.PENDING),
        (Action.UPDATE, S.SUCCEEDED, Phase.IDLE),
        (Action.CREATE, S.FAILED, Phase.ERROR),
        (Action.DELETE, S.QUEUED, Phase.DELETING),
        (Action.DELETE, S.RECONCILING, Phase.DELETING),
        (Action.DELETE, S.FAILED, Phase.ERROR),
    ],
)
def test_phases(action: Action, status: OperationStatus, phase: Phase) -> None:
    """H-074: pending until settled, deleting from an accepted delete, idle after success, error after failure."""
    assert phase_of(action, status) is phase


@given(
    st.lists(
        st.sampled_from([*EVENTS, Progress(Effect.UNKNOWN), Progress(Effect.PARTIAL), Fail(WHY, Effect.PARTIAL)]),
        max_size=12,
    )
)
def test_any_history_keeps_the_invariants(events: list[Any]) -> None:
    """H-111, H-112, H-113, H-114: whatever happens in whatever order, refused events change nothing and records stay
    lawful.
    """
    record, now = fresh(), 1000
    for event in events:
        now += 1
        try:
            record = transition(record, event, now, replay_window_seconds=10)
        except IllegalTransition:
            continue
        assert (record.status is S.SUCCEEDED) == (record.effect is Effect.COMPLETE)
        assert record.status is not S.FAILED or record.effect in {Effect.NONE, Effect.PARTIAL}
        assert record.status is not S.RECONCILING or record.effect is not Effect.NONE
        assert (record.input_required is not None) == (record.status is S.WAITING_INPUT)
        assert record.error is not None if record.status is S.FAILED else True
        assert record.error is None or record.status in {S.FAILED, S.RECONCILING}
        assert not record.status.is_terminal or record.retain_until_ms - record.updated_at_ms >= 10_000
