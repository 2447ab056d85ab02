"""Reads of the workflow tables, in a few reader threads: they never wait for the writer (W-015: commits come first)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from saisei_contract.errors import SaiseiError
from saisei_runtime.store import schema
from saisei_runtime.store.text import loaded, stored
from saisei_runtime.workflow.records import PARKED, RUNNING, STATUSES, TERMINAL, Instance, LogEntry, Step
from saisei_runtime.workflow.starts import Start, Starts
from saisei_runtime.workflow.workspace import loaded_instance, loaded_step
from saisei_service.database import READER_CONNECTIONS, Database

T = TypeVar("T")

_instances = schema.instances.c
_steps = schema.steps.c
_queued = schema.queued_events.c
# Built once: a listing of steps is asked for as often as instances are looked at.
_MINE = (_steps.incarnation == sa.bindparam("incarnation")) & (_steps.seq > sa.bindparam("after"))
_SIZES = sa.select(_steps.seq, sa.func.length(_steps.result)).where(_MINE).order_by(_steps.seq)
_STEPS = sa.select(schema.steps).where(_MINE, _steps.seq <= sa.bindparam("last")).order_by(_steps.seq)
_QUEUED = (
    sa.select(_queued.type, _queued.accepted_at_ms)
    .where(_queued.incarnation == sa.bindparam("incarnation"))
    .order_by(_queued.seq)
)
_log = schema.event_log.c


class Due(msgspec.Struct, frozen=True):
    """Instances of one workflow that may be claimed now, and when the next ones may; `more` are left off."""

    incarnations: Sequence[str]
    more: bool
    next_due_ms: int | None


class LogPage(msgspec.Struct, frozen=True):
    """Events after a cursor. `exists` is false once the instance was purged; `ended`: no event follows the page;
    `more`: the page is full and others are recorded already; `newest`: the highest id of the log."""

    exists: bool
    ended: bool
    more: bool
    newest: int
    entries: Sequence[LogEntry]


class Reads:
    """Each method is one short read transaction; SaiseiError backend_unavailable when the database cannot be read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = ThreadPoolExecutor(READER_CONNECTIONS, thread_name_prefix="reads")
        self._starts = Starts(self._read, postgresql=database.is_postgresql)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    async def _read(self, run: Callable[[Connection], T]) -> T:
        def _job() -> T:
            with self._database.reader.connect() as connection:
                return run(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _job)
        except (sa.exc.SQLAlchemyError, RuntimeError) as error:
            raise SaiseiError("backend_unavailable", "The journal cannot be read now. Try again later.") from error

    async def instance(self, workflow_uid: str, instance_id: str) -> Instance | None:
        where = (_instances.workflow_uid == workflow_uid) & (_instances.instance_id == stored(instance_id))
        return await self._one(where)

    async def by_incarnation(self, incarnation: str) -> Instance | None:
        return await self._one(_instances.incarnation == incarnation)

    async def by_incarnations(self, incarnations: Sequence[str]) -> list[Instance]:
        query = sa.select(schema.instances).where(_instances.incarnation.in_(incarnations))
        return await self._read(lambda connection: [loaded_instance(row) for row in connection.execute(query)])

    async def _one(self, where: ColumnElement[bool]) -> Instance | None:
        def _run(connection: Connection) -> Instance | None:
            row = connection.execute(sa.select(schema.instances).where(where)).fetchone()
            return None if row is None else loaded_instance(row)

        return await self._read(_run)

    async def page(self, workflow_uid: str, status: str | None, limit: int, after: str) -> list[Instance]:
        """Ascending by creation, from the first incarnation greater than `after`."""
        query = sa.select(schema.instances).where(
            _instances.workflow_uid == workflow_uid, _instances.incarnation > after
        )
        if status is not None:
            query = query.where(_instances.status == status)
        query = query.order_by(_instances.incarnation).limit(limit)
        return await self._read(lambda connection: [loaded_instance(row) for row in connection.execute(query)])

    async def counts(self, workflow_uid: str) -> dict[str, int]:
        """Instances of each of the seven statuses (DW-05)."""
        query = (
            sa.select(_instances.status, sa.func.count())
            .where(_instances.workflow_uid == workflow_uid)
            .group_by(_instances.status)
        )
        found = await self._read(lambda connection: {row[0]: int(row[1]) for row in connection.execute(query)})
        return {status: found.get(status, 0) for status in STATUSES}

    async def steps(
        self, incarnation: str, after: int, limit_bytes: int, *, queued: bool
    ) -> tuple[list[Step], bool, list[tuple[str, int]]]:
        """In order of first registration, from the first `seq` above `after`: one, and further ones as long as the
        results do not exceed `limit_bytes`; whether there are more; and if there are not and `queued` says so, the type
        and acceptance time in epoch ms of each event that waits in the queue, the oldest first."""

        def _run(connection: Connection) -> tuple[list[Step], bool, list[tuple[str, int]]]:
            last, size, more = after, 0, False
            of = {"incarnation": incarnation, "after": after}
            for seq, length in connection.execute(_SIZES, of).all():
                size += length or 0
                if last != after and size > limit_bytes:
                    more = True
                    break
                last = seq
            found = [loaded_step(row) for row in connection.execute(_STEPS, {**of, "last": last})]
            events = connection.execute(_QUEUED, {"incarnation": incarnation}) if queued and not more else ()
            return found, more, [(loaded(row[0]), row[1]) for row in events]

        return await self._read(_run)

    async def result_of(self, incarnation: str, name: str) -> bytes | None:
        """The result of a finished step; backend_unavailable also when the instance was purged meanwhile."""
        query = sa.select(_steps.result).where(_steps.incarnation == incarnation, _steps.name == stored(name))
        row = await self._read(lambda connection: connection.execute(query).fetchone())
        if row is None:
            raise SaiseiError("backend_unavailable", "The instance is no longer stored.")
        return None if row[0] is None else bytes(row[0])

    async def start_of(self, instance: Instance) -> Start:
        """What a new context is given: params and the whole history."""
        return await self._starts.of(instance)

    async def workflows_with_due(self) -> list[str]:
        """Workflow UIDs that have an instance to claim now or later, by index hops instead of a scan."""

        def _run(connection: Connection) -> list[str]:
            found: list[str] = []
            after = ""
            while True:
                where = (_instances.workflow_uid > after) & _instances.due_at_ms.is_not(None)
                uid = connection.execute(
                    sa.select(_instances.workflow_uid).where(where).order_by(_instances.workflow_uid).limit(1)
                ).scalar()
                if uid is None:
                    return found
                found.append(uid)
                after = uid

        return await self._read(_run)

    async def due(self, workflow_uid: str, now_ms: int, limit: int) -> Due:
        mine = (_instances.workflow_uid == workflow_uid) & _instances.due_at_ms.is_not(None)
        ready = (
            sa.select(_instances.incarnation)
            .where(mine, _instances.due_at_ms <= now_ms)
            .order_by(_instances.due_at_ms)
            .limit(limit + 1)
        )
        later = sa.select(sa.func.min(_instances.due_at_ms)).where(mine, _instances.due_at_ms > now_ms)

        def _run(connection: Connection) -> Due:
            incarnations = list(connection.execute(ready).scalars())
            return Due(incarnations[:limit], len(incarnations) > limit, connection.execute(later).scalar())

        return await self._read(_run)

    async def lapsed(self, wall_ms: int, limit: int) -> list[Instance]:
        """Instances whose owner let the lease run out, or whose pause after trouble is over."""
        query = sa.select(schema.instances).where(_instances.lease_until_ms <= wall_ms).limit(limit)
        return await self._read(lambda connection: [loaded_instance(row) for row in connection.execute(query)])

    async def parked(self, workflow_uid: str, limit: int) -> list[tuple[str, str]]:
        """(incarnation, name of the step it is in) of sleeping and waiting instances; those that go on first."""
        query = (
            sa.select(_instances.incarnation, _instances.pending_step)
            .where(
                _instances.workflow_uid == workflow_uid,
                _instances.due_at_ms.is_not(None),
                _instances.pending_step.is_not(None),
                _instances.status.in_(PARKED),
            )
            .order_by(_instances.due_at_ms)
            .limit(limit)
        )
        return await self._read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])

    async def stranded(self, workflow_uids: Sequence[str], now_ms: int, wall_ms: int) -> list[tuple[str, str]]:
        """(incarnation, workflow UID) of instances that are shown as running although nobody runs them: those that wait
        for a pause or a lapsed lease, of any workflow, and those of the named ones that are due."""
        nobody = _instances.owner.is_(None) | (_instances.lease_until_ms <= wall_ms)
        which = sa.select(_instances.incarnation, _instances.workflow_uid).where(_instances.status == RUNNING)
        waiting = which.where(_instances.lease_until_ms.is_not(None), nobody)
        due = which.where(_instances.workflow_uid.in_(workflow_uids), _instances.due_at_ms <= now_ms)

        def _run(connection: Connection) -> list[tuple[str, str]]:
            rows = [*connection.execute(waiting), *connection.execute(due)]
            return [(row[0], row[1]) for row in rows]

        return await self._read(_run)

    async def running_of(self, runtime_id: str) -> list[str]:
        """Incarnations that a former process of this runtime owned."""
        query = sa.select(_instances.incarnation).where(
            _instances.lease_until_ms.is_not(None), _instances.runtime_id == runtime_id, _instances.status == RUNNING
        )
        return await self._read(lambda connection: list(connection.execute(query).scalars()))

    async def held(self, workflow_uid: str, wall_ms: int) -> list[str]:
        """Incarnations of a workflow whose owner may still run code."""
        query = sa.select(_instances.incarnation).where(
            _instances.lease_until_ms > wall_ms,
            _instances.workflow_uid == workflow_uid,
            _instances.owner.is_not(None),
        )
        return await self._read(lambda connection: list(connection.execute(query).scalars()))

    async def overdue(self, created_before: str, limit: int) -> list[str]:
        """Live instances created before the incarnation bound: their lifetime is over (W-016)."""
        query = (
            sa.select(_instances.incarnation)
            .where(_instances.incarnation < created_before, _instances.ended_at_ms.is_(None))
            .order_by(_instances.incarnation)
            .limit(limit)
        )
        return await self._read(lambda connection: list(connection.execute(query).scalars()))

    async def closed_workflows(self) -> list[str]:
        query = sa.select(schema.closed_workflows.c.workflow_uid)
        return await self._read(lambda connection: list(connection.execute(query).scalars()))

    async def log_after(self, incarnation: str, cursor: int, limit: int, limit_bytes: int) -> LogPage:
        """At most `limit` events, and none after the one with which their bodies exceed `limit_bytes`."""
        head = sa.select(_instances.status, _instances.event_seq).where(_instances.incarnation == incarnation)
        sizes = (
            sa.select(_log.event_id, sa.func.length(_log.body))
            .where(_log.incarnation == incarnation, _log.event_id > cursor)
            .order_by(_log.event_id)
            .limit(limit)
        )

        def _run(connection: Connection) -> LogPage:
            row = connection.execute(head).fetchone()
            if row is None:
                return LogPage(False, True, False, 0, ())
            last, size = cursor, 0
            for event_id, length in connection.execute(sizes).all():
                last = event_id
                size += length
                if size > limit_bytes:
                    break
            if last == cursor:
                return LogPage(True, row[0] in TERMINAL and cursor >= row[1], False, row[1], ())
            query = (
                sa.select(schema.event_log)
                .where(_log.incarnation == incarnation, _log.event_id > cursor, _log.event_id <= last)
                .order_by(_log.event_id)
            )
            entries = [LogEntry(*entry) for entry in connection.execute(query)]
            return LogPage(True, row[0] in TERMINAL and last >= row[1], last < row[1], row[1], entries)

        return await self._read(_run)

    async def newest_events(self, incarnations: Sequence[str]) -> dict[str, int]:
        """Highest event id of each instance that exists."""
        query = sa.select(_instances.incarnation, _instances.event_seq).where(_instances.incarnation.in_(incarnations))
        return await self._read(lambda connection: {row[0]: int(row[1]) for row in connection.execute(query)})


def cursor_of(incarnation: str) -> str:
    """The opaque list cursor that continues after an instance."""
    return incarnation


def after_cursor(cursor: str | None) -> str:
    """The incarnation to continue after; SaiseiError invalid_request for anything that is no cursor of ours."""
    if cursor is None:
        return ""
    if len(cursor) != 32 or any(digit not in "0123456789abcdef" for digit in cursor):
        raise SaiseiError("invalid_request", "The cursor is not one that this list gave.")
    return cursor
