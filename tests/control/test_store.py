"""The way into the database: statements that the driver runs itself, group commits, and who is woken by a write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, func, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from saisei_contract.errors import SaiseiError
from saisei_control.store.schema import counters, reference_edges, sealed_secrets
from saisei_control.store.statements import Statement, insert_into, one_of
from saisei_control.store.store import Change, Store

ADD = Statement(insert_into(reference_edges, "referrer", "target"))
SEAL = Statement(insert_into(sealed_secrets, "version_uid", "name", "sealed"))
TARGETS = Statement(
    select(reference_edges.c.target)
    .where(reference_edges.c.referrer == bindparam("referrer"), one_of(reference_edges.c.target, ("a", "b", "it's %s")))
    .order_by(reference_edges.c.target)
)
COUNT = Statement(
    update(counters).where(counters.c.name == "n").values(value=counters.c.value + 1).returning(counters.c.value)
)


@pytest.fixture
async def store(database_url: str, tmp_path: Path) -> AsyncIterator[Store]:
    store = await asyncio.to_thread(Store.open, database_url)
    yield store
    await store.close()


def edge(number: int, target: str = "a") -> Any:
    return lambda connection: ADD.run(connection, {"referrer": f"r{number}", "target": target})


async def edges(store: Store) -> int:
    count = select(func.count()).select_from(reference_edges)
    return await store.read(lambda connection: int(connection.execute(count).scalar_one()))


async def test_statements_say_what_core_says(store: Store) -> None:
    """Design 2: literals, lists, limits and RETURNING mean the same on both databases, by the driver itself."""

    def work(connection: Connection) -> list[Any]:
        for target in ("b", "it's %s", "c"):
            assert ADD.run(connection, {"referrer": "r", "target": target}) == 1
        SEAL.run(connection, {"version_uid": "v", "name": "N", "sealed": b"\x00\xff"})
        connection.execute(counters.insert().values(name="n", value=1))
        assert COUNT.first(connection, {}) == (2,)
        sealed = Statement(select(sealed_secrets.c.sealed, sealed_secrets.c.key_id))
        assert [tuple(row) for row in sealed.rows(connection, {})] == [(b"\x00\xff", None)]
        return TARGETS.rows(connection, {"referrer": "r"})

    assert [target for (target,) in await store.write(work)] == ["b", "it's %s"]
    assert await store.peek(lambda connection: TARGETS.first(connection, {"referrer": "nobody"})) is None


async def test_a_failed_statement_shows_no_values(store: Store) -> None:
    """H-153, H-182: what the database says of a failure may reach the log; the values of the statement do not."""
    await store.write(lambda connection: ADD.run(connection, {"referrer": "r", "target": "hush"}))
    with pytest.raises(IntegrityError) as failure:
        await store.write(lambda connection: ADD.run(connection, {"referrer": "r", "target": "hush"}))
    assert isinstance(failure.value, DBAPIError)
    assert "reference_edges" in str(failure.value)
    assert "hush" not in str(failure.value).partition("[SQL")[2]


async def test_one_of_a_group_fails_alone(store: Store) -> None:
    """H-145, Design 2: work that is committed together fails apart, a failed statement of the driver included."""
    await store.write(edge(0))
    outcomes = await asyncio.gather(*(store.write(edge(number // 2)) for number in range(40)), return_exceptions=True)
    assert sum(outcome == 1 for outcome in outcomes) == 19
    assert sum(isinstance(outcome, IntegrityError) for outcome in outcomes) == 21
    assert await edges(store) == 20


async def test_a_look_sees_what_is_committed(store: Store) -> None:
    """H-090, Design 2: a look by key never shows an old state, whatever kind of statement looked before it."""
    for number in range(5):
        await store.write(edge(number))
        assert await store.peek(lambda connection: len(connection.execute(text("SELECT 1")).all())) == 1
        found = await store.peek(lambda connection, n=number: TARGETS.first(connection, {"referrer": f"r{n}"}))
        assert found is not None and tuple(found) == ("a",)


async def test_who_is_woken(store: Store) -> None:
    """H-119: a write wakes those who wait for what it says to have changed, after its commit, and nobody else."""
    woken: list[Change] = []

    async def wait(change: Change) -> None:
        await store.changes.wait(store.changes.next(change), 60)
        woken.append(change)

    for tells in (Change.DUE, Change.STATE, Change.HOSTING, Change.DUE | Change.STATE):
        woken.clear()
        waiting = [asyncio.create_task(wait(change)) for change in Change]
        await asyncio.sleep(0)
        await store.write(lambda connection: None, Change.NOTHING)
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda connection: 1 // 0, Change.ANYTHING)
        assert woken == []
        await store.write(lambda connection: None, tells)
        while len(woken) < len(list(tells)):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert set(woken) == set(tells)


async def test_who_gave_up_before_its_turn_changes_nothing(store: Store) -> None:
    """H-181: work whose caller has gone before it began is not done; the others of its group are."""
    entered, loop = asyncio.Event(), asyncio.get_running_loop()
    release = asyncio.Event()

    def hold(_: Connection) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    holding = asyncio.create_task(store.write(hold))
    await entered.wait()
    gone, stays = asyncio.create_task(store.write(edge(1))), asyncio.create_task(store.write(edge(2)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    release.set()
    await asyncio.gather(holding, stays)
    assert await edges(store) == 1


async def test_a_connection_that_is_lost_is_made_again(postgres_url: str) -> None:
    """H-181, Design 2: work during whose statement the database hangs up is told so, and the next one goes on."""
    store = await asyncio.to_thread(Store.open, postgres_url)
    hang_up = Statement(select(func.pg_terminate_backend(func.pg_backend_pid())))
    try:
        for ask in (store.write, store.read):
            with pytest.raises(SaiseiError) as failure:
                await ask(lambda connection: hang_up.rows(connection, {}))
            assert failure.value.reason == "temporarily_unavailable"
            assert await ask(lambda connection: tuple(connection.execute(text("SELECT 1")).one())) == (1,)
    finally:
        await store.close()
