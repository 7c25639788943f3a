"""Reads records in SQL, and decides who may see them: no other code does. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    Text,
    and_,
    bindparam,
    distinct,
    exists,
    func,
    not_,
    or_,
    select,
    text,
)

from memlayer_core.records.model import Embedding, Reader, Record, RecordFilter
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql.decay import KEPT, WORTH, values_of
from memlayer_core.records.sql.rows import grantees, record_of, tag_label
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import reach_parameters, to_micros
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import labels, meta, records, texts
from memlayer_core.storage.vectors import EMBEDDED, nearest
from memlayer_core.vector import FloatVector, Neighbour

__all__ = [
    "OWN",
    "ask_profile",
    "ask_records",
    "find_records",
    "list_records",
    "matching_keys",
    "outdated",
    "pages",
    "profile",
    "replaced",
    "scan_shared",
    "visible_keys",
]

_AGENT = or_(bindparam("agent", type_=Text).is_(None), records.c.agent_id == bindparam("agent"))
_LANE = or_(bindparam("lane", type_=Text).is_(None), records.c.lane == bindparam("lane"))
OWN = and_(records.c.namespace == bindparam("of"), _AGENT, _LANE)
"""The condition on `records` that keeps a query to a user's own; `reached` gives its values."""

_IN_FORCE = records.c.replaced_by.is_(None)
_FREE = records.c.archived_because.is_(None)
_LASTING = or_(records.c.expires_at.is_(None), records.c.expires_at > bindparam("now"))


def _grant(names: Sequence[str]) -> Any:
    """Return the condition that records are shared, and one of the labels may see them."""
    named: list[Any] = [bindparam(name) for name in names]
    allowed = exists().where(labels.c.number == records.c.number, labels.c.label.in_(named))
    return and_(
        records.c.shelf == bindparam("commons"),
        or_(records.c.visibility == "public", allowed),
        _AGENT,
        _LANE,
    )


def _names(count: int) -> list[str]:
    """Return the parameters of a reader's labels."""
    return [f"label_{place}" for place in range(count)]


def _visible(count: int) -> Any:
    """Return the condition that a reader with so many labels may see records. No other code decides that."""
    return and_(or_(OWN, _grant(_names(count))), _IN_FORCE, _FREE, _LASTING, KEPT, WORTH)


@cache
def _visible_query(count: int, *columns: str) -> ListStatement:
    wanted = [records.c[name] for name in columns or records.c.keys()]
    return ListStatement(lambda keys: select(*wanted).where(records.c.key.in_(keys), _visible(count)))


@cache
def _shared_query(count: int) -> Statement:
    return Statement(
        select(texts.c.key, texts.c.vector, texts.c.vectors)
        .join(records, records.c.key == texts.c.key)
        .where(texts.c.namespace == bindparam("commons"), EMBEDDED, _visible(count))
        .order_by(texts.c.key)
    )


_PROFILE = Statement(
    select(records, func.count().over().label("every"))
    # As text, so that the database uses its partial index, which it does not with parameters.
    .where(OWN, text("always = 1 AND replaced_by IS NULL"), _LASTING, KEPT, WORTH)
    .order_by(
        records.c.type == "preference",
        records.c.importance.desc(),
        records.c.confidence.desc(),
        records.c.ordinal,
        records.c.number,
    )
    .limit(bindparam("most"))
    # Without statistics, SQLite may hold the index of all of a user's records for as good.
    .with_hint(records, "INDEXED BY memlayer_records_profile", "sqlite")
)

_OUTDATED = ListStatement(
    lambda keys: select(records.c.key).where(records.c.key.in_(keys), OWN, records.c.replaced_by.is_not(None))
)


def profile(
    connection: Connection, reader: Reader, limit: int, preferences: int
) -> tuple[dict[int, Record], int]:
    """Return a user's own records that are told always by their keys, and how many there are in all.

    At most `limit` are returned, and of preferences at most `preferences`, after all others: the most important first,
    of equal ones the most certain, of those the oldest.
    """
    rows = _PROFILE.all(connection, _profile_values(reader, limit))
    others = sum(row.type != "preference" for row in rows)
    return {row.key: record_of(row) for row in rows[: others + preferences]}, rows[0].every if rows else 0


def ask_profile(connection: Connection, reader: Reader, limit: int) -> None:
    """Send to a server ahead of need what `profile` reads."""
    _PROFILE.ask(connection, _profile_values(reader, limit))


def _profile_values(reader: Reader, limit: int) -> dict[str, Any]:
    return {
        **reach_parameters(reader.reach),
        "now": to_micros(reader.now),
        **values_of(reader),
        "most": limit,
    }


def visible_keys(connection: Connection, reader: Reader, keys: Collection[int]) -> set[int]:
    """Return those of the keys whose records the reader may see and whose importance or confidence suffices."""
    return {row.key for row in _visible_rows(connection, reader, keys, "key")}


def ask_records(connection: Connection, reader: Reader, keys: Collection[int]) -> None:
    """Send to a server ahead of need what `find_records` reads."""
    named = grantees(reader.reach, reader.roles)
    _visible_query(len(named)).ask(connection, list(keys), {**_values(reader, named), **values_of(reader)})


def find_records(connection: Connection, reader: Reader, keys: Collection[int]) -> dict[int, Record]:
    """Return the records of these keys that the reader may see and whose importance or confidence suffices."""
    return {row.key: record_of(row) for row in _visible_rows(connection, reader, keys)}


def scan_shared(
    connection: Connection,
    reader: Reader,
    vector: FloatVector,
    limit: int,
    keys: Collection[int] | None = None,
) -> list[Neighbour]:
    """Compare a vector with those of the shared records that the reader may see, or of some keys. This is exact."""
    named = grantees(reader.reach, reader.roles)
    rows = _shared_query(len(named)).all(connection, {**_values(reader, named), **values_of(reader)})
    return nearest([row for row in rows if keys is None or row.key in keys], vector, limit)


def _visible_rows(connection: Connection, reader: Reader, keys: Collection[int], *columns: str) -> list[Any]:
    """Return rows of records that the reader may see."""
    named = grantees(reader.reach, reader.roles)
    values = {**_values(reader, named), **values_of(reader)}
    return _visible_query(len(named), *columns).all(connection, list(keys), values)


def list_records(connection: Connection, reader: Reader, record_filter: RecordFilter) -> list[Record]:
    """Return a user's records, the last written first, each with its vector."""
    named = grantees(reader.reach, reader.roles)
    told = and_(_LASTING, KEPT)
    mine: Any = OWN if record_filter.all_versions else and_(OWN, _IN_FORCE)
    if not (record_filter.all_versions or record_filter.every):
        mine = and_(mine, told, _FREE)
    if record_filter.as_of is not None:
        mine = and_(OWN, _held_at(record_filter.as_of))
    is_archived = and_(_IN_FORCE, not_(told)).label("is_archived")
    query = select(records.c.number, is_archived)
    if record_filter.shared:
        others = _grant(_names(len(named)))
        query = query.where(or_(mine, and_(others, told, _IN_FORCE, _FREE)))
    else:
        query = query.where(mine)
    if record_filter.since is not None:
        query = query.where(records.c.updated_at >= to_micros(record_filter.since))
    if record_filter.until is not None:
        query = query.where(records.c.updated_at < to_micros(record_filter.until))
    if record_filter.type is not None:
        query = query.where(records.c.type == record_filter.type)
    if record_filter.always:
        query = query.where(records.c.always == 1)
    if record_filter.tags:
        query = query.where(_has_tags(record_filter.tags))
    if record_filter.record_id is not None:
        user_id, ordinal = ordinal_of(record_filter.record_id)
        query = query.where(records.c.user_id == user_id, records.c.ordinal == ordinal)
    newest = (records.c.updated_at.desc(), records.c.version.desc(), records.c.number.desc())
    # Only of the page, texts and vectors are read: a sort takes all columns with it.
    page = query.order_by(*newest).limit(record_filter.limit).offset(record_filter.offset).subquery()
    whole = select(records, texts.c.vector, texts.c.vectors, page.c.is_archived)
    whole = whole.join(page, page.c.number == records.c.number)
    rows = connection.execute(
        whole.outerjoin(texts, texts.c.key == records.c.key).order_by(*newest),
        {**_values(reader, named), **values_of(reader)},
    ).all()
    embedder = connection.scalar(select(meta.c.value).where(meta.c.name == "embedder")) or ""
    return [_with_vector(row, embedder) for row in rows]


def matching_keys(
    connection: Connection,
    reader: Reader,
    types: Collection[str],
    tags: Collection[str],
    sessions: Collection[str],
    since: datetime | None,
    until: datetime | None,
) -> set[int]:
    """Return the keys of the records that the reader may see and that are of these types, tags, sessions and times.

    Args:
        connection: In a transaction.
        reader: Who asks.
        types: Only these types; empty: all.
        tags: Only records with all of these tags.
        sessions: Only records that come from these sessions; empty: from anywhere.
        since: Only records whose `date` is this moment or later.
        until: Only records whose `date` is before this moment.
    """
    named = grantees(reader.reach, reader.roles)
    query = select(records if since or until else records.c.key).where(_visible(len(named)))
    if types:
        query = query.where(records.c.type.in_(sorted(types)))
    if tags:
        query = query.where(_has_tags(tags))
    if sessions:
        query = query.where(records.c.session_id.in_(sorted(sessions)))
    rows = connection.execute(query, {**_values(reader, named), **values_of(reader)})
    if since is None and until is None:
        return set(rows.scalars())
    dates = ((row.key, record_of(row).date) for row in rows)  # when it happened is in no column
    return {
        key for key, date in dates if (since is None or date >= since) and (until is None or date < until)
    }


def _has_tags(tags: Collection[str]) -> Any:
    """Return the condition that records have all of some tags."""
    having = select(labels.c.number).where(labels.c.label.in_({tag_label(tag) for tag in tags}))
    every = func.count(distinct(labels.c.label)) == len(set(tags))
    return records.c.number.in_(having.group_by(labels.c.number).having(every))


def replaced(connection: Connection, reach: Scope, ordinal: int) -> list[Record]:
    """Return the user's records that a record replaced, in the order of their ids."""
    others = and_(OWN, records.c.replaced_by == ordinal, records.c.ordinal != ordinal)
    query = select(records).where(others).order_by(records.c.ordinal)
    return [record_of(row) for row in connection.execute(query, reach_parameters(reach))]


def outdated(connection: Connection, reach: Scope, keys: Sequence[int]) -> set[int]:
    """Return those of the keys whose records are the user's own and have a newer version."""
    return {row.key for row in _OUTDATED.all(connection, keys, reach_parameters(reach))}


def _held_at(moment: datetime) -> Any:
    """Return the condition that a record is a fact that held at a moment. What was corrected never held."""
    at = to_micros(moment)
    begun = or_(
        records.c.valid_from <= at, and_(records.c.valid_from.is_(None), records.c.valid_until.is_not(None))
    )
    ended = records.c.valid_until > at
    lasting = and_(records.c.replaced_by.is_(None), records.c.valid_until.is_(None))
    expired = and_(records.c.expires_at.is_not(None), records.c.expires_at <= at)
    return and_(begun, or_(ended, lasting), not_(expired))


def pages(
    connection: Connection, tenant_id: str, user_id: str | None, after: tuple[str, int], limit: int
) -> list[tuple[tuple[str, int], list[Record]]]:
    """Return a page of a tenant's or a user's records with their versions, in an order that no write changes."""
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


def _values(reader: Reader, label_list: Sequence[str]) -> dict[str, Any]:
    return {
        **reach_parameters(reader.reach),
        "commons": reader.reach.commons.namespace,
        "now": to_micros(reader.now),
        **{f"label_{place}": label for place, label in enumerate(label_list)},
    }


def _with_vector(row: Any, embedder: str) -> Record:
    record = record_of(row)
    more: dict[str, Any] = {"is_archived": True} if row.is_archived else {}
    if row.vector is not None:
        first, *_ = np.frombuffer(row.vector, dtype="<f4").reshape(row.vectors, -1)
        more["embedding"] = Embedding(embedder, first)
    return replace(record, **more) if more else record
