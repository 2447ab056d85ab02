"""Rows as values, and the statements that every part of the service shares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, select, update

from saisei_contract.records import (
    Action,
    Effect,
    Offering,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    OperationWarning,
    Phase,
    ResourceRecord,
)
from saisei_contract.strict_json import JsonObject, parse_text
from saisei_control.store.schema import counters, operations, resources
from saisei_control.store.statements import Row, Statement, one_of

UNFINISHED = tuple(status.value for status in OperationStatus if not status.is_terminal)

# An enum's own look-up by value takes five times as long.
_PHASES = {phase.value: phase for phase in Phase}
_ACTIONS = {action.value: action for action in Action}
_STATUSES = {status.value: status for status in OperationStatus}
_EFFECTS = {effect.value: effect for effect in Effect}

_RESOURCE = Statement(select(resources).where(resources.c.uid == bindparam("wanted")))
_OPERATION = Statement(select(operations).where(operations.c.id == bindparam("wanted")))
_OPERATION_WITH_SPACE = Statement(
    select(operations, resources.c.space)
    .join(resources, resources.c.uid == operations.c.resource_uid)
    .where(operations.c.id == bindparam("wanted"))
)
_HELD_OPERATION = Statement(
    select(operations).where(operations.c.id == bindparam("wanted"), operations.c.lease_owner == bindparam("owner"))
)
_UNFINISHED = Statement(
    select(operations)
    .where(operations.c.resource_uid == bindparam("wanted"), one_of(operations.c.status, UNFINISHED))
    .order_by(operations.c.created_at, operations.c.id)
    .limit(1)
)
_COUNT = Statement(
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)


@dataclass(frozen=True)
class StoredResource:
    """A Resource record (or its tombstone) with what the Host keeps beside it."""

    record: ResourceRecord
    # Who created it (AR-11: whose bytes a bundle may take).
    principal: str
    facts_json: str
    deleted_at_ms: int | None

    @property
    def uid(self) -> str:
        return self.record.uid

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The accepted spec, for reading; numbers are not exact here, `record.spec_json` is."""
        spec: dict[str, Any] = json.loads(self.record.spec_json)
        return spec

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the Host knows of the realised thing and never shows."""
        facts: dict[str, Any] = json.loads(self.facts_json)
        return facts


@dataclass(frozen=True, slots=True)
class StoredOperation:
    record: OperationRecord
    # Whose mutation it was.
    principal: str
    attempts: int


def resource_of(row: Row) -> StoredResource:
    """A row of `resources`, its columns in the table's order."""
    (
        uid,
        form,
        space,
        name,
        principal,
        generation,
        observed_generation,
        observed_at,
        phase,
        spec_json,
        observed_json,
        output_json,
        facts_json,
        last_operation,
        deleted_at,
        offering_id,
        offering_revision,
    ) = row
    record = ResourceRecord(
        uid=uid,
        form=form,
        space=space,
        name=name,
        generation=generation,
        observed_generation=observed_generation,
        observed_at_ms=observed_at,
        phase=_PHASES[phase],
        spec_json=spec_json,
        observed_json=observed_json,
        output_json=output_json,
        last_operation=last_operation,
        offering=None if offering_id is None else Offering(offering_id, offering_revision),
    )
    return StoredResource(record, principal, facts_json, deleted_at)


def operation_of(row: Row) -> StoredOperation:
    """A row of `operations`, its columns in the table's order."""
    (
        id_,
        resource_uid,
        action,
        generation,
        status,
        effect,
        principal,
        created_at,
        updated_at,
        retain_until,
        error_code,
        error_message,
        _lease_owner,
        _lease_until,
        attempts,
        _due_at,
        warnings_json,
    ) = row
    record = OperationRecord(
        id=id_,
        resource_uid=resource_uid,
        action=_ACTIONS[action],
        generation=generation,
        status=_STATUSES[status],
        effect=_EFFECTS[effect],
        created_at_ms=created_at,
        updated_at_ms=updated_at,
        retain_until_ms=retain_until,
        error=None if error_code is None else OperationFailure(error_code, error_message),
        warnings=() if warnings_json is None else _warnings_of(warnings_json),
    )
    return StoredOperation(record, principal, attempts)


def _warnings_of(text: str) -> tuple[OperationWarning, ...]:
    return tuple(OperationWarning(code, message) for code, message in json.loads(text))


def warnings_value(warnings: Iterable[OperationWarning]) -> str | None:
    """What `operations.warnings_json` holds."""
    pairs = [(warning.code, warning.message) for warning in warnings]
    return json.dumps(pairs, ensure_ascii=False) if pairs else None


def find_resource(connection: Connection, uid: str) -> StoredResource | None:
    """The record or its tombstone."""
    row = _RESOURCE.first(connection, {"wanted": uid})
    return None if row is None else resource_of(row)


def live_resource(connection: Connection, uid: str) -> StoredResource | None:
    """The record unless its delete succeeded."""
    stored = find_resource(connection, uid)
    return None if stored is None or stored.deleted_at_ms is not None else stored


def exact_spec(stored: StoredResource) -> JsonObject:
    """The accepted spec with its numbers kept exactly."""
    spec = parse_text(stored.record.spec_json)
    assert isinstance(spec, dict), "acceptance stores objects only"
    return spec


def page_of_space(
    connection: Connection, space: str, name: str | None, form: str | None, after: str, limit: int
) -> list[StoredResource]:
    """Undeleted Resources above the UID `after`, ascending in ASCII order (H-094)."""
    return _page(connection, after, limit, {"space": space, "name": name, "form": form})


def page_of_all(
    connection: Connection, name: str | None, form: str | None, after: str, limit: int
) -> list[StoredResource]:
    """As above, over every Space."""
    return _page(connection, after, limit, {"name": name, "form": form})


def _page(connection: Connection, after: str, limit: int, filters: Mapping[str, str | None]) -> list[StoredResource]:
    wanted = {column: value for column, value in filters.items() if value is not None}
    rows = _page_by(tuple(wanted)).rows(connection, {**wanted, "after": after, "limit": limit})
    return [resource_of(row) for row in rows]


@cache
def _page_by(columns: tuple[str, ...]) -> Statement:
    return Statement(
        select(resources)
        .where(
            resources.c.deleted_at.is_(None),
            resources.c.uid > bindparam("after"),
            *(resources.c[column] == bindparam(column) for column in columns),
        )
        .order_by(resources.c.uid)
        .limit(bindparam("limit", type_=Integer))
    )


def find_operation(connection: Connection, operation_id: str) -> StoredOperation | None:
    row = _OPERATION.first(connection, {"wanted": operation_id})
    return None if row is None else operation_of(row)


def find_operation_with_space(connection: Connection, operation_id: str) -> tuple[StoredOperation, str] | None:
    """With the Space of its Resource, in one look; None when either is gone."""
    row = _OPERATION_WITH_SPACE.first(connection, {"wanted": operation_id})
    return None if row is None else (operation_of(row[:-1]), row[-1])


def find_held_operation(connection: Connection, operation_id: str, owner: str) -> StoredOperation | None:
    """None unless `owner` holds its lease."""
    row = _HELD_OPERATION.first(connection, {"wanted": operation_id, "owner": owner})
    return None if row is None else operation_of(row)


def unfinished_operation(connection: Connection, resource_uid: str) -> StoredOperation | None:
    """The one unfinished mutation of a Resource, if there is one (H-102)."""
    row = _UNFINISHED.first(connection, {"wanted": resource_uid})
    return None if row is None else operation_of(row)


# The columns that a transition may change.
OPERATION_STATE = ("status", "effect", "updated_at", "retain_until", "error_code", "error_message")


def operation_values(record: OperationRecord) -> dict[str, Any]:
    """OPERATION_STATE of the record."""
    return {
        "status": record.status.value,
        "effect": record.effect.value,
        "updated_at": record.updated_at_ms,
        "retain_until": record.retain_until_ms,
        "error_code": None if record.error is None else record.error.code,
        "error_message": None if record.error is None else record.error.message,
    }


def update_resource(connection: Connection, uid: str, values: Mapping[str, Any]) -> None:
    _resource_update(tuple(values)).run(connection, {**values, "wanted": uid})


def update_operation(connection: Connection, operation_id: str, values: Mapping[str, Any]) -> None:
    _operation_update(tuple(values)).run(connection, {**values, "wanted": operation_id})


@cache
def _resource_update(columns: tuple[str, ...]) -> Statement:
    changed: Mapping[str, Any] = {column: bindparam(column) for column in columns}
    return Statement(update(resources).where(resources.c.uid == bindparam("wanted")).values(changed))


@cache
def _operation_update(columns: tuple[str, ...]) -> Statement:
    changed: Mapping[str, Any] = {column: bindparam(column) for column in columns}
    return Statement(update(operations).where(operations.c.id == bindparam("wanted")).values(changed))


def next_counter(connection: Connection, name: str) -> int:
    """The next value, from 1, in commit order: a sequence of the database would number by start order instead."""
    row = _COUNT.first(connection, {"counter": name})
    if row is not None:
        return int(row[0])
    connection.execute(counters.insert().values(name=name, value=1))
    return 1


def dump(value: Mapping[str, Any]) -> str:
    """JSON of the Host's own documents (observed, output, facts)."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
