"""Frames between the runtime and Node: `u32 total, u32 header length, JSON header, raw body`, lengths big endian.

`total` counts everything after itself. Headers are closed tagged structs; the tag is the member `t`. The same shapes
are built and read in `js/`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from saisei_runtime.isolates.port import RetryPolicy

PROTOCOL_VERSION = 1
# The largest frame that a thread may send: a document of 1 MiB, 64 KiB of a body, or a header, with room to spare.
MAX_FRAME = 4 * 1024 * 1024
MAX_UNIX_PATH = 100


class Frame(msgspec.Struct, tag_field="t", frozen=True):
    """A header. Each member is always present, so that Node never reads an inherited property in its place."""


# --- runtime → supervisor ---------------------------------------------------------------------------------------------


class SpawnThread(Frame, tag="spawn", frozen=True):
    thread: int
    settings: dict[str, Any]
    limits: dict[str, int]


class KillThread(Frame, tag="kill", frozen=True):
    thread: int


class Ping(Frame, tag="ping", frozen=True):
    number: int


# --- supervisor → runtime ---------------------------------------------------------------------------------------------


class Ready(Frame, tag="ready", frozen=True):
    version: int


class Pong(Frame, tag="pong", frozen=True):
    number: int


class Joined(Frame, tag="joined", frozen=True):
    """The thread is gone: nothing of it runs any more. `why` is set when it ended by itself."""

    thread: int
    why: str


# --- runtime → thread -------------------------------------------------------------------------------------------------


class ModuleHead(msgspec.Struct, frozen=True):
    path: str
    type: str
    length: int


class Code(Frame, tag="code", frozen=True):
    """A Version. Body: its files, one after the other."""

    version: str
    entrypoint: str
    modules: Sequence[ModuleHead]
    vars: str
    secrets: Sequence[tuple[str, str]]
    bindings: Sequence[tuple[str, str]]


class Forget(Frame, tag="forget", frozen=True):
    version: str


DEFERRED = -2


class StepHead(msgspec.Struct, frozen=True):
    """`result_length` is -1 for "no result", and DEFERRED for one that is asked for when it is needed."""

    name: str
    kind: str
    state: str
    error: str
    failed_attempts: int
    result_length: int


class Start(Frame, tag="start", frozen=True):
    """A workflow context. Body: params (unless `params_length` is -1), then the results of `history` in order."""

    context: str
    version: str
    class_name: str
    instance_id: str
    params_length: int
    history: Sequence[StepHead]


class Reply(Frame, tag="reply", frozen=True):
    """`kind`: resolve (body: result, when `has`), reject (`code`), park or stop."""

    call: int
    kind: str
    code: str
    has: bool


class Answer(Frame, tag="answer", frozen=True):
    """Of a Binding call; `id` is the invocation in a serving thread, else 0."""

    id: int
    call: int
    ok: bool
    value: Any
    name: str
    message: str
    has: bool


class Open(Frame, tag="open", frozen=True):
    version: str


class Fetch(Frame, tag="fetch", frozen=True):
    id: int
    scope: str
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    has_body: bool


class MessageHead(msgspec.Struct, frozen=True):
    id: str
    timestamp: int
    attempts: int
    length: int


class Run(Frame, tag="run", frozen=True):
    """A `scheduled` or `queue` invocation. Body: the messages' bodies, one after the other."""

    id: int
    scope: str
    kind: str
    time: int
    cron: str
    batch: str
    queue: str
    messages: Sequence[MessageHead]


class Expire(Frame, tag="expire", frozen=True):
    """The invocation's `waitUntil` has had its time."""

    id: int


class ChunkIn(Frame, tag="chunk", frozen=True):
    id: int


class EndIn(Frame, tag="end", frozen=True):
    id: int
    cut: bool


class CreditIn(Frame, tag="credit", frozen=True):
    id: int
    bytes: int


class Cancel(Frame, tag="cancel", frozen=True):
    id: int


class InHead(Frame, tag="in_head", frozen=True):
    """The response to an outbound fetch."""

    id: int
    status: int
    headers: Sequence[tuple[str, str]]
    url: str
    redirected: bool
    has_body: bool


class InChunk(Frame, tag="in_chunk", frozen=True):
    id: int


class InEnd(Frame, tag="in_end", frozen=True):
    id: int
    cut: bool


class InCredit(Frame, tag="in_credit", frozen=True):
    id: int
    bytes: int


class InFailed(Frame, tag="in_failed", frozen=True):
    """`name`: of the Error that the call rejects with."""

    id: int
    name: str
    message: str


class Inspect(Frame, tag="inspect", frozen=True):
    version: str
    entrypoint: str


# --- thread → runtime -------------------------------------------------------------------------------------------------


class Hello(Frame, tag="hello", frozen=True):
    thread: int
    token: str
    version: int


class DoStartedFrame(Frame, tag="do_started", frozen=True):
    name: str
    attempt: int
    policy: RetryPolicy


class DoSucceededFrame(Frame, tag="do_succeeded", frozen=True):
    call: int
    name: str
    attempt: int
    has: bool


class DoFailedFrame(Frame, tag="do_failed", frozen=True):
    call: int
    name: str
    attempt: int
    policy: RetryPolicy
    error_name: str
    error_message: str


class SleepFrame(Frame, tag="sleep", frozen=True):
    call: int
    name: str
    seconds: int


class WaitFrame(Frame, tag="wait", frozen=True):
    call: int
    name: str
    type: str
    timeout_seconds: int


class RecallFrame(Frame, tag="recall", frozen=True):
    call: int
    name: str


class Settled(Frame, tag="settled", frozen=True):
    """The outcome of `run`: completed (body: output, when `has`) or failed. Sent the moment it is known.

    `step` and `called` (do, sleep or wait) name the step call that decided a failure, if one did.
    """

    outcome: str
    reason: str
    message: str
    step: str
    called: str
    has: bool


class Ended(Frame, tag="ended", frozen=True):
    """Nothing of the context runs any more (`quiescent`), the realm is as new (`pristine`), or why not; and how many
    milliseconds the check took."""

    quiescent: bool
    pristine: bool
    worn_out: bool
    why: str
    took: float


class Call(Frame, tag="call", frozen=True):
    scope: str
    call: int
    binding: str
    method: str
    arguments: dict[str, Any]
    has: bool


class Log(Frame, tag="log", frozen=True):
    scope: str
    level: str
    text: str


class Head(Frame, tag="head", frozen=True):
    id: int
    status: int
    headers: list[tuple[str, str]]


class ChunkOut(Frame, tag="chunk", frozen=True):
    id: int


class EndOut(Frame, tag="end", frozen=True):
    id: int
    cut: bool


class CreditOut(Frame, tag="credit", frozen=True):
    id: int
    bytes: int


class Drop(Frame, tag="drop", frozen=True):
    """The Worker will not read the rest of the request body."""

    id: int


class Ran(Frame, tag="ran", frozen=True):
    """A `scheduled` or `queue` handler has ended."""

    id: int
    ok: bool
    name: str
    message: str


class Done(Frame, tag="done", frozen=True):
    """The response is out and each `waitUntil` has settled."""

    id: int


class Out(Frame, tag="out", frozen=True):
    """An outbound fetch. `redirect`: follow, error or manual. With a `binding` it goes to another Worker, called from
    the context or invocation `scope`."""

    id: int
    method: str
    url: str
    headers: list[tuple[str, str]]
    redirect: str
    has_body: bool
    scope: str
    binding: str


class OutChunk(Frame, tag="out_chunk", frozen=True):
    id: int


class OutEnd(Frame, tag="out_end", frozen=True):
    id: int
    cut: bool


class OutCredit(Frame, tag="out_credit", frozen=True):
    id: int
    bytes: int


class OutAbort(Frame, tag="out_abort", frozen=True):
    id: int


class Alive(Frame, tag="alive", frozen=True):
    """The answer to the ping of that number: everything that was sent before it has been begun."""

    number: int


class Inspected(Frame, tag="inspected", frozen=True):
    loads: bool
    handlers: list[str]
    classes: list[str]
    code: str
    message: str
    module: str


FromSupervisor = Ready | Pong | Joined
FromThread = (
    Hello
    | DoStartedFrame
    | DoSucceededFrame
    | DoFailedFrame
    | SleepFrame
    | WaitFrame
    | RecallFrame
    | Settled
    | Ended
    | Call
    | Log
    | Head
    | ChunkOut
    | EndOut
    | CreditOut
    | Drop
    | Ran
    | Done
    | Out
    | OutChunk
    | OutEnd
    | OutCredit
    | OutAbort
    | Alive
    | Inspected
)

from_supervisor = msgspec.json.Decoder(FromSupervisor)
from_thread = msgspec.json.Decoder(FromThread)

_lengths = struct.Struct(">II")
_encode = msgspec.json.Encoder().encode


def encode_frame(header: Frame, body: bytes = b"") -> bytes:
    head = _encode(header)
    return b"".join((_lengths.pack(4 + len(head) + len(body), len(head)), head, body))


class FrameLine(asyncio.Protocol):
    """One end of a framed line.

    `on_frame(header bytes, body)` is called for each frame in order, `on_lost()` once. A malformed frame closes the
    line: what runs behind it is not trusted.
    """

    def __init__(self, on_frame: Callable[[bytes, bytes], None], on_lost: Callable[[], None]) -> None:
        self.on_frame = on_frame
        self.on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self._held = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # of uvloop's own class

    def data_received(self, data: bytes) -> None:
        held: bytes | bytearray = data
        if self._held:
            self._held += data
            held = self._held
        at, end = 0, len(held)
        while end - at >= 8:
            total, head_length = _lengths.unpack_from(held, at)
            if total > MAX_FRAME or head_length + 4 > total:
                self.close()
                return
            stop = at + 4 + total
            if stop > end:
                break
            body_at = at + 8 + head_length
            try:
                self.on_frame(bytes(held[at + 8 : body_at]), bytes(held[body_at:stop]))
            except msgspec.MsgspecError:
                self.close()
                return
            at = stop
        if held is data:
            if at < end:
                self._held += data[at:]
        elif at:
            del self._held[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.on_lost()

    def send(self, header: Frame, body: bytes = b"") -> None:
        """Dropped when the line is closed."""
        if self.transport is not None:
            self.transport.write(encode_frame(header, body))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
