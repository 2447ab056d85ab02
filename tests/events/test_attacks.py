"""Clients that never read, leave in the middle, all come back at once, or ask for nonsense."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from tests.bench.measure import usage
from tests.events.kit import FACES, HTTP_FACES, Event, Refused, World, eventually, ids_of, types_of

WAITS = {"wait": "w", "type": "go", "seconds": 600}


@asynccontextmanager
async def _raw(world: World, instance_id: str, cursor: int = 0) -> Any:
    """A connection that has asked for the JSON lines of an instance and has not read a byte of the answer."""
    url = urlsplit(world.events_url(instance_id))
    context = ssl.create_default_context(cafile=str(world.host.ready["caFile"]))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", url.port, ssl=context, server_hostname=url.hostname, limit=1024
    )
    writer.write(
        f"GET {url.path}?cursor={cursor} HTTP/1.1\r\nhost: {url.netloc}\r\naccept: application/x-ndjson\r\n"
        f"authorization: Bearer {world.token}\r\n\r\n".encode()
    )
    try:
        yield reader
    finally:
        writer.transport.abort()


async def _parked(world: World, *acts: Event) -> str:
    instance_id = await world.scene("attacked", WAITS, *acts)
    await world.until(instance_id, "waiting")
    return instance_id


async def test_clients_that_never_read(world: World) -> None:
    """S-12, Issue 6: twenty clients that read nothing hold up nobody, and cost the gateway what it buffers for each."""
    await world.nothing_open()
    instance_id = await _parked(world, *({"do": f"a{number}", "size": 100_000} for number in range(60)))
    gateway = world.host.service_pid("gateway")
    idle = [_raw(world, instance_id) for _ in range(20)]
    for one in idle:
        await one.__aenter__()

    async def _open() -> bool:
        return await world.open_streams() == len(idle)

    await eventually(_open)
    before = usage([gateway]).rss_bytes
    await world.send(instance_id)
    assert len(await world.read("sse", instance_id)) == 8 + 60 * 4
    # All of it for each of them would be 120 MB.
    assert usage([gateway]).rss_bytes - before < 40_000_000
    for one in idle:
        await one.__aexit__(None, None, None)
    await world.nothing_open()


async def test_clients_that_leave_in_the_middle(world: World, rng: random.Random) -> None:
    """S-02, S-11, S-12: who leaves anywhere between request and end leaves nothing behind, and no gap for who stays."""
    await world.nothing_open()
    errors = _errors(world)
    instance_id = await world.scene("left", {"many": 40, "pause": 4})
    staying = [asyncio.create_task(world.read(face, instance_id)) for face in HTTP_FACES for _ in range(3)]

    async def _leaves() -> None:
        async with _raw(world, instance_id) as reader:
            await asyncio.sleep(rng.uniform(0, 0.05))
            if rng.random() < 0.7:
                await reader.read(rng.randint(1, 900))
            await asyncio.sleep(rng.uniform(0, 0.02))

    leaving = [asyncio.create_task(_leaves()) for _ in range(60)]
    whole = await world.read("grpc", instance_id)
    await asyncio.gather(*leaving)
    for stayed in staying:
        assert await stayed == whole
    assert ids_of(whole) == list(range(1, 3 + 40 * 4 + 2))
    await world.nothing_open()
    assert _errors(world) == errors


def _errors(world: World) -> list[Any]:
    """What gateway and runtime have logged as their own faults."""
    return [line for name in ("gateway", "runtime") for line in world.host.log_lines(name) if line["level"] == "error"]


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.long)])
async def test_all_come_back_at_once(world: World, count: int) -> None:
    """S-01, S-02, S-12, Issue 6: who reconnects together shares one subscription, and each sees the exact rest."""
    await world.nothing_open()
    instance_id = await _parked(world, {"many": 5})
    # As many as a client's loop can shake hands with before the gateway gives up waiting for their requests.
    gate = asyncio.Semaphore(200)

    async def _comes(cursor: int) -> list[Event]:
        async with AsyncExitStack() as stack:
            async with gate:
                reader = await stack.enter_async_context(_raw(world, instance_id, cursor))
                assert b" 200 " in await reader.readline()
            events: list[Event] = []
            while not (line := await reader.readline()).startswith(b'{"type":"end"}'):
                assert line, "a stream was cut"
                if line.startswith(b"{"):
                    events.append(json.loads(line))
            return events

    coming = [asyncio.create_task(_comes(number % 6)) for number in range(count)]

    async def _settled() -> bool:
        return await world.open_streams() == count and await world.open_subscriptions() == 1

    await eventually(_settled, 20 + count / 10)
    await world.send(instance_id)
    whole = await world.read("grpc", instance_id)
    for number, one in enumerate(coming):
        assert await one == whole[number % 6 :]


async def test_readers_of_a_busy_instance_come_together(world: World, rng: random.Random) -> None:
    """S-02, S-12, Issue 6: who attaches to a busy instance shares its tail soon, and misses nothing."""
    await world.nothing_open()
    instance_id = await world.scene("busy", {"many": 1000, "pause": 5})
    readers = []
    for number in range(24):
        readers.append(asyncio.create_task(world.read(HTTP_FACES[number % 2], instance_id, number % 3)))
        await asyncio.sleep(rng.uniform(0, 0.02))

    async def _together() -> bool:
        return await world.open_streams() == len(readers) and await world.open_subscriptions() == 1

    await eventually(_together)
    await world.terminate(instance_id)
    whole = await world.read("grpc", instance_id)
    for number, one in enumerate(readers):
        assert await one == whole[number % 3 :]


async def test_a_late_reader_of_a_shared_tail(world: World) -> None:
    """S-02, S-05, S-06, S-12: readers of one tail have cursors and filters of their own, also one beyond the end."""
    instance_id = await _parked(world, {"many": 2})
    wanted: list[tuple[int, list[str] | None]] = [
        (1000, None),
        (0, None),
        (3, ["step_completed"]),
        (0, []),
        (6, None),
        (7, ["workflow_completed"]),
        (2, ["rollback_started", "workflow_running"]),
    ]
    reading = []
    for cursor, types in wanted:
        for face in HTTP_FACES:
            reading.append(asyncio.create_task(world.read(face, instance_id, cursor, types)))
            before = len(reading)

            async def _there(count: int = before) -> bool:
                return await world.open_streams() >= count

            await eventually(_there)
    await world.send(instance_id)
    whole = await world.read("grpc", instance_id)
    expected = [
        [event for event in whole if event["eventId"] > cursor and (types is None or event["type"] in types)]
        for cursor, types in wanted
        for _ in HTTP_FACES
    ]
    assert await asyncio.gather(*reading) == expected


@pytest.mark.parametrize("face", FACES)
async def test_terminate_under_readers(world: World, face: str) -> None:
    """S-07, S-15, S-26: every reader sees the end of a terminated instance, once, and then its stream is done."""
    instance_id = await _parked(world)
    async with aclosing(world.follow(face, instance_id)) as first:  # type: ignore[type-var]
        seen = [await asyncio.wait_for(anext(first), 30) for _ in range(5)]
        others = [asyncio.create_task(world.read(face, instance_id, cursor)) for cursor in (0, 4, 5)]
        await world.terminate(instance_id)
        seen += [event async for event in first]
    assert types_of(seen)[4:] == ["workflow_waiting", "workflow_terminated"]
    assert await asyncio.gather(*others) == [seen, seen[4:], seen[5:]]


ODD_NAMES = [
    "workflow_completed\u202e",
    "ｗorkflow_completed",
    "work\u200bflow_completed",
    "workflow_completed\u0000",
    "Workflow_Completed",
    " workflow_completed",
    "workflow_comple\u0301ted",
    "\U0001f600",
    "x" * 3000,
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_in_a_filter(world: World, name: str) -> None:
    """S-06, S-09: a name that only looks like one of the 29 is refused through each face, and nothing is subscribed."""
    instance_id = await _parked(world)
    for face in HTTP_FACES:
        with pytest.raises(Refused) as refused:
            await world.read(face, instance_id, types=["step_started", name])
        assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    with pytest.raises(Refused) as refused:
        await world.read("grpc", instance_id, types=["step_started", name])
    assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
    await world.terminate(instance_id)
    await world.nothing_open()


@pytest.mark.parametrize(
    "query",
    [
        *("cursor=%EF%BC%91", "cursor=%D9%A3", "cursor=%2B1", "cursor=1%20", "cursor=1e3", "cursor=0x1", "cursor=01"),
        *("filter=%ED%A0%80", "filter=%FF", "filter=step_started%00", "filter=step_started%2C%2C", "filter=%"),
        "cursor=%zz",
    ],
)
async def test_odd_queries(world: World, query: str) -> None:
    """S-05, S-09: digits of other scripts, signs, spaces and bytes that are no UTF-8 are refused as what they are."""
    response = await world.http.get(f"{world.events_url('nobody')}?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
