"""The journal's database on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.pool import NullPool

from memlayer_core.errors import MissingExtraError
from memlayer_core.settings import Settings
from memlayer_core.storage.connections import Connections, translate_errors

__all__ = ["PostgresDatabase"]

P = ParamSpec("P")
T = TypeVar("T")

_DEADLOCK = "40P01"
_AGAIN = 5  # times that what the server rolled back, since it waited in a circle with others, is done again


class PostgresDatabase:
    """PostgreSQL: a pool, a transaction for each piece of work."""

    def __init__(self, url: str, settings: Settings) -> None:
        try:
            self._engine = _postgres_engine(url, settings, poolclass=NullPool)
            pool = _postgres_engine(
                url,
                settings,
                pool_size=10,
                max_overflow=20,
                pool_timeout=settings.busy_timeout,
                pool_pre_ping=True,
            )
        except ModuleNotFoundError as missing:
            raise MissingExtraError(
                "PostgreSQL needs the driver psycopg", hint="pip install 'memlayer-core[postgres]'"
            ) from missing
        snapshots = {"isolation_level": "REPEATABLE READ"}
        self._writers = Connections(pool, self._engine, ping=True)
        self._readers = Connections(
            pool.execution_options(**snapshots), self._engine.execution_options(**snapshots), ping=True
        )

    def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on one snapshot."""
        with translate_errors():
            return self._readers.run(work, *args, **kwargs)

    def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit it; nothing of it stays when it raises. It may be run several times."""
        with translate_errors():
            for _ in range(_AGAIN):
                try:
                    return self._writers.run(work, *args, **kwargs)
                except exc.OperationalError as problem:
                    if getattr(problem.orig, "sqlstate", None) != _DEADLOCK:
                        raise
            return self._writers.run(work, *args, **kwargs)

    def tidy(self, *, whole: bool = False) -> bool:
        """Leave it to the server."""
        return True

    def check(self) -> None:
        """Leave it to the server."""

    def check_file(self) -> None:
        """See nothing: a server has its own files."""

    def close(self) -> None:
        """Close every connection."""
        self._readers.close()
        self._writers.close()


def _postgres_engine(url: str, settings: Settings, **pool: Any) -> Engine:
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",  # what waited for a lock sees what was committed meanwhile
        connect_args={"connect_timeout": 10},
        **pool,
    )
    if settings.durability == "normal":
        event.listen(engine, "connect", _commit_asynchronously)
    return engine


def _commit_asynchronously(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    connection.commit()
