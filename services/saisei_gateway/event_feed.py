"""The one call to the runtime that all event streams of this gateway share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from saisei.runtime.v1 import feed_pb2 as pb
from saisei_contract.errors import ERROR_KINDS, SaiseiError
from saisei_service.credentials import Metadata
from saisei_service.rpc_errors import from_rpc_error

if TYPE_CHECKING:
    from saisei.runtime.v1.feed_pb2_grpc import EventFeedServiceAsyncStub


log = logging.getLogger(__name__)

# A call without readers is given up: it would hold up a runtime that stops.
IDLE_SECONDS = 1.0


class Listener(Protocol):
    """Who has asked for a batch. Neither method waits or raises."""

    def on_batch(self, batch: pb.FeedBatch) -> None: ...

    def on_failure(self, error: SaiseiError) -> None:
        """Nothing follows."""


class Feed:
    """Begins the call with its first key, and anew after a failure, which ends all keys of that time."""

    def __init__(self, stub: EventFeedServiceAsyncStub, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata
        self._listeners: dict[int, Listener] = {}
        self._last_key = 0
        self._running: asyncio.Task[None] | None = None
        self._commands: list[pb.FeedCommand] = []
        self._ready = asyncio.Event()

    def open(self, listener: Listener, wanted: pb.FeedOpen) -> int:
        """The key of a new reader, whose first batch or failure comes to the listener."""
        if self._running is None:
            self._commands = []
            self._ready = asyncio.Event()
            self._running = asyncio.get_running_loop().create_task(self._run(self._commands, self._ready))
        self._last_key += 1
        self._listeners[self._last_key] = listener
        self._say(pb.FeedCommand(key=self._last_key, open=wanted))
        return self._last_key

    def hand_over(self, key: int, listener: Listener) -> None:
        """What comes for the key from now on is for another listener, and is everything after its last batch."""
        self._listeners[key] = listener
        self._say(pb.FeedCommand(key=key, pull=pb.FeedPull(everything=True)))

    def pull(self, key: int) -> None:
        """Asks for the next batch. Nothing happens when the key has ended, here and below."""
        if key in self._listeners:
            self._say(pb.FeedCommand(key=key, pull=pb.FeedPull()))

    def close(self, key: int) -> None:
        if self._listeners.pop(key, None) is not None:
            self._say(pb.FeedCommand(key=key, close=pb.FeedClose()))
            self._left()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _left(self) -> None:
        if not self._listeners:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        if not self._listeners and self._running is not None:
            self._running.cancel()
            self._running = None

    def _say(self, command: pb.FeedCommand) -> None:
        self._commands.append(command)
        self._ready.set()

    async def _run(self, commands: list[pb.FeedCommand], ready: asyncio.Event) -> None:
        call = self._stub.Feed(_requests(commands, ready), metadata=self._metadata)
        error = SaiseiError("backend_unavailable", "a part of the Host did not answer; try again")
        try:
            async for response in call:
                for record in response.records:
                    self._dispatch(record)
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
        finally:
            call.cancel()
            if self._running is asyncio.current_task():
                # A reader that opens from here on begins another call.
                self._running = None
                listeners, self._listeners = self._listeners, {}
                for listener in listeners.values():
                    listener.on_failure(error)

    def _dispatch(self, record: pb.FeedRecord) -> None:
        listener = self._listeners.get(record.key)
        if listener is None:
            return
        try:
            self._tell(listener, record)
        except Exception as error:
            # One reader's trouble is not that of all others in the call.
            log.error("an event stream failed", exc_info=error)
            self.close(record.key)
            listener.on_failure(SaiseiError("internal_error", "The Host failed; its log has the details."))

    def _tell(self, listener: Listener, record: pb.FeedRecord) -> None:
        if record.WhichOneof("record") == "failure":
            self._ended(record.key)
            reason = record.failure.reason if record.failure.reason in ERROR_KINDS else "internal_error"
            listener.on_failure(SaiseiError(reason, record.failure.message))
            return
        if record.batch.ended:
            self._ended(record.key)
        listener.on_batch(record.batch)

    def _ended(self, key: int) -> None:
        del self._listeners[key]
        self._left()


async def _requests(commands: list[pb.FeedCommand], ready: asyncio.Event) -> AsyncIterator[Any]:
    while True:
        await ready.wait()
        ready.clear()
        said = commands[:]
        commands.clear()
        if said:
            yield pb.FeedRequest(commands=said)
