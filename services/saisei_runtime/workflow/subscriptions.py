"""Event subscriptions: history, then live, without gap or duplicate (contract 4.1).

One tail for each instance that anybody watches; it hands each new event to its subscribers once, already encoded. A
subscriber that reads slowly loses its buffer, not its place: it reads on from the table. Writers never wait for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from saisei_contract.errors import SaiseiError
from saisei_runtime.workflow import log
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import Instance, LogEntry
from saisei_runtime.workflow.workspace import Change

_log = logging.getLogger(__name__)

# What a reader holds at most: so many events, and so many bytes of them before the one that goes beyond.
PAGE = 256
PAGE_BYTES = 1024 * 1024
BUFFER_MAX = 256
BUFFER_BYTES = 1024 * 1024
# What goes out in one message, to those who take several events at a time.
BATCH_EVENTS = 256
BATCH_BYTES = 256 * 1024
# So many readers of an instance are woken at once. Of more, a few in each turn of the event loop; then fan-out rests
# for a multiple of the time that the turn took. So the work of the instances goes on in between and always has two
# thirds of the process, and what happens meanwhile goes out together.
FEW = 4
WAKE_AT_ONCE = 2
REST = 2.0
# Incarnations in one question for their newest events.
_HEADS_AT_ONCE = 500


@dataclass(slots=True)
class EventRecord:
    """`json` is the whole event object of contract 4: instanceId, eventId, timestamp, type and the type's members.

    All readers of a tail get the same object; `message` is what the first of them has made of it for the wire.
    """

    event_id: int
    type: str
    timestamp_ms: int
    instance_id: str
    json: bytes
    message: object = field(default=None, repr=False, compare=False)


class Subscription:
    """One reader. `next` calls are served in call order (S-10); `close` ends it at once (S-11).

    Who holds many readers waits for none of them: `listen`, then `drain` and `read_on` as told.
    """

    __slots__ = (
        "_buffer",
        "_buffered",
        "_cursor",
        "_ended",
        "_hub",
        "_instance_id",
        "_listener",
        "_newest",
        "_order",
        "_synced",
        "_types",
        "_waiter",
        "done",
        "incarnation",
        "queued",
        "workflow_uid",
    )

    def __init__(self, hub: Subscriptions, instance: Instance, cursor: int, types: frozenset[str] | None) -> None:
        self.incarnation = instance.incarnation
        self.workflow_uid = instance.workflow_uid
        self.done = False
        # Among those that the hub is to wake.
        self.queued = False
        self._instance_id = instance.instance_id
        self._hub = hub
        self._cursor = cursor
        self._types = types
        # None while empty: most readers wait most of the time.
        self._buffer: deque[EventRecord] | None = None
        # Bytes of the live events in the buffer since it was last empty.
        self._buffered = 0
        # Whether the buffer continues the cursor without a gap; else the table is read.
        self._synced = False
        # The highest event id that was seen, shown or not.
        self._newest = 0
        self._ended = False
        self._order: asyncio.Lock | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None

    async def next(self) -> EventRecord | None:
        """The next event that the filter lets through; None for ever once there is none any more.

        SaiseiError backend_unavailable when history cannot be read; the next call tries again.
        """
        if self._order is None:
            self._order = asyncio.Lock()
        async with self._order:
            while not self.done:
                record = self._take()
                if record is not None:
                    return record
                if self._ended:
                    self.close()
                elif not self._synced:
                    await self.read_on()
                elif not self._buffer:
                    await self._wait()
            return None

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called after something has changed: events came, the table is to be read, or all is done."""
        self._listener = listener

    def drain(self, limit: int, limit_bytes: int) -> list[EventRecord]:
        """What `next` would give without waiting: at most `limit`, and none after the one that goes beyond the bytes.

        Afterwards `done`, `live` and `position` say how it goes on.
        """
        records: list[EventRecord] = []
        size = 0
        while len(records) < limit and size <= limit_bytes and (record := self._take()) is not None:
            records.append(record)
            size += len(record.json)
        if self._ended and not self._buffer:
            self.close()
        return records

    @property
    def synced(self) -> bool:
        """False: `read_on` before anything else is to be had."""
        return self._synced

    @property
    def live(self) -> bool:
        """Nothing beyond `position` is known."""
        return self._synced and not self._buffer

    @property
    def position(self) -> int:
        """The log up to here was given, or hidden by the cursor and the filter."""
        return min(self._cursor, self._newest)

    def widen(self, after: int) -> None:
        """Everything after `after`, which was the `position` when the log had nothing more for this reader."""
        self._cursor, self._types = after, None

    def close(self) -> None:
        """Idempotent and synchronous; the instance and other subscriptions notice nothing."""
        if not self.done:
            self.done = True
            self._buffer = None
            self._hub.remove(self)
            self.wake()

    def feed(self, record: EventRecord) -> None:
        """A live event; the hub wakes the reader. A full buffer is given up: it goes on from the table."""
        if not self._synced:
            return
        if self._buffer is None:
            self._buffer = deque()
            self._buffered = 0
        if len(self._buffer) >= BUFFER_MAX or self._buffered > BUFFER_BYTES:
            self._buffer = None
            self._synced = False
        else:
            self._buffer.append(record)
            self._buffered += len(record.json)
            self._newest = record.event_id

    def expect(self, newest: int) -> None:
        """The log goes on to `newest`: whoever has not come so far, and has not got it in the buffer, reads again."""
        have = self._buffer[-1].event_id if self._buffer else self.position
        if have < newest:
            self.wake(reread=True)

    def wake(self, *, reread: bool = False) -> None:
        if reread:
            self._synced = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._listener is not None:
            self._listener()

    def _take(self) -> EventRecord | None:
        while self._buffer:
            record = self._buffer.popleft()
            if not self._buffer:
                self._buffer = None
            if record.type in log.ENDINGS:
                # Also for a cursor beyond it (S-08).
                self._ended = True
            if record.event_id <= self._cursor:
                continue
            self._cursor = record.event_id
            if self._types is None or record.type in self._types:
                return record
        return None

    async def read_on(self) -> None:
        """A page of the table, after the cursor. SaiseiError backend_unavailable when it cannot be read."""
        # From here on live events are kept, so what is committed after the read below is in the buffer (S-02).
        self._synced = True
        self._buffer = None
        try:
            page = await self._hub.reads.log_after(self.incarnation, self._cursor, PAGE, PAGE_BYTES)
        except BaseException:
            self._synced = False
            raise
        if self.done:
            return
        if not page.exists:
            # Purged (S-13).
            self.close()
            return
        live: Iterable[EventRecord] = self._buffer or ()
        recorded = deque(self._hub.record(self._instance_id, entry) for entry in page.entries)
        if page.more:
            self._synced = False
        elif self._synced:
            recorded.extend(live)
        self._buffer = recorded or None
        self._newest = max(self._newest, page.newest)
        if page.ended and not page.entries:
            self._ended = True

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Watch:
    """Status changes of one workflow from now on. A slow reader gets the latest status of an instance, once."""

    def __init__(self, hub: Subscriptions, workflow_uid: str) -> None:
        self.workflow_uid = workflow_uid
        self._hub = hub
        self._latest: dict[str, tuple[str, int]] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def feed(self, instance_id: str, status: str, at_ms: int) -> None:
        self._latest.pop(instance_id, None)
        self._latest[instance_id] = (status, at_ms)
        self._wake.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._hub.remove_watch(self)
            self._wake.set()

    def __aiter__(self) -> AsyncIterator[list[tuple[str, str, int]]]:
        return self

    async def __anext__(self) -> list[tuple[str, str, int]]:
        """(instance id, status, epoch ms of the commit) of each instance that changed since the last call."""
        while not self._latest:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        changes = [(instance_id, status, at_ms) for instance_id, (status, at_ms) in self._latest.items()]
        self._latest.clear()
        return changes


class Subscriptions:
    """All subscribers of this process. `poll_seconds` is None where this process alone writes.

    Elsewhere another runtime may run an instance. Its notices say so at once; should one get lost, a question for the
    newest events of all instances that are watched, every `poll_seconds`, makes up for it.
    """

    def __init__(self, reads: Reads, poll_seconds: float | None) -> None:
        self.reads = reads
        self._poll_seconds = poll_seconds
        self._polling: asyncio.Task[None] | None = None
        # Readers that have got events and are still to be woken, in order.
        self._fed: deque[Subscription] = deque()
        self._tails: dict[str, dict[Subscription, None]] = {}
        self._watches: dict[str, dict[Watch, None]] = {}

    def open(self, instance: Instance, cursor: int, types: frozenset[str] | None) -> Subscription:
        subscription = Subscription(self, instance, cursor, types)
        self._tails.setdefault(instance.incarnation, {})[subscription] = None
        if self._poll_seconds is not None and self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll(self._poll_seconds))
        return subscription

    def count(self, workflow_uid: str) -> int:
        """Open subscriptions of a workflow."""
        return sum(one.workflow_uid == workflow_uid for tail in self._tails.values() for one in tail)

    def watch(self, workflow_uid: str) -> Watch:
        watch = Watch(self, workflow_uid)
        self._watches.setdefault(workflow_uid, {})[watch] = None
        return watch

    def committed(self, changes: Sequence[Change], now_ms: int) -> None:
        """After each transaction: new events to their tails, status changes to the watches."""
        for change in changes:
            after = change.after
            tail = self._tails.get(after.incarnation) if self._tails else None
            if tail is not None:
                for entry in change.entries:
                    record = self.record(after.instance_id, entry)
                    for subscription in tail:
                        subscription.feed(record)
                if change.entries:
                    self._wake_soon(tail)
            watches = self._watches.get(after.workflow_uid) if self._watches else None
            if watches is not None and (change.before is None or change.before.status != after.status):
                for watch in watches:
                    watch.feed(after.instance_id, after.status, now_ms)

    def _wake_soon(self, tail: Mapping[Subscription, None]) -> None:
        if len(tail) <= FEW:
            for subscription in list(tail):
                subscription.wake()
            return
        was_idle = not self._fed
        for subscription in tail:
            if not subscription.queued:
                subscription.queued = True
                self._fed.append(subscription)
        if was_idle:
            self._wake_some()

    def _wake_some(self) -> None:
        """Sending an event to hundreds of readers takes longer than a step: done at once, it would hold that up."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(min(WAKE_AT_ONCE, len(self._fed))):
            subscription = self._fed.popleft()
            subscription.queued = False
            subscription.wake()
        if self._fed:
            # After those that were just woken have had their turn.
            loop.call_soon(lambda: loop.call_later((loop.time() - began) * REST, self._wake_some))

    def touched(self, incarnations: Iterable[str] | None) -> list[str]:
        """Another runtime changed rows (None: any): their readers go to the table. Returns what watches look at."""
        named = list(self._tails) if incarnations is None else list(incarnations)
        for incarnation in named:
            for subscription in list(self._tails.get(incarnation, ())):
                subscription.wake(reread=True)
        return named if self._watches else []

    def seen(self, instance: Instance, at_ms: int) -> None:
        """A row that another runtime changed, for the watches of its workflow."""
        for watch in self._watches.get(instance.workflow_uid, ()):
            watch.feed(instance.instance_id, instance.status, at_ms)

    def purged(self, workflow_uid: str) -> None:
        """S-13: everything that was open on the workflow ends."""
        for tail in list(self._tails.values()):
            for subscription in list(tail):
                if subscription.workflow_uid == workflow_uid:
                    subscription.close()
        for watch in list(self._watches.get(workflow_uid, ())):
            watch.close()

    def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        for tail in list(self._tails.values()):
            for subscription in list(tail):
                subscription.close()
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.close()

    def remove(self, subscription: Subscription) -> None:
        tail = self._tails.get(subscription.incarnation)
        if tail is not None:
            tail.pop(subscription, None)
            if not tail:
                del self._tails[subscription.incarnation]

    def remove_watch(self, watch: Watch) -> None:
        watches = self._watches.get(watch.workflow_uid)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._watches[watch.workflow_uid]

    async def _poll(self, every_seconds: float) -> None:
        """Ends with the last subscription. While the database is away, each reader is told by its own read (S-13)."""
        while self._tails:
            await asyncio.sleep(every_seconds)
            watched = list(self._tails)
            for first in range(0, len(watched), _HEADS_AT_ONCE):
                part = watched[first : first + _HEADS_AT_ONCE]
                try:
                    newest = await self.reads.newest_events(part)
                except SaiseiError as error:
                    _log.warning("subscriptions cannot be looked after: %s", error)
                    self.touched(None)
                    break
                for incarnation in part:
                    for subscription in list(self._tails.get(incarnation, ())):
                        if incarnation in newest:
                            subscription.expect(newest[incarnation])
                        else:
                            subscription.wake(reread=True)
        self._polling = None

    def record(self, instance_id: str, entry: LogEntry) -> EventRecord:
        body = bytes(entry.body)
        json = log.event_json(instance_id, entry.event_id, entry.at_ms, entry.type, body)
        return EventRecord(entry.event_id, entry.type, entry.at_ms, instance_id, json)
