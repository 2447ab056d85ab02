"""Offerings, an audit log, sealing keys that change, and an Operation's private inputs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(always=False), nullable=False
        ),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("space", sa.String(length=128), nullable=True),
        sa.Column("resource_uid", sa.String(length=128), nullable=True),
        sa.Column("operation_id", sa.String(length=128), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_at", "audit", ["at"], unique=False)
    op.create_index("audit_space", "audit", ["space", "id"], unique=False)
    op.add_column("resources", sa.Column("offering_id", sa.String(length=128), nullable=True))
    op.add_column("resources", sa.Column("offering_revision", sa.Text(), nullable=True))
    op.add_column("sealed_secrets", sa.Column("key_id", sa.String(length=8), nullable=True))
