# ruff: noqa: S608 - the text is made of the names in our own tables, never of data
"""The journal's SQL, once for each database, with positional parameters in the order of the records' fields.

Compiled from the tables of `store.schema`; executed as text so that a batch costs one driver call for each statement.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy import Connection, Table

from saisei_runtime.store import schema

# The columns of an instance that no transition changes.
IMMUTABLE: Final = 6
# A workflow is closed under this lock, and new owners and instances are admitted under a shared one (DW-08).
ADMISSION_LOCK: Final = 5278135
ADMIT: Final = f"SELECT pg_advisory_xact_lock_shared({ADMISSION_LOCK})"
CLOSE: Final = f"SELECT pg_advisory_xact_lock({ADMISSION_LOCK})"
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
    """`*_by_*` take the parameter that `many` makes; inserts and updates take rows for executemany."""

    postgresql: bool
    instances_by_incarnation: str
    instances_by_key: str
    closed_workflows: str
    steps_by_name: str
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
        return (json.dumps(keys),)


def statements(postgresql: bool) -> Statements:
    mark = "%s" if postgresql else "?"

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

    def insert(table: Table) -> str:
        names = ", ".join(column.name for column in table.columns)
        return f"INSERT INTO {table.name} ({names}) VALUES ({', '.join(mark for _ in table.columns)})"

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
        params_by_incarnation=look_up(schema.params, ("incarnation",)),
        oldest_event=(
            f"SELECT {columns(schema.queued_events)} FROM {schema.queued_events.name} t WHERE t.incarnation = {mark}"
            f" AND t.type = {mark} AND t.seq > {mark} AND t.accepted_at_ms <= {mark} ORDER BY t.seq LIMIT 1"
        ),
        insert_instance=insert(schema.instances),
        update_instance=(
            f"UPDATE {schema.instances.name} SET {', '.join(f'{name} = {mark}' for name in mutable)}"
            f" WHERE incarnation = {mark}"
        ),
        # A step of a running owner moves no index, and SQLite rewrites the index of each column that is set.
        update_running=(
            f"UPDATE {schema.instances.name} SET {', '.join(f'{name} = {mark}' for name in RUNNING_COLUMNS)}"
            f" WHERE incarnation = {mark}"
        ),
        insert_params=insert(schema.params),
        upsert_step=insert(schema.steps)
        + " ON CONFLICT (incarnation, name) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in outcomes),
        insert_event=insert(schema.queued_events),
        delete_event=f"DELETE FROM {schema.queued_events.name} WHERE incarnation = {mark} AND seq = {mark}",
        purge_events=f"DELETE FROM {schema.queued_events.name} WHERE incarnation = {mark}",
        insert_log=insert(schema.event_log),
    )


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


class Cursor:
    """The driver's own cursor inside a transaction of SQLAlchemy's: nothing is built around each statement.

    One statement of the journal handles many rows, and it runs thousands of times a second.
    """

    def __init__(self, connection: Connection) -> None:
        self._cursor = connection.connection.cursor()

    def fetch(self, sql: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        self._cursor.execute(sql, parameters)
        return self._cursor.fetchall()

    def write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if len(rows) == 1:
            self._cursor.execute(sql, rows[0])
        elif rows:
            self._cursor.executemany(sql, rows)

    def close(self) -> None:
        self._cursor.close()
