"""Two runtimes on one PostgreSQL database: whoever is asked, the owner is reached; one of them runs each context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from engine_fakes import Hold, Host

from saisei_contract.errors import SaiseiError
from saisei_runtime.store import migrate_runtime
from saisei_runtime.workflow import notices
from saisei_runtime.workflow.engine import EngineSettings
from saisei_service.database import Database, open_database


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    plain = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("CREATE DATABASE replicas")
    yield postgres_url.replace("/postgres?", "/replicas?")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("DROP DATABASE replicas WITH (FORCE)")


@pytest.fixture
def lease_ms() -> int:
    """So long that only what it is about takes an instance from its owner, however slow the machine."""
    return 30_000


@pytest.fixture
async def pair(url: str, lease_ms: int) -> AsyncIterator[tuple[Host, Host]]:
    """Runtime `a` has a Deployment, `b` has none until a test says so: what `b` is asked runs in `a`."""
    databases: list[Database] = [open_database(url), open_database(url)]
    migrate_runtime(databases[0])
    hosts = [
        Host(database, settings=EngineSettings(name, lease_ms=lease_ms, stop_seconds=20))
        for name, database in zip(("a", "b"), databases, strict=True)
    ]
    for host in hosts:
        await host.start()
    yield hosts[0], hosts[1]
    for host in hosts:
        await host.stop()
    for database in databases:
        database.close()


def holds(event, step):
    yield step.do("a", lambda: b"{}")
    yield Hold()


def waits(event, step):
    return (yield step.wait("w", "go", 600))


async def test_termination_reaches_the_owner(pair: tuple[Host, Host], lease_ms: int) -> None:
    """W-070, W-151: asked in one runtime, the other one's context is stopped with proof, well before its lease."""
    a, b = pair
    a.define(holds)
    await a.engine.create("wf", "i", None)
    await a.eventually(lambda: bool(a.pool.running))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await b.engine.terminate("wf", "i")).status == "terminated"
    assert loop.time() - began < lease_ms / 3000  # the owner itself looks at half-life
    assert not a.pool.running


async def test_events_and_subscribers_cross_runtimes(pair: tuple[Host, Host]) -> None:
    """S-02, S-12, W-061: sent and watched in one runtime, run in the other; nothing waits for a poll."""
    a, b = pair
    a.define(waits)
    await a.engine.create("wf", "i", None)
    await a.until("i", "waiting")
    watch = b.engine.watch("wf")
    subscription = await b.engine.subscribe("wf", "i", 5)
    pending = asyncio.create_task(subscription.next())
    await asyncio.sleep(0.05)
    await b.engine.send_event("wf", "i", "go", b'{"n":1}')
    assert (await asyncio.wait_for(pending, 10)).type == "workflow_running"
    assert (await asyncio.wait_for(subscription.next(), 10)).type == "wait_completed"
    assert (await asyncio.wait_for(subscription.next(), 10)).type == "workflow_completed"
    assert await asyncio.wait_for(subscription.next(), 10) is None
    while all(change[:2] != ("i", "complete") for change in await asyncio.wait_for(anext(watch), 10)):
        pass
    watch.close()


async def test_what_one_queued_the_other_runs(pair: tuple[Host, Host]) -> None:
    """W-155: a runtime that has the Deployment finds what another one queued."""
    a, b = pair
    b.define(waits)
    b.engine._scheduler.close()
    await b.engine.create("wf", "i", None)
    a.define(waits)
    a.engine.deployment_changed("worker")
    await a.until("i", "waiting")


async def test_what_one_has_no_place_for_starts_in_the_other_at_once(pair: tuple[Host, Host]) -> None:
    """W-155, Design 4: a notice names the workflow; no poll is needed to find what is due."""
    a, b = pair
    a.define(waits)
    b.define(waits)
    b.deploy("worker", None)
    # From here on the look that comes by itself finds nothing in `a`.
    a.engine._reads.workflows_with_due = _nothing
    a.engine._reads.lapsed = _nothing
    b.deployments.versions["worker"] = "worker-v1"  # for the create alone
    b.engine._scheduler.close()
    for number in range(20):
        await b.engine.create("wf", f"i{number}", None)
        await a.until(f"i{number}", "waiting")
    assert len(a.pool.started) == 20 and not b.pool.started


async def test_a_full_runtime_calls_for_others(pair: tuple[Host, Host]) -> None:
    """W-154, Design 4: one runtime has no free place; what is created through it runs in the other."""
    a, b = pair
    a.define(waits)
    b.define(holds)
    b.engine._scheduler._max_contexts = 2
    a.deploy("worker", None)
    await b.engine.create_batch("wf", [("held 1", None), ("held 2", None)])
    await b.eventually(lambda: len(b.pool.running) == 2)
    a.engine._reads.workflows_with_due = _nothing
    a.deploy("worker", "worker-v1")
    for number in range(10):
        await b.engine.create("wf", f"i{number}", None)
        await a.until(f"i{number}", "waiting")
    assert len(b.pool.started) == 2


async def test_a_lost_notice_delays_and_loses_nothing(pair: tuple[Host, Host]) -> None:
    """W-155: a runtime that hears nothing of the others finds by looking what they have no place for."""
    a, b = pair
    assert a.engine._notices is not None
    await a.engine._notices.stop()
    a.define(waits)
    b.define(waits)
    b.engine._scheduler.close()
    await b.engine.create("wf", "i", None)
    await a.until("i", "waiting")


async def _nothing(*arguments: object) -> list[str]:
    return []


def test_a_notice_says_what_fits() -> None:
    """Design 4: names as long as there is room for them, and `anything` instead of a part of them."""
    ids, uids = [f"{number:032x}" for number in range(200)], {f"r-{number:032x}" for number in range(60)}
    assert notices.read_notice(notices.payload("a", ids[:2], uids), "b") == notices.Notice(
        ids[:2], notices.payload("a", (), uids).split(";")[2].split(",")
    )
    assert notices.read_notice(notices.payload("a", ids), "b") == notices.Notice(None, ())
    assert notices.read_notice(notices.payload("a", (), {*uids, "one more"}), "b") == notices.Notice((), None)
    assert notices.read_notice(notices.payload("a", ids), "a") is None
    longest = [f"{number:0{notices.UID_CHARACTERS_MAX}}" for number in range(notices.WORKFLOWS_MAX)]
    assert len(notices.payload("s" * 40, ids[: notices.NAMED_MAX], longest)) < 8_000


async def test_each_instance_runs_once(pair: tuple[Host, Host]) -> None:
    """W-150, W-151: both claim from one table; no instance has two contexts, no step two records."""
    a, b = pair
    effects: list[str] = []

    def program(event, step):
        yield step.do("a", lambda: effects.append(event.instance_id) or b"{}")
        yield step.sleep("rest", 1)
        yield step.do("b", lambda: effects.append(event.instance_id) or b"{}")

    a.define(program)
    b.define(program)
    items = [(f"i{number}", None) for number in range(60)]
    await asyncio.gather(a.engine.create_batch("wf", items[:30]), b.engine.create_batch("wf", items[30:]))
    for instance_id, _ in items:
        await a.until(instance_id, "complete")
    assert sorted(effects) == sorted([instance_id for instance_id, _ in items] * 2)
    started = [start.context_id for host in pair for start in host.pool.started]
    assert len(started) == len(set(started)) == 120


async def test_one_id_one_winner_between_runtimes(pair: tuple[Host, Host]) -> None:
    """W-021: twenty creates of one id, half of them in each runtime."""
    a, b = pair
    for host in pair:
        host.define(waits)
    asked = [host.engine.create("wf", "same", None) for host in (a, b) for _ in range(10)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert outcomes.count("same") == 1
    assert {one.reason for one in outcomes if isinstance(one, SaiseiError)} == {"instance_exists"}


async def test_purge_reaches_every_runtime(pair: tuple[Host, Host]) -> None:
    """DW-08: purged in one runtime: the other's contexts stop, and it admits nothing any more."""
    a, b = pair
    a.define(holds)
    await a.engine.create_batch("wf", [(None, None)] * 10)
    await a.eventually(lambda: len(a.pool.running) == 10)
    assert await b.engine.purge("wf") == 10
    assert not a.pool.running
    with pytest.raises(SaiseiError) as caught:
        await a.engine.create("wf", "new", None)
    assert caught.value.reason == "backend_unavailable"


@pytest.mark.parametrize("lease_ms", [1_500])
async def test_a_dead_runtime_is_taken_over(pair: tuple[Host, Host]) -> None:
    """W-150, W-155, design 4: within about one lease; what the dead one still says changes nothing."""
    a, b = pair
    a.define(holds)
    await a.engine.create("wf", "i", None)
    await a.eventually(lambda: bool(a.pool.running))
    a.fall_silent()
    b.define(lambda event, step: (yield step.do("a", lambda: b"{}")))
    b.engine.deployment_changed("worker")
    await b.until("i", "complete")
    assert len(b.pool.started) == 1


async def test_a_lost_connection_is_made_again(pair: tuple[Host, Host], url: str) -> None:
    """W-089, W-005: every connection of the database is cut; callers may get backend_unavailable, no work is lost."""
    a, b = pair

    def program(event, step):
        for number in range(20):
            yield step.do(f"s{number}", lambda: b"{}")
        return b"{}"

    for host in pair:
        host.define(program)
    items = [(f"i{number}", None) for number in range(40)]
    await a.engine.create_batch("wf", items)
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        for _ in range(3):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.05)
    for instance_id, _ in items:
        await a.eventually_complete(instance_id)
        steps = [event for event in await a.types(instance_id) if event == "step_completed"]
        assert len(steps) == 20
    assert await b.engine.create("wf", "after", None) == "after"
