"""Statements of the hot paths: written in SQLAlchemy Core, made into text once, run by the driver itself.

SQLAlchemy's way from a statement to the driver and back takes about ten times what SQLite needs for a look-up by key,
and a mutation is made of some twenty of them. Transactions, savepoints and pools stay SQLAlchemy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import ClauseElement, ColumnElement, Connection, Insert, Table, bindparam, insert, literal
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

T = TypeVar("T")
Row: TypeAlias = Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Text:
    """`names` is the order of positional parameters, None where the driver takes names; `fixed` holds literals."""

    sql: str
    names: tuple[str, ...] | None
    fixed: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        if self.names is None:
            return {**self.fixed, **values}
        if self.fixed:
            values = {**self.fixed, **values}
        return tuple([values[name] for name in self.names])


class Statement:
    """A statement with named `bindparam`s. Values cross as the driver has them: text, integers, bytes and None only.

    Failures are SQLAlchemy's DBAPIErrors, as if it had run the statement, and never show values.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._texts: dict[str, _Text] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Row]:
        return self._done(connection, values, _all)

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Row | None:
        rows = self._done(connection, values, _all)
        return rows[0] if rows else None

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """The number of rows that it changed."""
        return self._done(connection, values, _count)

    def _done(self, connection: Connection, values: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        text = self._texts.get(connection.dialect.name) or self._text(connection.dialect)
        driver: Any = connection.connection.driver_connection
        try:
            return take(driver.execute(text.sql, text.parameters(values)))
        except Exception as error:
            raise _failure(connection, text.sql, error) from error

    def _text(self, dialect: Dialect) -> _Text:
        compiled = self._statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler), "only statements are given"
        names = tuple(compiled.positiontup) if compiled.positiontup is not None else None
        fixed = {name: bind.value for bind, name in compiled.bind_names.items() if not bind.required}
        text = self._texts[dialect.name] = _Text(str(compiled), names, fixed)
        return text


def _all(cursor: Any) -> list[Row]:
    rows: list[Row] = cursor.fetchall()
    return rows


def _count(cursor: Any) -> int:
    return int(cursor.rowcount)


def one_of(column: ColumnElement[str], values: Iterable[str]) -> ColumnElement[bool]:
    """An IN whose values are parameters of their own: a plain one gets its text only when it is run."""
    return column.in_([literal(value) for value in values])


def insert_into(table: Table, *names: str) -> Insert:
    """An INSERT of the columns `names`, each from the parameter of its name; it returns nothing."""
    return insert(table).values({name: bindparam(name) for name in names}).inline()


def _failure(connection: Connection, sql: str, error: Exception) -> BaseException:
    dialect = connection.dialect
    driver = dialect.dbapi
    assert driver is not None, "the dialect is connected"
    if not isinstance(error, driver.Error):
        return error
    gone = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    failure = DBAPIError.instance(
        sql, None, error, driver.Error, hide_parameters=True, connection_invalidated=gone, dialect=dialect
    )
    if gone:
        connection.invalidate(error)
    return failure
