"""What is stored of an instance, a step and a queued event (W-001 … W-003). Field order is column order.

The records are immutable; `msgspec.structs.replace` makes the next version of one. Flags are 0 or 1 as in the tables.
"""

from __future__ import annotations

from typing import Final

import msgspec

QUEUED: Final = "queued"
RUNNING: Final = "running"
SLEEPING: Final = "sleeping"
WAITING: Final = "waiting"
COMPLETE: Final = "complete"
ERRORED: Final = "errored"
TERMINATED: Final = "terminated"

STATUSES: Final = (QUEUED, RUNNING, SLEEPING, WAITING, COMPLETE, ERRORED, TERMINATED)
PARKED: Final = (SLEEPING, WAITING)
TERMINAL: Final = frozenset((COMPLETE, ERRORED, TERMINATED))

DO: Final = "do"
SLEEP: Final = "sleep"
WAIT: Final = "wait"

PENDING: Final = "pending"
RETRY_WAIT: Final = "retry_wait"
STEP_WAITING: Final = "waiting"
STEP_COMPLETE: Final = "complete"
STEP_ERRORED: Final = "errored"


class Instance(msgspec.Struct, frozen=True, gc=False):
    """One row of `workflow_instances`; the comments are in the schema."""

    incarnation: str
    workflow_uid: str
    instance_id: str
    created_at_ms: int
    deadline_at_ms: int
    has_params: int = 0
    status: str = QUEUED
    due_at_ms: int | None = None
    ended_at_ms: int | None = None
    purge_at_ms: int | None = None
    output: bytes | None = None
    error_reason: str | None = None
    error_message: str | None = None
    epoch: int = 0
    owner: str | None = None
    runtime_id: str | None = None
    lease_until_ms: int | None = None
    termination_requested: int = 0
    verdict: str | None = None
    event_seq: int = 0
    event_at_ms: int = 0
    started: int = 0
    step_count: int = 0
    open_steps: int = 0
    pending_step: str | None = None
    queued_count: int = 0
    queued_bytes: int = 0
    accept_seq: int = 0
    losses: int = 0
    version_uid: str | None = None
    stop_proof: str | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    def paused(self, wall_ms: int) -> bool:
        """Whether it may not be claimed yet, after trouble (the machine's `_later`)."""
        return self.owner is None and self.lease_until_ms is not None and self.lease_until_ms > wall_ms

    def held(self, wall_ms: int) -> bool:
        """Whether an owner may still have code running: it has a lease that has not run out (W-150)."""
        return self.owner is not None and self.lease_until_ms is not None and self.lease_until_ms > wall_ms


class Step(msgspec.Struct, frozen=True, gc=False):
    """One row of `workflow_steps`."""

    incarnation: str
    name: str
    seq: int
    kind: str
    created_at_ms: int
    max_attempts: int = 1
    initial_delay_seconds: int = 0
    backoff: str = "constant"
    max_delay_seconds: int = 0
    event_type: str | None = None
    state: str = PENDING
    failed_attempts: int = 0
    attempts_started: int = 0
    due_at_ms: int | None = None
    result: bytes | None = None
    error: str | None = None
    delivered: int = 0

    @property
    def finished(self) -> bool:
        return self.state in (STEP_COMPLETE, STEP_ERRORED)


class QueuedEvent(msgspec.Struct, frozen=True, gc=False):
    """One row of `workflow_queued_events`."""

    incarnation: str
    seq: int
    type: str
    payload: bytes | None
    accepted_at_ms: int
    cost: int


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One row of `workflow_event_log`. `body` holds the type's own JSON members without braces."""

    incarnation: str
    event_id: int
    type: str
    at_ms: int
    body: bytes
