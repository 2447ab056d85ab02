"""Runtime replicas: their leases, what they have made effective, and the stream that tells them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial

from sqlalchemy import Connection, insert, select, update

from saisei.control.v1 import assignments_pb2
from saisei_contract.clock import Clock
from saisei_control.assignments.log import read_after
from saisei_control.store.schema import runtimes
from saisei_control.store.store import Change, Store

# A replica that neither watches nor acknowledges for so long is no longer waited for.
LEASE_MS = 10_000
RENEW_SECONDS = 3.0
KEEP_ALIVE_SECONDS = 10.0
_PAGE = 200
# Other control processes' writes are seen within this time.
_POLL_SECONDS = 0.5


class Replicas:
    """`system` is system time: a virtual clock must not stop leases."""

    def __init__(self, store: Store, system: Clock) -> None:
        self._store = store
        self._system = system
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends all streams, so that a graceful stop of the server does not wait for them."""
        self._stopping.set()
        self._store.changes.notify()

    async def watch(self, runtime_id: str, after_revision: int) -> AsyncIterator[assignments_pb2.Assignment]:
        """History above `after_revision`, then live; `caught_up` after each batch and every 10 s when quiet."""
        # A replica that asks from an older revision has forgotten what it acknowledged.
        await self._store.write(lambda connection: self._join(connection, runtime_id, after_revision))
        renewal = asyncio.create_task(self._keep_lease(runtime_id))
        try:
            sent = after_revision
            told_at = -KEEP_ALIVE_SECONDS
            while not self._stopping.is_set():
                changed = self._store.changes.next(Change.HOSTING)
                batch = await self._store.read(partial(read_after, revision=sent, limit=_PAGE))
                for message in batch:
                    sent = message.revision
                    yield message
                if len(batch) == _PAGE:
                    continue
                if batch or time.monotonic() - told_at >= KEEP_ALIVE_SECONDS:
                    told_at = time.monotonic()
                    yield assignments_pb2.Assignment(revision=sent, caught_up=True)
                await self._store.changes.wait(changed, _POLL_SECONDS)
        finally:
            renewal.cancel()

    async def acknowledge(self, runtime_id: str, revision: int) -> None:
        await self._store.write(lambda connection: self._acknowledge(connection, runtime_id, revision))

    async def wait_effective(self, revision: int, seconds: float) -> bool:
        """True once each live replica, and at least one, has made `revision` effective; False after `seconds`."""
        deadline = time.monotonic() + seconds
        changes = self._store.changes
        changed = changes.next(Change.HOSTING)
        while not await self._store.read(lambda connection: self._is_effective(connection, revision)):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await changes.wait(changed, min(left, _POLL_SECONDS))
            changed = changes.next(Change.HOSTING)
        return True

    def _is_effective(self, connection: Connection, revision: int) -> bool:
        live = connection.execute(
            select(runtimes.c.acked_revision).where(runtimes.c.lease_until > self._system.now_ms())
        )
        acknowledged = [value >= revision for value in live.scalars()]
        return bool(acknowledged) and all(acknowledged)

    def _join(self, connection: Connection, runtime_id: str, revision: int) -> None:
        values = {"acked_revision": revision, "lease_until": self._system.now_ms() + LEASE_MS}
        known = connection.execute(
            update(runtimes).where(runtimes.c.runtime_id == runtime_id).values(**values)
        ).rowcount
        if not known:
            connection.execute(insert(runtimes).values(runtime_id=runtime_id, **values))

    def _acknowledge(self, connection: Connection, runtime_id: str, revision: int) -> None:
        connection.execute(
            update(runtimes)
            .where(runtimes.c.runtime_id == runtime_id, runtimes.c.acked_revision < revision)
            .values(acked_revision=revision, lease_until=self._system.now_ms() + LEASE_MS)
        )

    async def _keep_lease(self, runtime_id: str) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(Exception):
                await self._store.write(lambda connection: self._renew(connection, runtime_id), Change.NOTHING)

    def _renew(self, connection: Connection, runtime_id: str) -> None:
        connection.execute(
            update(runtimes)
            .where(runtimes.c.runtime_id == runtime_id)
            .values(lease_until=self._system.now_ms() + LEASE_MS)
        )
