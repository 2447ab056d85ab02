"""Looks at the schedules each minute, records what matches, and sees each record through to its end (CR-05 … CR-07).

On the system's clock a match is recorded in its own minute or never; on a virtual clock each advance leads past its
matches one after the other, each once the run before has ended, since no time passes in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from saisei_contract.clock import Clock
from saisei_contract.cron import MINUTE_MS, Cron, parse_cron
from saisei_contract.errors import SaiseiError
from saisei_runtime.cron.due import MOST_OF_A_LEAP, due, due_in_leap
from saisei_runtime.cron.runs import LEASE_MS, CronRun, CronRuns
from saisei_runtime.hosting.state import HostedCron
from saisei_runtime.isolates.contexts import log_worker_line
from saisei_runtime.isolates.port import Unanswered
from saisei_runtime.isolates.runs import RunEnd, ScheduledEvent
from saisei_service.clock import VirtualClock

_log = logging.getLogger(__name__)
T = TypeVar("T")

# How often a handler whose Worker is stopped meanwhile is called again for the same match.
MOST_DELIVERIES: Final = 3
# A timer is never set further ahead, so that a jump of the system's clock is noticed.
LOOK_SECONDS: Final = 15.0
DISCARD_SECONDS: Final = 600.0
# A database that is away is asked for so long to record a match.
RECORD_SECONDS: Final = 30.0
STOP_SECONDS: Final = 2.0


class HostedCrons(Protocol):
    # Until the whole history was heard once, what is missing may exist all the same.
    complete: bool

    def crons(self) -> list[HostedCron]: ...

    def allocation(self, worker_uid: str) -> Mapping[str, int] | None: ...


@dataclass(frozen=True, slots=True)
class CronSettings:
    """In seconds: how long a handler may take (its `waitUntil` has its own limit), and how often it is looked for what
    others left; the pause before another try, doubled up to the longest one while a call cannot begin."""

    run_within: float = 900.0
    take_over_every: float = 5.0
    retry_after: float = 1.0
    retry_after_most: float = 30.0


@dataclass(eq=False, slots=True)
class _Watched:
    """One schedule of this runtime. `queue` has matches that are still to be recorded."""

    trigger: HostedCron
    schedule: Cron
    since_ms: int
    queue: deque[int] = field(default_factory=deque)
    working: bool = False


class CronScheduler:
    """`deliver(worker_uid, event)` calls the handler: Unanswered when it was stopped, another SaiseiError when the call
    cannot begin."""

    def __init__(
        self,
        runs: CronRuns,
        hosted: HostedCrons,
        deliver: Callable[[str, ScheduledEvent], Awaitable[RunEnd]],
        clock: Clock,
        settings: CronSettings = CronSettings(),
    ) -> None:
        self._runs = runs
        self._hosted = hosted
        self._deliver = deliver
        self._clock = clock
        self._virtual = isinstance(clock, VirtualClock)
        self._settings = settings
        self._watched: dict[str, _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Records that are being seen through, by trigger and match.
        self._held: set[tuple[str, int]] = set()
        self._look = asyncio.Event()
        self._looked_ms = 0
        # Matches that were met and whose handler was not called yet.
        self._unbegun = 0
        self._begun = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if isinstance(self._clock, VirtualClock):
            self._clock.on_advance(self._look.set)
        self._task = asyncio.create_task(self._run(), name="cron")

    async def stop(self) -> None:
        """What runs has a moment to end; the rest is delivered again by the next runtime."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def changed(self) -> None:
        """Assignments have changed: a new schedule counts from now on."""
        self._look.set()

    async def settle_due(self, seconds: float = 10.0) -> int:
        """After a virtual clock was advanced: returns once the last of the runs that became due was begun, or after
        `seconds`; says how many were begun meanwhile."""
        before = self._begun
        now = self._clock.now_ms()
        self._look.set()
        until = time.monotonic() + seconds
        while (self._looked_ms < now or self._unbegun) and time.monotonic() < until:  # noqa: ASYNC110 - as in the engine
            await asyncio.sleep(0.002)
        return self._begun - before

    # --- looking ---

    async def _run(self) -> None:
        await self._insist(self._runs.release_own)
        take_over_at = discard_at = 0.0
        while True:
            self._look.clear()
            self._meet()
            now = time.monotonic()
            try:
                if now >= take_over_at:
                    take_over_at = now + self._settings.take_over_every
                    for run in await self._runs.take_over(self._held):
                        self._spawn(self._see_through(run))
                if now >= discard_at:
                    discard_at = now + DISCARD_SECONDS
                    await self._runs.discard(self._clock.now_ms())
            except SQLAlchemyError as error:
                _log.warning("schedules are looked after later: %s", type(error).__name__)
            try:
                async with asyncio.timeout(self._pause(take_over_at)):
                    await self._look.wait()
            except TimeoutError:
                continue

    def _pause(self, take_over_at: float) -> float:
        """Until the next minute begins, or until it is time to look for what others left."""
        pause = min(LOOK_SECONDS, max(0.0, take_over_at - time.monotonic()))
        if self._virtual or not self._watched:
            return pause
        return min(pause, (MINUTE_MS - self._clock.now_ms() % MINUTE_MS) / 1000)

    def _meet(self) -> None:
        """Takes in the schedules as they are, and what each has met since the last look."""
        now = self._clock.now_ms()
        hosted = {trigger.uid: trigger for trigger in self._hosted.crons()}
        for uid in self._watched.keys() - hosted.keys():
            self._drop_queue(self._watched.pop(uid))
        for uid, trigger in hosted.items():
            watched = self._watched.get(uid)
            if watched is None:
                self._watched[uid] = _Watched(trigger, parse_cron(trigger.cron), now)
            elif watched.trigger.cron != trigger.cron:
                # What the old expression has met and not recorded yet is of the past.
                self._drop_queue(watched)
                watched.trigger, watched.schedule, watched.since_ms = trigger, parse_cron(trigger.cron), now
            elif now > watched.since_ms:
                self._match(watched, now)
        self._looked_ms = now

    def _drop_queue(self, watched: _Watched) -> None:
        self._unbegun -= len(watched.queue)
        watched.queue.clear()

    def _match(self, watched: _Watched, now_ms: int) -> None:
        found = (due_in_leap if self._virtual else due)(watched.schedule, watched.since_ms, now_ms)
        watched.since_ms = now_ms
        about = {"cron_trigger": watched.trigger.uid, "worker": watched.trigger.worker_uid}
        if found.skipped:
            _log.warning("matches of a schedule were skipped; nobody could record them in time", extra=about)
        if not found.matches:
            return
        if self._hosted.allocation(watched.trigger.worker_uid) is None:
            _log.info("a match of a schedule was skipped; its Worker has no WorkerDeployment", extra=about)
            return
        if not self._virtual and watched.working:
            _log.info("a match of a schedule was skipped; the run before has not ended", extra=about)
            return
        room = MOST_OF_A_LEAP - len(watched.queue)
        watched.queue.extend(found.matches[:room])
        self._unbegun += len(found.matches[:room])
        if not watched.working:
            watched.working = True
            self._spawn(self._work(watched))

    # --- one schedule's matches, one record ---

    async def _work(self, watched: _Watched) -> None:
        try:
            while watched.queue:
                match_ms = watched.queue.popleft()
                try:
                    run = await self._record(watched.trigger, match_ms)
                except BaseException:
                    self._unbegun -= 1
                    raise
                if run is None:
                    self._unbegun -= 1
                else:
                    await self._see_through(run, counted=True)
        finally:
            watched.working = False

    async def _record(self, trigger: HostedCron, match_ms: int) -> CronRun | None:
        about = {"cron_trigger": trigger.uid, "worker": trigger.worker_uid}
        until = time.monotonic() + RECORD_SECONDS
        while True:
            try:
                run = await self._runs.record(trigger, match_ms, self._clock.now_ms())
            except SQLAlchemyError as error:
                if time.monotonic() > until:
                    _log.warning("a match of a schedule could not be recorded: %s", type(error).__name__, extra=about)
                    return None
                await asyncio.sleep(self._settings.retry_after)
            else:
                if run is None:
                    _log.info("a match of a schedule was recorded before, or the run before has not ended", extra=about)
                return run

    async def _see_through(self, run: CronRun, *, counted: bool = False) -> None:
        """Until the record has ended; it is released when this runtime stops before that."""
        renewing = asyncio.create_task(self._renew(run))
        self._held.add((run.trigger_uid, run.scheduled_at_ms))
        try:
            end = await self._call(run, counted=counted)
            await self._insist(lambda: self._runs.end(run, end, self._clock.now_ms()))
        except asyncio.CancelledError:
            try:
                await self._runs.release(run)
            except SQLAlchemyError:
                _log.info("a scheduled run could not be given back; its lease ends by itself")
            raise
        finally:
            renewing.cancel()
            self._held.discard((run.trigger_uid, run.scheduled_at_ms))

    async def _call(self, run: CronRun, *, counted: bool) -> RunEnd | None:
        """What the handler came to; None when its Worker was stopped each time, or there is nothing left to call."""
        event = ScheduledEvent(run.scheduled_at_ms, run.cron)
        pause = self._settings.retry_after
        while True:
            if counted:
                self._unbegun -= 1
                counted = False
            self._begun += 1
            try:
                async with asyncio.timeout(self._settings.run_within):
                    return await self._deliver(run.worker_uid, event)
            except TimeoutError:
                message = f"The scheduled handler did not end within {self._settings.run_within:g} seconds."
                log_worker_line(run.worker_uid, run.trigger_uid, "error", message)
                return RunEnd(False, "TimeoutError", message)
            except Unanswered:
                if run.deliveries >= MOST_DELIVERIES:
                    message = "The scheduled handler was stopped before its end, each time that it was called."
                    log_worker_line(run.worker_uid, run.trigger_uid, "error", message)
                    return None
                run = await self._insist(partial(self._runs.begin_again, run))
                pause = self._settings.retry_after
            except SaiseiError as error:
                self._begun -= 1
                if self._is_gone(run):
                    return None
                # It has not begun: the duty to call it stays.
                _log.info("a scheduled run begins later: %s", error, extra={"worker": run.worker_uid})
                pause = min(pause * 2, self._settings.retry_after_most)
            await asyncio.sleep(pause)

    def _is_gone(self, run: CronRun) -> bool:
        """The trigger was deleted, and its Worker has no Deployment either: the app is being taken down (WD-12)."""
        hosted = self._hosted
        deleted = all(trigger.uid != run.trigger_uid for trigger in hosted.crons())
        return hosted.complete and deleted and hosted.allocation(run.worker_uid) is None

    async def _renew(self, run: CronRun) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            try:
                await self._runs.renew(run)
            except SQLAlchemyError as error:
                _log.warning("the lease of a scheduled run is renewed later: %s", type(error).__name__)

    async def _insist(self, write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except SQLAlchemyError as error:
                _log.warning("a record of scheduled runs is written later: %s", type(error).__name__)
                await asyncio.sleep(self._settings.retry_after)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
