"""The audit log: who did what to what, in the transaction of the deed. No spec and no secret is in it (H-153)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from saisei_control.store.schema import audit
from saisei_control.store.statements import Statement, insert_into

# Who acts with the service credential.
OPERATOR = "operator"
_RECORD = Statement(insert_into(audit, "at", "principal", "action", "space", "resource_uid", "operation_id", "detail"))


@dataclass(frozen=True, slots=True)
class Deed:
    """`action` is a stable lower-case word such as "create" or "token.rotate"."""

    principal: str
    action: str
    space: str | None = None
    resource_uid: str | None = None
    operation_id: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    id: int
    at_ms: int
    deed: Deed


def record(connection: Connection, deed: Deed, now_ms: int) -> None:
    _RECORD.run(
        connection,
        {
            "at": now_ms,
            "principal": deed.principal,
            "action": deed.action,
            "space": deed.space,
            "resource_uid": deed.resource_uid,
            "operation_id": deed.operation_id,
            "detail": deed.detail,
        },
    )


def entries(
    connection: Connection,
    *,
    space: str | None = None,
    principal: str | None = None,
    operation_id: str | None = None,
    before_id: int | None = None,
    limit: int = 100,
) -> list[Entry]:
    """The newest first; filters are exact, None is any."""
    statement = select(audit).order_by(audit.c.id.desc()).limit(limit)
    for column, wanted in (
        (audit.c.space, space),
        (audit.c.principal, principal),
        (audit.c.operation_id, operation_id),
    ):
        if wanted is not None:
            statement = statement.where(column == wanted)
    if before_id is not None:
        statement = statement.where(audit.c.id < before_id)
    return [
        Entry(
            row.id,
            row.at,
            Deed(row.principal, row.action, row.space, row.resource_uid, row.operation_id, row.detail),
        )
        for row in connection.execute(statement)
    ]


def forget(connection: Connection, before_ms: int) -> None:
    connection.execute(delete(audit).where(audit.c.at < before_ms))
