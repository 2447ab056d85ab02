"""Instances, their params, steps, queued events and event log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "workflow_closed",
        sa.Column("workflow_uid", _KEY, nullable=False),
        sa.Column("closed_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_uid"),
    )
    op.create_table(
        "workflow_event_log",
        sa.Column("incarnation", _KEY, nullable=False),
        sa.Column("event_id", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation", "event_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workflow_instances",
        sa.Column("incarnation", _KEY, nullable=False),
        sa.Column("workflow_uid", _KEY, nullable=False),
        sa.Column("instance_id", _KEY, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("deadline_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("has_params", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("purge_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("output", sa.LargeBinary(), nullable=True),
        sa.Column("error_reason", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("runtime_id", sa.Text(), nullable=True),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("termination_requested", sa.SmallInteger(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("event_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.SmallInteger(), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("open_steps", sa.Integer(), nullable=False),
        sa.Column("pending_step", sa.Text(), nullable=True),
        sa.Column("queued_count", sa.Integer(), nullable=False),
        sa.Column("queued_bytes", sa.Integer(), nullable=False),
        sa.Column("accept_seq", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("version_uid", sa.Text(), nullable=True),
        sa.Column("stop_proof", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("incarnation"),
        sa.UniqueConstraint("workflow_uid", "instance_id", name="workflow_instances_id"),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("workflow_instances_created", "workflow_instances", ["workflow_uid", "incarnation"], unique=False)
    op.create_index(
        "workflow_instances_due",
        "workflow_instances",
        ["workflow_uid", "due_at_ms"],
        unique=False,
        sqlite_where=sa.text("due_at_ms IS NOT NULL"),
        postgresql_where=sa.text("due_at_ms IS NOT NULL"),
    )
    op.create_index(
        "workflow_instances_leases",
        "workflow_instances",
        ["lease_until_ms"],
        unique=False,
        sqlite_where=sa.text("lease_until_ms IS NOT NULL"),
        postgresql_where=sa.text("lease_until_ms IS NOT NULL"),
    )
    op.create_index(
        "workflow_instances_purge",
        "workflow_instances",
        ["purge_at_ms"],
        unique=False,
        sqlite_where=sa.text("purge_at_ms IS NOT NULL"),
        postgresql_where=sa.text("purge_at_ms IS NOT NULL"),
    )
    op.create_table(
        "workflow_params",
        sa.Column("incarnation", _KEY, nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workflow_queued_events",
        sa.Column("incarnation", _KEY, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=True),
        sa.Column("accepted_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation", "seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workflow_steps",
        sa.Column("incarnation", _KEY, nullable=False),
        sa.Column("name", _KEY, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("initial_delay_seconds", sa.Integer(), nullable=False),
        sa.Column("backoff", sa.Text(), nullable=False),
        sa.Column("max_delay_seconds", sa.Integer(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("failed_attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_started", sa.Integer(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("delivered", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation", "name"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("workflow_steps")
    op.drop_table("workflow_queued_events")
    op.drop_table("workflow_params")
    op.drop_table("workflow_instances")
    op.drop_table("workflow_event_log")
    op.drop_table("workflow_closed")
