"""The first schema of the control service."""

from __future__ import annotations

from alembic import op

from saisei_control.store.schema import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
