# ruff: noqa: S608 - the text is made of the names in our own tables, never of data
"""The journal's SQL, once for each database, with positional parameters in the order of the records' fields.

Compiled from the tables of `store.schema`; executed as text so that a batch costs one driver call for each statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy import Engine, PoolProxiedConnection, Table
from sqlalchemy.dialects import registry

from saisei_runtime.store import schema
from saisei_runtime.workflow.records import STEP_COMPLETE

# Of one insertion into SQLite.
ROWS_AT_ONCE: Final = 64
# The columns of an instance that no transition changes.
IMMUTABLE: Final = 6
# A workflow is closed under this lock, and new owners and instances are admitted under a shared one (DW-08).
ADMISSION_LOCK: Final = 5278135
ADMIT: Final = f"SELECT pg_advisory_xact_lock_shared({ADMISSION_LOCK})"
CLOSE: Final = f"SELECT pg_advisory_xact_lock({ADMISSION_LOCK})"
# A finished step's result of more bytes than this is given to a context when its code asks for it: a whole history is
# then at most 32 MiB. DEFERRED stands in its place, for no document is empty.
GIVEN_AT_ONCE: Final = 32_768
DEFERRED: Final = b""
_json = msgspec.json.Encoder().encode
_POSTGRESQL: Final = registry.load("postgresql")()
# What may change while one owner keeps one lease.
RUNNING_COLUMNS: Final = (
    "pending_step",
    "termination_requested",
    "verdict",
    "event_seq",
    "event_at_ms",
    "step_count",
    "open_steps",
    "queued_count",
    "queued_bytes",
    "accept_seq",
    "losses",
)


@dataclass(frozen=True, slots=True)
class Statements:
    """`*_by_*` take the parameter that `many` makes; inserts, updates and deletes take rows."""

    postgresql: bool
    instances_by_incarnation: str
    instances_by_key: str
    closed_workflows: str
    steps_by_name: str
    steps_by_incarnation: str
    params_by_incarnation: str
    oldest_event: str
    insert_instance: str
    update_instance: str
    update_running: str
    insert_params: str
    upsert_step: str
    insert_event: str
    delete_event: str
    purge_events: str
    insert_log: str

    def many(self, keys: Sequence[tuple[str, ...]]) -> tuple[Any, ...]:
        """The parameters of a look-up of many keys: one array for each key column, or one JSON text on SQLite."""
        if self.postgresql:
            return tuple(list(column) for column in zip(*keys, strict=True))
        return (_json(keys).decode(),)


def statements(postgresql: bool) -> Statements:
    mark = "%s" if postgresql else "?"
    empty = "''::bytea" if postgresql else "x''"

    def columns(table: Table) -> str:
        return ", ".join(f"t.{column.name}" for column in table.columns)

    def look_up(table: Table, keys: tuple[str, ...], suffix: str = "") -> str:
        if postgresql:
            names = ", ".join(f"k{n}" for n in range(len(keys)))
            arrays = ", ".join("%s::text[]" for _ in keys)
            on = " AND ".join(f't.{key} = k.k{n} COLLATE "C"' for n, key in enumerate(keys))
            return f"SELECT {columns(table)} FROM unnest({arrays}) AS k({names}) JOIN {table.name} t ON {on}{suffix}"
        on = " AND ".join(f"t.{key} = json_extract(k.value, '$[{n}]')" for n, key in enumerate(keys))
        # CROSS JOIN fixes the order of the loops: the few keys outside, the index inside.
        return f"SELECT {columns(table)} FROM json_each(?) k CROSS JOIN {table.name} t ON {on}"

    def arrays(table: Table, names: Sequence[str]) -> str:
        """Rows as one array for each column: PostgreSQL then runs one statement for all of them."""
        types = ", ".join(f"%s::{table.columns[name].type.compile(_POSTGRESQL).split(' ')[0]}[]" for name in names)
        return f"unnest({types}) AS u({', '.join(names)})"

    def insert(table: Table) -> str:
        names = [column.name for column in table.columns]
        into = f"INSERT INTO {table.name} ({', '.join(names)})"
        if postgresql:
            return f"{into} SELECT {', '.join(f'u.{name}' for name in names)} FROM {arrays(table, names)}"
        return f"{into} VALUES ({', '.join(mark for _ in names)})"

    def update(table: Table, names: Sequence[str]) -> str:
        if postgresql:
            values = ", ".join(f"{name} = u.{name}" for name in names)
            rows = arrays(table, [*names, "incarnation"])
            return f'UPDATE {table.name} t SET {values} FROM {rows} WHERE t.incarnation = u.incarnation COLLATE "C"'
        return f"UPDATE {table.name} SET {', '.join(f'{name} = {mark}' for name in names)} WHERE incarnation = {mark}"

    def delete(table: Table, names: Sequence[str]) -> str:
        if postgresql:
            on = " AND ".join(f"t.{name} = u.{name}" for name in names)
            return f"DELETE FROM {table.name} t USING {arrays(table, names)} WHERE {on}"
        return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{name} = {mark}' for name in names)}"

    mutable = [column.name for column in schema.instances.columns][IMMUTABLE:]
    outcomes = [c.name for c in schema.steps.columns if c.name not in ("incarnation", "name", "seq", "kind")]
    lock = " ORDER BY t.incarnation FOR UPDATE OF t"
    return Statements(
        postgresql=postgresql,
        instances_by_incarnation=look_up(schema.instances, ("incarnation",), lock),
        # On PostgreSQL only to learn the incarnations: rows are locked in one query and one order.
        instances_by_key=look_up(schema.instances, ("workflow_uid", "instance_id")),
        closed_workflows=look_up(schema.closed_workflows, ("workflow_uid",)),
        steps_by_name=look_up(schema.steps, ("incarnation", "name")),
        steps_by_incarnation=look_up(schema.steps, ("incarnation",)).replace(
            "t.result",
            f"CASE WHEN t.state = '{STEP_COMPLETE}' AND length(t.result) > {GIVEN_AT_ONCE}"
            f" THEN {empty} ELSE t.result END",
        ),
        params_by_incarnation=look_up(schema.params, ("incarnation",)),
        oldest_event=(
            f"SELECT {columns(schema.queued_events)} FROM {schema.queued_events.name} t WHERE t.incarnation = {mark}"
            f" AND t.type = {mark} AND t.seq > {mark} AND t.accepted_at_ms <= {mark} ORDER BY t.seq LIMIT 1"
        ),
        insert_instance=insert(schema.instances),
        update_instance=update(schema.instances, mutable),
        # A step of a running owner moves no index, and SQLite rewrites the index of each column that is set.
        update_running=update(schema.instances, RUNNING_COLUMNS),
        insert_params=insert(schema.params),
        upsert_step=insert(schema.steps)
        + " ON CONFLICT (incarnation, name) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in outcomes),
        insert_event=insert(schema.queued_events),
        delete_event=delete(schema.queued_events, ("incarnation", "seq")),
        purge_events=delete(schema.queued_events, ("incarnation",)),
        insert_log=insert(schema.event_log),
    )


def prefer_indexes(engine: Engine) -> None:
    """Tells PostgreSQL that the journal looks a few keys up, also while its statistics say that a table is small.

    Otherwise it scans small tables, and the cached plan of a statement goes on scanning them when they have grown.
    """
    if engine.dialect.name != "postgresql":
        return

    @sa.event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
                cursor.execute(f"SET {name} = off")
        connection.commit()

    # Connections that were opened before do not know it.
    engine.dispose()


def is_unavailable(error: BaseException) -> bool:
    """Whether the database could not be reached or answered nothing useful, as opposed to refusing one row."""
    cause = _cause(error)
    return isinstance(
        cause, sa.exc.TimeoutError | sqlite3.OperationalError | psycopg.OperationalError | psycopg.InterfaceError
    )


def is_passing(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is run again: a lost connection, a deadlock between runtimes,
    or an id that another runtime took after this one had looked."""
    return is_unavailable(error) or isinstance(_cause(error), sqlite3.IntegrityError | psycopg.IntegrityError)


def _cause(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error


@cache
def _wide(sql: str, rows: int) -> str:
    """The same insertion into SQLite, of so many rows."""
    head, _, row = sql.partition(" VALUES ")
    row, close, tail = row.partition(")")
    return f"{head} VALUES {', '.join([row + close] * rows)}{tail}"


class Cursor:
    """The driver's own cursor inside a transaction of SQLAlchemy's: nothing is built around each statement.

    One statement of the journal handles many rows, and it runs thousands of times a second.
    """

    def __init__(self, connection: PoolProxiedConnection, *, postgresql: bool) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._by_column = postgresql

    def fetch(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        self._cursor.execute(sql, parameters)
        return self._cursor.fetchall()

    def write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        if self._by_column:
            self._cursor.execute(sql, [list(column) for column in zip(*rows, strict=True)])
        elif len(rows) == 1:
            self._cursor.execute(sql, rows[0])
        elif " VALUES " in sql:
            self._insert(sql, rows)
        else:
            self._cursor.executemany(sql, rows)

    def _insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Many rows in one statement, in sizes of powers of two, so that few statements are to be prepared.

        The driver gives the interpreter's lock away twice for each statement that it runs, and for each row when it is
        told of many rows: each time the writer may have to wait for the event loop to end its turn.
        """
        at = 0
        while at < len(rows):
            size = min(1 << (len(rows) - at).bit_length() - 1, ROWS_AT_ONCE)
            self._cursor.execute(_wide(sql, size), [*chain.from_iterable(rows[at : at + size])])
            at += size

    def call(self, sql: str, parameters: tuple[Any, ...]) -> None:
        """Executes a statement whose result nobody needs."""
        self._cursor.execute(sql, parameters)

    def together(self) -> AbstractContextManager[Any]:
        """Writes inside go to PostgreSQL without waiting for each other's answer; an error comes at the end."""
        connection = self._connection.dbapi_connection
        return connection.pipeline() if isinstance(connection, psycopg.Connection) else nullcontext()
