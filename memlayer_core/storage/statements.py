"""Statements that SQLAlchemy writes once for each database, and that the driver then runs by itself.

A turn runs a dozen small statements, and SQLAlchemy's way to each takes several times as long as SQLite's
answer. The ones on a turn's path are therefore compiled once; everything else goes the ordinary way.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Select,
    Table,
    bindparam,
    exc,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

__all__ = [
    "SNAPSHOT",
    "ListStatement",
    "Statement",
    "dialect_insert",
    "error_of",
    "rows_by",
    "server_snapshot",
]

SNAPSHOT = "snapshot"
"""The name, in the connection's `info`, of what `server_snapshot` returns."""

Values = Mapping[str, Any]
_NONE: Values = {}
_LENGTHS = (1, 4, 16, 64, 128, 256, 500)
_SERVER = "postgresql"
_SENT = "sent"
_IN_ONE = re.compile(r"IN \((%\(one_0\)s)(?:::(\w+))?\)")
_Written = tuple[str, Callable[[Values], Any]]


class Statement:
    """A statement whose text never changes: no `IN` of as many values as are given.

    It runs in a transaction that has begun. Errors are raised as SQLAlchemy raises them. Values go to the
    driver as they are, so columns hold what both drivers know: numbers, text, bytes.

    Args:
        statement: A Core statement, or `text`.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._written: dict[str, _Written] = {}
        self._row: Any = None

    def all(self, connection: Connection, values: Values) -> list[Any]:
        """Return every row, its columns as attributes."""
        cursor = self._execute(connection, values)
        rows = _fetch(cursor, connection)
        if self._row is None:
            self._row = _row_of([column[0] for column in cursor.description])
        cursor.close()
        return list(map(self._row._make, rows))

    def tuples(self, connection: Connection, values: Values) -> list[tuple[Any, ...]]:
        """Return every row as a plain tuple, for statements with thousands of rows."""
        cursor = self._execute(connection, values)
        rows = _fetch(cursor, connection)
        cursor.close()
        return rows

    def first(self, connection: Connection, values: Values) -> Any | None:
        """Return the first row, or None."""
        found = self.all(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, *values: Values) -> None:
        """Change something, once for each of `values`."""
        self._execute(connection, *values).close()

    def ask(self, connection: Connection, values: Values) -> None:
        """Send it to a server ahead of need, on a snapshot: who runs it there with the same values need not wait."""
        snapshot = server_snapshot(connection)
        if snapshot is not None:
            cursor = self._execute(connection, values)
            snapshot.setdefault(_SENT, []).append((self, values, cursor))

    def answer(self, connection: Connection, values: Values) -> list[Any] | None:
        """Return every row if it was sent ahead with these values, else None."""
        snapshot = server_snapshot(connection)
        if snapshot is None or not any(
            one[0] is self and one[1] == values for one in snapshot.get(_SENT, ())
        ):
            return None
        return self.all(connection, values)

    def _execute(self, connection: Connection, *values: Values) -> DBAPICursor:
        dialect = connection.dialect
        if dialect.name == _SERVER and (sent := _sent(connection, self, values)) is not None:
            return sent
        written = self._written.get(dialect.name)
        if written is None:
            written = self._written[dialect.name] = self._compile(dialect)
        sql, arguments = written
        cursor = connection.connection.cursor()
        try:
            if len(values) == 1:
                cursor.execute(sql, arguments(values[0]))
            else:
                cursor.executemany(sql, [arguments(some) for some in values])
        except dialect.loaded_dbapi.Error as problem:
            raise error_of(sql, problem, connection, cursor) from problem
        return cursor

    def _compile(self, dialect: Dialect) -> _Written:
        return _compile(self._statement, dialect)


class _ArrayStatement(Statement):
    """A statement for a server, with one parameter for all values: its driver reads a text of many anew each time."""

    def _compile(self, dialect: Dialect) -> _Written:
        sql, arguments = super()._compile(dialect)
        return _IN_ONE.sub(_as_array, sql), arguments


def _as_array(match: re.Match[str]) -> str:
    cast = f"::{match[2]}[]" if match[2] else ""
    return f"= ANY({match[1]}{cast})"


def server_snapshot(connection: Connection) -> dict[str, Any] | None:
    """Return what is noted until a server's snapshot ends; None where there is no server, or no snapshot."""
    return connection.info.get(SNAPSHOT) if connection.dialect.name == _SERVER else None


def _sent(connection: Connection, statement: Statement, values: Sequence[Values]) -> DBAPICursor | None:
    """Return the cursor of a statement that was sent with these values already."""
    snapshot = server_snapshot(connection)
    asked: list[Any] = snapshot.get(_SENT, []) if snapshot else []
    for place, (other, given, cursor) in enumerate(asked):
        if other is statement and [given] == [*values]:
            del asked[place]
            return cursor  # type: ignore[no-any-return]  # the list is anything's
    return None


def _fetch(cursor: DBAPICursor, connection: Connection) -> list[tuple[Any, ...]]:
    dialect = connection.dialect
    try:
        return [*cursor.fetchall()]
    except dialect.loaded_dbapi.Error as problem:  # here, since the driver asks for a row only now
        raise error_of("", problem, connection, cursor) from problem


def _row_of(columns: list[str]) -> Any:
    return namedtuple("Row", columns)  # noqa: PYI024  (they are known when it runs)


class ListStatement:
    """A statement over a list of values: an array for a server, else prepared for a few lengths; the last value fills up.

    Args:
        build: Makes the statement of the parameters to compare with. Naming a value twice must change nothing.
    """

    def __init__(self, build: Callable[[list[BindParameter[Any]]], Executable]) -> None:
        self._build = build
        self._prepared: dict[int, Statement] = {}
        self._array: Statement | None = None

    def all(self, connection: Connection, items: Sequence[Any], values: Values = _NONE) -> list[Any]:
        """Return every row for any of the values."""
        found: list[Any] = []
        for statement, given in self._parts(connection, items, values):
            found.extend(statement.all(connection, given))
        return found

    def tuples(
        self, connection: Connection, items: Sequence[Any], values: Values = _NONE
    ) -> list[tuple[Any, ...]]:
        """Return every row for any of the values as a plain tuple, for statements with thousands of rows."""
        found: list[tuple[Any, ...]] = []
        for statement, given in self._parts(connection, items, values):
            found.extend(statement.tuples(connection, given))
        return found

    def run(self, connection: Connection, items: Sequence[Any], values: Values = _NONE) -> None:
        """Change something for all of the values."""
        for statement, given in self._parts(connection, items, values):
            statement.run(connection, given)

    def ask(self, connection: Connection, items: Sequence[Any], values: Values = _NONE) -> None:
        """Send it to a server ahead of need: see `Statement.ask`."""
        if connection.dialect.name == _SERVER:
            for statement, given in self._parts(connection, items, values):
                statement.ask(connection, given)

    def _parts(
        self, connection: Connection, items: Sequence[Any], values: Values
    ) -> Iterator[tuple[Statement, Values]]:
        if connection.dialect.name == _SERVER:
            if self._array is None:
                self._array = _ArrayStatement(self._build([bindparam("one_0")]))
            if items:
                yield self._array, {**values, "one_0": [*items]}
            return
        for start in range(0, len(items), _LENGTHS[-1]):
            some = items[start : start + _LENGTHS[-1]]
            length = next(length for length in _LENGTHS if length >= len(some))
            filled = [*some, *[some[-1]] * (length - len(some))]
            yield (
                self._of(length),
                {**values, **{f"one_{place}": value for place, value in enumerate(filled)}},
            )

    def _of(self, length: int) -> Statement:
        if length not in self._prepared:
            parameters: list[BindParameter[Any]] = [bindparam(f"one_{place}") for place in range(length)]
            self._prepared[length] = Statement(self._build(parameters))
        return self._prepared[length]


def rows_by(query: Select[Any], column: ColumnElement[Any]) -> ListStatement:
    """Return a statement that reads a query's rows with one of the values in a column, in the column's order."""
    return ListStatement(lambda values: query.where(column.in_(values)).order_by(column))


def dialect_insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an `INSERT` that knows `ON CONFLICT`, in the dialect of this name."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # with asyncpg's: a process that uses SQLite needs none of it

    return postgresql.insert(table)


def _compile(statement: Executable, dialect: Dialect) -> _Written:
    """Return the statement's text and what makes a driver's arguments of values."""
    compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]  # every statement has it
    assert isinstance(compiled, SQLCompiler)
    fixed = {name: value for name, value in compiled.params.items() if value is not None}
    places = compiled.positiontup
    if places is None:
        return compiled.string, lambda values: {**fixed, **values}
    return compiled.string, lambda values: [
        values[name] if name in values else fixed[name] for name in places
    ]


def error_of(
    sql: str, problem: Exception, connection: Connection, cursor: DBAPICursor | None = None
) -> exc.DBAPIError | BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the values, since they may quote messages."""
    dialect = connection.dialect
    is_broken = dialect.is_disconnect(problem, connection.connection, cursor)  # type: ignore[arg-type]
    if is_broken:
        connection.invalidate(problem)
    elif cursor is not None:
        cursor.close()
    return exc.DBAPIError.instance(
        sql,
        None,
        problem,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=is_broken,
        dialect=dialect,
    )
