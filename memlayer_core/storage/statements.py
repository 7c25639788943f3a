"""Statements that SQLAlchemy writes once for each database, and the conditions that keep them within a scope."""

from __future__ import annotations

import hashlib
import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from memlayer_core.scope import Reach
from memlayer_core.storage.tables import KEYS, meta, sessions

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


# Statements that SQLAlchemy writes once for each database, and that the driver then runs by itself.
#
# A turn runs a dozen small statements, and SQLAlchemy's way to each takes several times as long as SQLite's
# answer. The ones on a turn's path are therefore compiled once; everything else goes the ordinary way.

Values = Mapping[str, Any]
_NONE: Values = {}
_SERVER = "postgresql"
_Compiled = tuple[str, Callable[[Values], Any]]
Written = sa.Executable | Callable[[str], sa.Executable]
"""A statement, the same for all databases or a function of the dialect's name."""


class Statement:
    """A statement whose text never changes: `ListStatement` is for an `IN` of as many values as are given.

    It runs in a transaction that has begun. Errors are raised as SQLAlchemy raises them. Values go to the
    driver as they are, so columns hold what both drivers know: numbers, text, bytes.

    Args:
        statement: A Core statement, or `text`; or a function that returns it for the name of a dialect.
    """

    def __init__(self, statement: Written) -> None:
        self._statement = statement
        self._written: dict[str, _Compiled] = {}
        self._row: Any = None

    def all(self, connection: sa.Connection, values: Values) -> list[Any]:
        """Return every row, a tuple with its columns as attributes."""
        cursor = self._execute(connection, values)
        try:
            rows = cursor.fetchall()
        except connection.dialect.loaded_dbapi.Error as problem:  # the driver asks for a row only now
            raise error_of("", problem, connection) from problem
        if self._row is None:
            columns = [column[0] for column in cursor.description]
            self._row = namedtuple("Row", columns, rename=True)  # type: ignore[misc]  # noqa: PYI024
        cursor.close()
        return list(map(self._row._make, rows))

    def first(self, connection: sa.Connection, values: Values) -> Any | None:
        """Return the first row, or None."""
        found = self.all(connection, values)
        return found[0] if found else None

    def run(self, connection: sa.Connection, *values: Values) -> None:
        """Change something, once for each of `values`."""
        self._execute(connection, *values).close()

    def _execute(self, connection: sa.Connection, *values: Values) -> DBAPICursor:
        dialect = connection.dialect
        if dialect.name not in self._written:
            self._written[dialect.name] = self._compile(dialect)
        sql, arguments = self._written[dialect.name]
        try:
            cursor = connection.connection.cursor()
            if len(values) == 1:
                cursor.execute(sql, arguments(values[0]))
            else:
                cursor.executemany(sql, [arguments(some) for some in values])
        except Exception as problem:  # blockbuster raises its own, when a call blocks an event loop
            raise error_of(sql, problem, connection) from problem
        return cursor

    def _compile(self, dialect: sa.Dialect) -> _Compiled:
        """Return the statement's text and what makes a driver's arguments of values."""
        statement: Any = self._statement(dialect.name) if callable(self._statement) else self._statement
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        fixed = {name: value for name, value in compiled.params.items() if value is not None}
        places = compiled.positiontup
        if places is None:
            return compiled.string, lambda values: {**fixed, **values}
        return compiled.string, lambda values: [
            values[name] if name in values else fixed[name] for name in places
        ]


class _Rows(FunctionElement[Any]):
    """The values of a parameter as rows."""

    inherit_cache = True


@compiles(_Rows)
def _rows_of(rows: _Rows, compiler: SQLCompiler, **options: Any) -> str:
    function = "unnest" if compiler.dialect.name == _SERVER else "json_each"
    return f"{function}({compiler.process(rows.clauses, **options)})"


def items_of(kind: sa.types.TypeEngine[Any]) -> sa.TableValuedAlias:
    """Return the values of a `ListStatement`, which have that type, as rows with the column `value`."""
    return _Rows(sa.bindparam("items", type_=sa.ARRAY(kind))).table_valued("value", name="value")


TEXTS = items_of(sa.Text())


def is_item(column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return the condition of a `ListStatement` that a column has one of its values."""
    return column.in_(sa.select(items_of(column.type).c.value))


class ListStatement:
    """A statement over a list of values, however many: see `items_of` and `is_item`. Without values nothing is done.

    Args:
        statement: As for `Statement`. Naming a value twice must change nothing.
    """

    def __init__(self, statement: Written) -> None:
        self._statement = Statement(statement)

    def all(self, connection: sa.Connection, items: Sequence[Any], values: Values = _NONE) -> list[Any]:
        """Return every row for any of the values."""
        return self._statement.all(connection, _with_items(connection, items, values)) if items else []

    def run(self, connection: sa.Connection, items: Sequence[Any], values: Values = _NONE) -> None:
        """Change something for all of the values."""
        if items:
            self._statement.run(connection, _with_items(connection, items, values))


def _with_items(connection: sa.Connection, items: Sequence[Any], values: Values) -> Values:
    if connection.dialect.name == _SERVER:
        return {**values, "items": [*items]}
    return {**values, "items": json.dumps([*items], ensure_ascii=False)}


def rows_by(query: sa.Select[Any], column: sa.ColumnElement[Any]) -> ListStatement:
    """Return a statement that reads a query's rows with one of the values in a column, in the column's order."""
    return ListStatement(query.where(is_item(column)).order_by(column))


def dialect_insert(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an `INSERT` that knows `ON CONFLICT`, in the dialect of this name."""
    if dialect == "sqlite":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # with asyncpg's: a process that uses SQLite needs none of it

    return postgresql.insert(table)


def error_of(sql: str, problem: Exception, connection: sa.Connection) -> sa.exc.DBAPIError | BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the values, since they may quote messages."""
    dialect, gone = connection.dialect, connection.invalidated
    return sa.exc.DBAPIError.instance(
        sql,
        None,
        problem,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=gone or dialect.is_disconnect(problem, connection.connection, None),  # type: ignore[arg-type]
        dialect=dialect,
    )


def note(connection: sa.Connection, name: str, value: str) -> bool:
    """Write a row of `meta`, unless there is one of that name. Returns whether there was none."""
    row = dialect_insert(connection.dialect.name, meta).values(name=name, value=value)
    return connection.scalar(row.on_conflict_do_nothing().returning(meta.c.name)) is not None


def set_note(connection: sa.Connection, name: str, value: str) -> None:
    """Write a row of `meta`, or what it says from now on."""
    row = dialect_insert(connection.dialect.name, meta).values(name=name, value=value)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


# Keys and times as the tables have them, and the conditions that keep a query within a scope.

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)

AT_ONCE = 500
"""Values in one IN (…), far below any database's limit."""

EVERY = 2**31 - 1
"""A limit of rows that no store reaches."""

LAST = 2**62
"""A position behind all that a session can have."""

WITHIN = sa.and_(
    sessions.c.namespace == sa.bindparam("of"),
    sa.or_(sa.bindparam("agent", type_=sa.Text).is_(None), sessions.c.agent_id == sa.bindparam("agent")),
    sa.or_(sa.bindparam("bucket", type_=sa.Text).is_(None), sessions.c.bucket == sa.bindparam("bucket")),
)
"""The condition on `sessions` that keeps a query within the reach that `reached` gives."""


def is_within(column: sa.ColumnElement[Any], session_id: str) -> sa.ColumnElement[bool]:
    """Return the condition that a session is the one of this id, or one below it: `"s1/flights"` is below `"s1"`."""
    below = session_id + "/"
    return sa.or_(column == session_id, sa.func.substr(column, 1, len(below)) == below)


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970, exactly."""
    return (moment - _EPOCH) // _MICRO


def micros_of(span: timedelta) -> int:
    """Return how many microseconds a span has."""
    return span // _MICRO


def from_micros(micros: int, utc_offset: int = 0) -> datetime:
    """Return the time of that many microseconds since 1970, at a distance of some seconds from UTC."""
    moment = _EPOCH + micros * _MICRO
    return moment.astimezone(timezone(timedelta(seconds=utc_offset))) if utc_offset else moment


def offset_of(moment: datetime) -> int:
    """Return how many seconds a time is ahead of UTC."""
    return round((moment.utcoffset() or timedelta()).total_seconds())


def id_digest(within: int | str, name: str) -> bytes:
    """Return 16 bytes that name an id in its session, or a key in its namespace: both may be longer than an index allows."""
    return hashlib.blake2b(f"{within}:{name}".encode(errors="surrogatepass"), digest_size=16).digest()


def reach_parameters(reach: Reach) -> dict[str, str | None]:
    """Return what the parameters of `WITHIN` are for that reach."""
    bucket = reach.session_bucket if reach.session_id is not None else None
    return {"of": reach.namespace, "agent": reach.agent_id, "bucket": bucket}


def chunks(keys: Sequence[T]) -> Iterable[Sequence[T]]:
    """Return the keys in pieces that fit into one IN (…)."""
    return (keys[place : place + AT_ONCE] for place in range(0, len(keys), AT_ONCE))


_KEYS = "keys"  # a row of `meta` of SQLite: the last key that was taken
_COUNT = sqlite.insert(meta).values(name=_KEYS, value=sa.bindparam("more"))
_LAST_KEY = sa.cast(meta.c.value, sa.Integer)
_LAST_OF_MORE = _LAST_KEY + sa.cast(_COUNT.excluded.value, sa.Integer)
_NEXT = sa.select(KEYS.next_value()).select_from(sa.func.generate_series(1, sa.bindparam("more")))
KEYS_OF_MORE = sa.func.array(_NEXT.scalar_subquery())
"""As many keys as the parameter `more` says, in a statement for PostgreSQL that reads something else, too."""

_TAKE = {
    "sqlite": Statement(
        _COUNT.on_conflict_do_update(index_elements=["name"], set_={"value": _LAST_OF_MORE}).returning(
            _LAST_KEY.label("last")
        )
    ),
    _SERVER: Statement(_NEXT),
}


def take_keys(connection: sa.Connection, count: int) -> Sequence[int]:
    """Return so many keys, in their order, that no message, record or text of an item ever had.

    Args:
        connection: In a transaction that writes.
        count: How many.
    """
    if not count:
        return ()
    rows = _TAKE[connection.dialect.name].all(connection, {"more": count})
    if connection.dialect.name == _SERVER:
        return [key for (key,) in rows]
    last = rows[0].last
    return range(last - count + 1, last + 1)
