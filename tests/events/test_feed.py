"""Many readers in one call (EventFeedService), several events in one message, and one question for one token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from tests.events.kit import World, eventually, types_of

from saisei.common.v1.common_pb2 import Principal
from saisei.control.v1 import access_pb2
from saisei.runtime.v1 import feed_pb2 as pb
from saisei.runtime.v1 import workflows_pb2
from saisei.runtime.v1.feed_pb2_grpc import EventFeedServiceStub
from saisei_contract.errors import SaiseiError
from saisei_runtime.access import Authenticator
from saisei_service.credentials import service_metadata, user_metadata
from saisei_service.rpc import open_channel
from saisei_service.rpc_errors import from_rpc_error

WAITS = {"wait": "w", "type": "go", "seconds": 600}


class FeedClient:
    """One call. `next(key)` is the next record of a reader; others are kept for who asks for them."""

    def __init__(self, world: World, metadata: Any) -> None:
        self._uid = world.uid
        self._channel = open_channel(world.host.grpc_runtime)
        self.call = EventFeedServiceStub(self._channel).Feed(metadata=metadata)
        self._kept: dict[int, list[pb.FeedRecord]] = {}

    async def open(self, key: int, instance_id: str, **options: Any) -> None:
        wanted = pb.FeedOpen(workflow_uid=self._uid, id=instance_id, **options)
        await self.say(pb.FeedCommand(key=key, open=wanted))

    async def pull(self, key: int, *, everything: bool = False) -> None:
        await self.say(pb.FeedCommand(key=key, pull=pb.FeedPull(everything=everything)))

    async def say(self, *commands: pb.FeedCommand) -> None:
        await self.call.write(pb.FeedRequest(commands=commands))

    async def next(self, key: int) -> pb.FeedRecord:
        async with asyncio.timeout(30):
            while not self._kept.get(key):
                response = await self.call.read()
                assert response is not grpc.aio.EOF, "the feed ended"
                for record in response.records:
                    self._kept.setdefault(record.key, []).append(record)
        return self._kept[key].pop(0)

    async def rest(self, key: int) -> list[int]:
        """Event ids until the end, as they are pulled."""
        found = []
        while True:
            batch = (await self.next(key)).batch
            found += [event.event_id for event in batch.events]
            if batch.ended:
                return found
            await self.pull(key)

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


async def _parked(world: World, *acts: Any) -> str:
    instance_id = await world.scene("fed", WAITS, *acts)
    await world.until(instance_id, "waiting")
    return instance_id


async def test_readers_of_one_call(world: World) -> None:
    """S-02, S-05, S-06, S-07, S-12: each reader has its own instance, cursor and filter, and its own end."""
    await world.nothing_open()
    first, second = await _parked(world, {"many": 2}), await _parked(world)
    feed = FeedClient(world, world.metadata)
    hides = workflows_pb2.EventFilter(types=["rollback_started"])
    await feed.open(1, first)
    await feed.open(2, second, cursor=3)
    await feed.open(3, second, filter=hides)
    await feed.open(4, "nobody")
    batch = (await feed.next(1)).batch
    assert [event.event_id for event in batch.events] == [1, 2, 3, 4, 5]
    assert (batch.position, batch.live, batch.ended) == (5, True, False)
    assert json.loads(batch.events[0].event_json)["instanceId"] == first
    assert [event.event_id for event in (await feed.next(2)).batch.events] == [4, 5]
    assert (await feed.next(3)).batch == pb.FeedBatch(position=5, live=True)
    assert (await feed.next(4)).failure.reason == "unknown_instance"
    for key in (1, 2, 3):
        await feed.pull(key)
    await world.send(second)
    assert await feed.rest(2) == [6, 7, 8]
    assert await feed.rest(3) == []
    await world.send(first)
    assert await feed.rest(1) == list(range(6, 17))
    await world.nothing_open()
    await feed.call.done_writing()
    assert await feed.call.read() is grpc.aio.EOF
    assert await feed.call.code() is grpc.StatusCode.OK
    await feed.close()


async def test_nothing_comes_unasked(world: World) -> None:
    """S-12, Design 4: a reader that does not pull gets no more; when it does, all of it, also what its filter hid."""
    instance_id = await _parked(world, {"many": 3})
    feed = FeedClient(world, world.metadata)
    only = workflows_pb2.EventFilter(types=["workflow_queued"])
    await feed.open(7, instance_id, cursor=900, filter=only)
    await feed.open(8, instance_id)
    for key in (7, 8):
        assert (await feed.next(key)).batch.position == 5
    await world.send(instance_id)
    await world.until(instance_id, "complete")
    await feed.pull(8)
    await feed.rest(8)
    assert 7 not in feed._kept or feed._kept[7] == []
    # From the position that it was told on, everything.
    await feed.pull(7, everything=True)
    assert await feed.rest(7) == list(range(6, 21))
    await feed.close()


async def test_whose_token(world: World) -> None:
    """H-044, H-046, S-01: the call's own token counts, or under the service credential that of each reader."""
    instance_id = await _parked(world)
    credential = (world.host.data_dir / "service.key").read_text().strip()
    trusted = FeedClient(world, service_metadata(credential))
    await trusted.open(1, instance_id, token=world.token)
    await trusted.open(2, instance_id, token="not-a-token")
    await trusted.open(3, instance_id)
    assert len((await trusted.next(1)).batch.events) == 5
    for key in (2, 3):
        assert (await trusted.next(key)).failure.reason == "unauthenticated"
    await trusted.close()
    for metadata in (user_metadata("not-a-token"), service_metadata("wrong"), ()):
        stranger = FeedClient(world, metadata)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stranger.call.read()
        assert from_rpc_error(refused.value).reason == "unauthenticated"
        await stranger.close()


async def test_a_key_is_used_once(world: World) -> None:
    """Design 1: a second reader under the key of one that is open ends the call by name; nothing stays open."""
    instance_id = await _parked(world)
    feed = FeedClient(world, world.metadata)
    await feed.open(1, instance_id)
    await feed.next(1)
    await feed.open(1, instance_id)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        while await feed.call.read() is not grpc.aio.EOF:
            pass
    assert from_rpc_error(refused.value).reason == "invalid_request"
    await feed.close()
    await world.nothing_open()


async def test_closing_readers_and_the_call(world: World) -> None:
    """S-11: a reader that is closed, also before it is open, and all readers of a call that breaks off, are freed."""
    await world.nothing_open()
    instance_id = await _parked(world)
    feed = FeedClient(world, world.metadata)
    for key in range(1, 6):
        await feed.open(key, instance_id)
    close = pb.FeedClose()
    # The sixth has had no time to open.
    wanted = pb.FeedOpen(workflow_uid=world.uid, id=instance_id)
    await feed.say(pb.FeedCommand(key=6, open=wanted), pb.FeedCommand(key=6, close=close))
    for key in range(1, 6):
        await feed.next(key)

    async def _five() -> bool:
        return await world.open_subscriptions() == 5

    await eventually(_five)
    await feed.say(*(pb.FeedCommand(key=key, close=close) for key in (1, 2, 99)))

    async def _three() -> bool:
        return await world.open_subscriptions() == 3

    await eventually(_three)
    await feed.close()
    await world.nothing_open()


async def test_several_events_in_a_message(world: World) -> None:
    """S-02, S-06, S-12: with `max_batch`, what is there at the same time comes together, the same and in order."""
    instance_id = await world.scene("batched", {"many": 30})
    whole = await world.read("grpc", instance_id)
    for most, messages in ((256, 1), (50, 3), (1, len(whole)), (0, len(whole))):
        request = workflows_pb2.SubscribeEventsRequest(workflow_uid=world.uid, id=instance_id, max_batch=most)
        got = [message async for message in world.stub.SubscribeEvents(request, metadata=world.metadata)]
        events = [json.loads(event.event_json) for message in got for event in (message, *message.following)]
        assert events == whole
        assert len(got) == messages
        assert all(not event.following for message in got for event in message.following)
    assert types_of(whole)[-1] == "workflow_completed"
    wrong = workflows_pb2.SubscribeEventsRequest(workflow_uid=world.uid, id=instance_id, max_batch=-1)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.stub.SubscribeEvents(wrong, metadata=world.metadata).read()
    assert from_rpc_error(refused.value).reason == "invalid_request"


class _Control:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = asyncio.Event()

    async def Authenticate(self, request: Any, **_: Any) -> Any:  # noqa: N802
        self.asked.append(request.token)
        await self.answer.wait()
        return access_pb2.AuthenticateResponse(principal=Principal(name=request.token))


async def test_one_question_for_one_token() -> None:
    """H-044, Issue 6: thousands that come back with a token are one question to the control service."""
    control = _Control()
    access = Authenticator(control, "credential")  # type: ignore[arg-type]
    asking = [asyncio.create_task(access.holder(f"t{number % 2}")) for number in range(2000)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    control.answer.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [one.name for one in found[1:]] == [f"t{number % 2}" for number in range(1, 2000)]  # type: ignore[union-attr]
    assert control.asked == ["t0", "t1"]
    assert (await access.holder("t1")).name == "t1"
    assert control.asked == ["t0", "t1"]


async def test_a_failed_question_is_asked_again() -> None:
    """H-044: a control service that was away is asked anew; nobody is refused for what happened to another."""

    class Away(_Control):
        async def Authenticate(self, request: Any, **_: Any) -> Any:  # noqa: N802
            self.asked.append(request.token)
            if len(self.asked) == 1:
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
            return access_pb2.AuthenticateResponse(principal=Principal(name="known"))

    control = Away()
    access = Authenticator(control, "credential")  # type: ignore[arg-type]
    for failed in await asyncio.gather(access.holder("t"), access.holder("t"), return_exceptions=True):
        assert isinstance(failed, SaiseiError) and failed.reason == "backend_unavailable"
    assert (await access.holder("t")).name == "known"
