"""Versions that left an allocation: what still runs of them ends after 15 minutes (WD-08, W-088)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError

_log = logging.getLogger(__name__)

GRACE_MS = 15 * 60 * 1000
# A timer is never set further ahead, so that a jump of the system's clock is noticed.
LOOK_SECONDS = 30.0
# A stop that was not proven is asked for again.
RETRY_SECONDS = 1.0


class Allocated(Protocol):
    def allocation(self, worker_uid: str) -> Mapping[str, int] | None:
        """Weights by Version UID, or None without a Deployment."""
        ...


class Retirement:
    """`changed` is told of changes of an allocation; `retire(worker_uid, version_uid)` stops what runs of a Version.

    Nothing is kept over a restart: no context outlives its runtime.
    """

    def __init__(self, allocated: Allocated, clock: Clock, retire: Callable[[str, str], Awaitable[object]]) -> None:
        self._allocated = allocated
        self._clock = clock
        self._retire = retire
        self._known: dict[str, frozenset[str]] = {}
        # By (Worker, Version): when what is left of it ends, by the Host's clock.
        self._due: dict[tuple[str, str], int] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        listen = getattr(self._clock, "on_advance", None)
        if listen is not None:
            listen(self._look.set)
        self._task = asyncio.create_task(self._run(), name="retirement")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def changed(self, worker_uid: str) -> None:
        """What was selected until now and is no more has 15 minutes from here; what is selected again has all time."""
        now = frozenset(self._allocated.allocation(worker_uid) or ())
        before = self._known.pop(worker_uid, frozenset())
        if now:
            self._known[worker_uid] = now
        for version_uid in before - now:
            self._due[worker_uid, version_uid] = self._clock.now_ms() + GRACE_MS
        for version_uid in now:
            self._due.pop((worker_uid, version_uid), None)
        self._look.set()

    async def _run(self) -> None:
        while True:
            self._look.clear()
            wait = await self._retire_due()
            try:
                async with asyncio.timeout(wait):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _retire_due(self) -> float | None:
        """Ends what is due; returns the seconds until something else may be, or None when nothing is foreseen."""
        now = self._clock.now_ms()
        failed = False
        for worker_uid, version_uid in [key for key, due in self._due.items() if due <= now]:
            due = self._due[worker_uid, version_uid]
            try:
                await self._retire(worker_uid, version_uid)
            except SaiseiError as error:
                _log.warning("a WorkerVersion is retired later: %s", error, extra={"version": version_uid})
                failed = True
                continue
            # Unless it was selected, and left, once more in the meantime.
            if self._due.get((worker_uid, version_uid)) == due:
                del self._due[worker_uid, version_uid]
        if failed:
            return RETRY_SECONDS
        if not self._due:
            return None
        return min(LOOK_SECONDS, max(0.0, (min(self._due.values()) - self._clock.now_ms()) / 1000))
