"""The runtime's own tables. Nobody but the runtime reads or writes them (design 2).

Text that comes from applications may hold U+0000, which PostgreSQL refuses: `store.text` escapes it on the way in.
Times are whole epoch milliseconds. Flags are 0 or 1, so that both dialects give plain integers.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# Keys are compared byte by byte on both databases, whatever the locale of the PostgreSQL cluster.
_Key = Text().with_variant(Text(collation="C"), "postgresql")

instances = Table(
    "workflow_instances",
    metadata,
    # Time-ordered and never reused: a later instance of the same id has another incarnation (W-001).
    Column("incarnation", _Key, primary_key=True),
    Column("workflow_uid", _Key, nullable=False),
    Column("instance_id", _Key, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("deadline_at_ms", BigInteger, nullable=False),
    Column("has_params", SmallInteger, nullable=False),
    # Everything below changes; the columns above never do.
    Column("status", Text, nullable=False),
    # When the row may be claimed next; null while it runs and once it has ended.
    Column("due_at_ms", BigInteger),
    Column("ended_at_ms", BigInteger),
    Column("purge_at_ms", BigInteger),
    Column("output", LargeBinary),
    Column("error_reason", Text),
    Column("error_message", Text),
    Column("epoch", Integer, nullable=False),
    Column("owner", Text),
    Column("runtime_id", Text),
    # By the wall clock of the machine, also when the Host's clock is a virtual one.
    Column("lease_until_ms", BigInteger),
    Column("termination_requested", SmallInteger, nullable=False),
    # An uncatchable end that is decided but waits for the stop proof (W-121).
    Column("verdict", Text),
    Column("event_seq", Integer, nullable=False),
    Column("event_at_ms", BigInteger, nullable=False),
    Column("started", SmallInteger, nullable=False),
    Column("step_count", Integer, nullable=False),
    Column("open_steps", Integer, nullable=False),
    Column("pending_step", Text),
    Column("queued_count", Integer, nullable=False),
    Column("queued_bytes", Integer, nullable=False),
    Column("accept_seq", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("version_uid", Text),
    Column("stop_proof", Text),
    UniqueConstraint("workflow_uid", "instance_id", name="workflow_instances_id"),
    sqlite_with_rowid=False,
    # Room on each page, so that a step's update stays there and touches no index.
    postgresql_with={"fillfactor": 70},
)
Index("workflow_instances_created", instances.c.workflow_uid, instances.c.incarnation)
Index(
    "workflow_instances_due",
    instances.c.workflow_uid,
    instances.c.due_at_ms,
    sqlite_where=instances.c.due_at_ms.is_not(None),
    postgresql_where=instances.c.due_at_ms.is_not(None),
)
Index(
    "workflow_instances_leases",
    instances.c.lease_until_ms,
    sqlite_where=instances.c.lease_until_ms.is_not(None),
    postgresql_where=instances.c.lease_until_ms.is_not(None),
)
Index(
    "workflow_instances_purge",
    instances.c.purge_at_ms,
    sqlite_where=instances.c.purge_at_ms.is_not(None),
    postgresql_where=instances.c.purge_at_ms.is_not(None),
)

# Apart from the instance row, which is rewritten at each transition: params may be 1 MiB and never change.
params = Table(
    "workflow_params",
    metadata,
    Column("incarnation", _Key, primary_key=True),
    Column("document", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

steps = Table(
    "workflow_steps",
    metadata,
    Column("incarnation", _Key, primary_key=True),
    Column("name", _Key, primary_key=True),
    # Order of first registration, from 1.
    Column("seq", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("initial_delay_seconds", Integer, nullable=False),
    Column("backoff", Text, nullable=False),
    Column("max_delay_seconds", Integer, nullable=False),
    Column("event_type", Text),
    Column("state", Text, nullable=False),
    Column("failed_attempts", Integer, nullable=False),
    Column("attempts_started", Integer, nullable=False),
    # Sleep: when it ends. Retry: when the next attempt may start. Wait: the last instant at which an event counts.
    Column("due_at_ms", BigInteger),
    Column("result", LargeBinary),
    Column("error", Text),
    # 1: an event was delivered to the parked wait and the resumed context has not been told yet (S-24).
    Column("delivered", SmallInteger, nullable=False),
    sqlite_with_rowid=False,
)

queued_events = Table(
    "workflow_queued_events",
    metadata,
    Column("incarnation", _Key, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("type", Text, nullable=False),
    Column("payload", LargeBinary),
    Column("accepted_at_ms", BigInteger, nullable=False),
    Column("cost", Integer, nullable=False),
    sqlite_with_rowid=False,
)

event_log = Table(
    "workflow_event_log",
    metadata,
    Column("incarnation", _Key, primary_key=True),
    Column("event_id", Integer, primary_key=True),
    Column("type", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    # The type's own members as JSON without the braces; empty when it has none.
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

# Matches of cron triggers that were recorded: each is delivered at least once (CR-05). Each says all that a delivery
# needs, so that one outlives its trigger.
cron_runs = Table(
    "cron_runs",
    metadata,
    Column("trigger_uid", _Key, primary_key=True),
    Column("scheduled_at_ms", BigInteger, primary_key=True),
    Column("worker_uid", _Key, nullable=False),
    Column("cron", Text, nullable=False),
    Column("recorded_at_ms", BigInteger, nullable=False),
    # Who delivers it, and until when by the wall clock of the machine; null when nobody does.
    Column("owner", _Key),
    Column("lease_until_ms", BigInteger),
    # How many deliveries have begun, the one under way included.
    Column("deliveries", Integer, nullable=False),
    Column("ended_at_ms", BigInteger),
    # complete, failed (what the handler threw, or that it had its time) or lost (its Worker was stopped each time).
    Column("outcome", Text),
    Column("error_name", Text),
    Column("error_message", Text),
    sqlite_with_rowid=False,
)
# A match while the run before is unfinished is not recorded.
Index(
    "cron_runs_open",
    cron_runs.c.trigger_uid,
    unique=True,
    sqlite_where=cron_runs.c.ended_at_ms.is_(None),
    postgresql_where=cron_runs.c.ended_at_ms.is_(None),
)
Index("cron_runs_ended", cron_runs.c.ended_at_ms)

# Workflow UIDs whose DELETE was accepted: they admit nothing any more, for ever (DW-08; a UID is never reused).
closed_workflows = Table(
    "workflow_closed",
    metadata,
    Column("workflow_uid", _Key, primary_key=True),
    Column("closed_at_ms", BigInteger, nullable=False),
)
