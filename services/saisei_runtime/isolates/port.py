"""The line between the engine and the isolates: what a context is started with, what it asks, how it ends.

The engine implements `ContextListener`; the pool implements `ContextPool`. All calls happen in the runtime's event
loop and none of the listener's methods may block or await: they hand work on and return.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from saisei_contract.asset_responses import Asset
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, WorkerCode
from saisei_runtime.isolates.lineage import Lineage

# --- starting a workflow context -------------------------------------------------------------------------------------


class HistoryStep(msgspec.Struct, frozen=True, gc=False):
    """One journaled step as a new context sees it.

    `state` is "complete" (with `result`, canonical bytes or None), "errored" (with `error`: step_failed or
    wait_timeout; `result` of a step_failed is `{name, message}` of its last attempt's failure) or "open" (a registered
    step without an outcome; `kind` decides whether a call of that name is a mismatch, W-120).
    `failed_attempts` of an open `do` step gives the number of the next attempt. `deferred`: there is a result, too
    large to be given at once; the context asks for it (`Recall`) if its code calls the name.
    """

    name: str
    kind: str
    state: str
    result: bytes | None = None
    error: str | None = None
    failed_attempts: int = 0
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowStart:
    """One execution context of one instance (W-081). `context_id` is unique for ever and names the proof in the log."""

    context_id: str
    code: WorkerCode
    class_name: str
    instance_id: str
    params: bytes | None
    history: Sequence[HistoryStep] = ()
    # For the log; "" when nobody said.
    workflow_uid: str = ""
    # Earlier contexts of the instance were lost, one after the other: it gets a process to itself, if there is room.
    alone: bool = False


# --- what a running context asks --------------------------------------------------------------------------------------


class RetryPolicy(msgspec.Struct, frozen=True, gc=False):
    """A validated policy in whole seconds (W-101)."""

    max_attempts: int = 1
    initial_delay_seconds: int = 0
    backoff: str = "constant"
    max_delay_seconds: int = 43200


class DoStarted(msgspec.Struct, frozen=True, gc=False):
    """The effect of attempt n is about to run. Needs no reply and is never waited for."""

    name: str
    attempt: int
    policy: RetryPolicy


class DoSucceeded(msgspec.Struct, frozen=True, gc=False):
    """The effect gave `result` (canonical bytes, None for undefined). Reply: Resolve, or Stop."""

    name: str
    attempt: int
    result: bytes | None


class DoFailed(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed (W-103). `policy` is the one that the call passed; the first saved one counts (W-095).

    Reply: Reject("step_failed") when it was the last one, else Park.
    """

    name: str
    attempt: int
    policy: RetryPolicy
    error_name: str
    error_message: str


class SleepCalled(msgspec.Struct, frozen=True, gc=False):
    """Reply: Resolve(None) when due (or 0 s), else Park."""

    name: str
    seconds: int


class WaitCalled(msgspec.Struct, frozen=True, gc=False):
    """Reply: Resolve(payload), Reject("wait_timeout"), or Park."""

    name: str
    event_type: str
    timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Recall:
    """The code called a finished name whose result the context does not hold. Reply: Resolve, or Stop.

    It changes nothing and needs no fence: what is finished never changes.
    """

    name: str


StepCall = DoStarted | DoSucceeded | DoFailed | SleepCalled | WaitCalled


class Resolve(msgspec.Struct, frozen=True, gc=False):
    """Settle the step's Promise with a decoded clone of `result`."""

    result: bytes | None = None


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Settle the step's Promise with the Host Error of that code (W-130)."""

    code: str


class Park(msgspec.Struct, frozen=True, gc=False):
    """Never settle. Stop the code, prove it, and end the context as Parked."""


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Never settle: the context is fenced. Stop the code, prove it, and end the context as Stopped."""


StepReply = Resolve | Reject | Park | Stop

# --- how a context ends -----------------------------------------------------------------------------------------------


class ProofKind(Enum):
    """The only three proofs that code has stopped (design 3)."""

    QUIESCENT = "quiescent"  # nothing of the context can ever run again; the thread lives on
    JOINED = "joined"  # the thread was terminated and joined
    REAPED = "reaped"  # the process was killed and waited for


@dataclass(frozen=True, slots=True)
class StopProof:
    kind: ProofKind
    context_id: str
    # How long the stop took, from the decision to the proof.
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """`run` returned a document, or undefined (None)."""

    output: bytes | None


@dataclass(frozen=True, slots=True)
class Failed:
    """`run` ended otherwise, for one of the reasons of W-012 but lifetime_exceeded, which only the journal decides.

    `step` and `called` (a kind) are the step call that ended it, when one did: an unfinished name called with another
    method (step_definition_mismatch), or one name too many (step_limit_exceeded).
    """

    reason: str
    message: str | None = None
    step: str = ""
    called: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """Stopped after a Park reply."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Stopped because someone asked: `stop()` or a Stop reply."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The process or thread died by itself (crash, out of memory, missed heartbeat): the run's outcome is unknown."""

    why: str


ContextOutcome = Completed | Failed | Parked | Stopped | Lost


@dataclass(frozen=True, slots=True)
class ContextEnd:
    outcome: ContextOutcome
    proof: StopProof
    # Whether its code called `fetch`, with whatever success.
    fetched: bool = False


class ContextHandle(Protocol):
    context_id: str

    def reply(self, call_id: int, reply: StepReply) -> None:
        """Answers one StepCall. Ignored when the context has ended."""
        ...

    def stop(self) -> None:
        """Stops the context whatever it does, within 2 s. Its end is reported as always. Idempotent."""
        ...


class ContextListener(Protocol):
    def on_step(self, context_id: str, call_id: int, call: StepCall | Recall) -> None:
        """A step call; answered through `ContextHandle.reply` with the same `call_id` (0 for DoStarted: no reply)."""
        ...

    def on_ended(self, context_id: str, end: ContextEnd) -> None:
        """Exactly once for each started context, after the proof. Nothing follows it."""
        ...


# --- serving and inspection -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchHead:
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: AsyncIterator[bytes] | None = None
    # Of a service call; None: the request begins here.
    lineage: Lineage | None = None


class Unanswered(SaiseiError):  # noqa: N818 - what became of the request
    """The invocation had begun, and its Worker was stopped before it had answered."""


@dataclass(frozen=True, slots=True)
class StaticAsset:
    """Where a response comes from that no code has made."""

    version_uid: str
    asset: Asset


@dataclass(slots=True)
class FetchResult:
    """`body` must be iterated to its end or closed (`aclose`): that is what releases the invocation.

    `asset`: status, headers and body are this one's; who can serve it otherwise may close the body unread.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: AsyncIterator[bytes]
    asset: StaticAsset | None = None


@dataclass(frozen=True, slots=True)
class CodeProblem:
    code: str
    message: str
    module: str = ""
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a Version's main module exports, found without running a handler or constructing a class (MW-10, W-080)."""

    loads: bool
    handlers: frozenset[str] = frozenset()
    workflow_classes: frozenset[str] = frozenset()
    problems: tuple[CodeProblem, ...] = ()


# --- Bindings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BindingCall:
    """One method call of a Binding object. `arguments` is a JSON value that the shim built itself (never a tenant
    object); `body` carries one document or byte string next to it."""

    worker_uid: str
    version_uid: str
    # The context or invocation that calls; what it opened is closed when it ends.
    scope_id: str
    binding: Binding
    method: str
    arguments: Mapping[str, Any]
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class BindingResult:
    value: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None


class BindingError(Exception):
    """Rejects the call in the Worker with an Error of that `name` (F-12); `TypeError` gives a real TypeError."""

    def __init__(self, name: str, message: str = "") -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """A request through a service Binding of that Version."""

    worker_uid: str
    version_uid: str
    # The context or invocation that calls.
    scope_id: str
    binding: Binding
    request: FetchHead


class BindingHost(Protocol):
    async def call(self, call: BindingCall) -> BindingResult:
        """Performs the call; raises BindingError to reject it."""
        ...

    async def fetch(self, call: ServiceCall) -> FetchResult:
        """Delivers the request to the Binding's Worker; raises BindingError when delivery cannot start (MW-41)."""
        ...

    def close_scope(self, scope_id: str) -> None:
        """The context or invocation has ended: free what it opened (subscriptions, streams)."""
        ...


class ContextPool(Protocol):
    """What isolates offer to the rest of the runtime."""

    async def start_workflow(self, start: WorkflowStart, listener: ContextListener) -> ContextHandle:
        """Starts a context as soon as a thread is free. SaiseiError backend_unavailable when no thread can be had."""
        ...

    async def fetch(self, code: WorkerCode, request: FetchHead) -> FetchResult:
        """One HTTP invocation (MW-20, MW-23). A throw of the Worker is a 500 result, not an exception."""
        ...

    async def inspect(self, code: WorkerCode) -> Inspection: ...

    def running(self, worker_uid: str, version_uid: str) -> int:
        """Contexts and invocations of a Version that are not proven to have stopped; an invocation counts until what it
        gave to `waitUntil` is over too (WV-13, MW-25)."""
        ...

    async def drain(self, worker_uid: str, version_uid: str | None = None) -> int:
        """Stops each context of a Worker (or of one Version) with proof; returns how many there were."""
        ...

    async def close(self) -> None:
        """Stops everything, reaps every process."""
        ...
