"""The machine and the rows of one instance, for tests of the rules: over plain dictionaries, or over the journal's own
tables."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from saisei_runtime.isolates.port import (
    Completed,
    ContextEnd,
    ContextOutcome,
    DoFailed,
    DoStarted,
    DoSucceeded,
    ProofKind,
    RetryPolicy,
    SleepCalled,
    StepCall,
    StopProof,
    WaitCalled,
)
from saisei_runtime.store import schema
from saisei_runtime.workflow import events, machine
from saisei_runtime.workflow.commands import (
    Claim,
    Command,
    ContextEnded,
    Create,
    Expire,
    Instant,
    Reclaim,
    Release,
    RenewLease,
    Reply,
    Requeue,
    SendEvent,
    StepCalled,
    Terminate,
    View,
)
from saisei_runtime.workflow.log import event_json
from saisei_runtime.workflow.records import Instance, LogEntry, QueuedEvent, Step
from saisei_runtime.workflow.statements import Cursor, statements
from saisei_runtime.workflow.workspace import Workspace, loaded_instance, loaded_step
from saisei_service.database import Database

LEASE = 10_000


class Rows:
    """One instance ("wf", "i") and its rows; `now` is the Host's clock in ms, `wall` the machine's."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now
        self.wall = 0
        self.instance: Instance | None = None
        self.steps: dict[str, Step] = {}
        self.queue: list[QueuedEvent] = []
        self.log: list[LogEntry] = []
        self.alive = False
        self.owners = 0

    def another(self) -> Rows:
        """Rows anew, without anything of these."""
        return Rows()

    # --- commands ---

    def apply(self, command: Command) -> Reply:
        instant = Instant(self.now, self.wall)
        instance = self.instance
        name = machine.step_needed(command, instance)
        step = None if name is None else self.steps.get(name)
        want = events.wanted(command, instance, step, instant)
        match = None
        if want is not None:
            fitting = [event for event in self.queue if event.type == want[0] and event.accepted_at_ms <= want[1]]
            match = min(fitting, key=lambda event: event.seq, default=None)
        decision = machine.decide(View(instance, step, match, None, self.alive), command, instant)
        after = decision.instance
        if after is None:
            assert not decision.facts and decision.step is None and decision.queued is None
            return decision.reply
        if decision.facts:
            after, entries = machine.numbered(after, decision.facts, instant)
            self.log.extend(entries)
        self.instance = after
        if decision.step is not None:
            self.steps[decision.step.name] = decision.step
        if decision.queued is not None:
            self.queue.append(decision.queued)
        if decision.consumed is not None:
            self.queue.remove(decision.consumed)
        if decision.purge_queue:
            self.queue.clear()
        return decision.reply

    def create(self, params: bytes | None = None) -> Reply:
        return self.apply(Create("wf", "i", "incarnation", params))

    def claim(self) -> Reply:
        self.owners += 1
        return self.apply(Claim("incarnation", f"owner-{self.owners}", "runtime", "v1", LEASE))

    def started(self, params: bytes | None = None) -> Rows:
        self.create(params)
        self.claim()
        return self

    def fence(self) -> tuple[str, int, str]:
        assert self.instance is not None
        return self.instance.incarnation, self.instance.epoch, self.instance.owner or "nobody"

    def call(self, call: StepCall, fence: tuple[str, int, str] | None = None) -> Reply:
        return self.apply(StepCalled(*(fence or self.fence()), call))

    def do_started(self, name: str = "a", attempt: int = 1, policy: RetryPolicy | None = None) -> Reply:
        return self.call(DoStarted(name, attempt, policy or RetryPolicy()))

    def succeed(self, name: str = "a", result: bytes | None = b"{}", attempt: int = 1) -> Reply:
        return self.call(DoSucceeded(name, attempt, result))

    def do(self, name: str = "a", result: bytes | None = b"{}") -> Reply:
        self.do_started(name)
        return self.succeed(name, result)

    def fail(self, name: str = "a", attempt: int = 1, policy: RetryPolicy | None = None) -> Reply:
        return self.call(DoFailed(name, attempt, policy or RetryPolicy(), "Error", "boom"))

    def attempt_fails(self, name: str = "a", attempt: int = 1, policy: RetryPolicy | None = None) -> Reply:
        self.do_started(name, attempt, policy)
        return self.fail(name, attempt, policy)

    def sleep(self, name: str = "s", seconds: int = 60) -> Reply:
        return self.call(SleepCalled(name, seconds))

    def wait(self, name: str = "w", event_type: str = "go", timeout: int = 60) -> Reply:
        return self.call(WaitCalled(name, event_type, timeout))

    def end(self, outcome: ContextOutcome | None = None, fence: tuple[str, int, str] | None = None) -> Reply:
        incarnation, epoch, owner = fence or self.fence()
        proof = StopProof(ProofKind.QUIESCENT, f"{incarnation}-{epoch}")
        return self.apply(ContextEnded(incarnation, epoch, owner, ContextEnd(outcome or Completed(None), proof)))

    def send(self, event_type: str = "go", payload: bytes | None = None) -> Reply:
        return self.apply(SendEvent("wf", "i", event_type, payload))

    def terminate(self) -> Reply:
        return self.apply(Terminate("wf", "i"))

    def expire(self) -> Reply:
        return self.apply(Expire("incarnation"))

    def renew(self, fence: tuple[str, int, str] | None = None) -> Reply:
        return self.apply(RenewLease(*(fence or self.fence()), LEASE))

    def release(self, delay_ms: int = 0) -> Reply:
        return self.apply(Release(*self.fence(), delay_ms))

    def reclaim(self, runtime: str = "runtime") -> Reply:
        return self.apply(Reclaim("incarnation", runtime))

    def requeue(self) -> Reply:
        return self.apply(Requeue("incarnation"))

    # --- what there is ---

    @property
    def row(self) -> Instance:
        assert self.instance is not None
        return self.instance

    @property
    def status(self) -> str:
        return self.row.status

    @property
    def failure(self) -> tuple[str, str | None]:
        return self.row.status, self.row.error_reason

    def types(self, first: int = 1) -> list[str]:
        return [entry.type for entry in self.log if entry.event_id >= first]

    def event(self, event_type: str, which: int = 0) -> dict[str, Any]:
        entry = [entry for entry in self.log if entry.type == event_type][which]
        return json.loads(event_json("i", entry.event_id, entry.at_ms, entry.type, entry.body))


class StoredRows(Rows):
    """The same over a real database: each command is one transaction of the journal's, and what there is is read back.

    The tables are emptied first: there is one instance at a time.
    """

    def __init__(self, database: Database, now: int = 1_000_000) -> None:
        self._database = database
        self._sql = statements(database.is_postgresql)
        self.now = now
        self.wall = 0
        self.alive = False
        self.owners = 0
        with database.writer.begin() as connection:
            for table in reversed(schema.metadata.sorted_tables):
                connection.execute(table.delete())

    def another(self) -> Rows:
        return StoredRows(self._database)

    def apply(self, command: Command) -> Reply:
        with self._database.writer.begin() as connection:
            workspace = Workspace(
                Cursor(connection.connection, postgresql=self._sql.postgresql),
                self._sql,
                ("incarnation",) if self.alive else (),
                (),
            )
            workspace.load([command])
            reply = workspace.apply(command, Instant(self.now, self.wall))
            workspace.flush()
        return reply

    @property
    def instance(self) -> Instance | None:  # type: ignore[override]
        return next((loaded_instance(row) for row in self._all(schema.instances)), None)

    @property
    def steps(self) -> dict[str, Step]:  # type: ignore[override]
        return {step.name: step for step in map(loaded_step, self._all(schema.steps, "seq"))}

    @property
    def queue(self) -> list[QueuedEvent]:  # type: ignore[override]
        return [QueuedEvent(*row) for row in self._all(schema.queued_events, "seq")]

    @property
    def log(self) -> list[LogEntry]:  # type: ignore[override]
        return [LogEntry(*row) for row in self._all(schema.event_log, "event_id")]

    def _all(self, table: sa.Table, order: str | None = None) -> list[Any]:
        query = sa.select(table)
        with self._database.reader.connect() as connection:
            return list(connection.execute(query if order is None else query.order_by(table.c[order])))
