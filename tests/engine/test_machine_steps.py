"""The machine: steps, retries, sleeps, waits, events. Rows in memory and on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from machine_kit import Rows

from saisei_runtime.isolates.port import (
    Completed,
    Failed,
    Lost,
    Park,
    Parked,
    Reject,
    Resolve,
    RetryPolicy,
    Stop,
    Stopped,
)
from saisei_runtime.workflow import events
from saisei_runtime.workflow.commands import Claimed, Done, NotClaimed
from saisei_runtime.workflow.limits import LIFETIME_MS
from saisei_runtime.workflow.records import Step
from saisei_runtime.workflow.retries import delay_seconds


@pytest.fixture
def rows(new_rows: Callable[[], Rows]) -> Rows:
    return new_rows().started()


# --- do ---------------------------------------------------------------------------------------------------------------


def test_a_step_is_journaled_then_resolved(rows: Rows) -> None:
    """W-106, W-098, S-21: started with its policy, completed with its result, in the reference order."""
    rows.do_started(policy=RetryPolicy(3, 2, "exponential", 9))
    assert rows.steps["a"].state == "pending"
    assert rows.succeed(result=b'{"r":1}') == Resolve(b'{"r":1}')
    assert (rows.steps["a"].state, rows.steps["a"].result) == ("complete", b'{"r":1}')
    assert rows.types(4) == ["step_started", "attempt_started", "attempt_completed", "step_completed"]
    assert rows.event("step_started") == {
        "instanceId": "i",
        "eventId": 4,
        "timestamp": rows.now,
        "type": "step_started",
        "stepName": "a",
        "config": {"retries": {"limit": 2, "delay": 2000, "backoff": "exponential"}, "timeout": 31536000000},
    }
    assert rows.event("step_completed")["output"] == {"r": 1}


def test_an_undefined_result_is_absent(rows: Rows) -> None:
    """W-100, S-17: no document, no key."""
    assert rows.do(result=None) == Resolve(None)
    assert "output" not in rows.event("step_completed")


def test_replay_of_a_finished_name_writes_nothing(rows: Rows) -> None:
    """W-094, S-14: whatever method asks, the recorded result comes back and the log stays as it is."""
    rows.do(result=b'{"r":1}')
    logged = len(rows.log)
    assert rows.sleep("a", 60) == Resolve(b'{"r":1}')
    assert rows.wait("a") == Resolve(b'{"r":1}')
    assert rows.do_started("a") == Resolve(b'{"r":1}')
    assert len(rows.log) == logged and rows.row.step_count == 1


def test_the_last_failure_rejects_in_the_same_context(rows: Rows) -> None:
    """W-101, W-105, W-103: one attempt by default; attempt_errored without retryDelayMs, then step_errored."""
    assert rows.attempt_fails() == Reject("step_failed")
    assert (rows.steps["a"].state, rows.steps["a"].error) == ("errored", "step_failed")
    assert rows.types(6) == ["attempt_errored", "step_errored"]
    event = rows.event("attempt_errored")
    assert event["error"] == {"name": "Error", "message": "boom"} and "retryDelayMs" not in event
    assert rows.do_started() == Reject("step_failed")


def test_a_handled_failure_may_complete(rows: Rows) -> None:
    """W-133, W-132: catching the step's error and returning is a completion; not catching it is step_failed."""
    rows.attempt_fails()
    rows.end(Completed(b"{}"))
    assert rows.status == "complete"
    other = rows.another().started()
    other.attempt_fails()
    other.end(Failed("step_failed"))
    assert other.failure == ("errored", "step_failed")


def test_a_retry_parks_even_without_delay(rows: Rows) -> None:
    """W-104, S-23: attempt and due time are persisted, the context parks, the status is sleeping."""
    policy = RetryPolicy(2)
    assert rows.attempt_fails(policy=policy) == Park()
    assert rows.status == "running"
    rows.end(Parked())
    assert (rows.status, rows.row.due_at_ms) == ("sleeping", rows.now)
    assert rows.event("attempt_errored")["retryDelayMs"] == 0
    assert isinstance(rows.claim(), Claimed)
    assert rows.attempt_fails(attempt=2, policy=policy) == Reject("step_failed")
    assert rows.types(6) == [
        "attempt_errored",
        "workflow_waiting",
        "workflow_running",
        "attempt_started",
        "attempt_errored",
        "step_errored",
    ]
    assert rows.event("attempt_started", 1)["attempt"] == 2


def test_the_first_saved_policy_counts(rows: Rows) -> None:
    """W-095: a later context that passes another policy does not change the step's."""
    rows.attempt_fails(policy=RetryPolicy(2, 5))
    rows.end(Parked())
    rows.now += 5_000
    rows.claim()
    assert rows.attempt_fails(attempt=2, policy=RetryPolicy(100, 1)) == Reject("step_failed")


def test_a_lost_attempt_is_repeated_without_being_consumed(rows: Rows) -> None:
    """W-107, S-14: the effect may run again; the log does not say so twice."""
    rows.do_started(policy=RetryPolicy(1))
    rows.end(Lost("crashed"))
    rows.claim()
    rows.do_started(policy=RetryPolicy(1))
    assert rows.succeed() == Resolve(b"{}")
    assert rows.types(4) == [
        "step_started",
        "attempt_started",
        "workflow_running",
        "attempt_completed",
        "step_completed",
    ]


def test_a_retry_after_the_lifetime_ends_the_instance(rows: Rows) -> None:
    """W-109, W-140: due after the deadline: lifetime_exceeded."""
    rows.now = rows.row.deadline_at_ms - 1_000
    assert rows.attempt_fails(policy=RetryPolicy(2, 2)) == Stop()
    rows.end(Stopped())
    assert rows.failure == ("errored", "lifetime_exceeded")


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(9, 10, "exponential", 30), [10, 20, 30, 30]),
        (RetryPolicy(9, 60, "constant", 30), [30, 30, 30, 30]),
        (RetryPolicy(9, 7, "constant", 43200), [7, 7, 7, 7]),
        (RetryPolicy(9, 0, "exponential", 43200), [0, 0, 0, 0]),
        (RetryPolicy(9, 1, "exponential", 43200), [1, 2, 4, 8]),
    ],
)
def test_delays(policy: RetryPolicy, delays: list[int]) -> None:
    """W-102: constant and exponential delays, both capped."""
    step = _step(policy)
    assert [delay_seconds(step, attempt) for attempt in range(1, 5)] == delays


@given(st.integers(0, 43200), st.integers(0, 43200), st.integers(1, 100), st.sampled_from(["constant", "exponential"]))
def test_delays_follow_the_formula(initial: int, cap: int, attempt: int, backoff: str) -> None:
    """W-102: min(max, initial * 2^(k-1)) for every legal policy, without overflow."""
    factor = 2 ** (attempt - 1) if backoff == "exponential" else 1
    assert delay_seconds(_step(RetryPolicy(100, initial, backoff, cap)), attempt) == min(cap, initial * factor)


def _step(policy: RetryPolicy) -> Step:
    return Step(
        "i",
        "a",
        1,
        "do",
        0,
        policy.max_attempts,
        policy.initial_delay_seconds,
        policy.backoff,
        policy.max_delay_seconds,
    )


# --- limits and mismatches --------------------------------------------------------------------------------------------


def test_the_1025th_name_ends_the_instance(rows: Rows) -> None:
    """W-096, S-25, W-121: replays do not count; a new name past 1,024 is uncatchable and leaves no step event."""
    for number in range(1024):
        rows.sleep(f"s{number}", 0)
    assert rows.sleep("s5", 0) == Resolve(None)
    logged = len(rows.log)
    assert rows.do_started("one more") == Stop()
    assert len(rows.log) == logged and len(rows.steps) == 1024
    assert rows.sleep("s5", 0) == Stop()
    rows.end(Stopped())
    assert rows.failure == ("errored", "step_limit_exceeded")
    assert rows.types()[-1] == "workflow_errored"


@pytest.mark.parametrize("how", ["lost", "reclaim"])
def test_an_uncatchable_end_survives_a_crash(rows: Rows, how: str) -> None:
    """W-121: once decided it is durable: no code of the instance runs again."""
    rows.wait()
    rows.end(Parked())
    rows.now += 60_001
    rows.claim()
    assert rows.sleep("w") == Stop()
    if how == "lost":
        rows.end(Lost("killed"))
    else:
        rows.reclaim()
    assert rows.failure == ("errored", "step_definition_mismatch")


def test_an_unfinished_name_of_another_kind_is_a_mismatch(rows: Rows) -> None:
    """W-120, W-121: the call is stopped, not rejected."""
    rows.sleep("x")
    rows.end(Parked())
    rows.now += 60_000
    rows.claim()
    assert rows.do_started("x") == Stop()
    rows.end(Stopped())
    assert rows.failure == ("errored", "step_definition_mismatch")


@pytest.mark.parametrize("outcome", [Completed(b"{}"), Failed("run_threw", "m"), Failed("step_failed")])
def test_a_step_that_was_not_revisited_is_a_mismatch(rows: Rows, outcome: Completed | Failed) -> None:
    """W-122, W-123, W-140: it outranks what the run returned or threw."""
    rows.sleep()
    rows.end(Parked())
    rows.now += 60_000
    rows.claim()
    rows.end(outcome)
    assert rows.failure == ("errored", "step_definition_mismatch")
    # The shim knows the step's name; without its word the journal's own stands, never that of the outranked reason.
    assert "a step was left unsettled" in str(rows.row.error_message)


def test_a_new_step_may_run_while_an_old_one_is_open(rows: Rows) -> None:
    """W-122: newer code may go another way first; what counts is that it comes back before it settles."""
    rows.sleep("old")
    rows.end(Parked())
    rows.now += 60_000
    rows.claim()
    assert rows.do("new") == Resolve(b"{}")
    assert rows.sleep("old") == Resolve(None)
    rows.end(Completed(None))
    assert rows.status == "complete"


def test_mismatch_outranks_the_step_limit(rows: Rows) -> None:
    """W-140: an open step and one step too many."""
    rows.sleep("open")
    rows.end(Parked())
    rows.now += 60_000
    rows.claim()
    rows.end(Failed("step_limit_exceeded"))
    assert rows.failure == ("errored", "step_definition_mismatch")


# --- sleep ------------------------------------------------------------------------------------------------------------


def test_a_sleep_of_zero_does_not_park(rows: Rows) -> None:
    """W-112: recorded and resolved in the current context."""
    assert rows.sleep(seconds=0) == Resolve(None)
    assert rows.types(4) == ["sleep_started", "sleep_completed"]
    assert rows.event("sleep_started")["durationMs"] == 0


def test_a_sleep_keeps_its_first_due_time(rows: Rows) -> None:
    """W-110, W-095, W-114: what a later context passes changes nothing; not one ms early; one success record."""
    due = rows.now + 60_000
    assert rows.sleep() == Park()
    rows.end(Parked())
    assert (rows.status, rows.row.due_at_ms) == ("sleeping", due)
    rows.now = due - 1
    assert rows.claim() == NotClaimed()
    rows.now = due
    rows.claim()
    assert rows.sleep(seconds=9999) == Resolve(None)
    assert rows.sleep(seconds=9999) == Resolve(None)
    assert rows.types(4) == ["sleep_started", "workflow_waiting", "workflow_running", "sleep_completed"]


def test_a_sleep_beyond_the_lifetime_ends_at_once(rows: Rows) -> None:
    """W-113, S-26: never shortened; retention still counts from the deadline."""
    rows.now += 1
    assert rows.sleep(seconds=31_536_000) == Stop()
    rows.end(Stopped())
    assert rows.failure == ("errored", "lifetime_exceeded")
    assert rows.row.ended_at_ms == rows.now
    assert rows.types(4) == ["sleep_started", "workflow_errored"]


# --- events and waits -------------------------------------------------------------------------------------------------


def test_events_queue_in_order_before_any_wait(rows: Rows) -> None:
    """W-060, W-064, W-116: the oldest of the type is consumed without parking; other types stay."""
    for kind, payload in (("go", b'{"n":1}'), ("other", None), ("go", b'{"n":2}')):
        assert rows.send(kind, payload) == Done()
    assert rows.wait() == Resolve(b'{"n":1}')
    assert [(event.seq, event.type) for event in rows.queue] == [(2, "other"), (3, "go")]
    assert rows.wait("w2") == Resolve(b'{"n":2}')
    assert rows.types(4) == ["wait_started", "wait_completed"] * 2
    assert rows.event("wait_started")["eventType"] == "go"
    assert rows.row.queued_count == 1


def test_an_event_without_payload_resolves_undefined(rows: Rows) -> None:
    """W-119: the payload itself, or undefined."""
    rows.send()
    assert rows.wait() == Resolve(None)


def test_direct_delivery_uses_no_capacity(rows: Rows) -> None:
    """W-061, W-063, S-24: the parked wait takes it; the log hears of it when a context resumes."""
    rows.wait()
    rows.end(Parked())
    assert (rows.status, rows.row.due_at_ms) == ("waiting", rows.now + 60_001)
    payload = b'"' + b"x" * 1_048_574 + b'"'
    assert rows.send("go", payload) == Done()
    assert (rows.steps["w"].state, rows.queue, rows.status) == ("complete", [], "waiting")
    assert rows.row.due_at_ms == rows.now
    logged = len(rows.log)
    rows.claim()
    assert rows.types(logged + 1) == ["workflow_running", "wait_completed"]
    assert rows.wait() == Resolve(payload)


def test_a_second_event_after_direct_delivery_is_queued(rows: Rows) -> None:
    """W-064: one event feeds one wait."""
    rows.wait()
    rows.end(Parked())
    rows.send("go", b'{"n":1}')
    rows.send("go", b'{"n":2}')
    assert [event.payload for event in rows.queue] == [b'{"n":2}']


def test_an_event_of_another_type_does_not_wake(rows: Rows) -> None:
    """W-061, W-064: matched exactly by type."""
    rows.wait()
    rows.end(Parked())
    due = rows.row.due_at_ms
    rows.send("Go")
    assert (rows.row.due_at_ms, len(rows.queue)) == (due, 1)


def test_parking_looks_for_events_once_more(rows: Rows) -> None:
    """W-066: an event accepted between the call and the stop proof wakes the instance at once, oldest first."""
    rows.wait()
    rows.send("go", b'{"n":1}')
    rows.send("go", b'{"n":2}')
    rows.end(Parked())
    assert (rows.status, rows.row.due_at_ms) == ("waiting", rows.now)
    rows.claim()
    assert rows.wait() == Resolve(b'{"n":1}')
    assert len(rows.queue) == 1


def test_the_timeout_instant_belongs_to_the_event(rows: Rows) -> None:
    """W-118: accepted at exactly the timeout wins, also when the wait is looked at later."""
    rows.wait()
    rows.end(Parked())
    rows.now += 60_000
    assert rows.send("go", b"{}") == Done()
    rows.now += 5_000
    rows.claim()
    assert rows.wait() == Resolve(b"{}")


def test_a_late_event_does_not_win_after_an_outage(rows: Rows) -> None:
    """W-118, W-119: accepted after the timeout it stays queued for other waits, although nobody had looked yet."""
    rows.wait()
    rows.end(Parked())
    rows.now += 60_001
    rows.send("go", b"{}")
    assert len(rows.queue) == 1
    rows.claim()
    assert rows.wait() == Reject("wait_timeout")
    assert rows.types()[-1] == "wait_timed_out"
    assert rows.wait("w2") == Resolve(b"{}")


def test_a_wait_is_not_due_at_its_last_instant(rows: Rows) -> None:
    """W-118: strictly after."""
    rows.wait()
    rows.end(Parked())
    rows.now += 60_000
    assert rows.claim() == NotClaimed()
    rows.now += 1
    assert isinstance(rows.claim(), Claimed)


def test_a_wait_keeps_its_first_type_and_timeout(rows: Rows) -> None:
    """W-115, W-095: a later context's options do not matter."""
    rows.wait()
    rows.end(Lost("killed"))
    assert rows.status == "waiting"
    rows.now += 60_001
    rows.claim()
    assert rows.wait(event_type="other", timeout=9999) == Reject("wait_timeout")


def test_the_queue_is_bounded_in_number(rows: Rows) -> None:
    """W-062: 1,024 events; one more is refused and the others stay."""
    for _ in range(1024):
        assert rows.send() == Done()
    assert rows.send().reason == "event_queue_full"
    assert len(rows.queue) == 1024


def test_the_queue_is_bounded_in_bytes(rows: Rows) -> None:
    """W-062, W-063: cost is the canonical size of {type, payload?}; a payload of the full size never fits."""
    full = b'"' + b"x" * 1_048_574 + b'"'
    assert rows.send("go", full).reason == "event_queue_full"
    fits = b'"' + b"x" * (1_048_576 - 20 - len('"go"') - 2) + b'"'
    assert rows.send("go", fits) == Done()
    assert rows.row.queued_bytes == 1_048_576
    assert rows.send("g", None).reason == "event_queue_full"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.booleans())
def test_cost_is_the_canonical_size(event_type: str, with_payload: bool) -> None:
    """W-062: equal to the RFC 8785 bytes of the whole, for any type."""
    whole = {"type": event_type, "payload": {"a": 1}} if with_payload else {"type": event_type}
    payload = b'{"a":1}' if with_payload else None
    assert events.cost(event_type, payload) == len(rfc8785.dumps(whole))


def test_a_wait_past_the_lifetime_is_legal(rows: Rows) -> None:
    """W-119: lifetime wins in the end."""
    assert rows.wait(timeout=31_536_000) == Park()
    rows.end(Parked())
    assert rows.row.due_at_ms == rows.row.created_at_ms + LIFETIME_MS


def test_a_queued_event_is_stored_whole(rows: Rows) -> None:
    """W-003, W-062, W-064: number of acceptance, type, payload or none, time, cost; taken in the order of numbers."""
    rows.send("go", b'{"n":1}')
    rows.now += 5
    rows.send("ün😀", None)
    rows.send("go", b"{}")
    assert [(event.seq, event.type, event.payload, event.accepted_at_ms) for event in rows.queue] == [
        (1, "go", b'{"n":1}', rows.now - 5),
        (2, "ün😀", None, rows.now),
        (3, "go", b"{}", rows.now),
    ]
    assert [event.cost for event in rows.queue] == [
        len(rfc8785.dumps(event))
        for event in ({"type": "go", "payload": {"n": 1}}, {"type": "ün😀"}, {"type": "go", "payload": {}})
    ]
    assert (rows.row.queued_count, rows.row.queued_bytes) == (3, sum(event.cost for event in rows.queue))
    assert rows.wait("first") == Resolve(b'{"n":1}')
    assert rows.wait("second") == Resolve(b"{}")
    assert [event.seq for event in rows.queue] == [2]
    rows.end(Completed(None))
    assert rows.queue == [] and (rows.row.queued_count, rows.row.queued_bytes) == (0, 0)
