"""Reads, rights and pages."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.kit import Kit, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

WORKER = urls.MODULE_WORKER


async def test_what_is_not_visible_is_not_found(kit: Kit) -> None:
    """H-045, H-046: another Space's Resource and Operation are not_found, its list is forbidden."""
    alice, bob = await kit.client("alice", a="read,write"), await kit.client("bob", b="read,write")
    operation = await alice.create(WORKER, "one", {}, space="a")
    uid = operation.resource_uid
    for call in (bob.get(uid), bob.update(uid, 1, {}), bob.delete(uid, 1), bob.operation(operation.id)):
        assert (await refused(call)).reason == "not_found"
    assert (await refused(bob.get("r-unknown"))).message.replace("r-unknown", uid) == (
        await refused(bob.get(uid))
    ).message
    assert (await refused(bob.list(space="a"))).reason == "forbidden"
    assert list((await bob.list()).items) == []
    assert [item.uid for item in (await alice.list()).items] == [uid]


async def test_reading_and_writing_are_separate(kit: Kit) -> None:
    """H-044: a reader may look and not touch; a writer without read may create and not look."""
    reader = await kit.client("reader", main="read")
    writer = await kit.client("writer", main="write")
    operation = await writer.create(WORKER, "one", {})
    assert (await reader.settled(operation)).status == pb.OPERATION_STATUS_SUCCEEDED
    assert (await refused(reader.delete(operation.resource_uid, 1))).reason == "forbidden"
    assert (await refused(reader.create(WORKER, "two", {}))).reason == "forbidden"
    assert (await refused(writer.get(operation.resource_uid))).reason == "not_found"
    assert (await refused(writer.list())).reason == "forbidden"


@pytest.fixture
async def many(kit: Kit) -> list[str]:
    """UIDs of 7 readable Resources and 7 hidden ones, the former in order."""
    root = await kit.client("root", every="read,write")
    made = await asyncio.gather(*(root.create(WORKER, f"n{number}", {}, space="seen") for number in range(7)))
    await asyncio.gather(*(root.create(WORKER, f"n{number}", {}, space="hidden") for number in range(7)))
    return sorted(operation.resource_uid for operation in made)


async def test_pages_are_filled_after_permission(kit: Kit, many: list[str]) -> None:
    """H-094, H-096: full pages, ascending, each UID once, whatever else there is."""
    client = await kit.client("reader", seen="read")
    walked, cursor, sizes = [], None, []
    while True:
        page = await client.list(limit=3, cursor=cursor)
        walked += [item.uid for item in page.items]
        sizes.append(len(page.items))
        if not page.HasField("next_cursor"):
            break
        cursor = page.next_cursor
    assert walked == many
    assert sizes == [3, 3, 1]


async def test_filters_are_exact_and_combined(kit: Kit, many: list[str]) -> None:
    """H-092: space, name and form, all of them."""
    root = await kit.client("root", every="read,write")
    assert len((await root.list()).items) == 14
    assert len((await root.list(space="seen")).items) == 7
    assert [item.name for item in (await root.list(space="seen", name="n3")).items] == ["n3"]
    assert (await root.list(name="N3")).items == []
    assert len((await root.list(form=WORKER, name="n3")).items) == 2
    assert (await root.list(form=WORKER[:-1])).items == []


async def test_a_cursor_serves_its_own_walk(kit: Kit, many: list[str]) -> None:
    """H-095: other filters, another principal and tampering are invalid_request; the limit may change."""
    root = await kit.client("root", every="read,write")
    cursor = (await root.list(space="seen", limit=2)).next_cursor
    assert [item.uid for item in (await root.list(space="seen", limit=5, cursor=cursor)).items] == many[2:]
    other = await kit.client("other", every="read")
    for call in (
        root.list(limit=2, cursor=cursor),
        root.list(space="hidden", limit=2, cursor=cursor),
        root.list(space="seen", name="n1", cursor=cursor),
        other.list(space="seen", limit=2, cursor=cursor),
        root.list(space="seen", cursor=cursor[:-1]),
        root.list(space="seen", cursor=("B" if cursor[0] == "A" else "A") + cursor[1:]),
        root.list(space="seen", cursor="rubbish"),
        root.list(space="seen", cursor=""),
    ):
        assert (await refused(call)).reason == "invalid_request"


async def test_limits_of_pages(kit: Kit) -> None:
    """H-093: 1 to 100."""
    client = await kit.client()
    for limit in (0, -1, 101):
        assert (await refused(client.list(limit=limit))).reason == "invalid_request"
    assert (await client.list(limit=100)).items == []


async def test_cursors_survive_a_restart(kit: Kit, many: list[str]) -> None:
    """H-095: the key is the Host's, not the process'."""
    client = await kit.client("reader", seen="read")
    cursor = (await client.list(limit=2)).next_cursor
    await kit.restart()
    assert [item.uid for item in (await client.list(cursor=cursor)).items] == many[2:]
