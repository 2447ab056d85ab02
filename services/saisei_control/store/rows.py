"""Rows as values, and the statements that every part of the service shares."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update
from sqlalchemy.sql.elements import ColumnElement

from saisei_contract.records import (
    Action,
    Effect,
    Offering,
    OperationFailure,
    OperationRecord,
    OperationStatus,
    Phase,
    ResourceRecord,
)
from saisei_contract.strict_json import JsonObject, parse_text
from saisei_control.store.schema import counters, operations, resources

UNFINISHED = tuple(status.value for status in OperationStatus if not status.is_terminal)

# Made once: building a statement takes longer than running it.
_RESOURCE = select(resources).where(resources.c.uid == bindparam("uid"))
_OPERATION = select(operations).where(operations.c.id == bindparam("id"))
_UNFINISHED = (
    select(operations)
    .where(operations.c.resource_uid == bindparam("uid"), operations.c.status.in_(UNFINISHED))
    .order_by(operations.c.created_at, operations.c.id)
    .limit(1)
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


def _resource(row: Row[Any]) -> StoredResource:
    record = ResourceRecord(
        uid=row.uid,
        form=row.form,
        space=row.space,
        name=row.name,
        generation=row.generation,
        observed_generation=row.observed_generation,
        observed_at_ms=row.observed_at,
        phase=Phase(row.phase),
        spec_json=row.spec_json,
        observed_json=row.observed_json,
        output_json=row.output_json,
        last_operation=row.last_operation,
        offering=None if row.offering_id is None else Offering(row.offering_id, row.offering_revision),
    )
    return StoredResource(record, row.principal, row.facts_json, row.deleted_at)


def _operation(row: Row[Any]) -> StoredOperation:
    record = OperationRecord(
        id=row.id,
        resource_uid=row.resource_uid,
        action=Action(row.action),
        generation=row.generation,
        status=OperationStatus(row.status),
        effect=Effect(row.effect),
        created_at_ms=row.created_at,
        updated_at_ms=row.updated_at,
        retain_until_ms=row.retain_until,
        error=None if row.error_code is None else OperationFailure(row.error_code, row.error_message),
    )
    return StoredOperation(record, row.principal, row.attempts)


def find_resource(connection: Connection, uid: str) -> StoredResource | None:
    """The record or its tombstone."""
    row = connection.execute(_RESOURCE, {"uid": uid}).first()
    return None if row is None else _resource(row)


def find_resources(connection: Connection, uids: Collection[str]) -> dict[str, StoredResource]:
    """Records or tombstones by UID."""
    rows = connection.execute(select(resources).where(resources.c.uid.in_(uids)))
    return {row.uid: _resource(row) for row in rows}


def live_resource(connection: Connection, uid: str) -> StoredResource | None:
    """The record unless its delete succeeded."""
    stored = find_resource(connection, uid)
    return None if stored is None or stored.deleted_at_ms is not None else stored


def exact_spec(stored: StoredResource) -> JsonObject:
    """The accepted spec with its numbers kept exactly."""
    spec = parse_text(stored.record.spec_json)
    assert isinstance(spec, dict), "acceptance stores objects only"
    return spec


def select_resources(
    connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[StoredResource]:
    """Undeleted Resources, ascending by UID in ASCII order (H-094)."""
    statement = (
        select(resources).where(resources.c.deleted_at.is_(None), *conditions).order_by(resources.c.uid).limit(limit)
    )
    return [_resource(row) for row in connection.execute(statement)]


def find_operation(connection: Connection, operation_id: str) -> StoredOperation | None:
    row = connection.execute(_OPERATION, {"id": operation_id}).first()
    return None if row is None else _operation(row)


def select_operations(
    connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[StoredOperation]:
    """Operations, oldest first."""
    statement = select(operations).where(*conditions).order_by(operations.c.created_at, operations.c.id).limit(limit)
    return [_operation(row) for row in connection.execute(statement)]


def unfinished_operation(connection: Connection, resource_uid: str) -> StoredOperation | None:
    """The one unfinished mutation of a Resource, if there is one (H-102)."""
    row = connection.execute(_UNFINISHED, {"uid": resource_uid}).first()
    return None if row is None else _operation(row)


def operation_values(record: OperationRecord) -> dict[str, Any]:
    """The columns that a transition may change."""
    return {
        "status": record.status.value,
        "effect": record.effect.value,
        "updated_at": record.updated_at_ms,
        "retain_until": record.retain_until_ms,
        "error_code": None if record.error is None else record.error.code,
        "error_message": None if record.error is None else record.error.message,
    }


def update_resource(connection: Connection, uid: str, values: Mapping[str, Any]) -> None:
    connection.execute(update(resources).where(resources.c.uid == uid).values(**values))


def next_counter(connection: Connection, name: str) -> int:
    """The next value, from 1, in commit order: a sequence of the database would number by start order instead."""
    value = connection.execute(
        update(counters).where(counters.c.name == name).values(value=counters.c.value + 1).returning(counters.c.value)
    ).scalar_one_or_none()
    if value is not None:
        return int(value)
    connection.execute(counters.insert().values(name=name, value=1))
    return 1


def dump(value: Mapping[str, Any]) -> str:
    """JSON of the Host's own documents (observed, output, facts)."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
