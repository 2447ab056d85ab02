"""Reference edges: who keeps whom from being deleted (F-04, H-106, H-109)."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, delete, select

from saisei_control.store.schema import reference_edges, resources
from saisei_control.store.statements import Statement, insert_into

_ADD = Statement(insert_into(reference_edges, "referrer", "target"))
_DROP = Statement(
    delete(reference_edges).where(
        reference_edges.c.referrer == bindparam("referrer"), reference_edges.c.target == bindparam("target")
    )
)
_DROP_ALL = Statement(delete(reference_edges).where(reference_edges.c.referrer == bindparam("referrer")))
_TARGETS = Statement(select(reference_edges.c.target).where(reference_edges.c.referrer == bindparam("referrer")))
_REFERRER_FORMS = Statement(
    select(resources.c.form)
    .join(reference_edges, reference_edges.c.referrer == resources.c.uid)
    .where(reference_edges.c.target == bindparam("target"), resources.c.deleted_at.is_(None))
    .distinct()
    .order_by(resources.c.form)
)


def add_edges(connection: Connection, referrer: str, targets: Iterable[str]) -> None:
    """Edges of an accepted mutation; those of the former spec stay until it has succeeded."""
    wanted = set(targets)
    if not wanted:
        return
    for target in sorted(wanted - set(targets_of(connection, referrer))):
        _ADD.run(connection, {"referrer": referrer, "target": target})


def keep_only(connection: Connection, referrer: str, targets: Iterable[str]) -> None:
    """After a succeeded mutation only the current spec refers."""
    for target in sorted(set(targets_of(connection, referrer)) - set(targets)):
        _DROP.run(connection, {"referrer": referrer, "target": target})


def drop_edges(connection: Connection, referrer: str) -> None:
    _DROP_ALL.run(connection, {"referrer": referrer})


def targets_of(connection: Connection, referrer: str) -> list[str]:
    return [target for (target,) in _TARGETS.rows(connection, {"referrer": referrer})]


def referrer_forms(connection: Connection, target: str) -> list[str]:
    """The Form URLs of the undeleted Resources that refer to `target`, in any phase."""
    return [form for (form,) in _REFERRER_FORMS.rows(connection, {"target": target})]
