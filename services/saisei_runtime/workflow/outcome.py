"""How an instance ends: which reason wins, and what its last row looks like (W-010 … W-013, W-120 … W-140). Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from saisei_runtime.isolates.port import Completed, Failed
from saisei_runtime.workflow import log
from saisei_runtime.workflow.commands import Decision, Ended, Instant, Reply
from saisei_runtime.workflow.limits import RETENTION_MS, STEPS
from saisei_runtime.workflow.records import COMPLETE, ERRORED, TERMINATED, Instance

LIFETIME: Final = "lifetime_exceeded"
MISMATCH: Final = "step_definition_mismatch"
STEP_LIMIT: Final = "step_limit_exceeded"
STEP_FAILED: Final = "step_failed"
RUN_THREW: Final = "run_threw"

# What is said of a reason when the context, which knows the names, did not come to say it.
_SAID: Final = {
    MISMATCH: "the calls of step do not fit the instance's journal, or a step was left unsettled",
    STEP_LIMIT: f"an instance has at most {STEPS:,} steps",
}


def overdue(instance: Instance, now: Instant) -> bool:
    """Whether the lifetime decides: it is over, or a step can only end after it (W-016, W-109, W-113)."""
    return now.ms >= instance.deadline_at_ms or instance.verdict == LIFETIME


def settled(instance: Instance, outcome: Completed | Failed, now: Instant) -> Decision:
    """A run that returned or failed while it was the owner, in the order of W-140."""
    if overdue(instance, now):
        return lifetime_exceeded(instance, now)
    if instance.termination_requested:
        return terminated(instance, now)
    reason = None
    message = None
    if isinstance(outcome, Failed):
        reason = outcome.reason if outcome.reason in (MISMATCH, STEP_LIMIT, STEP_FAILED) else RUN_THREW
        message = outcome.message
    found = reason
    if instance.open_steps > 0 or instance.verdict == MISMATCH:
        # W-122: also a step that an earlier context left open and this one never came back to.
        reason = MISMATCH
    elif instance.verdict is not None and reason != MISMATCH:
        reason = instance.verdict
    if reason is None:
        assert isinstance(outcome, Completed)
        return completed(instance, outcome.output, now)
    return errored(instance, reason, (message if reason == found else None) or _SAID.get(reason), now)


def completed(instance: Instance, output: bytes | None, now: Instant) -> Decision:
    return _end(replace(instance, output=output), COMPLETE, now.ms, now.ms, log.completed(output))


def errored(instance: Instance, reason: str, message: str | None, now: Instant) -> Decision:
    message = None if message is None else log.tidy(message)
    row = replace(instance, error_reason=reason, error_message=message)
    return _end(row, ERRORED, now.ms, now.ms, log.errored(reason, message))


def terminated(instance: Instance, now: Instant) -> Decision:
    return _end(instance, TERMINATED, now.ms, now.ms, log.TERMINATED_FACT)


def lifetime_exceeded(instance: Instance, now: Instant) -> Decision:
    """The terminal time is the deadline when that has passed (W-016); retention always counts from it (W-160)."""
    row = replace(instance, error_reason=LIFETIME, error_message=None)
    ended = min(now.ms, instance.deadline_at_ms)
    return _end(row, ERRORED, ended, instance.deadline_at_ms, log.errored(LIFETIME, None))


def _end(instance: Instance, status: str, ended_at_ms: int, retained_from_ms: int, fact: log.Fact) -> Decision:
    row = replace(
        instance,
        status=status,
        due_at_ms=None,
        ended_at_ms=ended_at_ms,
        purge_at_ms=retained_from_ms + RETENTION_MS,
        owner=None,
        runtime_id=None,
        lease_until_ms=None,
        pending_step=None,
        queued_count=0,
        queued_bytes=0,
    )
    reply: Reply = Ended(row)
    return Decision(reply, instance=row, facts=(fact,), purge_queue=instance.queued_count > 0)
