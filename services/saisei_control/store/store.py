"""The one way into the database: short write transactions, committed in groups by one thread; reads beside it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from saisei_contract.errors import SaiseiError
from saisei_service.database import Database, migrate, open_database

log = logging.getLogger(__name__)
T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
# A bound of what one commit carries, so that the first caller of a burst does not wait for all of it.
GROUP_LIMIT = 64
READER_THREADS = 4
# Several control replicas on PostgreSQL take turns, as SQLite's write lock makes them do: every check inside a write
# transaction then holds until its commit, on both databases.
_WRITE_LOCK = 5_278_135

_Job = tuple[Callable[[Connection], Any], "Future[Any]"]


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
        database = open_database(url)
        migrate(database, MIGRATIONS)
        return cls(database)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a write transaction; the result is told only after the commit.

        `work` may run with others in one transaction, each in its own savepoint: an exception rolls back its own
        changes alone. It may be run again from the start when the connection was lost before the commit began.
        SaiseiError temporarily_unavailable when the database cannot be reached; that proves nothing about the commit
        (H-181).
        """
        future: Future[T] = Future()
        self._jobs.put((work, future))
        result = await asyncio.wrap_future(future)
        self.changes.notify()
        return result

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
        """As `read`, for a few look-ups by key: on SQLite they take less than the way to a thread and back."""
        if self._peeker is None:
            return await self.read(work)
        try:
            with self._peeker.begin():
                return work(self._peeker)
        except DBAPIError as error:
            raise _unavailable(error) from error

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
        # A caller that went away before its turn takes its work along; later it can no longer cancel.
        group = [job for job in waiting if job[1].set_running_or_notify_cancel()]
        if not group:
            return
        try:
            outcomes = self._run_all(group)
        except BaseException as error:
            failure = _unavailable(error)
            outcomes = [(None, failure) for _ in group]
        for (_, future), (result, raised) in zip(group, outcomes, strict=True):
            if raised is None:
                future.set_result(result)
            else:
                future.set_exception(raised)

    def _run_all(self, group: list[_Job]) -> list[tuple[Any, BaseException | None]]:
        """One transaction. Most often each job succeeds, and then none needs a savepoint of its own; otherwise the
        jobs run once more, each in one.
        """
        try:
            with self._transaction() as connection:
                return [(_run(connection, work), None) for work, _ in group]
        except _Refused as refused:
            if len(group) == 1:
                return [(None, refused.outcome)]
        with self._transaction() as connection:
            return [_in_savepoint(connection, work) for work, _ in group]

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


def _in_savepoint(connection: Connection, work: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
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
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Returns at the next write of this process, or after `seconds`, which bounds the delay of other processes'
        writes.
        """
        event = self._event
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return
