"""The runtime's EventFeedService as the gateway sees it, over the instances of a FakeRuntime."""

# ruff: noqa: N802 - the names of gRPC methods
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from saisei.runtime.v1 import feed_pb2, feed_pb2_grpc
from saisei_contract.errors import SaiseiError
from saisei_service.credentials import require_service


class FakeFeed(feed_pb2_grpc.EventFeedServiceServicer):
    """`FeedOpen` is what `calls` names each reader; `open_streams` counts them."""

    def __init__(self, fake: Any, credential: str) -> None:
        self._fake = fake
        self._credential = credential

    async def Feed(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        require_service(context, self._credential)
        records: asyncio.Queue[Any] = asyncio.Queue()
        readers: dict[int, tuple[asyncio.Event, dict[str, bool], asyncio.Task[None]]] = {}

        async def obey() -> None:
            async for request in request_iterator:
                for command in request.commands:
                    match command.WhichOneof("command"):
                        case "open":
                            wanted, wide = asyncio.Event(), {"everything": False}
                            wanted.set()
                            reading = self._read(command.key, command.open, wanted, wide, records, context)
                            readers[command.key] = (wanted, wide, asyncio.create_task(reading))
                        case "pull":
                            readers[command.key][1]["everything"] |= command.pull.everything
                            readers[command.key][0].set()
                        case "close":
                            readers[command.key][2].cancel()

        obeying = asyncio.create_task(obey())
        try:
            while True:
                yield feed_pb2.FeedResponse(records=[await records.get()])
        finally:
            for task in (obeying, *(reader[2] for reader in readers.values())):
                task.cancel()

    async def _read(
        self, key: int, request: Any, wanted: asyncio.Event, wide: dict[str, bool], records: Any, context: Any
    ) -> None:
        at, told = request.cursor, False
        self._fake.open_streams += 1
        try:
            self._fake.seen("FeedOpen", request, context)
            if request.id not in self._fake.instances:
                raise SaiseiError("unknown_instance", "there is no such instance")
            instance = self._fake.instances[request.id]
            while True:
                await wanted.wait()
                async with self._fake.changed:
                    while told and at >= len(instance.events) and not instance.closed and not instance.broken:
                        await self._fake.changed.wait()
                if instance.broken:
                    raise SaiseiError("backend_unavailable", "the journal is away")
                fresh = instance.events[at : at + 256]
                if wide["everything"] or not request.HasField("filter"):
                    shown = fresh
                else:
                    shown = [event for event in fresh if event.type in request.filter.types]
                at = min(max(at, request.cursor) + len(fresh), len(instance.events))
                told = told or at == len(instance.events)
                events = [
                    feed_pb2.FeedEvent(event_id=one.event_id, type=one.type, event_json=one.event_json) for one in shown
                ]
                batch = feed_pb2.FeedBatch(events=events, position=at, live=at == len(instance.events))
                batch.ended = instance.closed and batch.live
                wanted.clear()
                records.put_nowait(feed_pb2.FeedRecord(key=key, batch=batch))
                if batch.ended:
                    return
        except SaiseiError as error:
            failure = feed_pb2.FeedFailure(reason=error.reason, message=error.detail)
            records.put_nowait(feed_pb2.FeedRecord(key=key, failure=failure))
        finally:
            self._fake.open_streams -= 1
