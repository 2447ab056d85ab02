"""The one way into the database: short write transactions, committed in groups by one thread; reads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from saisei_contract.errors import SaiseiError
from saisei_service.database import READER_CONNECTIONS, Database, migrate, open_database

log = logging.getLogger(__name__)
T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
# A bound of what one commit carries, so that the first caller of a burst does not wait for all of it.
GROUP_LIMIT = 64
# Enough for the upper levels of every index: what a mutation touches is new or was touched just before.
WRITER_CACHE_KIB = 8_000
# With the connection of `peek` as many as the pool has.
READER_THREADS = READER_CONNECTIONS - 1
# Several control replicas on PostgreSQL take turns, as SQLite's write lock makes them do: every check inside a write
# transaction then holds until its commit, on both databases.
_WRITE_LOCK = 5_278_135


class Change(Flag):
    """What a write may have changed for those who wait in this process."""

    NOTHING = 0
    # An Operation has fallen due, or will at another time.
    DUE = auto()
    # What a Resource or an Operation is.
    STATE = auto()
    # What runtimes are to host, or have made effective.
    HOSTING = auto()
    ANYTHING = DUE | STATE | HOSTING


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[Connection], Any]
    tells: Change
    answer: asyncio.Future[Any]


_Outcome: TypeAlias = tuple[Any, BaseException | None]


class Store:
    """`write` and `read` take a function of one connection and run it in a transaction off the event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="control-read")
        self._writer = threading.Thread(target=self._write_loop, name="control-write", daemon=True)
        self._writer.start()
        self.changes = Changes()
        # Only the event loop's thread uses it.
        self._peeker = None if database.is_postgresql else database.reader.connect()

    @classmethod
    def open(cls, url: str) -> Store:
        """Opens the database and brings its schema to the newest version."""
        database = open_database(url, writer_cache_kib=WRITER_CACHE_KIB)
        migrate(database, MIGRATIONS)
        return cls(database)

    async def write(self, work: Callable[[Connection], T], tells: Change = Change.ANYTHING) -> T:
        """Runs `work` in a write transaction; the result is told only after the commit, and who waits is woken then.

        `work` may run with others in one transaction, each in its own savepoint: an exception rolls back its own
        changes alone. It may be run again from the start when the connection was lost before the commit began.
        SaiseiError temporarily_unavailable when the database cannot be reached; that proves nothing about the commit
        (H-181).
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work, tells, answer))
        return await answer

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction of its own, beside the writer."""

        def run() -> T:
            with self.database.reader.begin() as connection:
                return work(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, run)
        except DBAPIError as error:
            raise _unavailable(error) from error

    async def peek(self, work: Callable[[Connection], T]) -> T:
        """For a few look-ups by key, each of which sees what is committed by then: they are no transaction together.

        On SQLite they take less than the way to a thread and back, and less than a transaction.
        """
        if self._peeker is None:
            return await self.read(work)
        try:
            return work(self._peeker)
        except DBAPIError as error:
            raise _unavailable(error) from error
        finally:
            # SQLAlchemy's own statements begin one, whose snapshot would grow old.
            if self._peeker.in_transaction():
                self._peeker.rollback()

    async def close(self) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._writer.join)
        self._readers.shutdown()
        if self._peeker is not None:
            self._peeker.close()
        self.database.close()

    def _write_loop(self) -> None:
        while True:
            first = self._jobs.get()
            if first is None:
                return
            group = [first]
            stopping = False
            while len(group) < GROUP_LIMIT:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    stopping = True
                    break
                group.append(job)
            self._commit(group)
            if stopping:
                return

    def _commit(self, waiting: list[_Job]) -> None:
        # A caller that went away before its turn takes its work along.
        group = [job for job in waiting if not job.answer.cancelled()]
        if not group:
            return
        try:
            outcomes = self._run_all(group)
        except BaseException as error:
            failure = _unavailable(error)
            outcomes = [(None, failure) for _ in group]
        # One wake-up of the loop for all of them; a loop that is closed by then has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            group[0].answer.get_loop().call_soon_threadsafe(self._tell, group, outcomes)

    def _tell(self, group: list[_Job], outcomes: list[_Outcome]) -> None:
        changed = Change.NOTHING
        for job, (result, raised) in zip(group, outcomes, strict=True):
            if raised is None:
                changed |= job.tells
            if job.answer.cancelled():
                continue
            if raised is None:
                job.answer.set_result(result)
            else:
                job.answer.set_exception(raised)
        self.changes.notify(changed)

    def _run_all(self, group: list[_Job]) -> list[_Outcome]:
        """One transaction. Most often each job succeeds, and then none needs a savepoint of its own; otherwise the
        jobs run once more, each in one.
        """
        try:
            with self._transaction() as connection:
                return [(_run(connection, job.work), None) for job in group]
        except _Refused as refused:
            if len(group) == 1:
                return [(None, refused.outcome)]
        with self._transaction() as connection:
            return [_in_savepoint(connection, job.work) for job in group]

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.database.writer.begin() as connection:
            if self.database.is_postgresql:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE_LOCK})")
            yield connection


class _Refused(Exception):  # noqa: N818 - a signal inside this module
    """A job of a group failed; `outcome` is what it failed with."""

    def __init__(self, outcome: BaseException) -> None:
        super().__init__()
        self.outcome = outcome


def _run(connection: Connection, work: Callable[[Connection], Any]) -> Any:
    try:
        return work(connection)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        raise _Refused(error) from None
    except Exception as error:
        raise _Refused(error) from None


def _in_savepoint(connection: Connection, work: Callable[[Connection], Any]) -> _Outcome:
    try:
        with connection.begin_nested():
            return work(connection), None
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return None, error
    except Exception as error:
        return None, error


def _unavailable(error: BaseException) -> SaiseiError:
    log.error("the database failed", exc_info=error)
    return SaiseiError("temporarily_unavailable", "the Host's database cannot be reached now; send the request again")


class Changes:
    """Wakes whoever waits for something in the database to change.

    A wake-up may be early and is never a fact by itself.
    """

    def __init__(self) -> None:
        self._events = {change: asyncio.Event() for change in Change}

    def notify(self, changed: Change = Change.ANYTHING) -> None:
        for change in changed:
            self._events[change].set()
            self._events[change] = asyncio.Event()

    def next(self, change: Change) -> asyncio.Event:
        """Is set at the next write of this process, from now on, that may have changed it. `change` is one of them.

        Whoever looks and then waits takes it before the look: what is written in between is then not missed.
        """
        return self._events[change]

    @staticmethod
    async def wait(changed: asyncio.Event, seconds: float) -> None:
        """Returns once `changed` is set, or after `seconds`: that bounds the delay of other processes' writes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
