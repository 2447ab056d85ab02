"""The machine: birth, ownership, ends. No context, only rows: in memory and on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from machine_kit import LEASE, Rows

from saisei_runtime.isolates.port import (
    Completed,
    Failed,
    Lost,
    Park,
    Parked,
    Resolve,
    RetryPolicy,
    SleepCalled,
    Stop,
    Stopped,
)
from saisei_runtime.workflow.commands import (
    Claimed,
    Created,
    Done,
    Ended,
    NotClaimed,
    Refused,
    Stale,
    Stopping,
)
from saisei_runtime.workflow.limits import LIFETIME_MS, RETENTION_MS


@pytest.fixture
def rows(new_rows: Callable[[], Rows]) -> Rows:
    return new_rows()


def test_create_queues_and_logs(rows: Rows) -> None:
    """W-001, W-022, S-30: queued, its deadline one lifetime ahead, event 1 is workflow_queued."""
    assert rows.create(b"{}") == Created("i")
    assert rows.status == "queued"
    assert rows.row.deadline_at_ms == rows.now + LIFETIME_MS
    assert [(entry.event_id, entry.type) for entry in rows.log] == [(1, "workflow_queued")]


def test_an_id_is_taken_live_and_terminal(rows: Rows) -> None:
    """W-021: a second create is refused whatever became of the first, which it leaves alone."""
    rows.create(b'{"a":1}')
    before = rows.instance
    assert rows.create(b'{"b":2}').reason == "instance_exists"
    assert rows.instance == before
    rows.terminate()
    assert rows.create().reason == "instance_exists"


def test_a_claim_runs_under_a_new_epoch_and_owner(rows: Rows) -> None:
    """W-151, S-30: running, epoch 1, a lease; started once, then running."""
    rows.create()
    assert isinstance(rows.claim(), Claimed)
    assert (rows.status, rows.row.epoch, rows.row.owner) == ("running", 1, "owner-1")
    assert rows.row.lease_until_ms == rows.wall + LEASE
    assert rows.types() == ["workflow_queued", "workflow_started", "workflow_running"]


def test_a_held_instance_is_not_claimed_again(rows: Rows) -> None:
    """W-150: no second owner while the first one's lease is valid."""
    rows.started()
    before = rows.instance
    assert rows.claim() == NotClaimed()
    assert rows.instance == before


def test_a_lapsed_lease_lets_a_successor_in(rows: Rows) -> None:
    """W-150, W-151, S-14: after the lease a new epoch runs; the log says running again but not started."""
    rows.started()
    old = rows.fence()
    rows.wall += LEASE
    assert isinstance(rows.claim(), Claimed)
    assert rows.row.epoch == 2
    assert rows.types(3) == ["workflow_running", "workflow_running"]
    assert rows.call(SleepCalled("s", 0), old) == Stop()


def test_a_context_that_lives_here_keeps_others_out_whatever_its_lease(rows: Rows) -> None:
    """W-150, W-070: a lapsed lease is no stop proof for a context that this runtime has not ended."""
    rows.started()
    rows.wall += LEASE
    rows.alive = True
    assert rows.claim() == NotClaimed()
    assert isinstance(rows.terminate(), Stopping)
    assert rows.status == "running"


@pytest.mark.parametrize("field", ["epoch", "owner"])
def test_a_stale_writer_changes_nothing(rows: Rows, field: str) -> None:
    """W-004, W-151: another epoch or owner token commits no step, no end and no lease."""
    rows.started()
    incarnation, epoch, owner = rows.fence()
    stale = (incarnation, epoch - 1, owner) if field == "epoch" else (incarnation, epoch, "somebody")
    before = rows.instance
    assert rows.call(SleepCalled("s", 0), stale) == Stop()
    assert rows.end(Completed(b"{}"), stale) == Stale()
    assert rows.renew(stale) == Stale()
    assert rows.instance == before and rows.types(4) == []


def test_a_lapsed_owner_changes_nothing(rows: Rows) -> None:
    """W-004, W-152: with its lease over the owner commits nothing, and may not extend it."""
    rows.started()
    rows.wall += LEASE
    assert rows.do_started() == Stop()
    assert rows.renew() == Stale()
    assert rows.steps == {}
    assert rows.end(Completed(b"{}")) == Done()
    assert rows.status == "queued"


def test_a_lease_is_extended_from_now(rows: Rows) -> None:
    """W-151: the owner extends its own lease."""
    rows.started()
    rows.wall += LEASE // 2
    assert rows.renew() == Done()
    assert rows.row.lease_until_ms == rows.wall + LEASE


def test_complete_with_and_without_output(rows: Rows) -> None:
    """W-011, W-010: output is what run returned, or absent; a terminal row never changes."""
    rows.started()
    assert isinstance(rows.end(Completed(b'{"x":1}')), Ended)
    assert (rows.status, rows.row.output, rows.row.error_reason) == ("complete", b'{"x":1}', None)
    assert rows.event("workflow_completed")["output"] == {"x": 1}
    before = rows.instance
    for act in (rows.claim, rows.terminate, rows.expire, rows.reclaim, rows.send):
        act()
    rows.now += LIFETIME_MS
    rows.expire()
    assert rows.instance == before
    other = rows.another().started()
    other.end(Completed(None))
    assert other.row.output is None and "output" not in other.event("workflow_completed")


def test_a_throw_is_run_threw_with_its_message(rows: Rows) -> None:
    """W-012, W-013, S-22: the message is kept up to 8,192 scalars, in status and event alike."""
    rows.started()
    rows.end(Failed("run_threw", "x" * 9000))
    assert rows.failure == ("errored", "run_threw")
    assert rows.row.error_message == "x" * 8192
    assert rows.event("workflow_errored")["error"] == {"name": "run_threw", "message": "x" * 8192}


def test_a_message_is_made_of_scalars(rows: Rows) -> None:
    """W-013, S-22: a lone surrogate in a thrown string becomes a question mark, here and in the event."""
    rows.started()
    rows.end(Failed("run_threw", "a\ud800b😀"))
    assert rows.row.error_message == rows.event("workflow_errored")["error"]["message"] == "a?b😀"


@pytest.mark.parametrize("reason", ["step_failed", "step_limit_exceeded", "step_definition_mismatch"])
def test_the_other_reasons_say_which_step(rows: Rows, reason: str) -> None:
    """W-012, W-013, S-22: the reason is the error's name; the shim's message is in the row and in the event."""
    rows.started()
    rows.end(Failed(reason, 'step "a"'))
    assert rows.failure == ("errored", reason)
    assert rows.row.error_message == 'step "a"'
    assert rows.event("workflow_errored")["error"] == {"name": reason, "message": 'step "a"'}


def test_the_terminal_event_is_one_and_the_last(rows: Rows) -> None:
    """S-30, W-160: exactly one terminal event with the highest id; retention counts from the end."""
    rows.started()
    rows.end(Completed(None))
    rows.terminate()
    assert rows.types()[-1] == "workflow_completed"
    assert sum(kind.endswith(("completed", "errored", "terminated")) for kind in rows.types()) == 1
    assert rows.row.purge_at_ms == rows.now + RETENTION_MS


def test_the_stop_proof_is_stored_with_the_transition(rows: Rows) -> None:
    """W-014: what proved the stop is committed together with the status that it allows."""
    rows.started()
    rows.sleep()
    rows.end(Parked())
    assert rows.row.stop_proof == "quiescent:incarnation-1"


# --- terminate --------------------------------------------------------------------------------------------------------


def test_terminate_of_a_queued_instance_is_immediate(rows: Rows) -> None:
    """W-070, contract 4.3: nothing runs, so one commit ends it; two events."""
    rows.create()
    assert isinstance(rows.terminate(), Ended)
    assert rows.types() == ["workflow_queued", "workflow_terminated"]


def test_terminate_of_a_running_instance_fences_first(rows: Rows) -> None:
    """W-070, W-073, W-065: the mark fences the owner at once; terminated only with the proof."""
    rows.started()
    assert isinstance(rows.terminate(), Stopping)
    assert rows.status == "running" and rows.row.termination_requested
    assert rows.do_started() == Stop()
    assert rows.renew() == Stale()
    assert rows.send().reason == "instance_terminal"
    assert isinstance(rows.terminate(), Stopping)
    assert isinstance(rows.end(Stopped()), Ended)
    assert rows.status == "terminated"


def test_a_settlement_after_the_mark_is_a_termination(rows: Rows) -> None:
    """W-073, W-140: a durable termination outranks what the run returned."""
    rows.started()
    rows.terminate()
    rows.end(Completed(b"{}"))
    assert rows.status == "terminated" and rows.row.output is None


def test_completion_committed_first_wins(rows: Rows) -> None:
    """W-072, W-073: terminate of a complete instance leaves it with its output."""
    rows.started()
    rows.end(Completed(b"{}"))
    reply = rows.terminate()
    assert isinstance(reply, Ended) and reply.instance.status == "complete"
    assert rows.row.output == b"{}"


@pytest.mark.parametrize("end", ["lapse", "lost", "reclaim"])
def test_after_the_mark_no_code_starts_again(rows: Rows, end: str) -> None:
    """W-073: a marked instance whose owner dies is terminated, not run."""
    rows.started()
    rows.terminate()
    if end == "lapse":
        rows.wall += LEASE
        assert rows.claim() == NotClaimed()
    elif end == "lost":
        rows.end(Lost("killed"))
    else:
        rows.reclaim()
    assert rows.status == "terminated"


def test_terminate_of_a_parked_instance_ends_its_queue(rows: Rows) -> None:
    """W-065, S-26: unconsumed events leave with the end; the open step gets no closing event."""
    rows.started()
    rows.sleep()
    rows.end(Parked())
    rows.send("other", b"{}")
    assert rows.row.queued_count == 1
    rows.terminate()
    assert (rows.status, rows.queue, rows.row.queued_count) == ("terminated", [], 0)
    assert rows.types(5) == ["workflow_waiting", "workflow_terminated"]


def test_terminate_and_events_of_an_unknown_instance(rows: Rows) -> None:
    """W-027: there is nothing to end and nobody to take an event."""
    assert rows.terminate() == rows.send() == Refused("unknown_instance", "The workflow has no instance of that id.")


# --- lifetime ---------------------------------------------------------------------------------------------------------


def test_the_lifetime_ends_a_parked_instance(rows: Rows) -> None:
    """W-016, W-160: errored at the deadline even when found later; retention counts from the deadline."""
    rows.started()
    rows.wait(timeout=31_536_000)
    rows.end(Parked())
    deadline = rows.row.deadline_at_ms
    assert rows.row.due_at_ms == deadline
    rows.now = deadline + 5_000
    assert isinstance(rows.expire(), Ended)
    assert rows.failure == ("errored", "lifetime_exceeded")
    assert rows.row.ended_at_ms == deadline
    assert rows.row.purge_at_ms == deadline + RETENTION_MS


def test_before_the_deadline_nothing_expires(rows: Rows) -> None:
    """W-016: one ms before, the instance lives."""
    rows.create()
    rows.now = rows.row.deadline_at_ms - 1
    assert rows.expire() == Done()
    rows.now += 1
    assert isinstance(rows.claim(), NotClaimed)
    assert rows.failure == ("errored", "lifetime_exceeded")


def test_a_running_instance_is_stopped_before_it_expires(rows: Rows) -> None:
    """W-153, W-014, W-140: at the deadline nothing commits; the end shows after the proof, whatever the run says."""
    rows.started()
    rows.now = rows.row.deadline_at_ms
    assert rows.do_started() == Stop()
    assert isinstance(rows.expire(), Stopping)
    assert rows.status == "running"
    rows.end(Completed(b"{}"))
    assert rows.failure == ("errored", "lifetime_exceeded")


def test_lifetime_outranks_a_durable_termination(rows: Rows) -> None:
    """W-074, W-140: the deadline came before the final commit."""
    rows.started()
    rows.terminate()
    rows.now = rows.row.deadline_at_ms
    rows.end(Stopped())
    assert rows.failure == ("errored", "lifetime_exceeded")


def test_an_event_at_the_deadline_meets_the_end(rows: Rows) -> None:
    """W-016, W-065: sendEvent at the deadline observes the lifetime."""
    rows.create()
    rows.now = rows.row.deadline_at_ms
    assert rows.send().reason == "instance_terminal"
    assert rows.failure == ("errored", "lifetime_exceeded")


# --- losses, releases, restarts ---------------------------------------------------------------------------------------


def test_a_lost_context_is_replaced_at_once_then_ever_later(rows: Rows) -> None:
    """W-107, contract 3.3: still running; without delay the first time, then 1, 2, 4 … 60 s of real time."""
    rows.create()
    delays = []
    for _ in range(9):
        rows.claim()
        rows.end(Lost("crashed"))
        assert rows.status == "running" and rows.row.owner is None
        pause = 0 if rows.row.lease_until_ms is None else rows.row.lease_until_ms - rows.wall
        delays.append(pause)
        assert pause == 0 or rows.claim() == NotClaimed()
        rows.wall += pause
    assert delays == [0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]


def test_progress_forgives_losses(rows: Rows) -> None:
    """W-107: after a step has an outcome the next loss is a first one again."""
    rows.create()
    for _ in range(3):
        rows.claim()
        rows.end(Lost("crashed"))
        rows.wall += 60_000
    rows.claim()
    rows.do()
    rows.end(Lost("crashed"))
    assert rows.row.due_at_ms == rows.now


def test_a_context_stopped_by_the_host_goes_back_to_the_queue(rows: Rows) -> None:
    """W-087, W-088, W-089: queued, due at once, no attempt consumed, nothing in the log until it runs again."""
    rows.started()
    rows.do_started()
    assert rows.end(Stopped()) == Done()
    assert (rows.status, rows.row.due_at_ms) == ("queued", rows.now)
    assert rows.steps["a"].failed_attempts == 0
    rows.claim()
    assert rows.do_started() == Resolve()
    assert rows.types(4) == ["step_started", "attempt_started", "workflow_running"]


def test_a_claim_without_a_context_is_released(rows: Rows) -> None:
    """W-089: no context could be had: queued again after a delay."""
    rows.started()
    assert rows.release(1000) == Done()
    assert (rows.status, rows.row.due_at_ms, rows.row.owner) == ("queued", None, None)
    assert rows.claim() == NotClaimed()
    rows.wall += 1000
    assert isinstance(rows.claim(), Claimed)
    rows.release()
    assert rows.row.due_at_ms == rows.now


def test_a_restarted_runtime_takes_back_only_its_own(rows: Rows) -> None:
    """W-155, W-150: its own running rows are due at once; those of another runtime keep their lease."""
    rows.started()
    rows.reclaim("another")
    assert rows.claim() == NotClaimed()
    rows.reclaim()
    assert isinstance(rows.claim(), Claimed)


@pytest.mark.parametrize("how", ["lost", "reclaim", "lapse", "stopped"])
def test_an_owner_lost_while_parking_still_parks(rows: Rows, how: str) -> None:
    """W-104, W-111: the retry was decided before the owner died; it does not start before it is due."""
    rows.started()
    assert rows.attempt_fails(policy=RetryPolicy(2, 60)) == Park()
    due = rows.now + 60_000
    if how == "lapse":
        rows.wall += LEASE
        assert rows.claim() == NotClaimed()
    else:
        {"lost": lambda: rows.end(Lost("x")), "reclaim": rows.reclaim, "stopped": lambda: rows.end(Stopped())}[how]()
    assert (rows.status, rows.row.due_at_ms) == ("sleeping", due)
    assert rows.claim() == NotClaimed()
    rows.now = due
    assert isinstance(rows.claim(), Claimed)


def test_timestamps_never_go_back(rows: Rows) -> None:
    """S-16, S-04: a clock that was set back does not make an event older than the one before it."""
    rows.create()
    rows.now -= 5_000
    rows.terminate()
    assert [entry.at_ms for entry in rows.log] == sorted(entry.at_ms for entry in rows.log)
    assert [entry.event_id for entry in rows.log] == [1, 2]
