"""The readers of event streams: each catches up on its own, then all of one instance share one tail.

History of a reader comes in batches of its own, with its cursor and filter. Once it has all there is, it joins the tail
of its instance: one subscription at the runtime, whose events are framed once for all who read them. A client that
does not keep up leaves the tail and catches up again when it can take more. So nobody waits for anybody, and what is
held for a client is one batch beyond what its connection buffers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from saisei.runtime.v1 import feed_pb2 as pb
from saisei.runtime.v1.workflows_pb2 import EventFilter
from saisei_contract.errors import SaiseiError
from saisei_gateway.event_feed import Feed
from saisei_gateway.framing import Framing
from saisei_gateway.metrics import Metrics

log = logging.getLogger(__name__)

# Readers of one tail that are served in one turn of the event loop.
AT_ONCE = 16
# Handing an event to hundreds takes longer than a step. A tail rests for a multiple of the time that it took, and what
# happens meanwhile goes out together: fan-out never takes more than a third of the process. At most so many seconds.
REST = 2.0
REST_AT_MOST = 0.012

Name = tuple[str, str]


class Outlet(Protocol):
    """The connection of a client, with the head of its response sent. Once the client has gone, nothing happens."""

    @property
    def paused(self) -> bool:
        """Its buffer is full."""

    def write(self, framed: bytes) -> None:
        """Bytes that `chunk` has made."""

    def finish(self) -> None:
        """Nothing follows."""


def chunk(data: bytes) -> bytes:
    """One chunk of a response body (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Batch:
    """Events as the runtime sent them, framed at most once for each framing."""

    def __init__(self, batch: pb.FeedBatch) -> None:
        self.position = batch.position
        self.ended = batch.ended
        self._events: Sequence[pb.FeedEvent] = batch.events
        self._whole: dict[Framing, bytes] = {}

    def framed(self, framing: Framing, after: int, types: frozenset[str] | None) -> bytes:
        """A chunk with the events that a reader is to get; empty when there is none."""
        events = self._events
        if types is None and (not events or events[0].event_id > after):
            if framing not in self._whole:
                self._whole[framing] = _chunk_of(framing, events)
            return self._whole[framing]
        shown = [one for one in events if one.event_id > after and (types is None or one.type in types)]
        return _chunk_of(framing, shown)


def _chunk_of(framing: Framing, events: Sequence[pb.FeedEvent]) -> bytes:
    if not events:
        return b""
    return chunk(b"".join(framing.record(one.event_id, one.type, one.event_json) for one in events))


class Reader:
    """One client's stream. `opened` is done when its head may be sent, or with the reason why not: the request's task
    awaits it, hands the connection over and is gone. A reader that waits costs no task and no turn of the loop.
    """

    __slots__ = (
        "_closed",
        "_framing",
        "_hub",
        "_key",
        "_pulling",
        "_token",
        "_types",
        "cursor",
        "name",
        "opened",
        "outlet",
        "sent_at",
        "tail",
    )

    def __init__(
        self, hub: Readers, name: Name, cursor: int, types: frozenset[str] | None, framing: Framing, token: str
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.cursor = cursor
        self.opened: asyncio.Future[pb.FeedBatch] | None = loop.create_future()
        self.outlet: Outlet | None = None
        self.tail: Tail | None = None
        self.sent_at = 0.0
        self._hub = hub
        self._types = types
        self._framing = framing
        self._token = token
        # A batch of its own was asked for and has not come.
        self._pulling = False
        self._key = 0
        self._closed = False
        self._catch_up()

    def start(self, outlet: Outlet, first: pb.FeedBatch) -> None:
        """The head was sent: from now on records go out, unless all is over already."""
        self.opened = None
        if self._closed or self._hub.stopping:
            outlet.finish()
            self.close()
            return
        self.outlet = outlet
        self.sent_at = self._hub.clock()
        self._hub.add(self)
        self.on_batch(first)

    def on_batch(self, batch: pb.FeedBatch) -> None:
        """Of its own: with its cursor and filter already."""
        self._pulling = False
        if self.opened is not None:
            if not self.opened.done():
                self.opened.set_result(batch)
            return
        self.send(_chunk_of(self._framing, batch.events))
        self.cursor = max(self.cursor, batch.position)
        if batch.ended:
            self._key = 0
            self.end()
        elif batch.live:
            key, self._key = self._key, 0
            self._hub.join(self, key, batch.position)
        elif not self._paused:
            self._pull()

    def on_failure(self, error: SaiseiError) -> None:
        self._key = 0
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(error)
        else:
            # 200 is said already: the missing end record tells the client that this was a cut.
            log.info("an event stream was cut", extra={"reason": error.reason})
        self.close()

    def take(self, batch: Batch) -> None:
        """Of the tail. A client that cannot take it leaves the tail, and its cursor stays."""
        if self._paused:
            self._hub.leave(self)
            return
        self.send(batch.framed(self._framing, self.cursor, self._types))
        self.cursor = max(self.cursor, batch.position)

    def send(self, framed: bytes) -> None:
        if framed and self.outlet is not None:
            self.sent_at = self._hub.clock()
            self.outlet.write(framed)

    def beat(self) -> None:
        if not self._paused:
            self.send(chunk(self._framing.heartbeat))

    def resume(self) -> None:
        """The client can take more."""
        if self._closed or self.tail is not None or self._pulling:
            return
        if self._key:
            self._pull()
        else:
            self._catch_up()

    def end(self) -> None:
        """The last event was sent, or is hidden by the filter (S-07)."""
        self.send(chunk(self._framing.end))
        self.close()

    def close(self) -> None:
        """Idempotent; also when the client has gone."""
        if not self._closed:
            self._closed = True
            self._hub.remove(self)
            self._hub.leave(self)
            self._hub.feed.close(self._key)
            # The connection goes on to its next response: nothing of this one may be written any more.
            outlet, self.outlet = self.outlet, None
            if outlet is not None:
                outlet.finish()

    @property
    def _paused(self) -> bool:
        return self.outlet is not None and self.outlet.paused

    def _pull(self) -> None:
        self._pulling = True
        self._hub.feed.pull(self._key)

    def _catch_up(self) -> None:
        uid, instance_id = self.name
        shown = None if self._types is None else EventFilter(types=sorted(self._types))
        wanted = pb.FeedOpen(token=self._token, workflow_uid=uid, id=instance_id, cursor=self.cursor, filter=shown)
        self._pulling = True
        self._key = self._hub.feed.open(self, wanted)


class Tail:
    """What an instance does from `position` on, for all who have come so far."""

    __slots__ = ("_hub", "_key", "name", "position", "readers")

    def __init__(self, hub: Readers, name: Name, key: int, position: int) -> None:
        self.name = name
        self.position = position
        self.readers: dict[Reader, None] = {}
        self._hub = hub
        self._key = key
        hub.feed.hand_over(key, self)

    def on_batch(self, message: pb.FeedBatch) -> None:
        # Whoever joins from here on has these events: its own batch left the runtime after this one.
        self.position = message.position
        batch = Batch(message)
        if len(self.readers) <= AT_ONCE:
            for reader in list(self.readers):
                reader.take(batch)
            self._rest(batch, 0.0)
        else:
            self._hub.run(self._serve(batch))

    def on_failure(self, error: SaiseiError) -> None:
        self._hub.forget(self)
        for reader in list(self.readers):
            reader.on_failure(error)

    def close(self) -> None:
        self._hub.feed.close(self._key)

    async def _serve(self, batch: Batch) -> None:
        """A few in each turn, so that others are served in between."""
        readers = list(self.readers)
        spent = 0.0
        for first in range(0, len(readers), AT_ONCE):
            began = self._hub.clock()
            for reader in readers[first : first + AT_ONCE]:
                if reader.tail is self:
                    reader.take(batch)
            spent += self._hub.clock() - began
            await asyncio.sleep(0)
        self._rest(batch, spent)

    def _rest(self, batch: Batch, spent: float) -> None:
        if not self.readers:
            # The last one has left, and has closed it.
            return
        if batch.ended:
            self._hub.forget(self)
            for reader in list(self.readers):
                reader.end()
        elif self._hub.merged(self):
            self.close()
        elif spent:
            asyncio.get_running_loop().call_later(min(REST * spent, REST_AT_MOST), self._hub.feed.pull, self._key)
        else:
            self._hub.feed.pull(self._key)


class Readers:
    """All event streams of this gateway."""

    def __init__(self, feed: Feed, heartbeat_seconds: float, metrics: Metrics) -> None:
        self.feed = feed
        self._metrics = metrics
        # Readers whose head was sent.
        self.live: dict[Reader, None] = {}
        self.stopping = False
        self._heartbeat_seconds = heartbeat_seconds
        self._tails: dict[Name, Tail] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self.clock: Callable[[], float] = asyncio.get_running_loop().time

    def open(self, name: Name, cursor: int, types: frozenset[str] | None, framing: Framing, token: str) -> Reader:
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        return Reader(self, name, cursor, types, framing, token)

    def add(self, reader: Reader) -> None:
        self.live[reader] = None
        self._metrics.opened("events")

    def remove(self, reader: Reader) -> None:
        if reader in self.live:
            del self.live[reader]
            self._metrics.closed("events")

    def join(self, reader: Reader, key: int, position: int) -> None:
        """`reader` has everything up to `position`, and `key` is at the same place."""
        tail = self._tails.get(reader.name)
        if tail is not None and tail.position <= position:
            self.feed.close(key)
        else:
            # The tail is ahead of what this reader was told, until it was here: so it has one of its own at first.
            tail = Tail(self, reader.name, key, position)
            self._tails.setdefault(reader.name, tail)
        tail.readers[reader] = None
        reader.tail = tail

    def merged(self, tail: Tail) -> bool:
        """Whether the readers of a tail could all go over to the one that their instance has."""
        shared = self._tails.setdefault(tail.name, tail)
        if shared is tail or shared.position > tail.position:
            return False
        for reader in tail.readers:
            reader.tail = shared
        shared.readers |= tail.readers
        tail.readers.clear()
        return True

    def leave(self, reader: Reader) -> None:
        tail, reader.tail = reader.tail, None
        if tail is not None:
            del tail.readers[reader]
            if not tail.readers:
                self.forget(tail)
                tail.close()

    def forget(self, tail: Tail) -> None:
        if self._tails.get(tail.name) is tail:
            del self._tails[tail.name]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cut(self) -> None:
        """Ends all streams without an end record, also those that are about to begin: the gateway stops."""
        self.stopping = True
        for reader in list(self.live):
            reader.close()

    async def stop(self) -> None:
        self.cut()
        await self.feed.stop()
        for task in (*self._tasks, *([self._beating] if self._beating else [])):
            task.cancel()

    async def _beat(self) -> None:
        """A stream is never silent for longer than the interval. One look at all of them, sixteen times in it."""
        tick = self._heartbeat_seconds / 16
        while True:
            await asyncio.sleep(tick)
            due = self.clock() + tick - self._heartbeat_seconds
            silent = [reader for reader in self.live if reader.sent_at <= due]
            for number, reader in enumerate(silent):
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
                if reader.sent_at <= due:
                    reader.beat()
