"""Records of matches: written before the first delivery, ended after one, taken over from the dead (CR-05, CR-06)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from saisei_runtime.hosting.state import HostedCron
from saisei_runtime.isolates.runs import RunEnd
from saisei_runtime.store.schema import cron_runs
from saisei_runtime.store.text import stored
from saisei_service.clock import wall_ms
from saisei_service.database import Database

T = TypeVar("T")

LEASE_MS: Final = 10_000
DAY_MS: Final = 24 * 3_600_000
# Ended records are kept for so long; the newest one of a trigger longer than a schedule pauses for, as a rule, since it
# keeps the matches up to its own from being recorded again, whatever a clock that is set back says.
KEPT_DAYS: Final = 1
NEWEST_KEPT_DAYS: Final = 400
_AT_ONCE: Final = 100

_c = cron_runs.c


@dataclass(frozen=True, slots=True)
class CronRun:
    """An unfinished record that this runtime delivers. `deliveries` counts the one that begins now."""

    trigger_uid: str
    scheduled_at_ms: int
    worker_uid: str
    cron: str
    deliveries: int


class CronRuns:
    """Each method is one transaction; it raises SQLAlchemy's errors when the database is away."""

    def __init__(self, database: Database, runtime_id: str) -> None:
        self._database = database
        self._runtime_id = runtime_id

    async def _write(self, run: Callable[[Connection], T]) -> T:
        def job() -> T:
            with self._database.writer.begin() as connection:
                return run(connection)

        return await asyncio.to_thread(job)

    async def release_own(self) -> None:
        """Of a predecessor with this runtime's id, which is gone: what it was at is anybody's."""

        def release(connection: Connection) -> None:
            mine = sa.update(cron_runs).where(_c.ended_at_ms.is_(None), _c.owner == self._runtime_id)
            connection.execute(mine.values(owner=None, lease_until_ms=None))

        await self._write(release)

    async def record(self, trigger: HostedCron, match_ms: int, now_ms: int) -> CronRun | None:
        """None when this match or a later one is recorded already, or the trigger's run before is unfinished."""
        insert = (postgresql if self._database.is_postgresql else sqlite).insert(cron_runs)
        statement = insert.values(
            trigger_uid=trigger.uid,
            scheduled_at_ms=match_ms,
            worker_uid=trigger.worker_uid,
            cron=trigger.cron,
            recorded_at_ms=now_ms,
            owner=self._runtime_id,
            lease_until_ms=wall_ms() + LEASE_MS,
            deliveries=1,
        ).on_conflict_do_nothing()
        newest = sa.select(sa.func.max(_c.scheduled_at_ms)).where(_c.trigger_uid == trigger.uid)

        def write(connection: Connection) -> bool:
            recorded = connection.execute(newest).scalar()
            if recorded is not None and recorded >= match_ms:
                return False
            # What it returns tells on both databases whether there is a row.
            return connection.execute(statement.returning(_c.trigger_uid)).first() is not None

        made = await self._write(write)
        return CronRun(trigger.uid, match_ms, trigger.worker_uid, trigger.cron, 1) if made else None

    async def take_over(self, held: Collection[tuple[str, int]]) -> list[CronRun]:
        """Unfinished records that nobody delivers any more: they are this runtime's from here on, but for those that it
        `held` all the time, by trigger and match."""

        def take(connection: Connection) -> list[CronRun]:
            wall = wall_ms()
            free = sa.and_(_c.ended_at_ms.is_(None), sa.or_(_c.owner.is_(None), _c.lease_until_ms < wall))
            rows = connection.execute(
                sa.select(_c.trigger_uid, _c.scheduled_at_ms, _c.worker_uid, _c.cron, _c.deliveries)
                .where(free)
                .limit(_AT_ONCE)
            ).fetchall()
            taken = []
            for trigger_uid, scheduled_at_ms, worker_uid, cron, deliveries in rows:
                if (trigger_uid, scheduled_at_ms) in held:
                    continue
                run = CronRun(trigger_uid, scheduled_at_ms, worker_uid, cron, deliveries + 1)
                values = {"owner": self._runtime_id, "lease_until_ms": wall + LEASE_MS, "deliveries": run.deliveries}
                # Whoever came first has moved the lease.
                if connection.execute(sa.update(cron_runs).where(_of(run), free).values(values)).rowcount:
                    taken.append(run)
            return taken

        return await self._write(take)

    async def begin_again(self, run: CronRun) -> CronRun:
        """One more delivery of a record that this runtime holds."""
        again = replace(run, deliveries=run.deliveries + 1)
        await self._update(run, {"deliveries": again.deliveries, "lease_until_ms": wall_ms() + LEASE_MS})
        return again

    async def renew(self, run: CronRun) -> None:
        await self._update(run, {"lease_until_ms": wall_ms() + LEASE_MS})

    async def release(self, run: CronRun) -> None:
        """It is to be delivered once more, by whoever comes."""
        await self._update(run, {"owner": None, "lease_until_ms": None})

    async def _update(self, run: CronRun, values: dict[str, object]) -> None:
        mine = sa.and_(_of(run), _c.ended_at_ms.is_(None), _c.owner == self._runtime_id)
        await self._write(lambda connection: connection.execute(sa.update(cron_runs).where(mine).values(values)))

    async def end(self, run: CronRun, end: RunEnd | None, now_ms: int) -> None:
        """`end` is None when each delivery was lost."""
        failed = end is not None and not end.ok
        values = {
            "ended_at_ms": now_ms,
            "owner": None,
            "lease_until_ms": None,
            "outcome": "lost" if end is None else "failed" if failed else "complete",
            "error_name": stored(end.error_name) if end is not None and failed else None,
            "error_message": stored(end.error_message) if end is not None and failed else None,
        }
        open_one = sa.and_(_of(run), _c.ended_at_ms.is_(None))
        await self._write(lambda connection: connection.execute(sa.update(cron_runs).where(open_one).values(values)))

    async def discard(self, now_ms: int) -> None:
        """Ended records that nobody needs any more."""
        later = cron_runs.alias()
        has_later = sa.exists().where(
            later.c.trigger_uid == _c.trigger_uid, later.c.scheduled_at_ms > _c.scheduled_at_ms
        )
        old = sa.and_(_c.ended_at_ms < now_ms - KEPT_DAYS * DAY_MS, has_later)
        ancient = _c.ended_at_ms < now_ms - NEWEST_KEPT_DAYS * DAY_MS
        await self._write(lambda connection: connection.execute(sa.delete(cron_runs).where(sa.or_(old, ancient))))


def _of(run: CronRun) -> sa.ColumnElement[bool]:
    return sa.and_(_c.trigger_uid == run.trigger_uid, _c.scheduled_at_ms == run.scheduled_at_ms)
