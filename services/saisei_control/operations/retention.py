"""Forgets what need not be kept: Operations with their replay mapping, tombstones, and a dead process' files.

H-091, H-147, H-148.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from sqlalchemy import Connection, delete, exists, select

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_control.access import audit
from saisei_control.artifacts.custody import Custody
from saisei_control.limits import REPLAY_WINDOW_SECONDS
from saisei_control.store.rows import UNFINISHED
from saisei_control.store.schema import idempotency, operations, resources
from saisei_control.store.store import Store

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
DAY_MS = 86_400_000
_AT_ONCE = 500


async def run(store: Store, custody: Custody, clock: Clock, audit_days: int) -> None:
    """Sweeps for ever; a missed sweep is made up for by the next."""
    with contextlib.suppress(SaiseiError):
        await custody.tidy()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await sweep_all(store, clock.now_ms(), audit_days)
        except SaiseiError:
            log.warning("a retention sweep was skipped: the database does not answer")


async def sweep_all(store: Store, now_ms: int, audit_days: int) -> None:
    """Until nothing is left that may be forgotten at `now_ms`."""
    await store.write(lambda connection: audit.forget(connection, now_ms - audit_days * DAY_MS))
    while await store.write(lambda connection: sweep(connection, now_ms)) == _AT_ONCE:
        pass


def sweep(connection: Connection, now_ms: int) -> int:
    """Forgets at most 500 Operations that are terminal and past their retention, and tombstones that have none left.

    Returns how many Operations went.
    """
    expired = list(
        connection.execute(
            select(operations.c.id)
            .where(operations.c.retain_until < now_ms, operations.c.status.not_in(UNFINISHED))
            .limit(_AT_ONCE)
        ).scalars()
    )
    if expired:
        connection.execute(delete(idempotency).where(idempotency.c.operation_id.in_(expired)))
        connection.execute(delete(operations).where(operations.c.id.in_(expired)))
    remembered = exists(select(operations.c.id).where(operations.c.resource_uid == resources.c.uid))
    connection.execute(
        delete(resources).where(resources.c.deleted_at < now_ms - REPLAY_WINDOW_SECONDS * 1000, ~remembered)
    )
    return len(expired)
