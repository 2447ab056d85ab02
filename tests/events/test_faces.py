"""Subscriptions through every face: history, live, cursor, filter, end, and what is refused (4.1)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from tests.events.kit import FACES, HTTP_FACES, Refused, StreamCutError, World, eventually, ids_of, new_id, types_of

from saisei_contract.events import EVENT_TYPES

WAITS = {"wait": "w", "type": "go", "seconds": 600}
GUIDE = [
    *("queued", "started", "running", "paused", "waiting_for_pause", "waiting", "completed", "errored", "terminated"),
    *("step_started", "step_completed", "step_errored", "attempt_started", "attempt_completed", "attempt_errored"),
    *("sleep_started", "sleep_completed", "wait_started", "wait_completed", "wait_timed_out"),
    *("started", "step_started", "step_completed", "step_errored"),
    *("attempt_started", "attempt_completed", "attempt_errored", "completed", "errored"),
]
# Written out once more, in the order of the guide's tables.
NAMES = [("workflow_" if at < 9 else "rollback_" if at >= 20 else "") + name for at, name in enumerate(GUIDE)]


async def _parked(world: World) -> str:
    """An instance that waits for `go`: 5 events, then 4 more."""
    instance_id = await world.scene("parked", WAITS)
    await world.until(instance_id, "waiting")
    return instance_id


async def _ended(world: World) -> str:
    """9 events: queued, started, running, step_started, attempt_started, attempt_completed, step_completed, …"""
    instance_id = await world.scene("ended", {"do": "a"}, {"sleep": "s", "seconds": 0})
    await world.until(instance_id, "complete")
    return instance_id


@pytest.mark.parametrize("face", FACES)
async def test_history_then_live(world: World, face: str) -> None:
    """S-01, S-02, S-07: what is recorded comes at once, the rest as it happens, then the end."""
    instance_id = await _parked(world)
    async with aclosing(world.follow(face, instance_id)) as events:  # type: ignore[type-var]
        first = [await asyncio.wait_for(anext(events), 30) for _ in range(5)]
        await world.send(instance_id)
        rest = [event async for event in events]
    assert types_of(first)[-2:] == ["wait_started", "workflow_waiting"]
    assert types_of(rest) == ["workflow_running", "wait_completed", "workflow_completed"]
    assert ids_of(first + rest) == list(range(1, 9))


@pytest.mark.parametrize("face", FACES)
async def test_from_queued_to_long_after_the_end(world: World, face: str) -> None:
    """S-01, S-12: a subscription may begin at any status; two on one instance see the same."""
    instance_id = new_id("any")
    params = {"acts": [{"sleep": "s", "seconds": 0}, WAITS]}
    if face == "worker":
        reading = asyncio.create_task(
            _drain(world.worker_lines("/created", {"id": instance_id, "params": json.dumps(params)}))
        )
    else:
        await world.create(instance_id, params)
        reading = asyncio.create_task(world.read(face, instance_id))
    async with asyncio.timeout(60):
        while True:
            try:
                await world.until(instance_id, "waiting")
                break
            except grpc.aio.AioRpcError:
                continue  # the Worker has not created it yet
    second = asyncio.create_task(world.read(face, instance_id))
    await world.send(instance_id)
    seen = await reading
    assert seen == await second == await world.read(face, instance_id)
    assert types_of(seen)[-1] == "workflow_completed"


async def _drain(events: Any) -> list[Any]:
    return [event async for event in events]


@pytest.mark.parametrize("face", FACES)
async def test_cursor(world: World, face: str) -> None:
    """S-05, S-08: exclusive; 0 is everything; at, past and far beyond the end it is done at once."""
    instance_id = await _ended(world)
    whole = await world.read(face, instance_id, 0)
    assert ids_of(whole) == list(range(1, 11))
    assert whole == await world.read(face, instance_id)
    for cursor in range(1, 10):
        assert await world.read(face, instance_id, cursor) == whole[cursor:]
    for cursor in (10, 11, 9_007_199_254_740_991):
        assert await world.read(face, instance_id, cursor) == []


@pytest.mark.parametrize("face", FACES)
async def test_cursor_beyond_what_is_written(world: World, face: str) -> None:
    """S-05, S-08: later events are waited for; a cursor that the instance never reaches ends with it."""
    instance_id = await _parked(world)
    await world.nothing_open()
    later, never = (asyncio.create_task(world.read(face, instance_id, cursor)) for cursor in (7, 1000))
    await _subscribed(world, face, 2)
    assert not later.done() and not never.done()
    await world.send(instance_id)
    assert types_of(await later) == ["workflow_completed"]
    assert await never == []


async def _subscribed(world: World, face: str, count: int) -> None:
    async def _open() -> bool:
        return await world.readers(face) >= count

    await eventually(_open)


def test_the_names() -> None:
    """S-06: the 29 names of the guide's tables, and no others."""
    assert len(NAMES) == 29
    assert set(NAMES) == EVENT_TYPES


@pytest.mark.parametrize("face", FACES)
async def test_filter(world: World, face: str) -> None:
    """S-06, S-07, S-20: each name is accepted, ids stay as they are, [] matches nothing, the end need not be seen."""
    instance_id = await _ended(world)
    whole = await world.read(face, instance_id)
    for name in NAMES:
        assert await world.read(face, instance_id, None, [name]) == [event for event in whole if event["type"] == name]
    assert await world.read(face, instance_id, None, NAMES) == whole
    assert await world.read(face, instance_id, None, ["step_started", "step_started"]) == [whole[3]]
    assert await world.read(face, instance_id, None, []) == []
    assert await world.read(face, instance_id, 4, ["step_started", "workflow_completed"]) == [whole[-1]]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("types", [[], ["sleep_started"], ["workflow_paused", "rollback_completed"]])
async def test_a_filter_that_hides_the_end(world: World, face: str, types: list[str]) -> None:
    """S-06, S-07: whoever waits for something that never comes is told when the instance ends, and only then."""
    instance_id = await _parked(world)
    await world.nothing_open()
    reading = asyncio.create_task(world.read(face, instance_id, None, types))
    await _subscribed(world, face, 1)
    assert not reading.done()
    await world.terminate(instance_id)
    assert await reading == []


@pytest.mark.parametrize("face", FACES)
async def test_a_terminal_event_that_is_shown(world: World, face: str) -> None:
    """S-07, S-15: it comes with the terminal status, which then stands."""
    instance_id = await _parked(world)
    async with aclosing(world.follow(face, instance_id, None, ["workflow_terminated"])) as events:  # type: ignore[type-var]
        ending = asyncio.create_task(anext(events))
        await world.terminate(instance_id)
        assert (await ending)["type"] == "workflow_terminated"
        assert await world.status(instance_id) == "terminated"
        assert [event async for event in events] == []


async def test_unknown_instance(world: World) -> None:
    """S-13, W-027: through every face an unknown instance is refused by name and gets no stream."""
    for face in HTTP_FACES:
        with pytest.raises(Refused) as refused:
            await world.read(face, "nobody")
        assert (refused.value.status, refused.value.code) == (404, "unknown_instance")
    with pytest.raises(Refused) as refused:
        await world.read("grpc", "nobody")
    assert refused.value.status is grpc.StatusCode.NOT_FOUND
    with pytest.raises(Refused):
        await world.read("worker", "nobody")


@pytest.mark.parametrize(
    "query",
    [
        *({"cursor": cursor} for cursor in ("-1", "1.5", "x", "", "01", "9007199254740992", "1e3", " 1", "null")),
        {"filter": "workflow_finished"},
        {"filter": "workflow_queued,"},
        {"filter": "workflow_queued, workflow_started"},
        {"from": "1"},
    ],
    ids=str,
)
async def test_bad_options_over_http(world: World, query: dict[str, str]) -> None:
    """S-09: refused with 400 before anything is subscribed."""
    instance_id = await _ended(world)
    for face in HTTP_FACES:
        with pytest.raises(Refused) as refused:
            await _drain(world.records(face, instance_id, query, {}))
        assert (refused.value.status, refused.value.code) == (400, "invalid_request")


async def test_bad_options_over_grpc(world: World) -> None:
    """S-09: a negative cursor and an unknown name are INVALID_ARGUMENT."""
    instance_id = await _ended(world)
    for cursor, types in ((-1, None), (0, ["workflow_finished"]), (0, ["workflow_queued", ""])):
        with pytest.raises(Refused) as refused:
            await world.read("grpc", instance_id, cursor, types)
        assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_last_event_id(world: World) -> None:
    """S-05, Design 6: Last-Event-ID means what the cursor means, and wins over that of the first URL."""
    instance_id = await _ended(world)
    whole = await world.read("sse", instance_id)
    for face in HTTP_FACES:
        for query, header, cursor in (({}, "4", 4), ({"cursor": "2"}, "7", 7), ({"cursor": "7"}, "2", 2), ({}, "0", 0)):
            assert await _drain(world.records(face, instance_id, query, {"last-event-id": header})) == whole[cursor:]
        for bad in ("x", "-1", "1.0"):
            with pytest.raises(Refused) as refused:
                await _drain(world.records(face, instance_id, {}, {"last-event-id": bad}))
            assert refused.value.status == 400


@pytest.mark.parametrize("face", HTTP_FACES)
async def test_heartbeats(world: World, face: str) -> None:
    """Design 5, 6: a silent stream beats every SAISEI_HEARTBEAT_SECONDS, before and between its events."""
    instance_id = await _parked(world)
    async with aclosing(world.records(face, instance_id, {"cursor": "5"}, {})) as records:  # type: ignore[type-var]
        for _ in range(2):
            assert (await asyncio.wait_for(anext(records), 30))["type"] == "heartbeat"
        await world.send(instance_id)
        rest = [record["type"] async for record in records]
    assert [name for name in rest if name != "heartbeat"] == [
        "workflow_running",
        "wait_completed",
        "workflow_completed",
    ]


@pytest.mark.parametrize("face", FACES)
async def test_a_client_that_goes_frees_everything(world: World, face: str) -> None:
    """S-11, Issue 6: within one second after a disconnect the runtime holds nothing of it, though no event comes."""
    instance_id = await _parked(world)
    await world.nothing_open()
    readers = [world.follow(face, instance_id) for _ in range(5)]
    for reader in readers:
        await asyncio.wait_for(anext(reader), 30)
    assert await world.readers(face) == 5
    for reader in readers:
        await reader.aclose()  # type: ignore[attr-defined]
    await world.nothing_open(within_seconds=1.0)
    assert await world.status(instance_id) == "waiting"
    await world.terminate(instance_id)


async def test_a_reader_that_stands_still(world: World) -> None:
    """S-12, Design 4: who does not read delays nobody, holds little, and still gets all of it later."""
    acts = [{"do": f"a{number}", "size": 100_000} for number in range(60)]
    instance_id = await world.scene("slow", WAITS, *acts)
    await world.until(instance_id, "waiting")
    slow = [world.follow(face, instance_id) for face in FACES]
    for reader in slow:
        await anext(reader)
    await world.send(instance_id)
    whole = await world.read("grpc", instance_id)
    assert len(whole) == 7 + 60 * 4 + 1
    for reader in slow:
        assert [event async for event in reader] == whole[1:]


async def test_another_space(world: World) -> None:
    """S-13, H-046: a principal of another Space learns nothing, not even whether the instance exists."""
    token = await _token_of(world, "elsewhere:read,write")
    host, instance_id = world.host, await _ended(world)
    stranger = World(host, _Deployed(world))
    stranger.http.headers["authorization"] = f"Bearer {token}"
    stranger.metadata = (("authorization", f"Bearer {token}"),)
    try:
        for known in (instance_id, "nobody"):
            for face in HTTP_FACES:
                with pytest.raises(Refused) as refused:
                    await stranger.read(face, known)
                assert (refused.value.status, refused.value.code) == (404, "not_found")
            with pytest.raises(Refused) as refused:
                await stranger.read("grpc", known)
            assert refused.value.status is grpc.StatusCode.NOT_FOUND
    finally:
        await stranger.close()


async def test_the_right_to_read_is_enough(world: World) -> None:
    """S-01, H-047: a subscription needs `read` in the Space and nothing more."""
    token = await _token_of(world, "events:read")
    instance_id = await _ended(world)
    reader = World(world.host, _Deployed(world))
    reader.http.headers["authorization"] = f"Bearer {token}"
    reader.metadata = (("authorization", f"Bearer {token}"),)
    try:
        whole = await world.read("grpc", instance_id)
        assert all([await reader.read(face, instance_id) == whole for face in ("grpc", *HTTP_FACES)])
    finally:
        await reader.close()


class _Deployed:
    """What a World needs to know of the deployment of another one."""

    def __init__(self, world: World) -> None:
        self.hostname = world.hostname
        self.workflows = {"scenes": world.uid}


async def _token_of(world: World, grant: str) -> str:
    return (await _command(world, "token", "create", "--principal", new_id("p"), "--space", grant))[-1]


async def _command(world: World, *arguments: str) -> list[str]:
    """Lines of stdout of a `saisei` command."""
    process = await _start(world, *arguments)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def _start(world: World, *arguments: str) -> asyncio.subprocess.Process:
    command = ("-m", "saisei_cli", *arguments, "--data-dir", str(world.host.data_dir))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)


async def test_tail(world: World) -> None:
    """S-02, S-05 … S-07, Design 6: `saisei workflows tail` prints history, then live, and ends with the instance."""
    instance_id = await _parked(world)
    tail = await _start(world, "workflows", "tail", "scenes", instance_id, "--space", "events", "--json")
    assert tail.stdout is not None
    lines = [await asyncio.wait_for(tail.stdout.readline(), 60) for _ in range(5)]
    await world.send(instance_id)
    rest, err = await asyncio.wait_for(tail.communicate(), 60)
    assert tail.returncode == 0, err.decode()
    whole = await world.read("grpc", instance_id)
    assert [json.loads(line) for line in [*lines, *rest.splitlines()]] == whole
    some = await _command(
        world,
        *("workflows", "tail", "scenes", instance_id, "--space", "events", "--json"),
        *("--cursor", "2", "--filter", "workflow_started,workflow_running"),
    )
    assert [json.loads(line)["eventId"] for line in some] == [3, 6]


async def test_a_stop_of_the_gateway_is_a_cut(world: World) -> None:
    """S-13, Design 5: SIGTERM ends streams without an end record; the cursor goes on where it was."""
    instance_id = await _parked(world)
    readers = [world.follow(face, instance_id) for face in HTTP_FACES]
    for reader in readers:
        for _ in range(5):
            await anext(reader)
    os.kill(world.host.service_pid("gateway"), signal.SIGTERM)
    for reader in readers:
        with pytest.raises(StreamCutError):
            await anext(reader)
    await world.send(instance_id)
    for face in HTTP_FACES:

        async def _resumed(face: str = face) -> bool:
            try:
                return ids_of(await world.read(face, instance_id, 5)) == [6, 7, 8]
            except (StreamCutError, Refused):
                return False

        await eventually(_resumed)
