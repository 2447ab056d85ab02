"""Who runs next: claims in fair order within the capacity, timers from an index, wake-ups by notification.

Only what is due soon is in memory: up to READY_MAX incarnations of each workflow. Parked instances are rows (design 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_runtime.workflow.allocations import Allocations
from saisei_runtime.workflow.commands import Claim, Claimed, Requeue, Terminate
from saisei_runtime.workflow.contexts import Contexts, Run
from saisei_runtime.workflow.journal import Journal, Outcome
from saisei_runtime.workflow.reads import Reads
from saisei_runtime.workflow.records import RUNNING, Instance
from saisei_runtime.workflow.workspace import Change
from saisei_service.clock import wall_ms

_log = logging.getLogger(__name__)

READY_MAX = 1_024
SCAN_ROWS = 512
# A timer is never set further ahead, so that a jump of the system's clock is noticed.
TIMER_SECONDS_MAX = 30.0
FAILURE_PAUSE_SECONDS = 1.0
# A claim that was refused left the row as it is now, which may be due: look once more, without haste.
REFUSAL_PAUSE_SECONDS = 0.05
NOTICE_PAUSE_SECONDS = 0.003


@runtime_checkable
class Advanceable(Protocol):
    """A clock that stands still between advances: timers wait for `on_advance` instead of for the loop."""

    def on_advance(self, listener: Callable[[], None]) -> None: ...


@dataclass(slots=True, eq=False)
class _Lane:
    """One workflow. `more`: rows are due that `ready` has no place for; `next_due_ms`: the next one is not earlier."""

    workflow_uid: str
    ready: deque[str] = field(default_factory=deque)
    more: bool = False
    next_due_ms: int | None = None
    scanning: bool = False
    in_ring: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """The workflows of one Worker that have something ready, and how many contexts it has."""

    uid: str
    active: int = 0
    ring: deque[_Lane] = field(default_factory=deque)
    in_ring: bool = False


class Scheduler:
    """Lives in the event loop; everything but `start` and `recover` returns at once."""

    def __init__(
        self,
        journal: Journal,
        reads: Reads,
        allocations: Allocations,
        clock: Clock,
        *,
        runtime_id: str,
        owner_prefix: str,
        lease_ms: int,
        max_contexts: int,
        max_contexts_per_worker: int,
        shared: bool,
    ) -> None:
        self._journal = journal
        self._reads = reads
        self._allocations = allocations
        self._clock = clock
        self._runtime_id = runtime_id
        self._owner_prefix = owner_prefix
        self._lease_ms = lease_ms
        self._max_contexts = max_contexts
        self._max_per_worker = max_contexts_per_worker
        # Other runtimes write to the same tables: look for their work too.
        self._shared = shared
        self.contexts: Contexts | None = None
        self._lanes: dict[str, _Lane] = {}
        self._workers: dict[str, _Worker] = {}
        self._ring: deque[_Worker] = deque()
        # In `ready` or being claimed.
        self._offered: set[str] = set()
        self._active = 0
        # Claims that were asked for and not answered yet.
        self._claiming = 0
        self._owners = 0
        self._closed = True
        self._pumping = False
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._closed = False
        if isinstance(self._clock, Advanceable):
            self._clock.on_advance(self.wake)
        for uid in await self._reads.workflows_with_due():
            self._lane(uid).more = True
        self._spawn(self._watch_leases())
        self.wake()

    def close(self) -> None:
        """No more claims; timers and scans end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # --- notifications ---

    def committed(self, changes: Sequence[Change]) -> None:
        """After each transaction: what became due now or will be."""
        if self._closed:
            return
        now = self._clock.now_ms()
        for change in changes:
            due = change.after.due_at_ms
            if change.after.status == RUNNING and change.after.owner is None:
                self._shelve(change.after.workflow_uid, change.after.incarnation)
            if due is None:
                if change.after.owner is None and change.after.lease_until_ms is not None:
                    self._pause(change.after)
                continue
            lane = self._lane(change.after.workflow_uid)
            if due <= now:
                self._offer(lane, change.after.incarnation)
            elif lane.next_due_ms is None or due < lane.next_due_ms:
                lane.next_due_ms = due
                self._arm(due, now)
        self.pump()

    def unplaced(self, changes: Sequence[Change]) -> set[str]:
        """Workflows among the changes of which something is due that nobody claims here at once: other runtimes may.

        Called in the journal's thread: it reads a few numbers, which may be a moment old.
        """
        now = self._clock.now_ms()
        found: set[str] = set()
        for change in changes:
            due = change.after.due_at_ms
            if due is not None and due <= now and change.after.owner is None and not self._has_place(change.after):
                found.add(change.after.workflow_uid)
        return found

    def _has_place(self, instance: Instance) -> bool:
        known = self._allocations.workflow(instance.workflow_uid)
        if self._closed or known is None or self._allocations.pick(known[0]) is None:
            return False
        worker = self._workers.get(known[0])
        return self._active < self._max_contexts and (worker is None or worker.active < self._max_per_worker)

    def look_at(self, workflow_uids: Collection[str] | None) -> None:
        """Other runtimes have no place for what is due of these workflows, or of any (None)."""
        if self._closed:
            return
        if workflow_uids is None:
            self._spawn(self._look_everywhere())
            return
        for uid in workflow_uids:
            self._lane(uid).more = True
        if not self._looking:
            # Many notices in a row are one look.
            self._looking = True
            asyncio.get_running_loop().call_later(NOTICE_PAUSE_SECONDS, self._look_now)

    def _look_now(self) -> None:
        self._looking = False
        self.wake()

    async def _look_everywhere(self) -> None:
        try:
            for uid in await self._reads.workflows_with_due():
                self._lane(uid).more = True
        except SaiseiError:
            return  # the look at the leases comes back to it
        self.wake()

    def freed(self, run: Run) -> None:
        """A context ended: its place is free."""
        self._vacate(run.worker_uid)
        self.pump_soon()

    def deployment_changed(self, worker_uid: str) -> None:
        """The allocation of a Worker appeared or changed: what waited for it goes on (W-087)."""
        for lane in self._lanes.values():
            known = self._allocations.workflow(lane.workflow_uid)
            if known is not None and known[0] == worker_uid:
                lane.more = True
        self.wake()

    async def shelve(self) -> None:
        """Shows as queued what nothing runs of and nothing can be started of, for want of a Deployment (W-087).

        SaiseiError backend_unavailable when the journal cannot tell or write it now.
        """
        waiting = [uid for uid in self._lanes if self._undeployed(uid)]
        stranded = await self._reads.stranded(waiting, self._clock.now_ms(), wall_ms())
        asked = [self._journal.ask(Requeue(one)) for one, uid in stranded if self._undeployed(uid)]
        await asyncio.gather(*asked)

    def shelve_soon(self) -> None:
        if not self._closed:
            self._spawn(self._shelve_quietly())

    async def _shelve_quietly(self) -> None:
        try:
            await self.shelve()
        except SaiseiError as error:
            # The look at the leases finds them again.
            _log.warning("instances without a Deployment are queued later: %s", error)

    def _shelve(self, workflow_uid: str, incarnation: str) -> bool:
        """Queues one lost instance if its Worker has no Deployment."""
        if not self._undeployed(workflow_uid):
            return False
        self._journal.submit(Requeue(incarnation), lambda _: None)
        return True

    def _undeployed(self, workflow_uid: str) -> bool:
        """Whether it is certain that the workflow's Worker has no Deployment."""
        known = self._allocations.workflow(workflow_uid)
        return known is not None and self._allocations.complete and self._allocations.pick(known[0]) is None

    def settled(self) -> bool:
        """Whether nothing that is due now and has a Deployment still waits for its start."""
        if self._claiming > 0 or (self.contexts is not None and self.contexts.starting):
            return False
        now = self._clock.now_ms()
        for lane in self._lanes.values():
            due = lane.ready or lane.more or (lane.next_due_ms is not None and lane.next_due_ms <= now)
            if lane.scanning or (due and self._deployed(lane)):
                return False
        return True

    def _deployed(self, lane: _Lane) -> bool:
        known = self._allocations.workflow(lane.workflow_uid)
        return known is not None and self._allocations.pick(known[0]) is not None

    def wake(self) -> None:
        """Looks for everything that is due now."""
        if self._closed:
            return
        if self.contexts is not None:
            self.contexts.check()
        self._armed_for = None
        now = self._clock.now_ms()
        for lane in list(self._lanes.values()):
            if lane.more or (lane.next_due_ms is not None and lane.next_due_ms <= now):
                self._scan_soon(lane)
            elif lane.next_due_ms is not None:
                self._arm(lane.next_due_ms, now)
            if lane.ready:
                self._enlist(lane)
        self.pump()

    # --- claims ---

    def pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pumping = False
        self.pump()

    def pump(self) -> None:
        """Claims as long as there is capacity and ready work: round robin over Workers, then over their workflows."""
        if self._closed:
            return
        while self._ring and self._active < self._max_contexts:
            worker = self._ring.popleft()
            worker.in_ring = False
            if worker.active >= self._max_per_worker:
                # `_vacate` brings the Worker back.
                continue
            version_uid = self._allocations.pick(worker.uid) if worker.ring else None
            if version_uid is None:
                # Without a Deployment nothing is claimed; `deployment_changed` brings the Worker back.
                continue
            self._claim_next(worker, version_uid)
            if worker.ring:
                self._ring.append(worker)
                worker.in_ring = True

    def _claim_next(self, worker: _Worker, version_uid: str) -> None:
        """Takes the first lane of the Worker and claims one instance of it."""
        assert self.contexts is not None
        lane = worker.ring.popleft()
        lane.in_ring = False
        known = self._allocations.workflow(lane.workflow_uid)
        if known is None or known[0] != worker.uid:
            return
        while lane.ready:
            incarnation = lane.ready.popleft()
            if incarnation in self.contexts.runs:
                # Its context is still ending; that end makes it due again.
                self._offered.discard(incarnation)
                continue
            self._claim(worker, lane, incarnation, version_uid, known[1])
            break
        if lane.ready:
            worker.ring.append(lane)
            lane.in_ring = True
        elif lane.more:
            self._scan_soon(lane)

    def _claim(self, worker: _Worker, lane: _Lane, incarnation: str, version_uid: str, class_name: str) -> None:
        self._active += 1
        self._claiming += 1
        worker.active += 1
        self._owners += 1
        owner = f"{self._owner_prefix}.{self._owners}"
        command = Claim(incarnation, owner, self._runtime_id, version_uid, self._lease_ms)
        self._journal.submit(command, partial(self._claimed, worker, lane, incarnation, class_name))

    def _claimed(self, worker: _Worker, lane: _Lane, incarnation: str, class_name: str, outcome: Outcome) -> None:
        self._offered.discard(incarnation)
        self._claiming -= 1
        if isinstance(outcome, Claimed):
            assert self.contexts is not None
            version_uid = outcome.instance.version_uid
            if version_uid is not None and self._allocations.selects(worker.uid, version_uid):
                self.contexts.begin(outcome.instance, worker.uid, class_name)
                if self._closed:
                    self.contexts.stop(incarnation)
                return
            # The allocation changed while the claim was written: it was the one effective then, not now (W-084).
            self.contexts.decline(outcome.instance)
            self._vacate(worker.uid)
            self.pump_soon()
            return
        self._vacate(worker.uid)
        pause = FAILURE_PAUSE_SECONDS if isinstance(outcome, SaiseiError) else REFUSAL_PAUSE_SECONDS
        asyncio.get_running_loop().call_later(pause, self._look_again, lane)
        self.pump_soon()

    def _look_again(self, lane: _Lane) -> None:
        if not self._closed and self._lanes.get(lane.workflow_uid) is lane:
            lane.more = True
            self._scan_soon(lane)

    def _vacate(self, worker_uid: str) -> None:
        self._active -= 1
        worker = self._workers[worker_uid]
        worker.active -= 1
        if worker.ring and not worker.in_ring:
            self._ring.append(worker)
            worker.in_ring = True

    def _pause(self, instance: Instance) -> None:
        """Trouble: the row says when it may be claimed again, by the machine's time."""
        assert instance.lease_until_ms is not None
        seconds = max(0.0, (instance.lease_until_ms - wall_ms()) / 1000) + 0.001
        asyncio.get_running_loop().call_later(seconds, self._resume, instance.workflow_uid, instance.incarnation)

    def _resume(self, workflow_uid: str, incarnation: str) -> None:
        if not self._closed:
            self._offer(self._lane(workflow_uid), incarnation)
            self.pump()

    # --- lanes ---

    def _lane(self, workflow_uid: str) -> _Lane:
        lane = self._lanes.get(workflow_uid)
        if lane is None:
            lane = self._lanes[workflow_uid] = _Lane(workflow_uid)
        return lane

    def forget(self, workflow_uid: str) -> None:
        """The workflow was purged."""
        lane = self._lanes.pop(workflow_uid, None)
        if lane is not None:
            self._offered.difference_update(lane.ready)
            lane.ready.clear()

    def _offer(self, lane: _Lane, incarnation: str) -> None:
        if incarnation in self._offered:
            return
        if len(lane.ready) >= READY_MAX:
            lane.more = True
            return
        self._offered.add(incarnation)
        lane.ready.append(incarnation)
        if not lane.in_ring:
            self._enlist(lane)

    def _enlist(self, lane: _Lane) -> None:
        """Puts a lane with ready work into its Worker's ring; without a known Worker it waits."""
        known = self._allocations.workflow(lane.workflow_uid)
        if known is None:
            return
        worker = self._workers.get(known[0])
        if worker is None:
            worker = self._workers[known[0]] = _Worker(known[0])
        if not lane.in_ring:
            worker.ring.append(lane)
            lane.in_ring = True
        if not worker.in_ring:
            self._ring.append(worker)
            worker.in_ring = True

    # --- timers and scans ---

    def _arm(self, due_ms: int, now_ms: int) -> None:
        if isinstance(self._clock, Advanceable) or (self._armed_for is not None and self._armed_for <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = due_ms
        delay = min(TIMER_SECONDS_MAX, max(0.0, (due_ms - now_ms) / 1000))
        self._timer = asyncio.get_running_loop().call_later(delay, self.wake)

    def _scan_soon(self, lane: _Lane) -> None:
        if lane.scanning or len(lane.ready) >= READY_MAX // 2 or not self._deployed(lane):
            return
        lane.scanning = True
        lane.more = False
        lane.next_due_ms = None
        self._spawn(self._scan(lane))

    async def _scan(self, lane: _Lane) -> None:
        now = self._clock.now_ms()
        try:
            found = await self._reads.due(lane.workflow_uid, now, SCAN_ROWS)
        except SaiseiError:
            lane.more = True
            asyncio.get_running_loop().call_later(FAILURE_PAUSE_SECONDS, self.wake)
            return
        finally:
            lane.scanning = False
        lane.more = lane.more or found.more
        if found.next_due_ms is not None and (lane.next_due_ms is None or found.next_due_ms < lane.next_due_ms):
            lane.next_due_ms = found.next_due_ms
            self._arm(found.next_due_ms, now)
        for incarnation in found.incarnations:
            self._offer(lane, incarnation)
        if self._clock.now_ms() > now and lane.next_due_ms is not None and lane.next_due_ms <= self._clock.now_ms():
            self._scan_soon(lane)
        self.pump()

    async def _watch_leases(self) -> None:
        """Takes over from runtimes that died, and on a shared database finds what other runtimes queued."""
        while True:
            await asyncio.sleep(min(1.0, self._lease_ms / 4000) if self._shared else self._lease_ms / 2000)
            try:
                for instance in await self._reads.lapsed(wall_ms(), SCAN_ROWS):
                    if instance.termination_requested:
                        self._journal.submit(Terminate(instance.workflow_uid, instance.instance_id), lambda _: None)
                    elif not self._shelve(instance.workflow_uid, instance.incarnation):
                        self._offer(self._lane(instance.workflow_uid), instance.incarnation)
                if self._shared:
                    # What a notice would have said, had it been heard.
                    await self._look_everywhere()
                else:
                    self.pump()
            except SaiseiError:
                _log.warning("the journal cannot be read; leases are looked at again later")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
