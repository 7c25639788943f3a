"""What an index is to hold of items, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, literal, select

from memlayer_core.records.item import lanes_of
from memlayer_core.stores.record_index import Waiting
from memlayer_core.stores.rows import text_key, text_number, to_micros
from memlayer_core.stores.schema import item_texts, jobs, namespaces, vectors
from memlayer_core.stores.transcript import chunks

__all__ = ["owe_all", "present", "waiting"]


def waiting(connection: Connection, keys: Sequence[int]) -> Iterator[Waiting]:
    """Return the texts of those keys; ones that are gone are left out."""
    for some in chunks(_numbers(keys)):
        rows = connection.execute(
            select(item_texts, namespaces.c.shard, vectors.c.text_hash, vectors.c.vector)
            .join(namespaces, namespaces.c.namespace == item_texts.c.namespace)
            .outerjoin(vectors, vectors.c.key == text_key(item_texts.c.number))
            .where(item_texts.c.number.in_(some))
            .order_by(item_texts.c.number)
        )
        for row in rows:
            lanes = lanes_of(row.namespace)
            yield Waiting(text_key(row.number), row.shard, lanes, row.text, row.text_hash, row.vector)


def present(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those keys whose text is that of an item."""
    found: set[int] = set()
    for some in chunks(_numbers(keys)):
        numbers = select(item_texts.c.number).where(item_texts.c.number.in_(some))
        found.update(map(text_key, connection.scalars(numbers)))
    return found


def owe_all(connection: Connection, now: datetime) -> None:
    """Owe the indexing of every text of an item."""
    fixed = (literal(0), literal(to_micros(now)), literal(0))
    every = select(literal("index"), text_key(item_texts.c.number), item_texts.c.namespace, *fixed)
    named = ["kind", "subject", "namespace", "attempts", "due", "dead"]
    connection.execute(insert(jobs).from_select(named, every))


def _numbers(keys: Sequence[int]) -> list[int]:
    return [number for number in map(text_number, keys) if number > 0]
