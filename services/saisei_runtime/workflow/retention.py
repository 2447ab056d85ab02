"""What leaves the tables: instances after their retention (W-160), a deleted workflow as a whole (DW-08)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from saisei_runtime.store import schema
from saisei_runtime.workflow import notices
from saisei_runtime.workflow.identity import created_at_least
from saisei_runtime.workflow.journal import Journal
from saisei_runtime.workflow.limits import LIFETIME_MS
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import RUNNING
from saisei_runtime.workflow.statements import CLOSE
from saisei_service.clock import wall_ms

# Rows of that many instances leave in one transaction, so that transitions in between wait for a few ms only.
CHUNK = 200

_CHILDREN = (schema.params, schema.steps, schema.queued_events, schema.event_log)


def close_workflow(connection: Connection, workflow_uid: str, now_ms: int) -> None:
    """Durably: no create, event or wake from now on, and no commit of a running owner."""
    closed = schema.closed_workflows
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        # Waits for transactions that had admitted something before; later ones see the row below.
        connection.exec_driver_sql(CLOSE)
    found = connection.execute(sa.select(closed).where(closed.c.workflow_uid == workflow_uid)).fetchone()
    if found is None:
        connection.execute(sa.insert(closed).values(workflow_uid=workflow_uid, closed_at_ms=now_ms))
    instances = schema.instances
    connection.execute(
        sa.update(instances)
        .where(instances.c.workflow_uid == workflow_uid, instances.c.status == RUNNING)
        .values(termination_requested=1)
    )
    if postgresql:
        connection.exec_driver_sql(notices.SEND, (notices.CHANNEL, notices.payload("close", (notices.EVERYTHING,))))


async def held(reads: Reads, workflow_uid: str) -> bool:
    """Whether some owner of the workflow's instances may still run code."""
    return bool(await reads.held(workflow_uid, wall_ms()))


async def remove_workflow(journal: Journal, workflow_uid: str) -> int:
    """Deletes everything of a closed workflow, chunk by chunk; safe to repeat after a crash in between."""
    where = schema.instances.c.workflow_uid == workflow_uid
    return await _remove(journal, where)


async def discard(journal: Journal, now_ms: int) -> int:
    """Deletes terminal instances whose retention is over; their ids are free again."""
    return await _remove(journal, schema.instances.c.purge_at_ms <= now_ms)


async def overdue(reads: Reads, now_ms: int) -> list[str]:
    """Live instances at or after their deadline. Those of a Worker without a Deployment are found only here."""
    return await reads.overdue(created_at_least(now_ms - LIFETIME_MS + 1), CHUNK)


async def _remove(journal: Journal, where: sa.ColumnElement[bool]) -> int:
    removed = 0
    while True:
        count = await journal.transact(lambda connection: _remove_chunk(connection, where))
        removed += count
        if count < CHUNK:
            return removed


def _remove_chunk(connection: Connection, where: sa.ColumnElement[bool]) -> int:
    incarnation = schema.instances.c.incarnation
    query = sa.select(incarnation).where(where).limit(CHUNK)
    doomed = list(connection.execute(query).scalars())
    if doomed:
        for table in _CHILDREN:
            connection.execute(sa.delete(table).where(table.c.incarnation.in_(doomed)))
        connection.execute(sa.delete(schema.instances).where(incarnation.in_(doomed)))
    return len(doomed)
