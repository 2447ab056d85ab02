"""Alembic's entry: runs the scripts over the connection that `saisei_service.database.migrate` gives."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
