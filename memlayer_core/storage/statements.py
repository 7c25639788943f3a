"""Statements that SQLAlchemy writes once for each database, and that the driver then runs by itself.

A turn runs a dozen small statements, and SQLAlchemy's way to each takes several times as long as SQLite's
answer. The ones on a turn's path are therefore compiled once; everything else goes the ordinary way.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Dialect, Executable, bindparam, exc
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

__all__ = ["ListStatement", "Statement"]

Values = Mapping[str, Any]
_NONE: Values = {}
_LENGTHS = (1, 4, 16, 64, 128, 256, 500)


class Statement:
    """A statement whose text never changes: no `IN` of as many values as are given.

    It runs in a transaction that has begun. Errors are raised as SQLAlchemy raises them. Values go to the
    driver as they are, so columns hold what both drivers know: numbers, text, bytes.

    Args:
        statement: A Core statement, or `text`.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._written: dict[str, tuple[str, Callable[[Values], Any]]] = {}
        self._row: Any = None

    def all(self, connection: Connection, values: Values) -> list[Any]:
        """Return every row, its columns as attributes."""
        cursor = self._execute(connection, values)
        if self._row is None:
            names = [column[0] for column in cursor.description]
            self._row = _row_of(names)
        return list(map(self._row._make, _fetch(cursor, connection)))

    def tuples(self, connection: Connection, values: Values) -> list[tuple[Any, ...]]:
        """Return every row as a plain tuple, for statements with thousands of rows."""
        return _fetch(self._execute(connection, values), connection)

    def first(self, connection: Connection, values: Values) -> Any | None:
        """Return the first row, or None."""
        found = self.all(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, *values: Values) -> None:
        """Change something, once for each of `values`."""
        self._execute(connection, *values).close()

    def _execute(self, connection: Connection, *values: Values) -> DBAPICursor:
        dialect = connection.dialect
        written = self._written.get(dialect.name)
        if written is None:
            written = self._written[dialect.name] = _compile(self._statement, dialect)
        sql, arguments = written
        cursor = connection.connection.cursor()
        try:
            if len(values) == 1:
                cursor.execute(sql, arguments(values[0]))
            else:
                cursor.executemany(sql, [arguments(some) for some in values])
        except dialect.loaded_dbapi.Error as problem:
            raise _error(sql, problem, cursor, connection) from problem
        return cursor


def _fetch(cursor: DBAPICursor, connection: Connection) -> list[tuple[Any, ...]]:
    dialect = connection.dialect
    try:
        found = [*cursor.fetchall()]
    except dialect.loaded_dbapi.Error as problem:  # SQLite finds the next row only when it is asked for
        raise _error("", problem, cursor, connection) from problem
    cursor.close()
    return found


def _row_of(columns: list[str]) -> Any:
    return namedtuple("Row", columns)  # noqa: PYI024  (they are known when it runs)


class ListStatement:
    """A statement over a list of values, prepared for a few lengths: what is short is filled up.

    Args:
        build: Makes the statement of the parameters to compare with. Naming a value twice must change nothing.
    """

    def __init__(self, build: Callable[[list[BindParameter[Any]]], Executable]) -> None:
        self._build = build
        self._prepared: dict[int, Statement] = {}

    def all(self, connection: Connection, items: Sequence[Any], values: Values = _NONE) -> list[Any]:
        """Return every row for any of the values."""
        found: list[Any] = []
        for statement, given in self._parts(items, values):
            found.extend(statement.all(connection, given))
        return found

    def tuples(
        self, connection: Connection, items: Sequence[Any], values: Values = _NONE
    ) -> list[tuple[Any, ...]]:
        """Return every row for any of the values as a plain tuple, for statements with thousands of rows."""
        found: list[tuple[Any, ...]] = []
        for statement, given in self._parts(items, values):
            found.extend(statement.tuples(connection, given))
        return found

    def run(self, connection: Connection, items: Sequence[Any], values: Values = _NONE) -> None:
        """Change something for all of the values."""
        for statement, given in self._parts(items, values):
            statement.run(connection, given)

    def _parts(self, items: Sequence[Any], values: Values) -> Iterator[tuple[Statement, Values]]:
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


def _compile(statement: Executable, dialect: Dialect) -> tuple[str, Callable[[Values], Any]]:
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


def _error(
    sql: str, problem: Exception, cursor: DBAPICursor, connection: Connection
) -> exc.DBAPIError | BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the values, since they may quote messages."""
    dialect = connection.dialect
    if dialect.is_disconnect(problem, connection.connection, cursor):  # type: ignore[arg-type]
        connection.invalidate(problem)
    else:
        cursor.close()
    return exc.DBAPIError.instance(
        sql, None, problem, dialect.loaded_dbapi.Error, hide_parameters=True, dialect=dialect
    )
