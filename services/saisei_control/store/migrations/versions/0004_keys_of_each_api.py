"""Idempotency keys have a scope for each API. Those from before are the Host API's, which nearly all clients speak."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_by_api",
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("api", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("secrets_mac", sa.String(length=96), nullable=True),
        sa.Column("operation_id", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["operation_id"], ["operations.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("principal", "api", "key"),
    )
    op.execute(
        "INSERT INTO idempotency_by_api (principal, api, key, request_digest, secrets_mac, operation_id) "
        "SELECT principal, 'host', key, request_digest, secrets_mac, operation_id FROM idempotency"
    )
    op.drop_table("idempotency")
    op.rename_table("idempotency_by_api", "idempotency")
    op.create_index(op.f("ix_idempotency_operation_id"), "idempotency", ["operation_id"], unique=False)
