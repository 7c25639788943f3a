"""The journal's database: its interface, and how to open SQLite or PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, exc, make_url

from memlayer_core.errors import ConfigurationError
from memlayer_core.settings import Settings
from memlayer_core.storage.sqlite import SqliteDatabase, journal_file

__all__ = ["Connection", "Database", "may_write", "open_database"]

P = ParamSpec("P")
T = TypeVar("T")


class Database(Protocol):
    """A database that runs functions, each in one transaction.

    The first argument of such a function is the connection. `read` and `write` pass the other arguments on.
    """

    def read(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on one snapshot."""
        ...

    def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` and commit. If it raises, nothing is written."""
        ...

    def tidy(self, *, whole: bool = False) -> bool:
        """Do the database's regular maintenance.

        Args:
            whole: Whether to empty its log, too.

        Returns:
            False if a reader prevented that.
        """
        ...

    def check(self) -> None:
        """Check all data.

        Raises:
            StoreError: Something is damaged.
        """
        ...

    def check_file(self) -> None:
        """Check that the database's file is still at its path. Once it is not, every read and write raises.

        Raises:
            StoreUnavailableError: It was removed or replaced while it was open.
        """
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


def open_database(target: Path | str | None, settings: Settings, *, read_only: bool = False) -> Database:
    """Open SQLite at a path, PostgreSQL at a URL, or SQLite in memory for None.

    Args:
        target: The directory or the URL.
        settings: The settings of its connections.
        read_only: Whether the directory is one that this process cannot write to. Every write raises.

    Raises:
        ConfigurationError: The URL or path cannot be used.
        StoreUnavailableError: The database does not answer.
    """
    if target is None or isinstance(target, Path):
        return SqliteDatabase(target, settings, read_only=read_only)
    try:
        url = make_url(target)
    except (exc.ArgumentError, ValueError):  # a port that is no number
        raise ConfigurationError(
            "`database_url` is no database URL",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        ) from None
    if url.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"`database_url` names {url.drivername!r}, and only PostgreSQL is supported by URL",
            hint="Use `postgresql+psycopg://user@host:5432/name`; for SQLite give a directory instead.",
        )
    from memlayer_core.storage.postgres import PostgresDatabase  # SQLite needs nothing of it

    return PostgresDatabase(target, settings)


def may_write(target: Path | str | None) -> bool:
    """Tell whether this process may write to a memory's directory; of a server, nobody knows before it is asked."""
    files = (target, journal_file(target)) if isinstance(target, Path) else ()
    return all(os.access(file, os.W_OK) for file in files)
