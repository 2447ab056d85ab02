"""The virtual time is kept: a control service that restarts goes on from the instant that a test had reached."""

from __future__ import annotations

import time

from sqlalchemy import Connection, select, update

from saisei_control.store.schema import counters
from saisei_control.store.store import Store
from saisei_service.clock import VirtualClock

_COUNTER = "virtual_clock_ms"


async def open_virtual_clock(store: Store) -> VirtualClock:
    """At the system's time, or at the kept one when that is later."""
    kept = await store.read(_kept)
    return VirtualClock(max(time.time_ns() // 1_000_000, kept or 0))


def keep(connection: Connection, now_ms: int) -> None:
    """Never goes back."""
    kept = _kept(connection)
    if kept is None:
        connection.execute(counters.insert().values(name=_COUNTER, value=now_ms))
    elif kept < now_ms:
        connection.execute(update(counters).where(counters.c.name == _COUNTER).values(value=now_ms))


def _kept(connection: Connection) -> int | None:
    return connection.execute(select(counters.c.value).where(counters.c.name == _COUNTER)).scalar_one_or_none()
