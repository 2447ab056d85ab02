"""The migrations and the tables that the code speaks of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import delete, select, text

from saisei_control.store.schema import idempotency, metadata, operations
from saisei_control.store.store import MIGRATIONS
from saisei_service.database import migrate, open_database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    base, name = request.getfixturevalue("postgres_url"), f"control_empty_{os.getpid()}"
    with psycopg.connect(base.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield base.replace("/postgres?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_migrations_make_exactly_the_schema(empty_database_url: str) -> None:
    """Design 2: on both databases the migrations leave what the code expects; again changes nothing."""
    database = open_database(empty_database_url)
    try:
        for _ in range(2):
            migrate(database, MIGRATIONS)
            with database.writer.begin() as connection:
                assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    finally:
        database.close()


def test_keys_from_before_are_the_host_apis(empty_database_url: str) -> None:
    """H-145, H-148, H-149: replays survive the migration that gives each API keys of its own, and end as before."""
    database = open_database(empty_database_url)
    try:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with database.writer.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "0003")
            columns = (
                "id, resource_uid, action, generation, status, effect, principal, "
                "created_at, updated_at, retain_until, attempts, due_at"
            )
            values = "'op', 'r', 'create', 1, 'succeeded', 'complete', 'ann', 0, 0, 0, 1, 0"
            connection.execute(text(f"INSERT INTO operations ({columns}) VALUES ({values})"))
            connection.execute(
                text(
                    "INSERT INTO idempotency (principal, key, request_digest, operation_id) "
                    "VALUES ('ann', 'the-key', 'digest', 'op')"
                )
            )
        migrate(database, MIGRATIONS)
        with database.writer.begin() as connection:
            (row,) = connection.execute(select(idempotency)).all()
            assert (row.principal, row.api, row.key, row.operation_id) == ("ann", "host", "the-key", "op")
            connection.execute(delete(operations))
            assert connection.execute(select(idempotency)).all() == []
    finally:
        database.close()
