"""`scheduled` and `queue` invocations (MW-20, MW-24, MW-27 … MW-30): events, ends, the settlement of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from saisei_runtime.isolates.port import BindingError
from saisei_runtime.isolates.protocol import Answer, Call, MessageHead, Run

MAX_DELAY_SECONDS = 43_200


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """`scheduled_time`: UTC epoch milliseconds."""

    scheduled_time: int
    cron: str


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """`timestamp`: UTC epoch milliseconds; `attempts` counts this delivery."""

    id: str
    timestamp: int
    body: bytes
    attempts: int


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """1 to 100 messages with ids of their own."""

    batch_id: str
    queue: str
    messages: Sequence[QueueMessage]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the handler ended: `ok`, or what it threw. A failed run is recorded, never an HTTP answer (MW-24)."""

    ok: bool
    error_name: str = ""
    error_message: str = ""


class BatchSettler(Protocol):
    async def settle(self, message_ids: Sequence[str], *, retry: bool, delay_seconds: int | None) -> None:
        """Settles messages durably: acknowledged, or to be delivered again after `delay_seconds` (None: the consumer's
        default). BindingError backend_unavailable when it cannot; then none of them is settled."""
        ...


def run_frame(number: int, scope: str, event: ScheduledEvent | QueueBatch) -> tuple[Run, bytes]:
    if isinstance(event, ScheduledEvent):
        return Run(number, scope, "scheduled", event.scheduled_time, event.cron, "", "", []), b""
    heads = [MessageHead(m.id, m.timestamp, m.attempts, len(m.body)) for m in event.messages]
    return Run(number, scope, "queue", 0, "", event.batch_id, event.queue, heads), b"".join(
        m.body for m in event.messages
    )


class BatchCalls:
    """The methods of one batch. A message is settled once; what the handler left is settled by its end (MW-30)."""

    def __init__(self, number: int, batch: QueueBatch, settler: BatchSettler, send: Callable[[Answer], None]) -> None:
        self._number = number
        self._settler = settler
        self._send = send
        # In order; False while nobody has settled it, or when that has failed.
        self._settled = {message.id: False for message in batch.messages}
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, frame: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, frame: Call) -> None:
        try:
            await self._settle(frame)
        except BindingError as error:
            self._send(Answer(self._number, frame.call, False, None, error.name, error.message, False))
        else:
            self._send(Answer(self._number, frame.call, True, {}, "", "", False))

    async def _settle(self, frame: Call) -> None:
        if self._ended:
            raise BindingError("unknown_batch", "the handler of this batch has ended")
        given = frame.arguments
        delay = given.get("delay")
        retry = frame.method in ("retry", "retryAll")
        if frame.method in ("acknowledgeAll", "retryAll"):
            await self._settle_these(self._open(), retry, delay)
            return
        message_id = str(given.get("id"))
        if message_id not in self._settled:
            raise BindingError("unknown_message", "the batch has no message of this id")
        if self._settled[message_id]:
            raise BindingError("already_settled", "the message was acknowledged or is to be retried already")
        await self._settle_these([message_id], retry, delay)

    def _open(self) -> list[str]:
        return [message_id for message_id, settled in self._settled.items() if not settled]

    async def _settle_these(self, ids: list[str], retry: bool, delay: int | None) -> None:
        if not ids:
            return
        # At once: a second call for one of them meanwhile is one too many.
        self._settled.update(dict.fromkeys(ids, True))
        try:
            await self._settler.settle(ids, retry=retry, delay_seconds=delay)
        except BaseException as error:
            self._settled.update(dict.fromkeys(ids, False))
            if isinstance(error, Exception) and not isinstance(error, BindingError):
                raise BindingError("backend_unavailable", "the messages cannot be settled now") from error
            raise

    async def end(self, *, ok: bool) -> None:
        """The handler has ended: settles the rest. BindingError backend_unavailable: the rest is not settled."""
        self._ended = True
        await asyncio.gather(*self._tasks)
        await self._settle_these(self._open(), not ok, None)
