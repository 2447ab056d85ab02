"""The migrations and the tables that the code speaks of."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from saisei_control.store.schema import metadata
from saisei_control.store.store import MIGRATIONS
from saisei_service.database import migrate, open_database


def test_migrations_make_exactly_the_schema(database_url: str) -> None:
    """Design 2: on both databases the migrations leave what the code expects; again changes nothing."""
    database = open_database(database_url)
    try:
        for _ in range(2):
            migrate(database, MIGRATIONS)
            with database.writer.begin() as connection:
                assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    finally:
        database.close()
