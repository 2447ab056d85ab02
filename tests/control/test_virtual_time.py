"""What time alone brings about, on the virtual clock that control and runtime share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.kit import Client, Kit, refused

from saisei.control.v1 import admin_pb2 as pb
from saisei_contract.forms import urls
from saisei_contract.grammar import format_ms, parse_timestamp
from saisei_control.limits import REPLAY_WINDOW_SECONDS
from saisei_service.credentials import user_metadata

WORKER = urls.MODULE_WORKER
WINDOW = REPLAY_WINDOW_SECONDS


@pytest.fixture
async def kit(tmp_path: Path, database_url: str) -> AsyncIterator[Kit]:
    kit = Kit(tmp_path, database_url)
    kit.settings = kit.settings.model_copy(update={"virtual_clock": True})
    await kit.start()
    await kit.runtime.start(kit.runtime_address)
    yield kit
    await kit.close()


async def test_a_key_is_remembered_for_its_window(kit: Kit, client: Client) -> None:
    """H-142, H-147, H-148: until its retention ends a key answers with its Operation, then it is fresh."""
    operation = await client.settled(await client.create(WORKER, "one", {}, key="0123456789abcdef"))
    assert parse_timestamp(operation.retain_until) - parse_timestamp(operation.updated_at) >= WINDOW * 1000
    await kit.advance(WINDOW)
    assert (await client.create(WORKER, "one", {}, key="0123456789abcdef")).id == operation.id
    assert (await client.operation(operation.id)).retain_until == operation.retain_until
    await kit.advance(0.001)
    assert (await refused(client.operation(operation.id))).reason == "not_found"
    assert (await refused(client.create(WORKER, "one", {}, key="0123456789abcdef"))).reason == "name_conflict"
    assert (await client.create(WORKER, "two", {}, key="0123456789abcdef")).id != operation.id


async def test_the_end_extends_the_retention(kit: Kit, client: Client) -> None:
    """H-147: an Operation that ends late is kept for another full window from its end."""
    kit.runtime.acknowledges = False
    worker = await client.made(WORKER, "worker", {})
    flow = {"worker": {"resourceUid": worker}, "className": "Flow"}
    operation = await client.create(urls.DURABLE_WORKFLOW, "flow", flow)
    await kit.advance(10 * WINDOW)
    assert (await client.operation(operation.id)).id == operation.id
    kit.runtime.acknowledges = True
    settled = await client.settled(operation)
    assert parse_timestamp(settled.retain_until) - parse_timestamp(settled.updated_at) >= WINDOW * 1000
    await kit.advance(WINDOW)
    assert (await client.operation(operation.id)).id == operation.id


async def test_a_tombstone_is_gone_and_then_unknown(kit: Kit, client: Client) -> None:
    """H-091, H-107: a deleted UID is 410 while its tombstone is kept, 404 after, and never a Resource again."""
    uid = await client.made(WORKER, "one", {})
    await client.deleted(uid)
    assert (await refused(client.get(uid))).reason == "gone"
    await kit.advance(WINDOW)
    assert (await refused(client.get(uid))).reason == "gone"
    await kit.advance(1)
    assert (await refused(client.get(uid))).reason == "not_found"
    assert await client.made(WORKER, "one", {}) != uid


async def test_a_cursor_expires(kit: Kit, client: Client) -> None:
    """H-095: a cursor is good for a day and not a millisecond longer."""
    for name in ("a", "b"):
        await client.made(WORKER, name, {})
    cursor = (await client.list(limit=1)).next_cursor
    await kit.advance(86_400)
    assert len((await client.list(limit=1, cursor=cursor)).items) == 1
    await kit.advance(0.001)
    assert (await refused(client.list(limit=1, cursor=cursor))).reason == "cursor_expired"


async def test_virtual_time_survives_a_restart(kit: Kit, client: Client) -> None:
    """Design 2: a control service that restarts goes on from the instant reached, so nothing happens twice."""
    reached = await kit.advance(30 * 86_400)
    await kit.restart()
    assert kit.app is not None
    assert kit.app.clock.now_ms() >= reached
    uid = await client.made(WORKER, "one", {})
    assert (await client.get(uid)).observed_at >= format_ms(reached)


async def test_the_clock_takes_the_service_credential(kit: Kit) -> None:
    """Design 6: no user moves the clock, it never runs backwards, and without the flag it does not move at all."""
    client = await kit.client()
    client.metadata = user_metadata(await kit.token())
    request = pb.AdvanceClockRequest(to_ms=1)
    assert (await refused(client.call(kit.admin.AdvanceClock, request))).reason == "unauthenticated"
    assert kit.app is not None
    before = kit.app.clock.now_ms()
    assert (await kit.operate(kit.admin.AdvanceClock, request)).now_ms == before
    bad = pb.AdvanceClockRequest(to_ms=-1)
    assert (await refused(kit.operate(kit.admin.AdvanceClock, bad))).reason == "invalid_request"
    await kit.reconfigure(virtual_clock=False)
    assert (await refused(kit.operate(kit.admin.AdvanceClock, request))).reason == "capability_unavailable"
