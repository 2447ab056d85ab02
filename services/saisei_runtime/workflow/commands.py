"""What can be asked of an instance, and what the machine answers. Values only.

A command names its instance by incarnation, or by (workflow UID, id) when it comes from a caller.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from saisei_runtime.isolates.port import ContextEnd, DoStarted, Park, Reject, Resolve, StepCall, Stop
from saisei_runtime.workflow.log import Fact
from saisei_runtime.workflow.records import Instance, QueuedEvent, Step


class Instant(msgspec.Struct, frozen=True, gc=False):
    """Now, twice: `ms` by the Host's clock, which tests may advance; `wall_ms` by the machine's, for leases."""

    ms: int
    wall_ms: int


# --- commands by (workflow UID, instance id) --------------------------------------------------------------------------


class Create(msgspec.Struct, frozen=True):
    """W-020 … W-022. Replies Created, or Refused instance_exists."""

    workflow_uid: str
    instance_id: str
    incarnation: str
    params: bytes | None


class SendEvent(msgspec.Struct, frozen=True):
    """W-060 … W-066. Replies Done, or Refused unknown_instance, instance_terminal, event_queue_full."""

    workflow_uid: str
    instance_id: str
    type: str
    payload: bytes | None


class Terminate(msgspec.Struct, frozen=True):
    """W-070 … W-074. Replies Ended, Stopping (durably marked, proof awaited) or Refused unknown_instance."""

    workflow_uid: str
    instance_id: str


# --- commands by incarnation ------------------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True):
    """A new owner takes the instance and is about to start a context (W-151). Replies Claimed or NotClaimed."""

    incarnation: str
    owner: str
    runtime_id: str
    version_uid: str
    lease_ms: int


class StepCalled(msgspec.Struct, frozen=True):
    """A call of a running context. Replies Resolve, Reject, Park or Stop.

    `begun`: the call that announced the attempt whose outcome `call` is, when both became known at once. It is as if it
    had been a command of its own just before.
    """

    incarnation: str
    epoch: int
    owner: str
    call: StepCall
    begun: DoStarted | None = None


class ContextEnded(msgspec.Struct, frozen=True):
    """The context has stopped, with proof. Replies Ended, Done or Stale."""

    incarnation: str
    epoch: int
    owner: str
    end: ContextEnd


class Release(msgspec.Struct, frozen=True):
    """The claim came to nothing: no context was started. Replies Done, Ended or Stale."""

    incarnation: str
    epoch: int
    owner: str
    delay_ms: int


class RenewLease(msgspec.Struct, frozen=True):
    """Replies Done, or Stale: stop the context (W-152)."""

    incarnation: str
    epoch: int
    owner: str
    lease_ms: int


class Expire(msgspec.Struct, frozen=True):
    """Enforces the lifetime (W-016). Replies Ended, Stopping or Done (not yet due)."""

    incarnation: str


class Reclaim(msgspec.Struct, frozen=True):
    """The runtime of that id was started again and its former children are dead. Replies Done or Ended."""

    incarnation: str
    runtime_id: str


class Requeue(msgspec.Struct, frozen=True):
    """The Worker has no Deployment: a lost instance cannot be replaced now and is queued (W-087). Replies Done or
    Ended."""

    incarnation: str


ByKey: TypeAlias = Create | SendEvent | Terminate
ByIncarnation: TypeAlias = Claim | StepCalled | ContextEnded | Release | RenewLease | Expire | Reclaim | Requeue
Command: TypeAlias = ByKey | ByIncarnation
# For isinstance: a union would be built anew at each check.
BY_KEY: Final = (Create, SendEvent, Terminate)

# --- replies ----------------------------------------------------------------------------------------------------------


class Created(msgspec.Struct, frozen=True, gc=False):
    instance_id: str


class Refused(msgspec.Struct, frozen=True, gc=False):
    """`reason` is one of the error table; nothing was changed."""

    reason: str
    detail: str


class Claimed(msgspec.Struct, frozen=True):
    instance: Instance


class NotClaimed(msgspec.Struct, frozen=True, gc=False):
    """Somebody else has it, it is not due, or it has ended."""


class Done(msgspec.Struct, frozen=True, gc=False):
    pass


class Stale(msgspec.Struct, frozen=True, gc=False):
    """The fence did not match: nothing was changed (W-004)."""


class Ended(msgspec.Struct, frozen=True):
    """The instance is terminal, now or already."""

    instance: Instance


class Stopping(msgspec.Struct, frozen=True):
    """Fenced, but code may still run: stop it and report its end."""

    instance: Instance


StepAnswer: TypeAlias = Resolve | Reject | Park | Stop
Reply: TypeAlias = (
    Created | Refused | Claimed | NotClaimed | Done | Stale | Ended | Stopping | Resolve | Reject | Park | Stop
)


# --- what the machine is given and gives ------------------------------------------------------------------------------


class View(msgspec.Struct, frozen=True):
    """The stored rows that a command needs. `match` is the oldest retained event that `events.wanted` asked for;
    `alive` says that this very runtime has a context of the instance that has not ended, whatever its lease says."""

    instance: Instance | None
    step: Step | None = None
    match: QueuedEvent | None = None
    params: bytes | None = None
    alive: bool = False


class Decision(msgspec.Struct, frozen=True):
    """What to write and to answer. `instance` and `step` are the next versions of the rows; None leaves them alone."""

    reply: Reply
    instance: Instance | None = None
    step: Step | None = None
    facts: tuple[Fact, ...] = ()
    params: bytes | None = None
    queued: QueuedEvent | None = None
    consumed: QueuedEvent | None = None
    purge_queue: bool = False
