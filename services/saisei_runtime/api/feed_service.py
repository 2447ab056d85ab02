"""`saisei.runtime.v1.EventFeedService`: all readers of one gateway, or of one program, in one call.

A reader that waits costs its subscription and an entry in two tables: no task, no call. Each gets a batch when it has
asked for one and there is something to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from saisei.runtime.v1 import feed_pb2 as pb
from saisei.runtime.v1 import feed_pb2_grpc as rpc
from saisei_contract import grammar
from saisei_contract.errors import SaiseiError
from saisei_runtime.access import Authenticator, admit
from saisei_runtime.hosting.state import HostedState
from saisei_runtime.workflow.engine import WorkflowEngine
from saisei_runtime.workflow.subscriptions import BATCH_BYTES, BATCH_EVENTS, Subscription
from saisei_service.credentials import bearer_token, is_service

Context = grpc.aio.ServicerContext[Any, Any]

# A message is closed with the record that goes beyond: together below the limit of a message.
MESSAGE_BYTES = 1024 * 1024


class FeedServicer(rpc.EventFeedServiceServicer):
    def __init__(self, engine: WorkflowEngine, state: HostedState, access: Authenticator, credential: str) -> None:
        self._engine = engine
        self._state = state
        self._access = access
        self._credential = credential

    async def Feed(self, requests: AsyncIterator[pb.FeedRequest], context: Context) -> AsyncIterator[pb.FeedResponse]:
        token = None if is_service(context, self._credential) else bearer_token(context)
        if token is not None:
            await self._access.holder(token)
        feed = Feed(self, token)
        obeying = asyncio.create_task(feed.obey(requests))
        try:
            # Headers at once: a caller without readers knows that the call stands.
            await context.send_initial_metadata(())
            while (records := await feed.records()) is not None:
                yield pb.FeedResponse(records=records)
        finally:
            obeying.cancel()
            feed.close()

    async def subscribe(self, wanted: pb.FeedOpen, token: str) -> Subscription:
        """As SubscribeEvents judges it."""
        admit(self._state, await self._access.holder(token), wanted.workflow_uid)
        if not grammar.is_instance_id(wanted.id):
            raise SaiseiError("invalid_request", "id: a string of 1 to 256 Unicode scalars")
        types = frozenset(wanted.filter.types) if wanted.HasField("filter") else None
        return await self._engine.subscribe(wanted.workflow_uid, wanted.id, wanted.cursor, types)


class Feed:
    """The readers of one call, and the records that go out next. `token` is the caller's, if it is a user."""

    def __init__(self, servicer: FeedServicer, token: str | None) -> None:
        self._servicer = servicer
        self._token = token
        self._readers: dict[int, _Reader] = {}
        # The loop keeps tasks weakly only.
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: list[tuple[int, pb.FeedRecord]] = []
        self._ready = asyncio.Event()
        self._finished = False
        self._fault: SaiseiError | None = None

    async def obey(self, requests: AsyncIterator[pb.FeedRequest]) -> None:
        try:
            async for request in requests:
                for command in request.commands:
                    self._obey(command)
        except SaiseiError as error:
            self._fault = error
        finally:
            self._finished = True
            self._ready.set()

    async def records(self) -> list[pb.FeedRecord] | None:
        """What goes into the next message; None once the caller has said that it is done, or its fault is raised."""
        while not self._out:
            if self._fault is not None:
                raise self._fault
            if self._finished:
                return None
            self._ready.clear()
            await self._ready.wait()
        size = count = 0
        while count < len(self._out) and size <= MESSAGE_BYTES:
            size += self._out[count][0]
            count += 1
        records = [record for _, record in self._out[:count]]
        del self._out[:count]
        return records

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for reader in list(self._readers.values()):
            reader.close()
        self._readers.clear()

    def say(self, record: pb.FeedRecord, size: int, *, last: bool) -> None:
        if last and (reader := self._readers.pop(record.key, None)) is not None:
            reader.close()
        self._out.append((size, record))
        self._ready.set()

    def run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _obey(self, command: pb.FeedCommand) -> None:
        match command.WhichOneof("command"):
            case "open":
                if command.key in self._readers:
                    raise SaiseiError("invalid_request", f"key {command.key}: there is a reader of this key already")
                reader = self._readers[command.key] = _Reader(self, command.key)
                token = command.open.token if self._token is None else self._token
                self.run(reader.open(self._servicer, command.open, token))
            case "pull":
                # A reader that has ended meanwhile has said so.
                if (known := self._readers.get(command.key)) is not None:
                    known.pull(everything=command.pull.everything)
            case "close":
                if (known := self._readers.pop(command.key, None)) is not None:
                    known.close()


class _Reader:
    __slots__ = ("_closed", "_feed", "_key", "_position", "_reading", "_told", "_wanted", "subscription")

    def __init__(self, feed: Feed, key: int) -> None:
        self.subscription: Subscription | None = None
        self._feed = feed
        self._key = key
        self._wanted = True
        # Whether it was said that history has been read, and up to where the last batch went.
        self._told = False
        self._position = 0
        self._reading = False
        self._closed = False

    async def open(self, servicer: FeedServicer, wanted: pb.FeedOpen, token: str) -> None:
        try:
            subscription = await servicer.subscribe(wanted, token)
        except SaiseiError as error:
            self._fail(error)
            return
        if self._closed:
            subscription.close()
            return
        self.subscription = subscription
        subscription.listen(self._serve)
        self._serve()

    def pull(self, *, everything: bool) -> None:
        self._wanted = True
        if everything and self._told and self.subscription is not None:
            self.subscription.widen(self._position)
        self._serve()

    def close(self) -> None:
        self._closed = True
        if self.subscription is not None:
            self.subscription.close()

    def _serve(self) -> None:
        """Answers what was asked for, if there is an answer yet."""
        subscription = self.subscription
        if not self._wanted or self._reading or self._closed or subscription is None:
            return
        self._wanted = False
        events = subscription.drain(BATCH_EVENTS, BATCH_BYTES)
        live = subscription.live
        if events or subscription.done or (live and not self._told):
            self._told = self._told or live
            self._position = subscription.position
            batch = pb.FeedBatch(
                events=[pb.FeedEvent(event_id=one.event_id, type=one.type, event_json=one.json) for one in events],
                position=self._position,
                live=live,
                ended=subscription.done,
            )
            size = sum(len(one.json) for one in events)
            self._feed.say(pb.FeedRecord(key=self._key, batch=batch), size, last=batch.ended)
            return
        self._wanted = True
        if not live:
            self._reading = True
            self._feed.run(self._read(subscription))

    async def _read(self, subscription: Subscription) -> None:
        try:
            await subscription.read_on()
        except SaiseiError as error:
            self._fail(error)
            return
        finally:
            self._reading = False
        self._serve()

    def _fail(self, error: SaiseiError) -> None:
        if not self._closed:
            failure = pb.FeedFailure(reason=error.reason, message=error.detail or error.kind.title)
            self._feed.say(pb.FeedRecord(key=self._key, failure=failure), 0, last=True)
