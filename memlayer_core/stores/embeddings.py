"""Vectors in SQL: kept so that Chroma can be built again without a model, and compared one by one at need."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.records.item import Folder, lanes_of
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.records.session import Layout, Overview
from memlayer_core.records.vector import Filing, FloatVector, Neighbour, Sample, Unindexed
from memlayer_core.stores import item_index, record_index
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.remembered import SHELVED
from memlayer_core.stores.rows import session_of, text_number, to_micros
from memlayer_core.stores.schema import (
    item_texts,
    jobs,
    messages,
    meta,
    namespaces,
    records,
    sessions,
    vectors,
)
from memlayer_core.stores.transcript import WITHIN, chunks, reached

__all__ = [
    "file",
    "filings",
    "forget",
    "layout",
    "overview",
    "present",
    "samples",
    "scan",
    "settle",
    "unindexed",
]

_SESSION_OF = sessions.c.number == session_of(messages.c.key)

_NAMESPACE = Prepared(
    select(namespaces.c.shard, namespaces.c.vectors).where(namespaces.c.namespace == bindparam("of"))
)
_HELD = Prepared(
    select(records.c.number)
    .where(records.c.shelf == bindparam("of"), records.c.replaced_by.is_(None))
    .limit(1)
)
_USED = Prepared(select(sessions.c.number).where(sessions.c.messages > 0, WITHIN).limit(2))
_ALL = select(vectors.c.key, vectors.c.vector).where(vectors.c.namespace == bindparam("of"))
_VECTORS = Prepared(_ALL)
_VECTORS_WITHIN = Prepared(
    _ALL.outerjoin(sessions, and_(vectors.c.key > 0, sessions.c.number == session_of(vectors.c.key)))
    .outerjoin(records, records.c.number == -vectors.c.key)
    .where(or_(WITHIN, SHELVED))
)
_WHOSE = ("user_id", "session_id", "agent_id", "tenant_id")
_OTHERS = Prepared(
    select(literal(1))
    .where(
        namespaces.c.shard == bindparam("on"),
        namespaces.c.vectors > 0,
        namespaces.c.namespace != bindparam("of"),
    )
    .limit(1)
)


def unindexed(connection: Connection, keys: Sequence[int]) -> list[Unindexed]:
    """Return what those messages, records and items are found by, with the vector that their text has already."""
    found: list[Unindexed] = []
    for some in chunks(keys):
        rows = connection.execute(
            select(
                messages.c.key,
                messages.c.text,
                sessions.c.user_id,
                sessions.c.session_id,
                sessions.c.agent_id,
                sessions.c.tenant_id,
                namespaces.c.shard,
                vectors.c.text_hash,
                vectors.c.vector,
            )
            .join(sessions, _SESSION_OF)
            .join(namespaces, namespaces.c.namespace == sessions.c.namespace)
            .outerjoin(vectors, vectors.c.key == messages.c.key)
            .where(messages.c.key.in_(some), messages.c.role != "system", messages.c.tokens > 0)
            .order_by(messages.c.key)
        )
        found.extend(_unindexed(row, _lanes(row)) for row in rows)
    found.extend(_unindexed(row, row.lanes) for row in record_index.waiting(connection, keys))
    found.extend(_unindexed(row, row.lanes) for row in item_index.waiting(connection, keys))
    return found


def _unindexed(row: Any, lanes: tuple[str, str, str]) -> Unindexed:
    now = _text_hash(row.text)
    kept = _array(row.vector) if row.text_hash == now else None
    return Unindexed(row.key, row.shard, lanes, row.text, now, kept)


def file(connection: Connection, given: Sequence[Filing]) -> None:
    """Keep vectors of messages, records and items that still exist."""
    still = present(connection, [filing.key for filing in given], held=True)
    others = [filing.key for filing in given if filing.key < 0]
    if others:  # every user at once, behind the messages: see `noting` for the order
        record_index.hold(connection, {filing.lanes[0][1:] for filing in given})
        still |= record_index.present(connection, others) | item_index.present(connection, others)
    kept = [filing for filing in given if filing.key in still]
    if not kept:
        return
    old: set[int] = set()
    for some in chunks([filing.key for filing in kept]):
        old.update(connection.scalars(select(vectors.c.key).where(vectors.c.key.in_(some))))
        connection.execute(delete(vectors).where(vectors.c.key.in_(some)))
    connection.execute(
        insert(vectors),
        [
            {
                "key": filing.key,
                "namespace": filing.lanes[0][1:],
                "shard": filing.shard,
                "text_hash": filing.text_hash,
                "vector": np.ascontiguousarray(filing.vector, dtype="<f4").tobytes(),
            }
            for filing in kept
        ],
    )
    more = Counter(filing.lanes[0][1:] for filing in kept if filing.key not in old)
    for namespace, number in sorted(more.items()):
        connection.execute(
            update(namespaces)
            .where(namespaces.c.namespace == namespace)
            .values(vectors=namespaces.c.vectors + number)
        )


def present(connection: Connection, keys: Sequence[int], *, held: bool = False) -> set[int]:
    """Return those keys whose message, record or item's text exists.

    `held`: only messages are looked for, and they go on to exist until the transaction ends.
    """
    found = set[int]()
    if not held:
        found = record_index.present(connection, keys) | item_index.present(connection, keys)
    for some in chunks([key for key in keys if key >= 0]):
        query = select(messages.c.key).where(messages.c.key.in_(some)).order_by(messages.c.key)
        if held:
            query = query.with_for_update(read=True, key_share=True)
        found.update(connection.scalars(query))
    return found


def filings(connection: Connection, shard: int | None, after: int, limit: int) -> list[Filing]:
    """Return kept vectors in the order of their keys."""
    query = (
        select(
            vectors,
            *(func.coalesce(sessions.c[name], records.c[name]).label(name) for name in _WHOSE),
        )
        .outerjoin(sessions, and_(vectors.c.key > 0, sessions.c.number == session_of(vectors.c.key)))
        .outerjoin(records, records.c.number == -vectors.c.key)
        .outerjoin(item_texts, item_texts.c.number == text_number(vectors.c.key))
        .where(
            vectors.c.key > after,
            or_(
                sessions.c.number.is_not(None),
                records.c.number.is_not(None),
                item_texts.c.number.is_not(None),
            ),
        )
        .order_by(vectors.c.key)
        .limit(limit)
    )
    if shard is not None:
        query = query.where(vectors.c.shard == shard)
    return [
        Filing(row.key, row.shard, _filed_lanes(row), _array(row.vector), row.text_hash)
        for row in connection.execute(query)
    ]


def samples(connection: Connection, shards: int, probes: int) -> list[Sample]:
    """Return what each shard of an index should hold: the vectors whose job is done."""
    waits = exists().where(jobs.c.subject == vectors.c.key, jobs.c.kind == "index")
    counted = {
        row.shard: row.number
        for row in connection.execute(
            select(vectors.c.shard, func.count().label("number")).where(~waits).group_by(vectors.c.shard)
        )
    }
    found: list[Sample] = []
    everything = {
        row.shard: row.number
        for row in connection.execute(
            select(vectors.c.shard, func.count().label("number")).group_by(vectors.c.shard)
        )
    }
    for shard in range(shards):
        some: list[Filing] = []
        if shard in counted:
            ends = select(vectors.c.key).where(vectors.c.shard == shard, ~waits)
            keys = {
                *connection.scalars(ends.order_by(vectors.c.key).limit(probes)),
                *connection.scalars(ends.order_by(vectors.c.key.desc()).limit(probes)),
            }
            some = [filing for key in sorted(keys) for filing in filings(connection, shard, key - 1, 1)]
        found.append(Sample(shard, counted.get(shard, 0), everything.get(shard, 0), tuple(some)))
    return found


def scan(
    connection: Connection, reach: Scope | Commons | Folder, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Compare a vector with every one within reach: exact, and the fallback for whatever Chroma cannot do."""
    narrow = reach.agent_id is not None or reach.session_id is not None
    rows = (_VECTORS_WITHIN if narrow else _VECTORS).all(connection, reached(reach))
    if not rows or limit < 1:
        return []
    matrix = np.frombuffer(b"".join(row.vector for row in rows), dtype="<f4").reshape(len(rows), -1)
    # One product a row: on a busy machine the threads that a matrix product starts wait for each other.
    near = np.matmul(matrix[:, None, :], np.asarray(vector, dtype=np.float32))[:, 0]
    best = np.argsort(-near, kind="stable")[:limit]
    keys = np.array([row.key for row in rows])
    return list(map(Neighbour._make, zip(keys[best].tolist(), near[best].tolist(), strict=True)))


def overview(connection: Connection, reach: Scope | Commons | Folder) -> Overview:
    """Return how much lies within reach of a search, and how its shard is shared."""
    row = _NAMESPACE.first(connection, {"of": reach.namespace})
    if row is None:
        return Overview(sessions=0, vectors=0, shard=0, alone=False)
    used = _USED.all(connection, reached(reach))
    others = _OTHERS.first(connection, {"of": reach.namespace, "on": row.shard})
    return Overview(
        sessions=len(used),
        vectors=row.vectors,
        shard=row.shard,
        alone=others is None,
        records=_HELD.first(connection, {"of": reach.namespace}) is not None,
    )


def layout(connection: Connection) -> Layout:
    """Return what the store was made with."""
    known = {row.name: row.value for row in connection.execute(select(meta))}
    dimension = known.get("dimension")
    return Layout(
        store_id=known["store_id"],
        schema_version=int(known["schema_version"]),
        shards=int(known["shards"]),
        embedder=known.get("embedder"),
        dimension=int(dimension) if dimension is not None else None,
    )


def settle(connection: Connection, embedder: str, dimension: int | None) -> Layout:
    """Record the embedder as long as there is no vector of another one."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    if layout(connection).dimension is None:
        record = dialect.insert(meta)
        connection.execute(
            record.on_conflict_do_update(index_elements=["name"], set_={"value": record.excluded.value}),
            {"name": "embedder", "value": embedder},
        )
        if dimension is not None:
            connection.execute(
                dialect.insert(meta).on_conflict_do_nothing(), {"name": "dimension", "value": str(dimension)}
            )
    return layout(connection)


def forget(connection: Connection, now: datetime) -> None:
    """Drop every vector and the embedder's name, and owe the indexing of every message, record and item."""
    connection.execute(delete(vectors))
    connection.execute(update(namespaces).values(vectors=0))
    connection.execute(delete(meta).where(meta.c.name.in_(["embedder", "dimension"])))
    connection.execute(delete(jobs).where(jobs.c.kind == "index"))
    connection.execute(
        insert(jobs).from_select(
            ["kind", "subject", "namespace", "attempts", "due", "dead"],
            select(
                literal("index"),
                messages.c.key,
                sessions.c.namespace,
                literal(0),
                literal(to_micros(now)),
                literal(0),
            )
            .join(sessions, _SESSION_OF)
            .where(
                messages.c.role != "system",
                messages.c.text != "",
                messages.c.tokens > 0,
                sessions.c.superseded == 0,
            ),
        )
    )
    record_index.owe_all(connection, now)
    item_index.owe_all(connection, now)


def _lanes(row: Any) -> tuple[str, str, str]:
    scope = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id)
    return scope.user_lane, scope.agent_lane, scope.session_lane


def _filed_lanes(row: Any) -> tuple[str, str, str]:
    """Return the lanes of a kept vector: a record's may be among what its tenant shares."""
    if row.key > 0:
        return _lanes(row)
    if text_number(row.key) > 0:
        return lanes_of(row.namespace)
    owner = Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id).reach()
    shelf = owner if row.namespace == owner.namespace else owner.commons
    return shelf.user_lane, shelf.agent_lane, shelf.session_lane


def _array(blob: bytes) -> FloatVector:
    return np.frombuffer(blob, dtype="<f4")


def _text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
