"""Alembic environment of the runtime's tables. Runs on the connection that `saisei_service.database.migrate` gives."""

from __future__ import annotations

from alembic import context

from saisei_runtime.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # Control may live in the same PostgreSQL database and keeps its own table.
    version_table="runtime_schema_version",
)
with context.begin_transaction():
    context.run_migrations()
