"""Tables of the control service (SQLAlchemy Core).

Times are epoch milliseconds; JSON is kept as text exactly as accepted.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

# Compared by code unit on both databases; PostgreSQL's default collation is not (H-094).
UID = String(128).with_variant(String(128, collation="C"), "postgresql")

# One row for each UID that was ever issued and is still remembered; `deleted_at` makes it a tombstone (H-091, H-107).
resources = Table(
    "resources",
    metadata,
    Column("uid", UID, primary_key=True),
    Column("form", Text, nullable=False),
    Column("space", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("principal", String(128), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("observed_generation", BigInteger, nullable=False),
    Column("observed_at", BigInteger),
    Column("phase", String(16), nullable=False),
    # As the client sent it (H-076), with numbers kept exactly.
    Column("spec_json", Text, nullable=False),
    Column("observed_json", Text, nullable=False),
    Column("output_json", Text, nullable=False),
    # What the Host itself knows of the realised thing and never shows: exported classes, the active allocation.
    Column("facts_json", Text, nullable=False),
    Column("last_operation", String(128), nullable=False),
    Column("deleted_at", BigInteger),
    # The pair that the create chose (H-063).
    Column("offering_id", String(128)),
    Column("offering_revision", Text),
)
# H-071, H-084, H-105: the name is reserved until the delete succeeded.
Index(
    "resources_name",
    resources.c.space,
    resources.c.name,
    unique=True,
    sqlite_where=text("deleted_at IS NULL"),
    postgresql_where=text("deleted_at IS NULL"),
)
# H-094: a page costs what its Space holds.
Index(
    "resources_page",
    resources.c.space,
    resources.c.uid,
    sqlite_where=text("deleted_at IS NULL"),
    postgresql_where=text("deleted_at IS NULL"),
)
Index("resources_deleted", resources.c.deleted_at, sqlite_where=text("deleted_at IS NOT NULL"))

operations = Table(
    "operations",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("resource_uid", String(128), nullable=False),
    Column("action", String(16), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("effect", String(16), nullable=False),
    Column("principal", String(128), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("retain_until", BigInteger, nullable=False),
    Column("error_code", String(64)),
    Column("error_message", Text),
    # The executor's: "<control id>/<random>" works on it until then, and when it may be tried again. System time: a
    # virtual clock must not stop leases.
    Column("lease_owner", String(160)),
    Column("lease_until", BigInteger),
    Column("attempts", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    # A list of [code, message], or NULL.
    Column("warnings_json", Text),
)
Index("operations_resource", operations.c.resource_uid)
# H-119: the hot query of the executor.
Index("operations_due", operations.c.status, operations.c.due_at)
Index("operations_retention", operations.c.retain_until)

# H-130, H-149: scope is (principal, API, key); the row lives exactly as long as its Operation (H-148).
idempotency = Table(
    "idempotency",
    metadata,
    Column("principal", String(128), nullable=False),
    # "host" or "grpc".
    Column("api", String(16), nullable=False),
    Column("key", String(128), nullable=False),
    # SHA-256 of the request's equality key (H-140).
    Column("request_digest", String(64), nullable=False),
    # Keyed MAC of the private inputs, NULL when none were given (H-141).
    Column("secrets_mac", String(96)),
    Column(
        "operation_id",
        String(128),
        ForeignKey("operations.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    PrimaryKeyConstraint("principal", "api", "key"),
)

# F-04: an edge counts from acceptance of the referrer's mutation until the referrer's delete succeeded.
reference_edges = Table(
    "reference_edges",
    metadata,
    Column("referrer", String(128), nullable=False),
    Column("target", String(128), nullable=False, index=True),
    PrimaryKeyConstraint("referrer", "target"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
)

# AR-11: bytes are owned by principals that sent them and by Resources that took custody; a digest alone authorises
# nobody.
artifact_owners = Table(
    "artifact_owners",
    metadata,
    Column("sha256", String(64), ForeignKey("artifacts.sha256"), nullable=False),
    # "principal:NAME" or "resource:UID".
    Column("owner", String(160), nullable=False, index=True),
    PrimaryKeyConstraint("sha256", "owner"),
)

tokens = Table(
    "tokens",
    metadata,
    # SHA-256 of the token's text; 32 random bytes need no slow hash.
    Column("digest", String(64), primary_key=True),
    Column("principal", String(128), nullable=False, index=True),
    Column("rights_json", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)

# The newest assignment of each Resource: a log that is always compacted, so a reader from any revision gets the
# present state.
assignments = Table(
    "assignments",
    metadata,
    Column("resource_uid", String(128), primary_key=True),
    Column("revision", BigInteger, nullable=False, unique=True),
    Column("removed", Boolean, nullable=False),
    # A serialised saisei.control.v1.Assignment without its revision.
    Column("message", LargeBinary, nullable=False),
)

runtimes = Table(
    "runtimes",
    metadata,
    Column("runtime_id", String(128), primary_key=True),
    Column("acked_revision", BigInteger, nullable=False),
    # System time; a replica whose lease ended is no longer waited for.
    Column("lease_until", BigInteger, nullable=False),
)

# AES-256-GCM; the key lies outside the database.
sealed_secrets = Table(
    "sealed_secrets",
    metadata,
    Column("version_uid", String(128), nullable=False),
    Column("name", String(64), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    # Which key opens it; NULL from before keys had names: each is tried.
    Column("key_id", String(8)),
    PrimaryKeyConstraint("version_uid", "name"),
)

# Who did what, written in the transaction of the deed.
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(always=False), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("principal", String(128), nullable=False),
    Column("action", String(32), nullable=False),
    Column("space", String(128)),
    Column("resource_uid", String(128)),
    Column("operation_id", String(128)),
    Column("detail", Text),
)
Index("audit_at", audit.c.at)
Index("audit_space", audit.c.space, audit.c.id)

counters = Table(
    "counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# Random keys that are only ever used to seal cursors.
host_keys = Table(
    "host_keys",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
