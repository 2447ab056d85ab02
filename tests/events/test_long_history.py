"""The longest history that an instance can have, streamed with flat memory (Issue 6)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.bench.measure import usage
from tests.events.kit import World

STEPS = 1024
ERROR = '"stepName":"%s","attempt":%d,"retryDelayMs":0,"error":{"name":"Error","message":"' + "no" * 50 + '"}'
# A page and a buffer of each process, and what the allocators round up.
GROWTH_MAX = 24 * 1024 * 1024


def _history(attempts: int) -> list[tuple[str, str]]:
    """(type, body) of an instance with 1,024 steps that each fail until their last attempt."""
    found = [("workflow_queued", ""), ("workflow_started", ""), ("workflow_running", "")]
    for step in range(STEPS):
        name = f"step {step}"
        found.append(("step_started", f'"stepName":"{name}"'))
        for attempt in range(1, attempts + 1):
            found.append(("attempt_started", f'"stepName":"{name}","attempt":{attempt}'))
            if attempt < attempts:
                found.append(("attempt_errored", ERROR % (name, attempt)))
                found += [("workflow_waiting", ""), ("workflow_running", "")]
            else:
                found.append(("attempt_completed", f'"stepName":"{name}","attempt":{attempt}'))
        found.append(("step_completed", f'"stepName":"{name}"'))
    return [*found, ("workflow_completed", "")]


async def _seeded(world: World, attempts: int) -> tuple[str, int]:
    """An ended instance whose log is replaced in the runtime's own table; its id and its number of events."""
    instance_id = await world.scene("long")
    await world.until(instance_id, "complete")
    rows = _history(attempts)
    (path,) = Path(world.host.data_dir).rglob("runtime.db")
    with sqlite3.connect(path, timeout=30) as database:
        found = database.execute(
            "SELECT incarnation, created_at_ms FROM workflow_instances WHERE instance_id = ?", (instance_id,)
        )
        incarnation, at_ms = found.fetchone()
        database.execute("DELETE FROM workflow_event_log WHERE incarnation = ?", (incarnation,))
        database.executemany(
            "INSERT INTO workflow_event_log VALUES (?, ?, ?, ?, ?)",
            ((incarnation, event_id, kind, at_ms, body.encode()) for event_id, (kind, body) in enumerate(rows, 1)),
        )
        database.execute("UPDATE workflow_instances SET event_seq = ? WHERE incarnation = ?", (len(rows), incarnation))
    database.close()
    return instance_id, len(rows)


def _resident(world: World) -> int:
    return usage([world.host.service_pid(service) for service in ("runtime", "gateway")]).rss_bytes


async def _stream(world: World, attempts: int, face: str) -> None:
    instance_id, count = await _seeded(world, attempts)
    early = highest = 0
    seen = 0
    async for event in world.follow(face, instance_id):
        seen += 1
        assert event["eventId"] == seen
        if seen == count // 10:
            early = _resident(world)
        elif seen % 5000 == 0:
            highest = max(highest, _resident(world))
    assert seen == count
    print(count, "events", early, highest)
    assert highest - early < GROWTH_MAX


@pytest.mark.parametrize("face", ["grpc", "ndjson"])
async def test_a_long_history(world: World, face: str) -> None:
    """Issue 6, S-02: 1,024 steps of 10 attempts; memory after a tenth is memory at the end."""
    await _stream(world, 10, face)


@pytest.mark.long
@pytest.mark.parametrize("face", ["worker", "grpc", "sse", "ndjson"])
async def test_the_longest_history(world: World, face: str) -> None:
    """Issue 6, S-02: 1,024 steps of 100 attempts, through every face."""
    await _stream(world, 100, face)
