"""Vectors in SQL: to build Chroma again without a model, and to compare them one by one if Chroma cannot be used."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    select,
    update,
)

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.job_queue import enqueue_texts
from memlayer_core.storage.keys import chunks
from memlayer_core.storage.statements import ListStatement, Statement, dialect_insert, rows_by
from memlayer_core.storage.statistics import Layout, ScopeStatistics
from memlayer_core.storage.tables import jobs, meta, namespaces, texts
from memlayer_core.storage.texts import (
    contents,
    count_vectors,
    lanes_of,
    lanes_of_row,
    next_version,
    owners_locked,
)
from memlayer_core.storage.vector_cache import products
from memlayer_core.vector import FloatVector, IndexEntry, IndexTask, Neighbour, SimilarityScale

__all__ = [
    "EMBEDDED",
    "copy",
    "cosines",
    "entries_of",
    "entry_of",
    "forget",
    "index_tasks",
    "layout",
    "nearest",
    "overview",
    "part_cosines",
    "set_embedder",
    "store",
]

EMBEDDED = texts.c.shard.is_not(None)
"""The condition that texts have their vectors; the indexes of the table contain no others. A shard of a number implies it."""

_SCALES = "similarity_scales"  # a row of `meta`: JSON, a mean and a deviation by language
_NAMESPACE = Statement(
    select(
        namespaces.c.shard,
        namespaces.c.vectors,
        namespaces.c.texts,
        namespaces.c.version,
        namespaces.c.indexed,
    ).where(namespaces.c.namespace == bindparam("of"))
)
_META = Statement(select(meta.c.name, meta.c.value))
_TASKS = ListStatement(
    lambda keys: (
        select(texts, namespaces.c.shard.label("on"))
        .join(namespaces, namespaces.c.namespace == texts.c.namespace)
        .where(texts.c.key.in_(keys))
    )
)
_LOCKED = rows_by(select(texts.c.key, texts.c.namespace, texts.c.vectors).with_for_update(), texts.c.key)
_STORE = Statement(
    update(texts)
    .where(texts.c.key == bindparam("of"))
    .values({name: bindparam(name) for name in ("shard", "text_hash", "vector", "vectors", "changed")})
)


def index_tasks(connection: Connection, keys: Sequence[int]) -> list[IndexTask]:
    """Return index tasks for the texts of these keys."""
    rows = contents(connection, _TASKS.all(connection, keys))
    return [_index_task(row, source.text(found)) for row, source, found in rows]


def _index_task(row: Any, text: str) -> IndexTask:
    now = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    kept = _parts(row) if row.text_hash == now else ()
    return IndexTask(row.key, row.on, lanes_of_row(row), text, now, kept)


def store(connection: Connection, new_entries: Sequence[IndexEntry], now: datetime) -> None:
    """Store vectors of texts that still exist. Storing one twice changes nothing."""
    if not new_entries:
        return
    owners = owners_locked(connection, {entry.lanes[0][1:] for entry in new_entries})
    versions = {name: next_version(owner, now) for name, owner in owners.items()}
    here = {row.key: row for row in _LOCKED.all(connection, sorted(entry.key for entry in new_entries))}
    if not here:
        return
    changes = (
        {
            "of": entry.key,
            "shard": owners[here[entry.key].namespace].shard,
            "changed": versions[here[entry.key].namespace],
            "text_hash": entry.text_hash,
            "vector": np.ascontiguousarray(entry.vectors, dtype="<f4").tobytes(),
            "vectors": len(entry.vectors),
        }
        for entry in new_entries
        if entry.key in here
    )
    _STORE.run(connection, *changes)
    stored = {entry.key: len(entry.vectors) for entry in new_entries}
    vectors, embeddings = Counter[str](), Counter[str]()
    for key, row in here.items():
        vectors[row.namespace] += stored[key] - (row.vectors or 0)
        embeddings[row.namespace] += row.vectors is None
    for namespace in sorted({row.namespace for row in here.values()}):
        count_vectors(connection, namespace, vectors[namespace], embeddings[namespace], versions[namespace])


def copy(connection: Connection, keys: Mapping[int, int], target: Scope, now: datetime) -> None:
    """Give copies of texts, which are in another scope, the vectors of these, so that no model is asked again.

    Args:
        connection: In a transaction that writes.
        keys: For the key of each text the key of its copy.
        target: Scope of the copies.
        now: The present.
    """
    for some in chunks(list(keys)):
        found = map(entry_of, connection.execute(select(texts).where(texts.c.key.in_(some), EMBEDDED)))
        store(connection, [replace(one, key=keys[one.key], lanes=lanes_of(target)) for one in found], now)


def entries_of(connection: Connection, keys: Sequence[int]) -> list[IndexEntry]:
    """Return the stored vectors of those of the keys that have some."""
    return [
        entry_of(row)
        for some in chunks(keys)
        for row in connection.execute(select(texts).where(texts.c.key.in_(some), EMBEDDED))
    ]


def entry_of(row: Any) -> IndexEntry:
    """Return the vectors of a row of texts."""
    first, *others = _parts(row)
    return IndexEntry(row.key, row.shard, lanes_of_row(row), first, row.text_hash, tuple(others))


def nearest(rows: Sequence[Any], vector: FloatVector, limit: int) -> list[Neighbour]:
    """Return the nearest of some rows of keys and vectors, the nearest first."""
    if not rows or limit < 1:
        return []
    near = cosines(rows, vector)
    best = np.argsort(-near, kind="stable")[:limit]
    keys = np.array([row.key for row in rows])
    return list(map(Neighbour._make, zip(keys[best].tolist(), near[best].tolist(), strict=True)))


def cosines(rows: Sequence[Any], vector: FloatVector) -> FloatVector:
    """Return the cosine of each text to a question's vector: that of its nearest part, shape (number of rows,).

    Raises:
        EmbedderMismatchError: They have other dimensions.
    """
    return np.array([max(some) for some in part_cosines(rows, vector)], dtype=np.float32)


def part_cosines(rows: Sequence[Any], vector: FloatVector) -> list[tuple[float, ...]]:
    """Return the cosines of the parts of each text to a question's vector.

    Args:
        rows: One at least, with the columns `vector` and `vectors` of texts.
        vector: Unit length, shape (dimension,).

    Raises:
        EmbedderMismatchError: They have other dimensions.
    """
    numbers = [row.vectors for row in rows]
    matrix = np.frombuffer(b"".join(row.vector for row in rows), dtype="<f4").reshape(sum(numbers), -1)
    near = iter(products(matrix, vector).tolist())
    return [tuple(islice(near, number)) for number in numbers]


def overview(connection: Connection, reach: Scope | SharedScope | Folder) -> ScopeStatistics:
    """Return how many vectors the namespace of a scope has, and which shard they are in."""
    row = _NAMESPACE.first(connection, {"of": reach.namespace})
    if row is None:
        return ScopeStatistics()
    return ScopeStatistics(row.vectors, bool(row.indexed), row.shard, row.version, row.texts)


def layout(connection: Connection) -> Layout:
    """Return the fixed properties of the store."""
    known = {row.name: row.value for row in _META.all(connection, {})}
    dimension, scales = known.get("dimension"), known.get(_SCALES)
    return Layout(
        store_id=known["store_id"],
        schema_version=int(known["schema_version"]),
        shards=int(known["shards"]),
        embedder=known.get("embedder"),
        dimension=int(dimension) if dimension is not None else None,
        scales={language: SimilarityScale(*pair) for language, pair in json.loads(scales).items()}
        if scales
        else None,
    )


def set_embedder(
    connection: Connection,
    embedder: str,
    dimension: int | None,
    scales: Mapping[str, SimilarityScale] | None = None,
) -> Layout:
    """Store the embedder's identity, dimension and scales, unless vectors of an embedder exist already.

    Args:
        connection: In a transaction that writes.
        embedder: Identity of the embedder.
        dimension: Length of its vectors; None before the first vector.
        scales: The scales of its cosines, by language; None before they are measured.

    Returns:
        The layout as it is now.
    """
    if layout(connection).dimension is None:
        pairs = {language: (scale.mean, scale.deviation) for language, scale in (scales or {}).items()}
        values = {"embedder": embedder, _SCALES: json.dumps(pairs)}
        if dimension is not None:
            values["dimension"] = str(dimension)
        record = dialect_insert(connection.dialect.name, meta)
        connection.execute(
            record.on_conflict_do_update(index_elements=["name"], set_={"value": record.excluded.value}),
            [{"name": name, "value": value} for name, value in values.items()],
        )
    return layout(connection)


def forget(connection: Connection, now: datetime) -> None:
    """Delete all vectors and the embedder's identity, and queue index jobs for all texts."""
    empty = dict.fromkeys(("shard", "text_hash", "vector", "vectors", "changed"))
    connection.execute(update(texts).values(**empty))
    connection.execute(update(namespaces).values(vectors=0, texts=0))
    connection.execute(delete(meta).where(meta.c.name.in_(["embedder", "dimension", _SCALES])))
    connection.execute(delete(jobs).where(jobs.c.kind == "index"))
    enqueue_texts(connection, "index", now)


def _parts(row: Any) -> tuple[FloatVector, ...]:
    return tuple(np.frombuffer(row.vector, dtype="<f4").reshape(row.vectors, -1))
