"""Reference edges: who keeps whom from being deleted (F-04, H-106, H-109)."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, exists, insert, select

from saisei_control.store.schema import reference_edges, resources


def add_edges(connection: Connection, referrer: str, targets: Iterable[str]) -> None:
    """Edges of an accepted mutation; those of the former spec stay until it has succeeded."""
    known = set(targets_of(connection, referrer))
    for target in sorted(set(targets) - known):
        connection.execute(insert(reference_edges).values(referrer=referrer, target=target))


def keep_only(connection: Connection, referrer: str, targets: Iterable[str]) -> None:
    """After a succeeded mutation only the current spec refers."""
    connection.execute(
        delete(reference_edges).where(
            reference_edges.c.referrer == referrer, reference_edges.c.target.not_in(sorted(set(targets)))
        )
    )


def drop_edges(connection: Connection, referrer: str) -> None:
    connection.execute(delete(reference_edges).where(reference_edges.c.referrer == referrer))


def targets_of(connection: Connection, referrer: str) -> list[str]:
    return list(
        connection.execute(select(reference_edges.c.target).where(reference_edges.c.referrer == referrer)).scalars()
    )


def referrer_forms(connection: Connection, target: str) -> list[str]:
    """The Form URLs of the undeleted Resources that refer to `target`, in any phase."""
    statement = (
        select(resources.c.form)
        .join(reference_edges, reference_edges.c.referrer == resources.c.uid)
        .where(reference_edges.c.target == target, resources.c.deleted_at.is_(None))
        .distinct()
        .order_by(resources.c.form)
    )
    return list(connection.execute(statement).scalars())


def refers(referrer_uid: str) -> object:
    """SQL: this Resource is referred to by `referrer_uid`."""
    return exists(
        select(reference_edges.c.target).where(
            reference_edges.c.referrer == referrer_uid, reference_edges.c.target == resources.c.uid
        )
    )
