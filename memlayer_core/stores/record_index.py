"""What an index is to hold of records, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, literal, select

from memlayer_core.stores.record_rows import record_of, shelf_of_row
from memlayer_core.stores.rows import to_micros
from memlayer_core.stores.schema import jobs, namespaces, records, vectors
from memlayer_core.stores.transcript import chunks

__all__ = ["Waiting", "hold", "lanes_of", "owe_all", "present", "waiting"]

_IN_FORCE = records.c.replaced_by.is_(None)


class Waiting(NamedTuple):
    """A record that is to be indexed, and the vector that is kept for its key."""

    key: int
    shard: int
    lanes: tuple[str, str, str]
    text: str
    text_hash: str | None
    vector: bytes | None


def waiting(connection: Connection, keys: Sequence[int]) -> Iterator[Waiting]:
    """Return what those records are found by; ones that are not in force are left out."""
    for some in chunks([-key for key in keys if key < 0]):
        rows = connection.execute(
            select(records, namespaces.c.shard, vectors.c.text_hash, vectors.c.vector)
            .join(namespaces, namespaces.c.namespace == records.c.shelf)
            .outerjoin(vectors, vectors.c.key == -records.c.number)
            .where(records.c.number.in_(some), _IN_FORCE)
            .order_by(records.c.number)
        )
        for row in rows:
            text = record_of(row).text
            yield Waiting(-row.number, row.shard, lanes_of(row), text, row.text_hash, row.vector)


def lanes_of(row: Any) -> tuple[str, str, str]:
    """Return the lanes that the record of a row is filed under."""
    shelf = shelf_of_row(row)
    return shelf.user_lane, shelf.agent_lane, shelf.session_lane


def hold(connection: Connection, namespaces_held: Iterable[str]) -> int:
    """Let nobody write to those users' records, what those tenants share, or those folders, until the end.

    Returns how many of them there are.
    """
    held = select(namespaces.c.namespace).where(namespaces.c.namespace.in_(sorted(namespaces_held)))
    return len(connection.execute(held.order_by(namespaces.c.namespace).with_for_update()).all())


def present(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those keys whose record is in force."""
    found: set[int] = set()
    for some in chunks([-key for key in keys if key < 0]):
        numbers = select(records.c.number).where(records.c.number.in_(some), _IN_FORCE)
        found.update(-number for number in connection.scalars(numbers))
    return found


def owe_all(connection: Connection, now: datetime) -> None:
    """Owe the indexing of every record."""
    fixed = (literal(0), literal(to_micros(now)), literal(0))
    every = select(literal("index"), -records.c.number, records.c.shelf, *fixed).where(_IN_FORCE)
    named = ["kind", "subject", "namespace", "attempts", "due", "dead"]
    connection.execute(insert(jobs).from_select(named, every))
