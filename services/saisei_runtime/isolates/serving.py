"""HTTP invocations of one Version: a thread of its own, bodies streamed with credit both ways (MW-20 … MW-25)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import WorkerCode
from saisei_runtime.isolates.bodies import WatchedBody, plain_text
from saisei_runtime.isolates.calls import BindingCalls
from saisei_runtime.isolates.code_frames import give_code
from saisei_runtime.isolates.contexts import log_worker_line
from saisei_runtime.isolates.egress import Egress, EgressCalls
from saisei_runtime.isolates.lineage import Lineage
from saisei_runtime.isolates.port import BindingError, BindingHost, FetchHead, FetchResult, ProofKind, Unanswered
from saisei_runtime.isolates.process import NodeProcess, NodeThread, ThreadRole
from saisei_runtime.isolates.protocol import (
    Alive,
    Call,
    Cancel,
    ChunkIn,
    ChunkOut,
    CreditIn,
    CreditOut,
    Done,
    Drop,
    EndIn,
    EndOut,
    Expire,
    Fetch,
    FromThread,
    Head,
    Log,
    Open,
    Ping,
    Ran,
)
from saisei_runtime.isolates.runs import BatchCalls, BatchSettler, QueueBatch, RunEnd, ScheduledEvent, run_frame
from saisei_runtime.isolates.services import ServiceCalls

# Bytes of a body on their way in one direction; the same number stands in js/serve.mjs.
WINDOW = 262_144
_LARGEST_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """In seconds. A `fetch` without a Response after `answer_within` is answered with 504 by the Host; a promise given
    to `waitUntil` keeps its invocation for `wait_until_within` after the response or the handler's end."""

    answer_within: float = 120.0
    wait_until_within: float = 300.0


_GONE = ("backend_unavailable", "the Worker was stopped before it had answered")


class Invocation:
    """One request on its way through a serving thread."""

    def __init__(
        self, thread: ServingThread, number: int, code: WorkerCode, bindings: BindingHost, lineage: Lineage
    ) -> None:
        self.number = number
        self._thread = thread
        scope = f"{code.version_uid}/{thread.number}/{number}"
        self.services = ServiceCalls(bindings, code, scope, lineage)
        self.calls = BindingCalls(bindings, code, scope, thread.send, number)
        self._loop = asyncio.get_running_loop()
        self.head: asyncio.Future[Head] = self._loop.create_future()
        self._chunks: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._cut = False
        self._left = False
        self._credit = WINDOW
        self._room = asyncio.Event()
        self._dropped = False
        self._sending: asyncio.Task[None] | None = None
        # Of a `scheduled` or `queue` handler.
        self.ran: asyncio.Future[Ran] = self._loop.create_future()
        self.batch: BatchCalls | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def begin(self, scope: str, request: FetchHead) -> None:
        head = Fetch(self.number, scope, request.method, request.url, list(request.headers), request.body is not None)
        self._thread.send(head)
        if request.body is not None:
            self._sending = self._loop.create_task(self._send_body(request.body))
            # A source that fails has said so where it comes from.
            self._sending.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _send_body(self, body: AsyncIterator[bytes]) -> None:
        """A source that fails cuts the body off; a Worker that drops the body stops the reading."""
        cut = True
        try:
            async for chunk in body:
                for start in range(0, len(chunk), _LARGEST_CHUNK):
                    part = chunk[start : start + _LARGEST_CHUNK]
                    while self._credit <= 0 and not self._dropped:
                        self._room.clear()
                        await self._room.wait()
                    if self._dropped:
                        return
                    self._credit -= len(part)
                    self._thread.send(ChunkIn(self.number), part)
            cut = False
        finally:
            self._thread.send(EndIn(self.number, cut))

    def receive(self, frame: FromThread, body: bytes) -> None:  # noqa: PLR0912 - a case for each frame
        match frame:
            case Head():
                if not self.head.done():
                    self.head.set_result(frame)
            case ChunkOut():
                if not self._left:
                    self._chunks.append(body)
                    self._news.set()
            case EndOut():
                self._ended, self._cut = True, frame.cut
                self._news.set()
                self._expire_later()
            case Ran():
                if not self.ran.done():
                    self.ran.set_result(frame)
                self._expire_later()
            case CreditOut():
                self._credit += frame.bytes
                self._room.set()
            case Drop():
                self._dropped = True
                self._room.set()
            case Call():
                if frame.binding == "" and self.batch is not None:
                    self.batch.begin(frame)
                else:
                    self.calls.begin(frame, body)
            case Done():
                self.release()

    def _expire_later(self) -> None:
        within = self._thread.limits.wait_until_within
        self._expiry = self._loop.call_later(within, self._thread.send, Expire(self.number))

    def release(self) -> None:
        """Over in the thread, or the thread is gone."""
        self._thread.invocations.pop(self.number, None)
        self.calls.close()
        self.services.close()
        self._dropped = True
        self._room.set()
        if self._sending is not None and not self._sending.done():
            self._sending.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for future in (self.head, self.ran):
            if not future.done():
                future.set_exception(Unanswered(*_GONE))
                future.exception()
        if not self._ended:
            self._ended = self._cut = True
        self._news.set()
        self._thread.on_released()

    def leave(self) -> None:
        """The client is gone, or has all that it wants: `request.signal` fires, the body is not read any further."""
        if self._left:
            return
        self._left = True
        self._chunks.clear()
        if not self._ended or self.number in self._thread.invocations:
            self._thread.send(Cancel(self.number))
        if self._sending is not None and not self._sending.done():
            self._sending.cancel()

    def _next_chunk(self) -> bytes:
        """Small chunks that have come together go on together: each message further on costs as much as 64 KiB."""
        parts = [self._chunks.popleft()]
        size = len(parts[0])
        while self._chunks and size + len(self._chunks[0]) <= _LARGEST_CHUNK:
            size += len(self._chunks[0])
            parts.append(self._chunks.popleft())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def body(self) -> AsyncIterator[bytes]:
        """SaiseiError backend_unavailable when the body breaks off: it must not look complete."""
        return WatchedBody(self._taken(), lambda whole: None if whole else self.leave())

    async def _taken(self) -> AsyncIterator[bytes]:
        whole = False
        try:
            while True:
                while self._chunks:
                    chunk = self._next_chunk()
                    self._thread.send(CreditIn(self.number, len(chunk)))
                    yield chunk
                if self._ended:
                    break
                self._news.clear()
                await self._news.wait()
            if self._cut:
                raise SaiseiError("backend_unavailable", "the Worker's response broke off")
            whole = True
        finally:
            if not whole:
                self.leave()


@dataclass(frozen=True, slots=True)
class Served:
    """What all serving threads of one Version have in common. `egress` None: no request goes out."""

    process: NodeProcess
    code: WorkerCode
    bindings: BindingHost
    egress: Egress | None
    limits: ServingLimits


class ServingThread:
    """Many invocations of one Version at once, over one module graph."""

    def __init__(self, served: Served) -> None:
        self._process = served.process
        self.limits = served.limits
        self._code = served.code
        self._bindings = served.bindings
        self._loop = asyncio.get_running_loop()
        self._thread: NodeThread = served.process.spawn(ThreadRole.SERVE)
        self.number = self._thread.number
        self._fetches = EgressCalls(served.egress, self._thread.send, self._services_of)
        self.invocations: dict[int, Invocation] = {}
        self.proofs: list[asyncio.Future[ProofKind]] = []
        self.idle_since = self._loop.time()
        self._count = 0
        self._heard = self._loop.time()
        self._pinging: asyncio.TimerHandle | None = None
        self._thread.on_frame = self._receive
        self._thread.on_gone = self._gone
        self._opened = False
        # Set while it is asked whether it gets to new invocations.
        self._asked: asyncio.Future[bool] | None = None
        self._questions = 0

    @property
    def quiet(self) -> bool:
        """Ready and without an invocation: it gets to a new one at once."""
        return self._thread.line is not None and not self.invocations and self.usable

    @property
    def starting(self) -> bool:
        return not self._thread.ready.done()

    async def answers(self) -> bool:
        """Waits until the thread shows that it gets to new frames; False when it is gone instead."""
        if self.starting:
            try:
                await asyncio.shield(self._thread.ready)
            except SaiseiError:
                return False
            return self.usable
        if self._asked is None:
            self._asked = self._loop.create_future()
            # Of a number of its own: the answer to an earlier ping says nothing of what was sent since.
            self._questions += 1
            self._thread.send(Ping(self._questions))
        return await asyncio.shield(self._asked) and self.usable

    def _answered(self, alive: bool) -> None:
        if self._asked is not None:
            if not self._asked.done():
                self._asked.set_result(alive)
            self._asked = None

    @property
    def usable(self) -> bool:
        return not self._thread.gone and not self._thread.killing

    @property
    def gone(self) -> bool:
        """Nothing of it runs any more, and that is proven."""
        return self._thread.gone

    @property
    def version_uid(self) -> str:
        return self._code.version_uid

    def send(self, frame: object, body: bytes = b"") -> None:
        self._thread.send(frame, body)  # type: ignore[arg-type]

    async def _new_invocation(self, lineage: Lineage) -> tuple[Invocation, str]:
        """An invocation and its scope, in a thread that has the code."""
        await asyncio.shield(self._thread.ready)
        if not self.usable:
            raise SaiseiError(*_GONE)
        if not self._opened:
            self._opened = True
            give_code(self._thread, self._code)
            self._thread.send(Open(self._code.version_uid))
        self._count += 1
        invocation = Invocation(self, self._count, self._code, self._bindings, lineage)
        self.invocations[invocation.number] = invocation
        self._watch()
        return invocation, f"{self._code.version_uid}/{self.number}/{invocation.number}"

    async def fetch(self, request: FetchHead) -> FetchResult:
        """A handler that gives no Response in time gets its signal aborted, and its client a 504. Unanswered when the
        Worker is stopped meanwhile, another SaiseiError when the invocation cannot begin."""
        invocation, scope = await self._new_invocation(request.lineage or Lineage())
        invocation.begin(scope, request)
        try:
            async with asyncio.timeout(self.limits.answer_within):
                head = await asyncio.shield(invocation.head)
        except TimeoutError:
            invocation.leave()
            what = f"The fetch handler gave no Response within {self.limits.answer_within:g} seconds."
            log_worker_line(self._code.worker_uid, scope, "error", what)
            return plain_text(504, "The Worker did not answer in time.")
        except asyncio.CancelledError:
            invocation.leave()
            raise
        return FetchResult(head.status, [(name, value) for name, value in head.headers], invocation.body())

    async def run(self, event: ScheduledEvent | QueueBatch, settler: BatchSettler | None = None) -> RunEnd:
        """One `scheduled` or `queue` invocation, until its handler has ended and its batch is settled; `waitUntil` may
        go on. Unanswered when the thread is gone before; unsettled messages stay as they are."""
        invocation, scope = await self._new_invocation(Lineage())
        if isinstance(event, QueueBatch):
            assert settler is not None
            invocation.batch = BatchCalls(invocation.number, event, settler, self._thread.send)
        self._thread.send(*run_frame(invocation.number, scope, event))
        try:
            ran = await asyncio.shield(invocation.ran)
        except asyncio.CancelledError:
            invocation.leave()
            raise
        if invocation.batch is not None:
            try:
                await invocation.batch.end(ok=ran.ok)
            except BindingError as error:
                raise SaiseiError("backend_unavailable", "the batch cannot be settled now") from error
        return RunEnd(ran.ok, ran.name, ran.message)

    async def stop(self) -> ProofKind:
        """Terminates the thread; returns its proof."""
        proof: asyncio.Future[ProofKind] = self._loop.create_future()
        if self._thread.gone:
            return ProofKind.JOINED
        self.proofs.append(proof)
        self._thread.terminate()
        return await proof

    def _receive(self, frame: FromThread, body: bytes) -> None:
        self._heard = self._loop.time()
        match frame:
            case Log():
                log_worker_line(self._code.worker_uid, frame.scope, frame.level, frame.text)
            case Call():
                invocation = self._of_scope(frame.scope)
                if invocation is not None:
                    invocation.receive(frame, body)
            case Head() | ChunkOut() | EndOut() | CreditOut() | Drop() | Ran() | Done():
                invocation = self.invocations.get(frame.id)
                if invocation is not None:
                    invocation.receive(frame, body)
            case Alive():
                if frame.number == self._questions and frame.number > 0:
                    self._answered(True)
            case _:
                if not self._fetches.receive(frame, body):
                    self._thread.terminate()

    def _of_scope(self, scope: str) -> Invocation | None:
        return self.invocations.get(int(scope.rpartition("/")[2]))

    def _services_of(self, scope: str) -> ServiceCalls | None:
        invocation = self._of_scope(scope)
        return None if invocation is None else invocation.services

    def _gone(self, kind: ProofKind, _why: str) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        self._fetches.close()
        self._answered(False)
        for invocation in list(self.invocations.values()):
            invocation.release()
        for proof in self.proofs:
            if not proof.done():
                proof.set_result(kind)

    def on_released(self) -> None:
        self.idle_since = self._loop.time()

    # --- a thread that answers nobody is ended ---

    def _watch(self) -> None:
        if self._pinging is None:
            self._heard = self._loop.time()
            self._ping()

    def _ping(self) -> None:
        self._pinging = None
        if not self.invocations or not self.usable:
            return
        if self._loop.time() - self._heard > self._process.settings.serve_stalled_after:
            log_worker_line(self._code.worker_uid, "", "error", "A fetch handler blocked its thread; it was ended.")
            self._thread.terminate("stalled")
            return
        self._thread.send(Ping(0))
        self._pinging = self._loop.call_later(1.0, self._ping)
