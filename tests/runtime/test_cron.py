"""Schedules in the runtime: what is recorded, what is skipped, and who is called how often for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_runtime.cron.runs import CronRuns
from saisei_runtime.cron.scheduler import CronScheduler, CronSettings
from saisei_runtime.hosting.state import HostedCron
from saisei_runtime.isolates.port import Unanswered
from saisei_runtime.isolates.runs import RunEnd, ScheduledEvent
from saisei_runtime.store import migrate_runtime
from saisei_runtime.store.schema import cron_runs
from saisei_service.clock import VirtualClock, wall_ms
from saisei_service.database import Database, open_database

MINUTE = 60_000
# 2026-11-30T12:00:30Z
START = 1_796_040_030_000
FIRST = START + 30_000
QUICK = CronSettings(take_over_every=0.02, retry_after=0.01)


class Hands:
    """A clock of the system's kind that a test moves; time passes in it only then."""

    def __init__(self) -> None:
        self.now = START

    def now_ms(self) -> int:
        return self.now


class Hosted:
    def __init__(self) -> None:
        self.triggers = [HostedCron("t", "w", "* * * * *")]
        self.deployed = True
        self.complete = True

    def crons(self) -> list[HostedCron]:
        return list(self.triggers)

    def allocation(self, worker_uid: str) -> dict[str, int] | None:
        return {"v": 10_000} if self.deployed else None


class Worker:
    """What `deliver` calls: records the matches; `behaves` decides what comes of a call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.under_way = 0
        self.behaves: Callable[[ScheduledEvent], Awaitable[RunEnd]] = self.ends

    async def ends(self, event: ScheduledEvent) -> RunEnd:
        return RunEnd(True)

    async def hangs(self, event: ScheduledEvent) -> RunEnd:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def deliver(self, worker_uid: str, event: ScheduledEvent) -> RunEnd:
        self.calls.append((worker_uid, event.scheduled_time, event.cron))
        self.under_way += 1
        try:
            return await self.behaves(event)
        finally:
            self.under_way -= 1

    @property
    def matches(self) -> list[int]:
        return [(at - FIRST) // MINUTE for _, at, _ in self.calls]


class Room:
    """Runtimes over one database. `look` has a runtime look at the time that it is."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.hosted, self.worker = Hosted(), Worker()
        self.started: list[CronScheduler] = []

    def start(self, clock: Clock, runtime_id: str = "runtime-1", **settings: Any) -> CronScheduler:
        quick = {"take_over_every": 0.02, "retry_after": 0.01} | settings
        runs = CronRuns(self.database, runtime_id)
        made = CronScheduler(runs, self.hosted, self.worker.deliver, clock, CronSettings(**quick))
        made.start()
        self.started.append(made)
        return made

    async def look(self, scheduler: CronScheduler, clock: Any) -> None:
        scheduler.changed()
        await until(lambda: scheduler._looked_ms == clock.now_ms())

    def rows(self) -> list[Any]:
        with self.database.reader.connect() as connection:
            return list(connection.execute(sa.select(cron_runs).order_by(cron_runs.c.scheduled_at_ms)).mappings())

    def outcomes(self) -> list[str | None]:
        return [row["outcome"] for row in self.rows()]


async def until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, "the condition did not become true"
        await asyncio.sleep(0.005)


@pytest.fixture
async def room(database_url: str) -> AsyncIterator[Room]:
    database = open_database(database_url)
    migrate_runtime(database)
    room = Room(database)
    yield room
    for scheduler in room.started:
        await scheduler.stop()
    database.close()


def kill(scheduler: CronScheduler) -> None:
    """As a process dies: nothing is given back."""
    scheduler._runs._update = _nowhere  # type: ignore[method-assign]
    for task in (scheduler._task, *scheduler._tasks):
        assert task is not None
        task.cancel()


async def _nowhere(*_: Any) -> None:
    return


async def test_a_match_is_called_once(room: Room) -> None:
    """CR-05, CR-06, MW-27: recorded, called with its own time and expression, ended; looking again changes nothing."""
    clock = Hands()
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    assert room.rows() == []
    clock.now = FIRST
    for _ in range(3):
        await room.look(scheduler, clock)
        clock.now += 10
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.calls == [("w", FIRST, "* * * * *")]


async def test_it_looks_when_the_minute_begins(room: Room) -> None:
    """CR-05: nobody has to tell it the time; a match is called in its own minute, not before."""

    class Ticking:
        offset = 59_500 - wall_ms() % MINUTE

        def now_ms(self) -> int:
            return wall_ms() + self.offset

    clock = Ticking()
    first = clock.now_ms() // MINUTE * MINUTE + MINUTE
    called_at: list[int] = []

    async def tells(event: ScheduledEvent) -> RunEnd:
        called_at.append(clock.now_ms())
        return RunEnd(True)

    room.worker.behaves = tells
    scheduler = room.start(clock, take_over_every=3600.0)
    await until(lambda: scheduler._watched)
    await until(lambda: called_at)
    at = room.worker.calls[0][1]
    assert at >= first
    assert at <= called_at[0] < at + MINUTE


async def test_a_match_before_the_trigger_is_none_of_its_own(room: Room) -> None:
    """CR-05, CR-07: a trigger and a changed expression count from when they became effective."""
    clock = Hands()
    room.hosted.triggers = []
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.now = FIRST + 5
    room.hosted.triggers = [HostedCron("t", "w", "* * * * *")]
    await room.look(scheduler, clock)
    clock.now = FIRST + MINUTE + 5
    room.hosted.triggers = [HostedCron("t", "w", "*/1 * * * *")]
    await room.look(scheduler, clock)
    assert room.rows() == []
    clock.now = FIRST + 2 * MINUTE
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.calls == [("w", FIRST + 2 * MINUTE, "*/1 * * * *")]


async def test_what_nobody_saw_is_skipped(room: Room) -> None:
    """CR-05: after a time without looking, as when the Host was down, only the current minute counts."""
    clock = Hands()
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.now = FIRST + 30 * MINUTE + 7
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.matches == [30]


async def test_no_run_beside_the_one_before(room: Room) -> None:
    """CR-05: a match whose predecessor is unfinished is skipped, by this runtime and by others; later ones are not."""
    clock = Hands()
    release = asyncio.Event()

    async def waits(event: ScheduledEvent) -> RunEnd:
        await release.wait()
        return RunEnd(True)

    room.worker.behaves = waits
    one, two = room.start(clock), room.start(clock, "runtime-2")
    for scheduler in (one, two):
        await room.look(scheduler, clock)
    for number in range(3):
        clock.now = FIRST + number * MINUTE
        await asyncio.gather(room.look(one, clock), room.look(two, clock))
        await until(lambda: room.worker.under_way == 1)
    release.set()
    await until(lambda: room.outcomes() == ["complete"] and not one._tasks and not two._tasks)
    clock.now += MINUTE
    await asyncio.gather(room.look(one, clock), room.look(two, clock))
    await until(lambda: room.outcomes() == ["complete"] * 2)
    assert room.worker.matches == [0, 3]


async def test_replicas_call_once_between_them(room: Room) -> None:
    """CR-06: however many runtimes see a match, one record and one call come of it."""
    clock = Hands()
    room.hosted.triggers = [HostedCron(f"t{n}", "w", "* * * * *") for n in range(10)]
    replicas = [room.start(clock, f"runtime-{n}") for n in range(3)]
    for replica in replicas:
        await room.look(replica, clock)
    clock.now = FIRST
    await asyncio.gather(*(room.look(replica, clock) for replica in replicas))
    await until(lambda: room.outcomes() == ["complete"] * 10)
    assert len(room.worker.calls) == 10


async def test_a_throw_is_not_tried_again(room: Room) -> None:
    """CR-06, MW-24: a failed run is recorded with what was thrown, and called once; odd text is kept."""

    async def throws(event: ScheduledEvent) -> RunEnd:
        return RunEnd(False, "RangeError", "a\0b\\ \u2028 \U0001f600")

    clock = Hands()
    room.worker.behaves = throws
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.now = FIRST
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["failed"] and not scheduler._tasks)
    clock.now = FIRST + MINUTE
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["failed"] * 2)
    assert room.worker.matches == [0, 1]
    assert room.rows()[0]["error_name"] == "RangeError"


async def test_a_handler_that_never_ends(room: Room) -> None:
    """CR-05: it has its time, then its run has failed and later matches are recorded again."""
    clock = Hands()
    room.worker.behaves = room.worker.hangs
    scheduler = room.start(clock, run_within=0.05)
    await room.look(scheduler, clock)
    clock.now = FIRST
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["failed"])
    assert room.worker.under_way == 0
    assert room.rows()[0]["error_name"] == "TimeoutError"


async def test_a_handler_that_is_stopped(room: Room) -> None:
    """CR-05: one whose Worker is stopped under it is called again, three times at most."""

    async def stopped(event: ScheduledEvent) -> RunEnd:
        raise Unanswered("backend_unavailable", "stopped")

    clock = Hands()
    room.worker.behaves = stopped
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.now = FIRST
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["lost"])
    assert (room.worker.matches, room.rows()[0]["deliveries"]) == ([0, 0, 0], 3)


async def test_what_cannot_begin_is_begun_later(room: Room) -> None:
    """CR-05: a recorded match keeps its duty while its Worker cannot be reached."""

    async def away(event: ScheduledEvent) -> RunEnd:
        if len(room.worker.calls) < 6:
            raise SaiseiError("backend_unavailable", "no thread")
        return RunEnd(True)

    clock = Hands()
    room.worker.behaves = away
    scheduler = room.start(clock, retry_after_most=0.02)
    await room.look(scheduler, clock)
    clock.now = FIRST
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["complete"])
    assert room.rows()[0]["deliveries"] == 1


async def test_without_a_deployment_nothing_is_recorded(room: Room) -> None:
    """WD-09, CR-05: no Deployment, no run; nor later for that match."""
    clock = Hands()
    room.hosted.deployed = False
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.now = FIRST
    await room.look(scheduler, clock)
    room.hosted.deployed = True
    clock.now += MINUTE
    await room.look(scheduler, clock)
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.matches == [1]


async def test_a_crash_after_the_record(room: Room) -> None:
    """CR-05, CR-06: the same runtime, started again, calls what was recorded; but no match that was missed."""
    clock = Hands()
    room.worker.behaves = room.worker.hangs
    first = room.start(clock)
    await room.look(first, clock)
    clock.now = FIRST
    await room.look(first, clock)
    await until(lambda: room.worker.under_way == 1)
    kill(first)
    room.worker.behaves = room.worker.ends
    clock.now = FIRST + 20 * MINUTE + 5
    second = room.start(clock)
    await room.look(second, clock)
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.matches == [0, 0]
    assert room.rows()[0]["deliveries"] >= 2


async def test_a_trigger_that_is_deleted_forgets_no_record(room: Room) -> None:
    """CR-05, CR-07: deleting detaches; what was recorded is still called, also after a crash, and no new match is."""
    clock = Hands()
    room.worker.behaves = room.worker.hangs
    first = room.start(clock)
    await room.look(first, clock)
    clock.now = FIRST
    await room.look(first, clock)
    await until(lambda: room.worker.under_way == 1)
    kill(first)
    room.hosted.triggers = []
    room.worker.behaves = room.worker.ends
    second = room.start(clock)
    await until(lambda: room.outcomes() == ["complete"])
    clock.now = FIRST + MINUTE
    await room.look(second, clock)
    assert room.worker.matches == [0, 0]


async def test_an_app_that_is_taken_down(room: Room) -> None:
    """WD-12: a record whose trigger and Deployment are both gone ends; not before the whole history was heard."""

    async def gone(event: ScheduledEvent) -> RunEnd:
        raise SaiseiError("backend_unavailable", "no Deployment")

    clock = Hands()
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    room.worker.behaves = gone
    clock.now = FIRST
    await room.look(scheduler, clock)
    await until(lambda: room.worker.calls)
    room.hosted.complete = room.hosted.deployed = False
    room.hosted.triggers = []
    calls = len(room.worker.calls)
    await until(lambda: len(room.worker.calls) > calls + 2)
    assert room.outcomes() == [None]
    room.hosted.complete = True
    await until(lambda: room.outcomes() == ["lost"])


async def test_another_runtime_takes_over_a_lapsed_record(room: Room) -> None:
    """CR-05: a record whose runtime does not renew its lease is delivered by another one; a held lease is respected."""
    clock = Hands()
    room.worker.behaves = room.worker.hangs
    first = room.start(clock)
    await room.look(first, clock)
    clock.now = FIRST
    await room.look(first, clock)
    await until(lambda: room.worker.under_way == 1)
    kill(first)
    room.worker.behaves = room.worker.ends
    second = room.start(clock, "runtime-2")
    looks, take_over = 0, second._runs.take_over

    async def counted(held: Any) -> Any:
        nonlocal looks
        looks += 1
        return await take_over(held)

    second._runs.take_over = counted  # type: ignore[method-assign]
    await until(lambda: looks > 3)
    assert room.worker.matches == [0]
    with room.database.writer.begin() as connection:
        connection.execute(sa.update(cron_runs).values(lease_until_ms=wall_ms() - 1))
    await until(lambda: room.outcomes() == ["complete"])
    assert room.worker.matches == [0, 0]


async def test_a_graceful_stop_gives_back(room: Room) -> None:
    """CR-05: a run that a stop cuts off is anybody's at once."""
    clock = Hands()
    room.worker.behaves = room.worker.hangs
    first = room.start(clock)
    await room.look(first, clock)
    clock.now = FIRST
    await room.look(first, clock)
    await until(lambda: room.worker.under_way == 1)
    await first.stop()
    assert [(row["owner"], row["ended_at_ms"]) for row in room.rows()] == [(None, None)]
    room.worker.behaves = room.worker.ends
    room.start(clock, "runtime-2")
    await until(lambda: room.outcomes() == ["complete"])


async def test_old_records_go(room: Room) -> None:
    """CR-06: records go a day after their end; the newest stays, and no match up to it is recorded again."""
    clock = Hands()
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    for number in range(3):
        clock.now = FIRST + number * MINUTE
        await room.look(scheduler, clock)
        await until(lambda number=number: room.outcomes() == ["complete"] * (number + 1))
        await until(lambda: not scheduler._tasks)
    runs = CronRuns(room.database, "runtime-1")
    day = 86_400_000
    await runs.discard(FIRST + day - MINUTE)
    assert len(room.rows()) == 3
    await runs.discard(FIRST + day + 5 * MINUTE)
    assert [row["scheduled_at_ms"] for row in room.rows()] == [FIRST + 2 * MINUTE]
    # As after a start with a clock that was set back.
    for number in range(3):
        assert await runs.record(room.hosted.triggers[0], FIRST + number * MINUTE, FIRST) is None
    assert await runs.record(room.hosted.triggers[0], FIRST + 3 * MINUTE, FIRST) is not None
    await runs.discard(FIRST + 500 * day)
    assert [row["scheduled_at_ms"] for row in room.rows()] == [FIRST + 3 * MINUTE]


async def test_a_virtual_clock(room: Room) -> None:
    """CR-05, Design 6: an advance answers once its last run was begun; each match ran, in order, one by one."""
    clock = VirtualClock(START)
    most = 0

    async def counts(event: ScheduledEvent) -> RunEnd:
        nonlocal most
        most = max(most, room.worker.under_way)
        await asyncio.sleep(0.001)
        return RunEnd(True)

    room.worker.behaves = counts
    room.hosted.triggers.append(HostedCron("daily", "w", "0 0 * * *"))
    scheduler = room.start(clock)
    await room.look(scheduler, clock)
    clock.advance(600)
    assert await scheduler.settle_due() == 10
    clock.advance(0.5)
    assert await scheduler.settle_due() == 0
    for _ in range(3):
        clock.advance(60)
        await scheduler.settle_due()
    assert room.worker.matches == list(range(13))
    clock.advance(86_400 * 3)
    room.hosted.triggers = [trigger for trigger in room.hosted.triggers if trigger.uid == "daily"]
    await scheduler.settle_due()
    assert [cron for _, _, cron in room.worker.calls].count("0 0 * * *") == 3
    assert most <= 2
