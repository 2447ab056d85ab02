"""What the writer knows without looking: never more than the table says, whoever else writes to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from saisei_contract.errors import SaiseiError
from saisei_runtime.isolates.port import DoStarted, DoSucceeded, Resolve, RetryPolicy, Stop
from saisei_runtime.store import schema
from saisei_runtime.workflow.commands import Claim, Claimed, Create, StepCalled
from saisei_runtime.workflow.journal import Journal
from saisei_service.clock import SystemClock
from saisei_service.database import Database

FENCE = ("a" * 32, 1, "owner")


@pytest.fixture
async def journal(database: Database) -> AsyncIterator[Journal]:
    journal = Journal(database, SystemClock(), committed=lambda _: None, alive=set(), closed=set())
    journal.start(asyncio.get_running_loop())
    await journal.ask(Create("wf", "i", "a" * 32, None))
    assert isinstance(await journal.ask(Claim("a" * 32, "owner", "runtime", "v", 60_000)), Claimed)
    yield journal
    await journal.stop()


async def _do(journal: Journal, name: str, result: bytes = b"{}") -> object:
    begun = DoStarted(name, 1, RetryPolicy())
    return await journal.ask(StepCalled(*FENCE, DoSucceeded(name, 1, result), begun))


async def test_a_fence_moved_by_another_connection_counts_at_once(journal: Journal, database: Database) -> None:
    """W-004, W-151: the owner that another writer replaced commits nothing, although its row was known just before."""
    assert await _do(journal, "a") == Resolve(b"{}")
    with database.writer.begin() as connection:
        connection.execute(sa.update(schema.instances).values(owner="another", epoch=2))
    assert await _do(journal, "b") == Stop()
    with database.reader.connect() as connection:
        assert list(connection.execute(sa.select(schema.steps.c.name)).scalars()) == ["a"]


async def test_a_step_written_by_another_connection_is_found(journal: Journal, database: Database) -> None:
    """W-094: whoever wrote it, a finished name gives its recorded result."""
    assert await _do(journal, "a", b'{"n":1}') == Resolve(b'{"n":1}')
    with database.writer.begin() as connection:
        row = connection.execute(sa.select(schema.steps)).mappings().one()
        connection.execute(sa.insert(schema.steps).values({**row, "name": "b", "result": b'{"n":2}'}))
        connection.execute(sa.update(schema.instances).values(step_count=2))
    assert await _do(journal, "b", b'{"n":3}') == Resolve(b'{"n":2}')


async def test_finished_names_replay_also_while_they_are_known(journal: Journal) -> None:
    """W-094, S-14: a name that this owner finished gives its first result, and writes nothing more."""
    assert await _do(journal, "a", b'{"n":1}') == Resolve(b'{"n":1}')
    assert await _do(journal, "a", b'{"n":2}') == Resolve(b'{"n":1}')
    assert await _do(journal, "b") == Resolve(b"{}")


async def test_a_failed_transaction_leaves_nothing_known(journal: Journal, database: Database) -> None:
    """W-098: what was rolled back never happened, for the next transaction too."""
    assert await _do(journal, "a") == Resolve(b"{}")
    with database.writer.begin() as connection:
        # A row of the log in the way: the next step's events cannot be written.
        taken = connection.execute(sa.select(sa.func.max(schema.event_log.c.event_id))).scalar_one() + 1
        row = {"incarnation": "a" * 32, "event_id": taken, "type": "x", "at_ms": 0, "body": b""}
        connection.execute(sa.insert(schema.event_log).values(row))
    with pytest.raises(SaiseiError) as refusal:
        await _do(journal, "b")
    assert refusal.value.reason == "backend_unavailable"
    with database.writer.begin() as connection:
        connection.execute(sa.delete(schema.event_log).where(schema.event_log.c.event_id == taken))
    assert await _do(journal, "b", b'{"n":5}') == Resolve(b'{"n":5}')
