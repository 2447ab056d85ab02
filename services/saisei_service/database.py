"""One dialect layer for SQLite and PostgreSQL, so that no service's behaviour differs by database quietly (design 2).

URLs: `sqlite:////absolute/file.db` and `postgresql+psycopg://user@/name?host=/socket/folder`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import QueuePool

# How long a writer waits for another process' write lock. A locked file for a few seconds must end no work.
SQLITE_BUSY_TIMEOUT_MS = 30_000
READER_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Database:
    """Two engines over one database.

    `writer`: transactions that may write. On SQLite BEGIN IMMEDIATE: a deferred transaction that starts reading and
    then writes can fail with SQLITE_BUSY_SNAPSHOT, which no timeout cures.
    `reader`: read-only work; WAL readers never wait for the writer.
    """

    writer: Engine
    reader: Engine

    @property
    def is_postgresql(self) -> bool:
        return self.writer.dialect.name == "postgresql"

    def close(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def open_database(url: str, *, writer_connections: int = 1, writer_cache_kib: int = 64_000) -> Database:
    """Opens (and for SQLite creates) the database. The writer's cache is filled as the database grows, and kept."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database is None or parsed.database == ":memory:":
            raise ValueError("a SQLite database needs a file: sqlite:////folder/file.db")
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        return Database(
            writer=_sqlite_engine(
                url, connections=writer_connections, begin="BEGIN IMMEDIATE", cache_kib=writer_cache_kib
            ),
            # The system's own cache stands behind each of them; a long log read once must not stay here four times.
            reader=_sqlite_engine(url, connections=READER_CONNECTIONS, begin="BEGIN", cache_kib=4_000),
        )
    if parsed.get_backend_name() == "postgresql":
        return Database(
            writer=create_engine(url, pool_size=writer_connections, max_overflow=0, pool_pre_ping=True),
            reader=create_engine(url, pool_size=READER_CONNECTIONS, max_overflow=0, pool_pre_ping=True),
        )
    raise ValueError(f"the database {parsed.get_backend_name()!r} is neither sqlite nor postgresql")


def _sqlite_engine(url: str, *, connections: int, begin: str, cache_kib: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=60,
        connect_args={"check_same_thread": False, "timeout": SQLITE_BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        # The driver's own transaction control would begin late and deferred; `begin` below decides instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute(f"PRAGMA cache_size = -{cache_kib}")
        # 32 MiB of log between checkpoints instead of 4: hot pages are copied once instead of eight times, which saves
        # a quarter of a busy writer's CPU. The log is reused, so the file does not grow further.
        cursor.execute("PRAGMA wal_autocheckpoint = 8000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def migrate(database: Database, migrations: Path) -> None:
    """Brings the schema to its newest version with the Alembic scripts in the folder `migrations`.

    Safe to call from several processes: SQLite's write lock or a PostgreSQL advisory lock lets one of them do the work.
    """
    config = Config()
    config.set_main_option("script_location", str(migrations))
    with database.writer.begin() as connection:
        if database.is_postgresql:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(5278134)")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
