"""Many subscribers at random moments, and what they see over restarts: no gap and no duplicate (S-02, S-13)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import aclosing
from typing import Any

import grpc
from tests.events.kit import ENDINGS, FACES, Event, Refused, StreamCutError, World, eventually

INSTANCES = 200
LIVE = 100


def _stored(world: World, instance_id: str) -> list[Event]:
    """The log as the runtime's table has it, read by a plain subscription after the end."""
    return list(world.host.client.events(world.uid, instance_id))


async def test_200_subscribers_at_random_moments(world: World, rng: random.Random) -> None:
    """S-02, S-04, S-12, Issue 6: each of 200 subscribers of 200 running instances sees exactly the stored log."""
    moments: list[float] = []
    seen: dict[str, list[Event]] = {}
    faces = [FACES[number % len(FACES)] for number in range(INSTANCES)]
    rng.shuffle(faces)

    async def _subscribe(instance_id: str, face: str, at_event: int, pause: float) -> None:
        """Attaches once the instance has come as far as `at_event`, and a little later still."""
        async with aclosing(world.follow("grpc", instance_id)) as before:  # type: ignore[type-var]
            async for event in before:
                if event["eventId"] >= at_event:
                    break
        await asyncio.sleep(pause)
        events: list[Event] = []
        async for event in world.follow(face, instance_id):
            events.append(event)
        seen[instance_id] = events
        moments.append(at_event / len(events))

    async def _one(face: str) -> None:
        instance_id = await world.scene("seam", {"many": 8, "pause": rng.randint(0, 8)})
        await _subscribe(instance_id, face, rng.randint(1, 34), rng.uniform(0, 0.01))

    async with asyncio.timeout(180):
        await asyncio.gather(*map(_one, faces))
    for instance_id, events in seen.items():
        assert events == _stored(world, instance_id)
        assert [event["eventId"] for event in events] == list(range(1, 3 + 8 * 4 + 2))
    assert len(seen) == INSTANCES
    # The attachments were spread over the lives of the instances.
    assert min(moments) < 0.2 and max(moments) > 0.8


class Follower:
    """A client that keeps its place and comes back after each cut, as the guide tells it to."""

    def __init__(self, world: World, face: str, instance_id: str) -> None:
        self._world = world
        self.face = face
        self.instance_id = instance_id
        self.events: list[Event] = []
        self.cuts = 0

    async def run(self) -> None:
        while not self.events or self.events[-1]["type"] not in ENDINGS:
            cursor = self.events[-1]["eventId"] if self.events else 0
            try:
                async for event in self._world.follow(self.face, self.instance_id, cursor):
                    self.events.append(event)
            except (StreamCutError, Refused):
                self.cuts += 1
                await asyncio.sleep(0.05)


async def test_restarts_under_100_live_subscribers(world: World, rng: random.Random) -> None:
    """S-02, S-04, S-05, S-13, S-14, Issue 6: SIGKILL of the runtime and the gateway; each resumes by its cursor."""
    # Events before, while and after the services are away; the end comes when all has been survived.
    acts = [{"sleep": f"s{number}", "seconds": 1} for number in range(4)]
    wait = {"wait": "w", "type": "go", "seconds": 600}
    ids = [await world.scene("restart", {"many": 3}, *acts, wait, {"many": 6}) for _ in range(25)]
    followers = [Follower(world, FACES[number % 4], ids[number % 25]) for number in range(LIVE)]
    running = [asyncio.create_task(follower.run()) for follower in followers]
    for service in ("gateway", "runtime"):

        async def _all_live() -> bool:
            # Over HTTP, two readers of each instance share its one subscription of the runtime.
            return await _live(world) >= LIVE * 3 // 4 and await world.open_streams() >= LIVE // 2

        await eventually(_all_live)
        await asyncio.sleep(rng.uniform(0, 0.3))
        os.kill(world.host.service_pid(service), signal.SIGKILL)
        killed = [follower.cuts for follower in followers]

        async def _cut(killed: Any = killed) -> bool:
            through = [follower.face != "grpc" or service == "runtime" for follower in followers]  # noqa: B023
            return all(
                not hit or follower.cuts > before
                for hit, follower, before in zip(through, followers, killed, strict=True)
            )

        await eventually(_cut)
    await eventually(_sends_to(world, ids))
    async with asyncio.timeout(180):
        await asyncio.gather(*running)
    for follower in followers:
        assert follower.events == _stored(world, follower.instance_id)
    await world.nothing_open()


def _sends_to(world: World, ids: list[str]) -> Any:
    """A check that sends each id its event, once, and is true when all have got theirs."""
    left = list(ids)

    async def _sent() -> bool:
        try:
            while left:
                await world.send(left[-1])
                left.pop()
        except grpc.aio.AioRpcError:
            return False
        return True

    return _sent


async def _live(world: World) -> int:
    try:
        return await world.open_subscriptions()
    except grpc.aio.AioRpcError:  # the runtime is on its way up again
        return 0
