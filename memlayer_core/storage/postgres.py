"""The journal's database on a PostgreSQL server."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from memlayer_core.errors import MissingExtraError
from memlayer_core.settings import Settings
from memlayer_core.storage import database
from memlayer_core.storage.database import T, Work, translate_errors
from memlayer_core.storage.statements import Statement, error_of

_DEADLOCK = "40P01"
_AGAIN = 5  # times that what the server rolled back, since it waited in a circle with others, is done again

_READ = Statement(sa.text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
# A statement that waited for a lock sees what was committed meanwhile.
_WRITE = Statement(sa.text("BEGIN ISOLATION LEVEL READ COMMITTED"))
_COMMIT = Statement(sa.text("COMMIT"))


class PostgresDatabase(database.Database):
    """PostgreSQL: a pool, a transaction for each piece of work.

    Connections are in the driver's pipeline mode: a statement is sent at once, and waited for when its rows are needed.
    So BEGIN, COMMIT and what only changes rows take no round trip of their own.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        try:
            self._engine = _postgres_engine(url, settings, poolclass=NullPool)
            self._pool = _postgres_engine(
                url, settings, pool_size=10, max_overflow=20, pool_timeout=settings.busy_timeout
            )
        except ModuleNotFoundError as missing:
            raise MissingExtraError(
                "PostgreSQL needs the driver psycopg", hint="pip install 'memlayer-core[postgres]'"
            ) from missing
        self._cut_at = 0.0
        sa.event.listen(self._pool, "checkout", self._refuse_cut)
        self._connections = database.Connections(self._pool, self._engine)

    def _refuse_cut(self, _: Any, record: Any, __: Any) -> None:
        if record.info["made_at"] < self._cut_at:
            raise sa.exc.DisconnectionError  # SQLAlchemy connects again

    def _read(self, work: Work[T]) -> T:
        return self._run(work, _reading)

    def _write(self, work: Work[T]) -> T:
        return self._run(work, _writing)

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    def _run(self, work: Work[T], begin: database.Begin) -> T:
        """Run `work`, and again if the server rolled it back, or was gone before it was to commit."""
        deadlocks = breaks = 0
        driver: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        with translate_errors(driver):
            while True:
                try:
                    return self._connections.run(work, begin)
                except (sa.exc.DBAPIError, driver, *database.LOST) as problem:
                    is_lost = getattr(problem, "connection_invalidated", True)
                    is_committed = getattr(problem, "statement", None) == "COMMIT"  # perhaps
                    if database.sqlstate_of(problem) == _DEADLOCK and deadlocks < _AGAIN:
                        deadlocks += 1
                        time.sleep(random.uniform(0.1, 0.3))  # noqa: S311  (lets the other one end first)
                    elif is_lost and not is_committed and not breaks:
                        breaks += 1
                        self._cut_at = time.monotonic()  # the others are probably as dead as this one
                    else:
                        raise


@contextmanager
def _reading(connection: sa.Connection) -> Iterator[None]:
    """Read on one snapshot. Its end is sent, and not waited for."""
    _READ.run(connection, {})
    yield
    pipeline = connection.info["pipeline"]
    is_answered = not pipeline.result_queue
    try:
        _COMMIT.run(connection, {})
        if is_answered:  # the next transaction receives the answer with its first rows
            pipeline.pgconn.pipeline_sync()
            pipeline.result_queue.append(None)  # the driver's mark for it
        else:
            _wait(connection, "COMMIT")  # an error is not left to the next transaction
    except sa.exc.DBAPIError:
        connection.invalidate()  # what was read is good


@contextmanager
def _writing(connection: sa.Connection) -> Iterator[None]:
    """Commit what is done inside, or roll it back.

    The server has answered before it is asked to commit: if it had closed the connection, nothing was written.
    """
    expected = connection.info["pipeline"].result_queue
    _WRITE.run(connection, {})
    begin = expected[-1] if expected else None
    yield
    if begin is not None and any(one is begin for one in expected):
        _wait(connection, "")
    _COMMIT.run(connection, {})
    _wait(connection, "COMMIT")


def _wait(connection: sa.Connection, last: str) -> None:
    """Wait for the answers to everything that was sent, the `last` statement with it."""
    try:
        connection.info["pipeline"].sync()
    except connection.dialect.loaded_dbapi.Error as problem:
        raise error_of(last, problem, connection) from problem


def _postgres_engine(url: str, settings: Settings, **pool: Any) -> sa.Engine:
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",  # transactions begin and end where we say so
        skip_autocommit_rollback=True,
        pool_reset_on_return=None,
        connect_args={"connect_timeout": 10},
        **pool,
    )
    if settings.durability == "normal":
        sa.event.listen(engine, "connect", lambda driven, _: driven.execute("SET synchronous_commit = off"))
    sa.event.listen(engine, "connect", _enter_pipeline)
    sa.event.listen(engine, "close", _leave_pipeline)
    sa.event.listen(engine, "after_cursor_execute", _wait_for_rows)
    return engine


def _enter_pipeline(driven: Any, record: Any) -> None:
    mode = driven.pipeline()
    record.info.update(mode=mode, pipeline=mode.__enter__(), made_at=time.monotonic())


def _leave_pipeline(driven: Any, record: Any) -> None:
    driven.close()  # first, or leaving waits for what still runs
    with suppress(Exception):
        record.info.pop("mode").__exit__(None, None, None)


def _wait_for_rows(connection: sa.Connection, *_: object) -> None:
    """Receive rows where SQLAlchemy runs a statement, since it looks at them at once."""
    connection.info["pipeline"].sync()
