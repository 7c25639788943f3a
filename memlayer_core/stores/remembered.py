"""Reading records in SQL, and who may: no other code decides that. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    Float,
    Text,
    and_,
    bindparam,
    case,
    distinct,
    exists,
    func,
    or_,
    select,
    text,
)

from memlayer_core.record_ports import RecordFilter
from memlayer_core.records.record import Embedding, Reader, Record
from memlayer_core.records.scope import Scope
from memlayer_core.rules.records import TOLERANCE, ordinal_of
from memlayer_core.stores.prepared import Prepared, PreparedList
from memlayer_core.stores.record_rows import grantees, record_of, tag_label
from memlayer_core.stores.rows import to_micros
from memlayer_core.stores.schema import labels, meta, records, vectors
from memlayer_core.stores.transcript import reached

__all__ = ["OWN", "SHELVED", "pages", "profile", "recorded", "remembered", "visible"]

_AGENT = or_(bindparam("agent", type_=Text).is_(None), records.c.agent_id == bindparam("agent"))
_LANE = or_(bindparam("lane", type_=Text).is_(None), records.c.lane == bindparam("lane"))
OWN = and_(records.c.namespace == bindparam("of"), _AGENT, _LANE)
"""The condition on `records` that keeps a query to a user's own; `reached` gives its values."""

SHELVED = and_(records.c.shelf == bindparam("of"), _AGENT, _LANE)
"""The condition that keeps a search to one shelf: a user's, or what a tenant shares."""

_IN_FORCE = records.c.replaced_by.is_(None)
_LASTING = or_(records.c.expires_at.is_(None), records.c.expires_at > bindparam("now"))
_WORTH = case(
    (records.c.type == "episodic", records.c.importance > bindparam("above", type_=Float)),
    else_=records.c.confidence >= bindparam("least", type_=Float),
)


def _granted(names: Sequence[str]) -> Any:
    """Return the condition that others' records meet which one of those labels may see."""
    named: list[Any] = [bindparam(name) for name in names]
    allowed = exists().where(labels.c.number == records.c.number, labels.c.label.in_(named))
    return and_(
        records.c.shelf == bindparam("commons"),
        or_(records.c.visibility == "public", allowed),
        _AGENT,
        _LANE,
    )


@cache
def _told(count: int, *columns: str) -> PreparedList:
    """Return the query for one who has as many labels: few callers have many roles."""
    names = [f"label_{place}" for place in range(count)]
    wanted = [records.c[name] for name in columns or records.c.keys()]
    return PreparedList(
        lambda numbers: select(*wanted).where(
            records.c.number.in_(numbers), or_(OWN, _granted(names)), _IN_FORCE, _LASTING, _WORTH
        )
    )


_PROFILE = Prepared(
    select(records)
    # Written out, as an index tells: a database does not see that a parameter fits it.
    .where(OWN, text("type = 'profile' AND replaced_by IS NULL"), _LASTING, _WORTH)
    .order_by(records.c.importance.desc(), records.c.number.desc())
    .limit(bindparam("most"))
)


def profile(connection: Connection, reader: Reader, most: int) -> dict[int, Record]:
    """Return a user's own records of type `"profile"` by their keys, the most important first."""
    values = {**reached(reader.reach), "now": to_micros(reader.now), **_worth(reader), "most": most}
    return {-row.number: record_of(row) for row in _PROFILE.all(connection, values)}


def visible(connection: Connection, reader: Reader, keys: Collection[int]) -> set[int]:
    """Return those keys of records that the reader may be told of, and that are worth telling."""
    return {-row.number for row in _allowed(connection, reader, keys, "number")}


def remembered(connection: Connection, reader: Reader, keys: Collection[int]) -> dict[int, Record]:
    """Return the records of those keys that the reader may be told of, and that are worth telling."""
    return {-row.number: record_of(row) for row in _allowed(connection, reader, keys)}


def _allowed(connection: Connection, reader: Reader, keys: Collection[int], *columns: str) -> list[Any]:
    """Return rows of records that the reader may be told of: nothing else decides that."""
    named = grantees(reader.reach, reader.roles)
    values = {**_values(reader, named), **_worth(reader)}
    return _told(len(named), *columns).all(connection, [-key for key in keys if key < 0], values)


def recorded(connection: Connection, reader: Reader, wanted: RecordFilter) -> list[Record]:
    """Return a user's records, the last written first, each with its vector."""
    named = grantees(reader.reach, reader.roles)
    mine: Any = OWN if wanted.every else and_(OWN, _LASTING, _IN_FORCE)
    query = select(records, vectors.c.vector).outerjoin(vectors, vectors.c.key == -records.c.number)
    if wanted.shared:
        others = _granted([f"label_{place}" for place in range(len(named))])
        query = query.where(or_(mine, and_(others, _LASTING, _IN_FORCE)))
    else:
        query = query.where(mine)
    if wanted.type is not None:
        query = query.where(records.c.type == wanted.type)
    if wanted.tags:
        tagged = select(labels.c.number).where(labels.c.label.in_({tag_label(tag) for tag in wanted.tags}))
        every_tag = func.count(distinct(labels.c.label)) == len(set(wanted.tags))
        query = query.where(records.c.number.in_(tagged.group_by(labels.c.number).having(every_tag)))
    if wanted.record_id is not None:
        user_id, ordinal = ordinal_of(wanted.record_id)
        query = query.where(records.c.user_id == user_id, records.c.ordinal == ordinal)
    newest = (records.c.updated_at.desc(), records.c.version.desc(), records.c.number.desc())
    rows = connection.execute(
        query.order_by(*newest).limit(wanted.limit).offset(wanted.offset), _values(reader, named)
    ).all()
    embedder = connection.scalar(select(meta.c.value).where(meta.c.name == "embedder")) or ""
    return [_with_vector(row, embedder) for row in rows]


def pages(
    connection: Connection, tenant_id: str, user_id: str | None, after: tuple[str, int], limit: int
) -> list[tuple[tuple[str, int], list[Record]]]:
    """Return records of a tenant, or of one user, with their versions, in an order that no write changes."""
    namespace, ordinal = after
    behind = or_(
        records.c.namespace > namespace,
        and_(records.c.namespace == namespace, records.c.ordinal > ordinal),
    )
    whose = records.c.tenant_id == tenant_id
    if user_id is not None:
        whose = records.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace
    order = (records.c.namespace, records.c.ordinal)
    places = connection.execute(select(*order).where(whose, behind).distinct().order_by(*order).limit(limit))
    found = {(row.namespace, row.ordinal): list[Record]() for row in places}
    if found:
        last = max(found)
        until = or_(records.c.namespace < last[0], and_(records.c.namespace == last[0], order[1] <= last[1]))
        rows = connection.execute(
            select(records).where(whose, behind, until).order_by(*order, records.c.version)
        )
        for row in rows:
            found[row.namespace, row.ordinal].append(record_of(row))
    return list(found.items())


def _values(reader: Reader, named: Sequence[str]) -> dict[str, Any]:
    return {
        **reached(reader.reach),
        "commons": reader.reach.commons.namespace,
        "now": to_micros(reader.now),
        **{f"label_{place}": label for place, label in enumerate(named)},
    }


def _worth(reader: Reader) -> dict[str, float]:
    return {
        "above": -1.0 if reader.above_importance is None else reader.above_importance + TOLERANCE,
        "least": -1.0 if reader.least_confidence is None else reader.least_confidence - TOLERANCE,
    }


def _with_vector(row: Any, embedder: str) -> Record:
    record = record_of(row)
    if row.vector is None:
        return record
    return replace(record, embedding=Embedding(embedder, np.frombuffer(row.vector, dtype="<f4")))
