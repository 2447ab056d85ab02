"""What each kind of instance says of itself, event by event and member by member, through every face (4.2, 4.3)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from tests.events.conftest import CONTEXTS
from tests.events.kit import ENDINGS, FACES, Event, World, ids_of, types_of

YEAR = 31_536_000
RETRIES = {"maxAttempts": 3, "initialDelaySeconds": 0}
ROCKET = "lancé 🚀 \n\u0000"


def _config(limit: int = 0, delay: int = 0, backoff: str = "constant") -> Event:
    return {"retries": {"limit": limit, "delay": delay, "backoff": backoff}, "timeout": YEAR * 1000}


def _event(kind: str, **members: Any) -> Event:
    return {"type": kind, **members}


def _named(kind: str, name: str, **members: Any) -> Event:
    return {"type": kind, "stepName": name, **members}


RUNNING, WAITING = _event("workflow_running"), _event("workflow_waiting")
PARKED = [WAITING, RUNNING]


def _begun(name: str, **config: Any) -> list[Event]:
    return [_named("step_started", name, config=_config(**config)), _named("attempt_started", name, attempt=1)]


def _failed(name: str, attempt: int, error: str, message: Any, **delay: int) -> Event:
    return _named("attempt_errored", name, attempt=attempt, error={"name": error, "message": message}, **delay)


def _succeeded(name: str, attempt: int, **output: Any) -> list[Event]:
    return [_named("attempt_completed", name, attempt=attempt), _named("step_completed", name, **output)]


def _errored(reason: str) -> Event:
    return _event("workflow_errored", error={"name": reason, "message": ANY})


DONE = _event("workflow_completed", output={})
TERMINATED = _event("workflow_terminated")

# Params, and what follows queued, started and running.
SCENES: dict[str, tuple[Event, list[Event]]] = {
    "do": ({"acts": [{"do": "a", "output": {"n": 1}}]}, [*_begun("a"), *_succeeded("a", 1, output={"n": 1}), DONE]),
    "do without results": (
        {"acts": [{"do": ROCKET}], "silent": True},
        [*_begun(ROCKET), *_succeeded(ROCKET, 1), _event("workflow_completed")],
    ),
    "retry at once": (
        {"acts": [{"do": "a", "fails": 1, "message": "no", "policy": RETRIES}]},
        [
            *_begun("a", limit=2),
            _failed("a", 1, "RangeError", "no", retryDelayMs=0),
            *PARKED,
            _named("attempt_started", "a", attempt=2),
            *_succeeded("a", 2),
            DONE,
        ],
    ),
    "retry later": (
        {
            "acts": [
                {
                    "do": "a",
                    "fails": 1,
                    "policy": {"maxAttempts": 2, "initialDelaySeconds": 1, "backoff": "exponential"},
                }
            ]
        },
        [
            *_begun("a", limit=1, delay=1000, backoff="exponential"),
            _failed("a", 1, "RangeError", "", retryDelayMs=1000),
            *PARKED,
            _named("attempt_started", "a", attempt=2),
            *_succeeded("a", 2),
            DONE,
        ],
    ),
    "exhausted": (
        {"acts": [{"do": "a", "fails": 9, "message": "no", "policy": {"maxAttempts": 2}}]},
        [
            *_begun("a", limit=1),
            _failed("a", 1, "RangeError", "no", retryDelayMs=0),
            *PARKED,
            _named("attempt_started", "a", attempt=2),
            _failed("a", 2, "RangeError", "no"),
            _named("step_errored", "a"),
            _errored("step_failed"),
        ],
    ),
    "exhausted but handled": (
        {"acts": [{"do": "a", "fails": 9, "message": "no", "caught": True}]},
        [*_begun("a"), _failed("a", 1, "RangeError", "no"), _named("step_errored", "a"), DONE],
    ),
    "no document": (
        {"acts": [{"do": "a", "result": "invalid", "caught": True}]},
        [*_begun("a"), _failed("a", 1, "TypeError", ANY), _named("step_errored", "a"), DONE],
    ),
    "too large": (
        {"acts": [{"do": "a", "result": "large", "caught": True}]},
        [*_begun("a"), _failed("a", 1, "document_too_large", ANY), _named("step_errored", "a"), DONE],
    ),
    "sleep": (
        {"acts": [{"sleep": "s", "seconds": 1}]},
        [_named("sleep_started", "s", durationMs=1000), *PARKED, _named("sleep_completed", "s"), DONE],
    ),
    "no sleep": (
        {"acts": [{"sleep": "s", "seconds": 0}]},
        [_named("sleep_started", "s", durationMs=0), _named("sleep_completed", "s"), DONE],
    ),
    "waits": (
        {
            "acts": [
                {"wait": "parked", "type": "second", "seconds": 600},
                {"wait": "queued", "type": "first", "seconds": 600},
            ]
        },
        [
            _named("wait_started", "parked", eventType="second"),
            *PARKED,
            _named("wait_completed", "parked"),
            _named("wait_started", "queued", eventType="first"),
            _named("wait_completed", "queued"),
            DONE,
        ],
    ),
    "wait timeout": (
        {"acts": [{"wait": "w", "type": "never", "seconds": 1, "caught": True}]},
        [_named("wait_started", "w", eventType="never"), *PARKED, _named("wait_timed_out", "w"), DONE],
    ),
    "terminated in a step": ({"acts": [{"do": "a", "hold": True}]}, [*_begun("a"), TERMINATED]),
    "two steps at once": ({"acts": [{"both": ["a", "b"]}]}, [*_begun("a"), _errored("step_definition_mismatch")]),
    "throws": ({"acts": [{"fail": "no"}]}, [_errored("run_threw")]),
    "beyond the lifetime": ({"acts": [{"sleep": "s", "seconds": YEAR}]}, [ANY, _errored("lifetime_exceeded")]),
    "bad arguments": (
        {"acts": [{"do": "", "caught": True}, {"sleep": "s", "seconds": -1, "caught": True}, {"do": "a"}]},
        [*_begun("a"), *_succeeded("a", 1), DONE],
    ),
}


async def _play(world: World) -> dict[str, str]:
    """Every scene to its end; the id of each."""
    ids = {name: await world.scene(name.replace(" ", "-"), **params) for name, (params, _) in SCENES.items()}
    held, waits = ids["terminated in a step"], ids["waits"]
    await world.until(held, "running")
    await world.until(waits, "waiting")
    async for event in world.follow("grpc", held):
        if event["type"] == "attempt_started":
            await world.terminate(held)
    await world.send(waits, "first")
    await world.send(waits, "second")
    for instance_id in ids.values():
        await world.read("grpc", instance_id)
    # All contexts are taken, so that one more instance stays in the queue.
    blockers = [await world.scene("blocker", {"do": "a", "hold": True}) for _ in range(CONTEXTS)]
    for blocker in blockers:
        await world.until(blocker, "running")
    ids["terminated early"] = await world.scene("early")
    for instance_id in (ids["terminated early"], *blockers):
        await world.terminate(instance_id)
    return ids


@pytest.fixture(scope="session")
def played(events_host: Any) -> dict[str, str]:
    async def _run() -> dict[str, str]:
        world = World(*events_host)
        try:
            return await _play(world)
        finally:
            await world.close()

    return asyncio.run(_run())


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scene", SCENES)
async def test_sequence(world: World, played: dict[str, str], scene: str, face: str) -> None:
    """S-04, S-14, S-16 … S-18, S-20 … S-26, S-30: exactly these events with exactly these members, ids from 1."""
    params, rest = SCENES[scene]
    instance_id = played[scene]
    events = await world.read(face, instance_id)
    expected = [_event("workflow_queued"), _event("workflow_started", params=params), RUNNING, *rest]
    assert [
        {key: value for key, value in event.items() if key not in ("instanceId", "eventId", "timestamp")}
        for event in events
    ] == expected
    _assert_well_formed(events, instance_id)


@pytest.mark.parametrize("face", FACES)
async def test_terminated_early(world: World, played: dict[str, str], face: str) -> None:
    """S-14, S-30: an instance that never ran has two events."""
    events = await world.read(face, played["terminated early"])
    assert types_of(events) == ["workflow_queued", "workflow_terminated"]
    _assert_well_formed(events, played["terminated early"])


def _assert_well_formed(events: list[Event], instance_id: str) -> None:
    assert {event["instanceId"] for event in events} == {instance_id}
    assert ids_of(events) == list(range(1, len(events) + 1))
    times = [event["timestamp"] for event in events]
    assert all(isinstance(at, int) for at in times) and times == sorted(times)
    assert [event["type"] in ENDINGS for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("scene", ["exhausted", "two steps at once", "throws", "beyond the lifetime"])
async def test_error_of_the_end(world: World, played: dict[str, str], scene: str) -> None:
    """S-22: name and message of `workflow_errored` are reason and message of `status()`, "" when it has none."""
    (ending,) = await world.read("sse", played[scene], None, ["workflow_errored"])
    error = world.host.client.instance(world.uid, played[scene])["error"]
    assert ending["error"] == {"name": error["reason"], "message": error.get("message", "")}


async def test_a_clock_that_was_set_back(world: World) -> None:
    """S-16: what follows an event of the future is as late as that, through each face."""
    instance_id = await world.scene("clock", {"wait": "w", "type": "go", "seconds": 600}, {"do": "a"})
    await world.until(instance_id, "waiting")
    hour = 3_600_000
    (path,) = Path(world.host.data_dir).rglob("runtime.db")
    with closing(sqlite3.connect(path, timeout=30)) as database, database:
        row = "FROM workflow_instances WHERE instance_id = ?"
        (incarnation, at_ms) = database.execute(f"SELECT incarnation, event_at_ms {row}", (instance_id,)).fetchone()
        later = at_ms + hour
        database.execute("UPDATE workflow_instances SET event_at_ms = ? WHERE incarnation = ?", (later, incarnation))
        database.execute(
            "UPDATE workflow_event_log SET at_ms = ? WHERE incarnation = ? AND event_id = 5", (later, incarnation)
        )
    await world.send(instance_id)
    for face in FACES:
        events = await world.read(face, instance_id)
        assert types_of(events)[4:6] == ["workflow_waiting", "workflow_running"]
        assert [event["timestamp"] for event in events[4:]] == [later] * (len(events) - 4)
        _assert_well_formed(events, instance_id)


async def test_one_step_too_many(world: World) -> None:
    """S-22, S-25, W-096, W-121: the 1,025th name leaves no step event, through each face; the end names the reason."""
    instance_id = await world.scene("steps", {"many": 1025, "caught": True})
    await world.read("grpc", instance_id, None, [])
    last = 3 + 4 * 1024
    for face in FACES:
        (completed, ending) = await world.read(face, instance_id, last - 1)
        assert (completed["type"], completed["stepName"]) == ("step_completed", "step 1023")
        assert (ending["eventId"], ending["type"]) == (last + 1, "workflow_errored")
        assert ending["error"]["name"] == "step_limit_exceeded"


async def test_no_params_and_an_odd_id(world: World) -> None:
    """S-17: params that were not given are no member; ids are told as they are, whatever is in them."""
    instance_id = "a/b ü?#%2F\n" + ROCKET
    await world.create(instance_id)
    (_, started, *_) = await world.read("grpc", instance_id)
    assert sorted(started) == ["eventId", "instanceId", "timestamp", "type"]
    assert [event["instanceId"] for event in world.host.client.events(world.uid, instance_id)] == [instance_id] * 4
    await world.until(instance_id, "complete")


async def test_every_face_tells_the_same(world: World, played: dict[str, str]) -> None:
    """S-04, S-12: ids, times and members are the same for every subscription."""
    for instance_id in played.values():
        first, *others = [await world.read(face, instance_id) for face in FACES]
        assert all(other == first for other in others)
