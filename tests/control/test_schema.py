"""The migrations and the tables that the code speaks of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from saisei_control.store.schema import metadata
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
