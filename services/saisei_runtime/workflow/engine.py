"""The durable workflow engine as the rest of the runtime sees it. All methods belong to one event loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from saisei_contract.clock import Clock
from saisei_contract.errors import SaiseiError
from saisei_runtime.code import CodeSource
from saisei_runtime.isolates.port import ContextPool
from saisei_runtime.workflow import log, retention
from saisei_runtime.workflow.allocations import Allocations
from saisei_runtime.workflow.commands import (
    Create,
    Created,
    Done,
    Ended,
    Expire,
    Reclaim,
    Refused,
    Reply,
    SendEvent,
    Stopping,
    Terminate,
)
from saisei_runtime.workflow.contexts import Contexts, Run
from saisei_runtime.workflow.identity import Incarnations, checked, known_form, new_instance_id
from saisei_runtime.workflow.journal import Journal
from saisei_runtime.workflow.notices import Notice, Notices
from saisei_runtime.workflow.reads import Reads, after_cursor, cursor_of
from saisei_runtime.workflow.records import STATUSES, Instance
from saisei_runtime.workflow.scheduler import Scheduler
from saisei_runtime.workflow.subscriptions import EventRecord, Subscription, Subscriptions, Watch
from saisei_runtime.workflow.verdicts import tell_verdicts
from saisei_runtime.workflow.views import InstanceView, StepView, instance_view, step_view
from saisei_runtime.workflow.workspace import Change
from saisei_service.database import Database

__all__ = ["EngineSettings", "EventRecord", "InstanceView", "StepView", "Subscription", "Watch", "WorkflowEngine"]

_log = logging.getLogger(__name__)

LIST_MAX = 500
# Documents in one page of a list, in bytes, and rows that one query reads: a page fits a message of 4 MiB.
PAGE_BYTES = 2 * 1024 * 1024
ROWS_AT_ONCE = 32
CURSOR_DIGITS = 9
RECLAIM_AT_ONCE = 256
# How often a caller who waits for an end looks into the table: the owner may be another runtime.
LOOK_SECONDS = 0.5
# Subscribers look into a shared table this often although nothing was heard of it.
POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`runtime_id` is stable over restarts of one runtime. Whoever starts an engine with it guarantees that no child
    process of the runtime's former life is left: what it ran is taken back at once."""

    runtime_id: str
    max_contexts: int = 64
    max_contexts_per_worker: int = 32
    lease_ms: int = 10_000
    # How long `terminate`, an expiry and `purge` wait for the proof before they answer backend_unavailable (W-071).
    stop_seconds: float = 10.0
    sweep_seconds: float = 600.0


# Names for annotations inside the class, where `list` is a method.
StepViews: TypeAlias = list[StepView]
list_: TypeAlias = list


class WorkflowEngine:
    """Documents are canonical bytes that were validated already; errors are SaiseiError with the reasons of 3.4."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        pool: ContextPool,
        code: CodeSource,
        allocations: Allocations,
        settings: EngineSettings,
    ) -> None:
        self._clock = clock
        self._allocations = allocations
        self._settings = settings
        self._incarnations = Incarnations()
        self._closed_workflows: set[str] = set()
        self._runs: dict[str, Run] = {}
        self._endings: dict[str, list[asyncio.Future[Instance]]] = {}
        self._reads = Reads(database)
        life = secrets.token_hex(8)
        self._journal = Journal(
            database,
            clock,
            committed=self._committed,
            alive=self._runs,
            closed=self._closed_workflows,
            sender=life,
            unplaced=self._unplaced,
        )
        self._notices = Notices(database, life, self._heard) if database.is_postgresql else None
        self._scheduler = Scheduler(
            self._journal,
            self._reads,
            allocations,
            clock,
            runtime_id=settings.runtime_id,
            owner_prefix=f"{settings.runtime_id}/{life}",
            lease_ms=settings.lease_ms,
            max_contexts=settings.max_contexts,
            max_contexts_per_worker=settings.max_contexts_per_worker,
            shared=database.is_postgresql,
        )
        self._contexts = Contexts(
            self._journal,
            self._reads,
            pool,
            code,
            clock,
            lease_ms=settings.lease_ms,
            shared=database.is_postgresql,
            freed=self._scheduler.freed,
            runs=self._runs,
        )
        self._scheduler.contexts = self._contexts
        self._subscriptions = Subscriptions(self._reads, POLL_SECONDS if database.is_postgresql else None)
        self._sweeper: asyncio.Task[None] | None = None
        self._looking: set[asyncio.Task[None]] = set()

    # --- life ---

    async def start(self) -> None:
        """Takes back what a former process of this runtime ran, then claims whatever is due (W-155)."""
        self._journal.start(asyncio.get_running_loop())
        self._closed_workflows.update(await self._reads.closed_workflows())
        await self._reclaim()
        await self._scheduler.start()
        if self._notices is not None:
            self._notices.start(asyncio.get_running_loop())
        self._sweeper = asyncio.create_task(self._sweep_for_ever())

    async def _reclaim(self) -> None:
        running = await self._reads.running_of(self._settings.runtime_id)
        for first in range(0, len(running), RECLAIM_AT_ONCE):
            part = running[first : first + RECLAIM_AT_ONCE]
            await asyncio.gather(*(self._journal.ask(Reclaim(one, self._settings.runtime_id)) for one in part))
        if running:
            _log.info("took back %d instances that ran when this runtime ended", len(running))

    async def stop(self) -> None:
        """Stops every context with proof; their instances go back to the queue without losing an attempt (W-089)."""
        self._scheduler.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if not await self._contexts.drain(self._settings.stop_seconds):
            _log.warning("some contexts are not proven to have stopped; their leases keep others away")
        self._subscriptions.close()
        if self._notices is not None:
            await self._notices.stop()
        await self._journal.stop()
        self._reads.close()

    def _committed(self, changes: Sequence[Change]) -> None:
        self._subscriptions.committed(changes, self._clock.now_ms())
        if self._endings:
            for change in changes:
                if change.after.terminal:
                    for future in self._endings.pop(change.after.incarnation, ()):
                        if not future.done():
                            future.set_result(change.after)
        tell_verdicts(changes, self._allocations)
        self._scheduler.committed(changes)

    def _unplaced(self, changes: Sequence[Change]) -> Collection[str]:
        return self._scheduler.unplaced(changes)

    def _heard(self, notice: Notice) -> None:
        """Another runtime committed something."""
        if notice.unplaced is None or notice.unplaced:
            self._scheduler.look_at(notice.unplaced)
        named = None if notice.changed is None else list(notice.changed)
        for incarnation in list(self._runs) if named is None else named:
            self._contexts.verify(incarnation)
        look_at = self._subscriptions.touched(named)
        if look_at or named is None:
            task = asyncio.create_task(self._look(look_at, named is None))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look(self, incarnations: Sequence[str], everything: bool) -> None:
        try:
            if everything:
                for uid in set(await self._reads.closed_workflows()) - self._closed_workflows:
                    self._closed_workflows.add(uid)
                    self._scheduler.forget(uid)
            now = self._clock.now_ms()
            for instance in await self._reads.by_incarnations(incarnations):
                self._subscriptions.seen(instance, now)
        except SaiseiError as error:
            _log.warning("what another runtime did is seen later: %s", error)

    # --- callers ---

    async def create(self, workflow_uid: str, instance_id: str | None, params: bytes | None) -> str:
        """W-020 … W-026. Fails with instance_exists, backend_unavailable, invalid_request (malformed id)."""
        reply = await self._journal.ask(self._creation(workflow_uid, instance_id, params))
        return _created(reply)

    async def create_batch(
        self, workflow_uid: str, items: Sequence[tuple[str | None, bytes | None]]
    ) -> list[str | SaiseiError]:
        """One commit for all of them; each item has its own outcome, in the order given."""
        asked: list[asyncio.Future[Reply] | SaiseiError] = []
        for instance_id, params in items:
            try:
                asked.append(self._journal.ask(self._creation(workflow_uid, instance_id, params)))
            except SaiseiError as error:
                asked.append(error)
        outcomes: list[str | SaiseiError] = []
        for one in asked:
            try:
                outcomes.append(one if isinstance(one, SaiseiError) else _created(await one))
            except SaiseiError as error:
                outcomes.append(error)
        return outcomes

    def _creation(self, workflow_uid: str, instance_id: str | None, params: bytes | None) -> Create:
        known = self._allocations.workflow(workflow_uid)
        if known is None or self._allocations.pick(known[0]) is None:
            raise SaiseiError("backend_unavailable", "The workflow's Worker has no active Deployment: deploy it first.")
        chosen = new_instance_id() if instance_id is None else checked(instance_id, "instance id")
        return Create(workflow_uid, chosen, self._incarnations.new(self._clock.now_ms()), params)

    async def get(self, workflow_uid: str, instance_id: str) -> InstanceView:
        """Fails with unknown_instance. At or after the deadline it shows the end by lifetime (W-016)."""
        return instance_view(await self._current(await self._found(workflow_uid, instance_id)))

    async def list(
        self, workflow_uid: str, status: str | None, limit: int, cursor: str | None
    ) -> tuple[list[InstanceView], str | None]:
        """Ascending by creation; the second value continues the list, None at its end."""
        if status is not None and status not in STATUSES:
            raise SaiseiError("invalid_request", f"The status must be one of {', '.join(STATUSES)}.")
        if not 1 <= limit <= LIST_MAX:
            raise SaiseiError("invalid_request", f"The limit must be from 1 to {LIST_MAX}.")
        rows: list_[Instance] = []
        size, after, more = 0, after_cursor(cursor), True
        # A page ends early when its outputs grow large: it must fit one message, and a reader's memory.
        while more and len(rows) < limit and size < PAGE_BYTES:
            wanted = min(limit - len(rows), ROWS_AT_ONCE)
            part = await self._reads.page(workflow_uid, status, wanted + 1, after)
            more = len(part) > wanted
            for row in part[:wanted]:
                if rows and size + len(row.output or b"") > PAGE_BYTES:
                    more, size = True, PAGE_BYTES
                    break
                rows.append(row)
                size += len(row.output or b"")
                after = row.incarnation
        views = [instance_view(await self._current(row)) for row in rows]
        shown = [view for view in views if status is None or view.status == status]
        return shown, cursor_of(after) if more else None

    async def steps(
        self, workflow_uid: str, instance_id: str, cursor: str | None = None
    ) -> tuple[StepViews, str | None, list_[tuple[str, int]]]:
        """The journal in order of first registration, and what continues it. With its end come the type and acceptance
        time in epoch ms of each event that no wait has taken yet. Fails with unknown_instance."""
        instance = await self._found(workflow_uid, instance_id)
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= CURSOR_DIGITS):
            raise SaiseiError("invalid_request", "The cursor is not one that this list gave.")
        after = int(cursor) if cursor is not None else -1
        queued = instance.queued_count > 0
        steps, more, events = await self._reads.steps(instance.incarnation, after, PAGE_BYTES, queued=queued)
        return [step_view(step) for step in steps], str(steps[-1].seq) if more else None, events

    async def send_event(self, workflow_uid: str, instance_id: str, event_type: str, payload: bytes | None) -> None:
        """W-060 … W-066. Fails with unknown_instance, instance_terminal, event_queue_full, invalid_request."""
        checked(event_type, "event type")
        if not known_form(instance_id):
            raise _unknown(instance_id)
        _done(await self._journal.ask(SendEvent(workflow_uid, instance_id, event_type, payload)))

    async def terminate(self, workflow_uid: str, instance_id: str) -> InstanceView:
        """W-070 … W-075: answers with the terminal view, after the proof; backend_unavailable when it is not had in
        time, and the engine goes on trying."""
        if not known_form(instance_id):
            raise _unknown(instance_id)
        return instance_view(await self._end(await self._journal.ask(Terminate(workflow_uid, instance_id))))

    async def subscribe(
        self, workflow_uid: str, instance_id: str, cursor: int = 0, types: frozenset[str] | None = None
    ) -> Subscription:
        """S-01 … S-12. Fails with unknown_instance, invalid_request (a negative cursor, an unknown type)."""
        if cursor < 0:
            raise SaiseiError("invalid_request", "The cursor must be 0 or the id of an event.")
        if types is not None and not types <= log.EVENT_TYPES:
            raise SaiseiError("invalid_request", "The filter names an event type that does not exist.")
        return self._subscriptions.open(await self._found(workflow_uid, instance_id), cursor, types)

    def watch(self, workflow_uid: str) -> Watch:
        """Status changes of the workflow's instances from now on, coalesced for slow readers."""
        return self._subscriptions.watch(workflow_uid)

    def open_subscriptions(self, workflow_uid: str) -> int:
        """How many are open in this process."""
        return self._subscriptions.count(workflow_uid)

    async def counts(self, workflow_uid: str) -> dict[str, int]:
        """DW-05: all seven statuses."""
        return await self._reads.counts(workflow_uid)

    async def purge(self, workflow_uid: str) -> int:
        """DW-08: closes, fences, stops with proof, then removes every trace; returns how many instances there were.

        backend_unavailable while a stop is unproven: call again; nothing is admitted meanwhile.
        """
        self._closed_workflows.add(workflow_uid)
        now = self._clock.now_ms()
        await self._journal.transact(lambda connection: retention.close_workflow(connection, workflow_uid, now))
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.stop_seconds
        while True:
            self._contexts.stop_where(lambda run: run.workflow_uid == workflow_uid)
            mine = any(run.workflow_uid == workflow_uid for run in self._runs.values())
            if not mine and not await retention.held(self._reads, workflow_uid):
                break
            if loop.time() > until:
                raise SaiseiError("backend_unavailable", "A context of the workflow is not proven to have stopped.")
            await asyncio.sleep(0.02)
        self._scheduler.forget(workflow_uid)
        removed = await retention.remove_workflow(self._journal, workflow_uid)
        self._subscriptions.purged(workflow_uid)
        return removed

    def deployment_changed(self, worker_uid: str) -> None:
        """The allocation of a Worker appeared, changed or vanished. Vanished: its contexts are stopped (W-087)."""
        if self._allocations.pick(worker_uid) is None:
            self._contexts.stop_where(lambda run: run.worker_uid == worker_uid)
            self._scheduler.shelve_soon()
        self._scheduler.deployment_changed(worker_uid)

    def assignments_complete(self) -> None:
        """Everything assigned is known: what has no Deployment now waits for one (W-087)."""
        self._scheduler.shelve_soon()

    def contexts_of(self, worker_uid: str, version_uid: str) -> int:
        """Contexts of a Version that are claimed or run in this process (WV-13)."""
        return sum(_is_of(run, worker_uid, version_uid) for run in self._runs.values())

    async def drain(self, worker_uid: str, version_uid: str | None) -> int:
        """Stops each context of a Worker or of one of its Versions, with proof, and returns how many there were; their
        instances wait, or go on with what is allocated now, and lose no attempt (W-087, W-088, WD-09).

        backend_unavailable while a stop is unproven: call again.
        """
        count = sum(_is_of(run, worker_uid, version_uid) for run in self._runs.values())
        mine = partial(_is_of, worker_uid=worker_uid, version_uid=version_uid)
        if not await self._contexts.stop_all(mine, self._settings.stop_seconds):
            raise SaiseiError("backend_unavailable", "A context of the Worker is not proven to have stopped.")
        await self._scheduler.shelve()
        return count

    async def sweep(self) -> int:
        """Ends what is over its lifetime and discards what was retained long enough; returns how many were discarded.

        Runs by itself now and then; a test with a virtual clock calls it.
        """
        now = self._clock.now_ms()
        for incarnation in await retention.overdue(self._reads, now):
            reply = await self._journal.ask(Expire(incarnation))
            if isinstance(reply, Stopping):
                self._contexts.stop(incarnation)
        return await retention.discard(self._journal, now)

    async def settle_due(self, seconds: float = 10.0) -> int:
        """After a virtual clock was advanced: returns once everything that became due has been started, not finished,
        or after `seconds`; says how many contexts were begun meanwhile. What retention allows is discarded too."""
        before = self._contexts.begun
        await self.sweep()
        self._scheduler.wake()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._scheduler.settled() and loop.time() < until:  # noqa: ASYNC110 - it depends on many things
            await asyncio.sleep(0.002)
        return self._contexts.begun - before

    # --- inside ---

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.sweep()
            except SaiseiError as error:
                _log.warning("retention is tried again later: %s", error)
            await asyncio.sleep(self._settings.sweep_seconds)

    async def _found(self, workflow_uid: str, instance_id: str) -> Instance:
        instance = None
        if workflow_uid not in self._closed_workflows and known_form(instance_id):
            instance = await self._reads.instance(workflow_uid, instance_id)
        if instance is None:
            raise _unknown(instance_id)
        return instance

    async def _current(self, instance: Instance) -> Instance:
        """The row, or the one that follows when its lifetime has run out meanwhile."""
        if instance.terminal or self._clock.now_ms() < instance.deadline_at_ms:
            return instance
        reply = await self._journal.ask(Expire(instance.incarnation))
        return instance if isinstance(reply, Done) else await self._end(reply)

    async def _end(self, reply: Reply) -> Instance:
        """The terminal row behind the reply to Terminate or Expire."""
        match reply:
            case Ended():
                return reply.instance
            case Refused():
                raise SaiseiError(reply.reason, reply.detail)
            case Stopping():
                return await self._stopped(reply.instance.incarnation)
            case _:
                raise AssertionError(f"no reply of an end: {reply}")

    async def _stopped(self, incarnation: str) -> Instance:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.stop_seconds
        future: asyncio.Future[Instance] = loop.create_future()
        waiting = self._endings.setdefault(incarnation, [])
        waiting.append(future)
        try:
            while True:
                self._contexts.stop(incarnation)
                row = await self._reads.by_incarnation(incarnation)
                if future.done():
                    return future.result()
                if row is None:
                    raise _unknown("")
                if row.terminal:
                    return row
                left = until - loop.time()
                if left <= 0:
                    raise SaiseiError("backend_unavailable", "The instance's code is not proven to have stopped yet.")
                await asyncio.wait({future}, timeout=min(left, LOOK_SECONDS))
                if future.done():
                    return future.result()
        finally:
            if future in waiting:
                waiting.remove(future)
            if not waiting and self._endings.get(incarnation) is waiting:
                del self._endings[incarnation]


def _is_of(run: Run, worker_uid: str, version_uid: str | None) -> bool:
    return run.worker_uid == worker_uid and version_uid in (None, run.version_uid)


def _unknown(instance_id: str) -> SaiseiError:
    return SaiseiError("unknown_instance", f"The workflow has no instance {instance_id!r}.")


def _created(reply: Reply) -> str:
    match reply:
        case Created():
            return reply.instance_id
        case Refused():
            raise SaiseiError(reply.reason, reply.detail)
        case _:
            raise AssertionError(f"no reply to a create: {reply}")


def _done(reply: Reply) -> None:
    match reply:
        case Done():
            return
        case Refused():
            raise SaiseiError(reply.reason, reply.detail)
        case _:
            raise AssertionError(f"no reply to an event: {reply}")
