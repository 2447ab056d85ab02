"""The first schema of the control service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "assignments",
        sa.Column("resource_uid", sa.String(length=128), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("resource_uid"),
        sa.UniqueConstraint("revision"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "host_keys",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("resource_uid", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("effect", sa.String(length=16), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("retain_until", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("lease_owner", sa.String(length=160), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("operations_due", "operations", ["status", "due_at"], unique=False)
    op.create_index("operations_resource", "operations", ["resource_uid"], unique=False)
    op.create_index("operations_retention", "operations", ["retain_until"], unique=False)
    op.create_table(
        "reference_edges",
        sa.Column("referrer", sa.String(length=128), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("referrer", "target"),
    )
    op.create_index(op.f("ix_reference_edges_target"), "reference_edges", ["target"], unique=False)
    op.create_table(
        "resources",
        sa.Column(
            "uid",
            sa.String(length=128).with_variant(sa.String(length=128, collation="C"), "postgresql"),
            nullable=False,
        ),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("space", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("observed_generation", sa.BigInteger(), nullable=False),
        sa.Column("observed_at", sa.BigInteger(), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("spec_json", sa.Text(), nullable=False),
        sa.Column("observed_json", sa.Text(), nullable=False),
        sa.Column("output_json", sa.Text(), nullable=False),
        sa.Column("facts_json", sa.Text(), nullable=False),
        sa.Column("last_operation", sa.String(length=128), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("uid"),
    )
    op.create_index(
        "resources_deleted", "resources", ["deleted_at"], unique=False, sqlite_where=sa.text("deleted_at IS NOT NULL")
    )
    op.create_index(
        "resources_name",
        "resources",
        ["space", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "runtimes",
        sa.Column("runtime_id", sa.String(length=128), nullable=False),
        sa.Column("acked_revision", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("runtime_id"),
    )
    op.create_table(
        "sealed_secrets",
        sa.Column("version_uid", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("version_uid", "name"),
    )
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("rights_json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_tokens_principal"), "tokens", ["principal"], unique=False)
    op.create_table(
        "artifact_owners",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=160), nullable=False),
        sa.ForeignKeyConstraint(
            ["sha256"],
            ["artifacts.sha256"],
        ),
        sa.PrimaryKeyConstraint("sha256", "owner"),
    )
    op.create_index(op.f("ix_artifact_owners_owner"), "artifact_owners", ["owner"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("secrets_mac", sa.String(length=96), nullable=True),
        sa.Column("operation_id", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["operation_id"], ["operations.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("principal", "key"),
    )
    op.create_index(op.f("ix_idempotency_operation_id"), "idempotency", ["operation_id"], unique=False)
