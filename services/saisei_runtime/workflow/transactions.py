"""The writer's transactions: begun and committed with as little around the statements as each database allows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, PoolProxiedConnection

from saisei_runtime.workflow.kept import Kept
from saisei_runtime.workflow.statements import Cursor
from saisei_service.database import SQLITE_BUSY_TIMEOUT_MS


class Transactions:
    """The writer's own connection, kept for its life.

    Taking one from the pool, resetting it and putting it back for each commit cost more CPU than the rows did.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction for SQLAlchemy's statements."""
        if self._connection is None:
            self._connection = self._engine.connect()
            # The pool need not wait for it: whoever else writes takes a connection of the pool's own.
            self._connection.detach()
        try:
            with self._connection.begin():
                yield self._connection
        except BaseException:
            # Whatever state it is in: the next transaction gets another one.
            self.close(broken=True)
            raise

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """A transaction for the driver's own statements."""
        with self.begin() as connection:
            yield Cursor(connection.connection, postgresql=True)

    def close(self, *, broken: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                if broken:
                    connection.invalidate()
                connection.close()


class SqliteTransactions(Transactions):
    """With BEGIN and COMMIT said to the driver itself: SQLAlchemy's events and results took a third of the CPU of a
    small commit. `kept` holds for as long as no other connection has written.

    Used by one thread at a time: a transaction that the event loop began with `try_begin` is ended by the writer's
    thread with `commit`, and nothing else is begun in between.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.kept = Kept()
        self._raw: PoolProxiedConnection | None = None
        self._cursor: Cursor | None = None

    @property
    def opened(self) -> bool:
        return self._cursor is not None

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        if self._cursor is None:
            self._raw = self._engine.raw_connection()
            self._raw.detach()
            self._cursor = Cursor(self._raw, postgresql=False)
            self.kept = Kept()
        cursor = self._cursor
        try:
            cursor.call(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MS}", ())
            self._begin(cursor)
            yield cursor
            cursor.call("COMMIT", ())
            cursor.call("PRAGMA busy_timeout = 0", ())
        except BaseException:
            # Whatever state it is in: closing it rolls back, and the next transaction gets another one.
            self.close(broken=True)
            raise

    def try_begin(self) -> Cursor | None:
        """A transaction without waiting; None when another connection writes. `commit` ends it, `close` undoes it."""
        cursor = self._cursor
        if cursor is None:
            return None
        try:
            self._begin(cursor)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                return None
            raise
        return cursor

    def _begin(self, cursor: Cursor) -> None:
        cursor.call("BEGIN IMMEDIATE", ())
        self.kept.seen(cursor.fetch("PRAGMA data_version", ())[0][0])

    def commit(self) -> None:
        assert self._cursor is not None
        try:
            self._cursor.call("COMMIT", ())
        except BaseException:
            self.close(broken=True)
            raise

    def close(self, *, broken: bool = False) -> None:
        raw, self._raw, self._cursor = self._raw, None, None
        if raw is not None:
            with suppress(Exception):
                raw.close()
        super().close(broken=broken)
