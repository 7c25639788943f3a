"""Keeps SQLite's index of words small and sound: deleted words leave its file, and a damaged index is built again.

PostgreSQL needs none of this.
"""

from __future__ import annotations

from sqlalchemy import Connection, exc, text

from memlayer_core.storage.lexical import create
from memlayer_core.storage.lexical_statements import PLACES, TABLE, WORDS

__all__ = ["erase", "heal", "is_sound", "rebuild"]

_STEP = 200  # pages of 4 kB that one step of an erasure writes: a few hundredths of a second
_MOST_LEVELS = 1000
"""Levels of the index, from which on it is built again. An erasure may add two of them, and with more than 2,000 SQLite takes
an index for damaged (3.40; later versions stop counting before)."""

_UNBUILD = f"UPDATE {TABLE}_data SET block = substr(block, 1, 4) || x'000000' WHERE id = 10"
"""Makes the index empty: no levels, no segments, nothing written. FTS5 refuses to build one again whose levels it cannot read."""

_REBUILD = f"INSERT INTO {TABLE} ({TABLE}) VALUES ('rebuild')"


def erase(connection: Connection, *, goes_on: bool) -> bool:
    """Write a part of the index again without deleted words: until then FTS5 keeps them, marked as deleted.

    Searches and writes are right before, between and after the steps.

    Args:
        connection: In a transaction that writes. SQLite alone needs this.
        goes_on: Whether this is not the first step.

    Returns:
        Whether there is more to do.
    """
    if heal(connection):
        return False
    before = connection.scalar(text("SELECT total_changes()")) or 0
    merge = text(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES ('merge', :pages)")
    connection.execute(merge, {"pages": _STEP if goes_on else -_STEP})
    return (connection.scalar(text("SELECT total_changes()")) or 0) - before > 1


def heal(connection: Connection) -> bool:
    """Build the index again from its rows if erasures have given it too many levels. Returns whether it was built.

    With too many levels, SQLite takes the index for damaged and refuses every write.
    """
    if connection.dialect.name != "sqlite" or _levels(connection) <= _MOST_LEVELS:
        return False
    connection.execute(text(_UNBUILD))
    connection.execute(text(_REBUILD))
    return True


def is_sound(connection: Connection) -> bool:
    """Return whether the index agrees with its rows, word by word. PostgreSQL ensures that itself."""
    if connection.dialect.name != "sqlite":
        return True
    return _succeeds(connection, f"INSERT INTO {TABLE} ({TABLE}) VALUES ('integrity-check')")


def rebuild(connection: Connection) -> None:
    """Build the index again from its rows; if the rows are damaged, too, make an empty one. Only SQLite needs this."""
    if _succeeds(connection, _UNBUILD) and _succeeds(connection, _REBUILD) and is_sound(connection):
        return
    for table in (PLACES, WORDS, TABLE):
        connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    create(connection)


def _succeeds(connection: Connection, statement: str) -> bool:
    """Run a statement. Returns False if SQLite finds the index damaged."""
    try:
        with connection.begin_nested():
            connection.execute(text(statement))
    except exc.OperationalError:  # the disk is full, somebody else holds the database
        raise
    except exc.DatabaseError:
        return False
    return True


def _levels(connection: Connection) -> int:
    """Return how many levels the index has: the second number of its first record, behind four bytes."""
    record = connection.scalar(text(f"SELECT block FROM {TABLE}_data WHERE id = 10")) or bytes(5)
    levels = 0
    for byte in record[4:13]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  (seven bits a byte; the last one says so)
            break
    return levels
