"""The runtime's tables, how they come to be, and how both databases are spoken to."""

from __future__ import annotations

from pathlib import Path

from saisei_service.database import Database, migrate

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate_runtime(database: Database) -> None:
    """Brings the runtime's tables to their newest shape; safe from several processes at once."""
    migrate(database, MIGRATIONS)
