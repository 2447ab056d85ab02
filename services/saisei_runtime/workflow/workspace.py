"""One transaction's copies of the rows it touches: loaded together, changed in memory, flushed together."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from saisei_runtime.store.text import loaded, stored
from saisei_runtime.workflow import events, machine
from saisei_runtime.workflow.commands import BY_KEY, Claim, Command, Create, Instant, Reply, View
from saisei_runtime.workflow.kept import Kept, KeptInstance
from saisei_runtime.workflow.records import Instance, LogEntry, QueuedEvent, Step
from saisei_runtime.workflow.statements import ADMIT, IMMUTABLE, RUNNING_COLUMNS, Cursor, Statements


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one transaction did to one instance, told to the scheduler and the subscribers after the commit."""

    # None when the instance was created here.
    before: Instance | None
    after: Instance
    entries: Sequence[LogEntry]


class Workspace:
    """Rows of one transaction. Not thread-safe: it belongs to the writer."""

    def __init__(
        self,
        cursor: Cursor,
        sql: Statements,
        alive: Container[str],
        closed: Container[str],
        kept: Kept | None = None,
    ) -> None:
        self._cursor = cursor
        self._sql = sql
        self._alive = alive
        self._closed = closed
        self._kept = kept
        self._instances: dict[str, Instance] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._steps: dict[tuple[str, str], Step] = {}
        # Steps that were looked for, found or not, and instances that had none when they were loaded.
        self._sought: set[tuple[str, str]] = set()
        self._stepless: set[str] = set()
        self._params: dict[str, bytes] = {}
        # What this transaction changes.
        self._before: dict[str, Instance | None] = {}
        self._entries: dict[str, list[LogEntry]] = {}
        self._changed_steps: dict[tuple[str, str], Step] = {}
        self._new_params: list[tuple[str, bytes]] = []
        self._new_events: dict[tuple[str, int], QueuedEvent] = {}
        self._consumed: dict[tuple[str, int], None] = {}
        self._purged: dict[str, None] = {}

    def load(self, commands: Sequence[Command]) -> None:
        """Fetches every row that the commands are known to need, in one query for each table."""
        keys: dict[tuple[str, str], None] = {}
        incarnations: dict[str, None] = {}
        for command in commands:
            if isinstance(command, BY_KEY):
                keys[(command.workflow_uid, stored(command.instance_id))] = None
            else:
                known = None if self._kept is None else self._kept.get(command.incarnation)
                if known is None:
                    incarnations[command.incarnation] = None
                else:
                    self._know(known)
        if keys:
            found = self._cursor.fetch(self._sql.instances_by_key, self._sql.many(list(keys)))
            if self._sql.postgresql:
                # The rows are read again under their locks.
                incarnations.update((row[0], None) for row in found)
            else:
                self._remember(found)
        if incarnations:
            wanted = [(incarnation,) for incarnation in sorted(incarnations) if incarnation not in self._instances]
            if wanted:
                self._remember(self._cursor.fetch(self._sql.instances_by_incarnation, self._sql.many(wanted)))
        self._load_steps(commands)
        self._load_params(commands)
        if self._sql.postgresql:
            self._load_closed(commands)

    def _load_closed(self, commands: Sequence[Command]) -> None:
        """Another runtime may have closed a workflow: admission asks the table, under a lock against closing."""
        uids: dict[tuple[str], None] = {}
        for command in commands:
            if isinstance(command, Create):
                uids[(command.workflow_uid,)] = None
            elif isinstance(command, Claim) and command.incarnation in self._instances:
                uids[(self._instances[command.incarnation].workflow_uid,)] = None
        if uids:
            self._cursor.call(ADMIT, ())
            self._closed = {
                row[0] for row in self._cursor.fetch(self._sql.closed_workflows, self._sql.many(list(uids)))
            }

    def _remember(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._meet(loaded_instance(row))

    def _meet(self, instance: Instance) -> None:
        self._instances[instance.incarnation] = instance
        self._keys[(instance.workflow_uid, instance.instance_id)] = instance.incarnation
        if instance.step_count == 0:
            self._stepless.add(instance.incarnation)

    def _know(self, known: KeptInstance) -> None:
        """A row, and steps of it, that need not be read."""
        incarnation = known.instance.incarnation
        if incarnation not in self._instances:
            self._meet(known.instance)
            for name, step in known.open.items():
                self._steps[(incarnation, name)] = step

    def _is_known_absent(self, incarnation: str, name: str) -> bool:
        """Whether it is certain, without a look, that the table has no step of that name."""
        known = None if self._kept is None else self._kept.get(incarnation)
        return known is not None and known.finished is not None and name not in known.finished

    def _load_steps(self, commands: Sequence[Command]) -> None:
        names: dict[tuple[str, str], None] = {}
        for command in commands:
            instance = self._instance_of(command)
            if instance is None or instance.step_count == 0:
                continue
            name = machine.step_needed(command, instance)
            if name is None or (instance.incarnation, name) in self._steps:
                continue
            self._sought.add((instance.incarnation, name))
            if not self._is_known_absent(instance.incarnation, name):
                names[(instance.incarnation, stored(name))] = None
        if names:
            for row in self._cursor.fetch(self._sql.steps_by_name, self._sql.many(list(names))):
                step = loaded_step(row)
                self._steps[(step.incarnation, step.name)] = step

    def _load_params(self, commands: Sequence[Command]) -> None:
        """Only a first start needs them, for its event."""
        wanted: dict[str, None] = {}
        for command in commands:
            if isinstance(command, Claim):
                instance = self._instances.get(command.incarnation)
                if instance is not None and instance.has_params and not instance.started:
                    wanted[instance.incarnation] = None
        if wanted:
            keys = [(incarnation,) for incarnation in wanted]
            for incarnation, document in self._cursor.fetch(self._sql.params_by_incarnation, self._sql.many(keys)):
                self._params[incarnation] = bytes(document)

    def _instance_of(self, command: Command) -> Instance | None:
        if isinstance(command, BY_KEY):
            incarnation = self._keys.get((command.workflow_uid, command.instance_id))
            return None if incarnation is None else self._instances[incarnation]
        return self._instances.get(command.incarnation)

    def apply(self, command: Command, now: Instant) -> Reply:
        """Decides one command on the copies, which hold what the commands before it in this transaction changed."""
        instance = self._instance_of(command)
        refusal = machine.closed(command, instance, self._closed)
        if refusal is not None:
            return refusal
        step = self._step(command, instance)
        want = events.wanted(command, instance, step, now)
        match = None if want is None or instance is None else self._oldest(instance.incarnation, *want)
        decision = machine.decide(
            View(
                instance,
                step,
                match,
                None if instance is None else self._params.get(instance.incarnation),
                instance is not None and instance.incarnation in self._alive,
            ),
            command,
            now,
        )
        after = decision.instance
        if after is None:
            return decision.reply
        incarnation = after.incarnation
        if decision.facts:
            after, entries = machine.numbered(after, decision.facts, now)
            self._entries.setdefault(incarnation, []).extend(entries)
        self._before.setdefault(incarnation, instance)
        self._instances[incarnation] = after
        if instance is None:
            self._keys[(after.workflow_uid, after.instance_id)] = incarnation
            self._stepless.add(incarnation)
        if decision.step is not None:
            self._steps[(incarnation, decision.step.name)] = decision.step
            self._changed_steps[(incarnation, decision.step.name)] = decision.step
        if decision.params is not None:
            self._params[incarnation] = decision.params
            self._new_params.append((incarnation, decision.params))
        if decision.queued is not None:
            self._new_events[(incarnation, decision.queued.seq)] = decision.queued
        if decision.consumed is not None:
            self._consumed[(incarnation, decision.consumed.seq)] = None
        if decision.purge_queue:
            self._purged[incarnation] = None
        return decision.reply

    def _step(self, command: Command, instance: Instance | None) -> Step | None:
        name = machine.step_needed(command, instance)
        if name is None or instance is None:
            return None
        key = (instance.incarnation, name)
        step = self._steps.get(key)
        if step is None and key not in self._sought and instance.incarnation not in self._stepless:
            self._sought.add(key)
            if self._is_known_absent(*key):
                return None
            # Needed only because of a command before this one in the same transaction, which is rare.
            for row in self._cursor.fetch(self._sql.steps_by_name, self._sql.many([(key[0], stored(name))])):
                step = self._steps[key] = loaded_step(row)
        return step

    def _oldest(self, incarnation: str, event_type: str, not_after_ms: int) -> QueuedEvent | None:
        after = 0
        while True:
            rows = self._cursor.fetch(self._sql.oldest_event, (incarnation, stored(event_type), after, not_after_ms))
            if not rows:
                break
            event = _loaded_event(rows[0])
            if (incarnation, event.seq) not in self._consumed:
                return event
            after = event.seq
        for key, event in self._new_events.items():
            mine = key[0] == incarnation and event.type == event_type and event.accepted_at_ms <= not_after_ms
            if mine and key not in self._consumed:
                return event
        return None

    def flush(self) -> list[Change]:
        """Writes every change; returns them for those who are told after the commit."""
        cursor, sql = self._cursor, self._sql
        created: list[tuple[Any, ...]] = []
        updated: list[tuple[Any, ...]] = []
        running: list[tuple[Any, ...]] = []
        changes = []
        for incarnation, before in self._before.items():
            after = self._instances[incarnation]
            if before is None:
                created.append(_instance_row(after))
            elif (
                before.owner is not None
                and before.owner == after.owner
                and before.lease_until_ms == after.lease_until_ms
            ):
                running.append(_running_row(after))
            else:
                updated.append((*_instance_row(after)[IMMUTABLE:], incarnation))
            changes.append(Change(before, after, self._entries.get(incarnation, ())))
        cursor.write(sql.insert_instance, created)
        cursor.write(sql.update_instance, updated)
        cursor.write(sql.update_running, running)
        cursor.write(sql.insert_params, self._new_params)
        cursor.write(sql.upsert_step, [_step_row(step) for step in self._changed_steps.values()])
        fresh = [event for key, event in self._new_events.items() if key not in self._consumed]
        cursor.write(sql.insert_event, [_event_row(event) for event in fresh])
        cursor.write(sql.delete_event, [key for key in self._consumed if key not in self._new_events])
        cursor.write(sql.purge_events, [(incarnation,) for incarnation in self._purged])
        cursor.write(sql.insert_log, [astuple(entry) for log in self._entries.values() for entry in log])
        return changes

    def keep(self, kept: Kept) -> None:
        """After the commit: the next transaction need not read what this one wrote."""
        steps: dict[str, list[Step]] = {}
        for (incarnation, _), step in self._changed_steps.items():
            steps.setdefault(incarnation, []).append(step)
        for incarnation, before in self._before.items():
            kept.committed(before, self._instances[incarnation], steps.get(incarnation, ()))


def loaded_instance(row: Sequence[Any]) -> Instance:
    instance = Instance(*row)
    if "\\" in instance.instance_id or instance.pending_step is not None or instance.error_message is not None:
        return replace(
            instance,
            instance_id=loaded(instance.instance_id),
            error_message=loaded(instance.error_message),
            pending_step=loaded(instance.pending_step),
        )
    return instance


def _instance_row(instance: Instance) -> tuple[Any, ...]:
    row = astuple(instance)
    texts = (instance.instance_id, instance.error_message, instance.pending_step)
    escaped = (stored(instance.instance_id), stored(instance.error_message), stored(instance.pending_step))
    if texts == escaped:
        return row
    return astuple(replace(instance, instance_id=escaped[0], error_message=escaped[1], pending_step=escaped[2]))


_running_values = attrgetter(*RUNNING_COLUMNS[1:])


def _running_row(instance: Instance) -> tuple[Any, ...]:
    # RUNNING_COLUMNS begins with the only one that holds an application's text.
    return (stored(instance.pending_step), *_running_values(instance), instance.incarnation)


def loaded_step(row: Sequence[Any]) -> Step:
    step = Step(*row)
    return replace(step, name=loaded(step.name), event_type=loaded(step.event_type))


def _step_row(step: Step) -> tuple[Any, ...]:
    name, event_type = stored(step.name), stored(step.event_type)
    if name == step.name and event_type == step.event_type:
        return astuple(step)
    return astuple(replace(step, name=name, event_type=event_type))


def _loaded_event(row: Sequence[Any]) -> QueuedEvent:
    event = QueuedEvent(*row)
    return replace(event, type=loaded(event.type))


def _event_row(event: QueuedEvent) -> tuple[Any, ...]:
    return astuple(replace(event, type=stored(event.type)))
