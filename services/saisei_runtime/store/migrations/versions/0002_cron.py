"""Recorded matches of cron triggers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "cron_runs",
        sa.Column("trigger_uid", _KEY, nullable=False),
        sa.Column("scheduled_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("worker_uid", _KEY, nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("owner", _KEY, nullable=True),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error_name", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("trigger_uid", "scheduled_at_ms"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "cron_runs_open",
        "cron_runs",
        ["trigger_uid"],
        unique=True,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    )
    op.create_index("cron_runs_ended", "cron_runs", ["ended_at_ms"])
