"""The log of what is to be hosted: the newest record of each Resource, numbered in commit order."""

from __future__ import annotations

from sqlalchemy import Connection, Integer, bindparam, insert, select, update

from saisei.control.v1 import assignments_pb2
from saisei_control.store.rows import StoredResource, next_counter
from saisei_control.store.schema import assignments
from saisei_control.store.statements import Statement

_COUNTER = "assignment_revision"
_NEWEST = Statement(
    select(assignments.c.revision, assignments.c.message).where(assignments.c.resource_uid == bindparam("wanted"))
)
_AFTER = Statement(
    select(assignments.c.revision, assignments.c.message)
    .where(assignments.c.revision > bindparam("after"))
    .order_by(assignments.c.revision)
    .limit(bindparam("limit", type_=Integer))
)


def publish(connection: Connection, resource: StoredResource, body: assignments_pb2.Assignment) -> int:
    """Makes `body` the assignment of the Resource's current generation and returns its revision.

    Publishing the same again, as a restarted Operation does, keeps the first revision. `body` has one of the bodies
    set and nothing else.
    """
    message = assignments_pb2.Assignment()
    message.CopyFrom(body)
    return _put(connection, resource, message, removed=False)


def unpublish(connection: Connection, resource: StoredResource) -> int | None:
    """Makes the Resource no longer hosted and returns the revision that says so; None when it never was assigned."""
    if _find(connection, resource.uid) is None:
        return None
    return _put(connection, resource, assignments_pb2.Assignment(), removed=True)


def is_assigned(connection: Connection, uid: str) -> bool:
    found = _find(connection, uid)
    return found is not None and not found.removed


def read_after(connection: Connection, revision: int, limit: int) -> list[assignments_pb2.Assignment]:
    """At most `limit` assignments above `revision`, ascending."""
    found = []
    for number, content in _AFTER.rows(connection, {"after": revision, "limit": limit}):
        message = assignments_pb2.Assignment.FromString(content)
        message.revision = number
        found.append(message)
    return found


def _find(connection: Connection, uid: str) -> assignments_pb2.Assignment | None:
    row = _NEWEST.first(connection, {"wanted": uid})
    if row is None:
        return None
    revision, content = row
    message = assignments_pb2.Assignment.FromString(content)
    message.revision = revision
    return message


def _put(
    connection: Connection, resource: StoredResource, message: assignments_pb2.Assignment, *, removed: bool
) -> int:
    message.resource_uid = resource.uid
    message.generation = resource.record.generation
    message.space = resource.record.space
    message.name = resource.record.name
    message.removed = removed
    known = _find(connection, resource.uid)
    if known is not None:
        message.revision = known.revision
        if message == known:
            return known.revision
        message.revision = 0
    revision = next_counter(connection, _COUNTER)
    values = {"revision": revision, "removed": removed, "message": message.SerializeToString(deterministic=True)}
    if known is None:
        connection.execute(insert(assignments).values(resource_uid=resource.uid, **values))
    else:
        connection.execute(update(assignments).where(assignments.c.resource_uid == resource.uid).values(**values))
    return revision
