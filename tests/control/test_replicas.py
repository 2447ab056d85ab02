"""Two control services over one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.control.kit import Client, Kit, refused

from saisei.control.v1 import resources_pb2 as pb
from saisei_contract.forms import urls

WORKER = urls.MODULE_WORKER


@pytest.fixture
async def pair(kit: Kit) -> AsyncIterator[tuple[Client, Client]]:
    """One principal, a client at each replica."""
    token = await kit.token()
    app, channel = await kit.second()
    yield Client(kit.channel, token), Client(channel, token)
    await channel.close()
    await app.stop()


async def test_names_and_keys_have_one_winner_over_replicas(pair: tuple[Client, Client]) -> None:
    """H-084, H-145: simultaneous creates at both replicas: one winner for a name, one Operation for a key."""
    key = pair[0].key()
    copies = await asyncio.gather(*(client.create(WORKER, "copied", {}, key=key) for client in pair * 10))
    assert len({operation.id for operation in copies}) == 1
    creates = (client.create(WORKER, "wanted", {}) for client in pair * 10)
    answers = await asyncio.gather(*creates, return_exceptions=True)
    assert len([answer for answer in answers if not isinstance(answer, Exception)]) == 1
    assert {answer.reason for answer in answers if isinstance(answer, Exception)} == {"name_conflict"}


async def test_a_delete_and_a_reference_are_serialised_over_replicas(pair: tuple[Client, Client]) -> None:
    """H-109: of a delete here and a reference there exactly one is accepted."""
    for number in range(5):
        worker = await pair[0].made(WORKER, f"worker-{number}", {})
        spec = {"worker": {"resourceUid": worker}, "className": "Flow"}
        answers = await asyncio.gather(
            pair[0].delete(worker, 1),
            pair[1].create(urls.DURABLE_WORKFLOW, f"flow-{number}", spec),
            return_exceptions=True,
        )
        assert [answer.reason for answer in answers if isinstance(answer, Exception)] == ["dependency_conflict"]


async def test_each_operation_is_settled_once(pair: tuple[Client, Client]) -> None:
    """H-112, H-119: both replicas work the queue off; each sees what the other settled."""
    created = await asyncio.gather(
        *(pair[number % 2].create(WORKER, f"n{number}", {}) for number in range(40)),
    )
    settled = await asyncio.gather(
        *(pair[(number + 1) % 2].settled(operation) for number, operation in enumerate(created))
    )
    assert {operation.status for operation in settled} == {pb.OPERATION_STATUS_SUCCEEDED}


async def test_a_cursor_goes_on_at_the_other_replica(pair: tuple[Client, Client]) -> None:
    """H-095: replicas share the key of their cursors."""
    made = sorted([await pair[0].made(WORKER, f"n{number}", {}) for number in range(3)])
    cursor = (await pair[0].list(limit=1)).next_cursor
    assert [item.uid for item in (await pair[1].list(cursor=cursor)).items] == made[1:]
    assert (await refused(pair[1].list(space="main", cursor=cursor))).reason == "invalid_request"
