"""What the vector index should have: the vectors of large namespaces. Chroma is filled by this, and compared with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, exists, func, literal, select, update

from memlayer_core.storage.job_queue import enqueue_texts
from memlayer_core.storage.keys import shard_of
from memlayer_core.storage.parts import MOST_PARTS
from memlayer_core.storage.statements import Statement, rows_by
from memlayer_core.storage.tables import jobs, namespaces, texts
from memlayer_core.storage.vectors import EMBEDDED, entry_of
from memlayer_core.vector import IndexEntry, Sample

__all__ = [
    "add",
    "entries",
    "existing_keys",
    "is_alone",
    "large",
    "namespaces_of",
    "samples",
]

_OTHERS = Statement(
    select(literal(1))
    .where(
        namespaces.c.shard == bindparam("on"),
        namespaces.c.indexed == 1,
        namespaces.c.namespace != bindparam("of"),
    )
    .limit(1)
)
_INDEXED = texts.c.namespace.in_(select(namespaces.c.namespace).where(namespaces.c.indexed == 1))
"""The condition that the vector index has the vectors of texts, or gets them soon."""

_NAMED = rows_by(
    select(namespaces.c.namespace, namespaces.c.indexed, namespaces.c.vectors), namespaces.c.namespace
)
_HELD = rows_by(select(texts.c.key).where(_INDEXED), texts.c.key)
_ADD = update(namespaces).where(namespaces.c.indexed == 0).values(indexed=1).returning(namespaces.c.namespace)
_LARGE = select(namespaces.c.namespace).where(namespaces.c.indexed == 0)


def namespaces_of(
    connection: Connection, names: Collection[str], max_vectors: int
) -> tuple[set[str], list[str]]:
    """Return which namespaces the index has, and which others have more vectors than `max_vectors`."""
    rows = _NAMED.all(connection, sorted(names))
    has = {row.namespace for row in rows if row.indexed}
    return has, [row.namespace for row in rows if not row.indexed and row.vectors > max_vectors]


def existing_keys(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those of the keys that have a text which the index should have."""
    return {row.key for row in _HELD.all(connection, keys)}


def add(connection: Connection, names: Collection[str], now: datetime) -> None:
    """Give the index namespaces that it does not have: a job for each of their texts is queued.

    Whoever stored a text before is served by that job, and whoever stores one later sees that the index has the namespace.
    """
    for added in connection.scalars(_ADD.where(namespaces.c.namespace.in_(names))).all():
        enqueue_texts(connection, "upsert", now, texts.c.namespace == added, EMBEDDED)


def large(connection: Connection, max_vectors: int) -> list[str]:
    """Return the namespaces with more vectors than `max_vectors` that the index does not have."""
    return list(connection.scalars(_LARGE.where(namespaces.c.vectors > max_vectors)))


def is_alone(connection: Connection, namespace: str, shard: int) -> bool:
    """Tell whether the index has vectors of no other namespace in a shard."""
    return _OTHERS.first(connection, {"of": namespace, "on": shard}) is None


def entries(connection: Connection, shard: int, after: int, limit: int) -> list[IndexEntry]:
    """Return what a shard of the index should have, with keys above `after`, in the order of their keys."""
    query = select(texts).where(texts.c.key > after, texts.c.shard == shard, _INDEXED)
    return list(map(entry_of, connection.execute(query.order_by(texts.c.key).limit(limit))))


def samples(connection: Connection, shards: int, probes: int, one_shard: int | None = None) -> list[Sample]:
    """Return samples of the shards of an index, or of one shard.

    A shard should hold at least the vectors that the index gets and whose job is done; at most those, and the vectors that
    jobs will add or remove.
    """
    waits = exists().where(jobs.c.subject == texts.c.key, jobs.c.kind.in_(["index", "upsert"]))
    wanted = range(shards) if one_shard is None else (one_shard,)
    among = and_(texts.c.shard.in_(wanted), _INDEXED)
    done = _count_by_shard(connection, among, ~waits)
    most = Counter(_count_by_shard(connection, among))
    leaving = select(jobs.c.namespace, func.count().label("number")).where(jobs.c.kind == "unindex")
    for row in connection.execute(leaving.group_by(jobs.c.namespace)):
        most[shard_of(row.namespace, shards)] += row.number * MOST_PARTS
    found: list[Sample] = []
    for shard in wanted:
        some: list[IndexEntry] = []
        if shard in done:
            ends = select(texts.c.key).where(texts.c.shard == shard, _INDEXED, ~waits)
            keys = {
                *connection.scalars(ends.order_by(texts.c.key).limit(probes)),
                *connection.scalars(ends.order_by(texts.c.key.desc()).limit(probes)),
            }
            some = [entry for key in sorted(keys) for entry in entries(connection, shard, key - 1, 1)]
        found.append(Sample(shard, done.get(shard, 0), most[shard], tuple(some)))
    return found


def _count_by_shard(connection: Connection, *conditions: Any) -> dict[int, int]:
    counting = select(texts.c.shard, func.sum(texts.c.vectors).label("number")).where(*conditions)
    return {row.shard: int(row.number) for row in connection.execute(counting.group_by(texts.c.shard))}
