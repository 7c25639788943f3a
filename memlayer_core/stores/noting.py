"""Writing records in SQL: remembering, changing, forgetting. Each function runs in its caller's transaction.

What a write locks, it locks in this order: messages, users, records. So a user's row keeps the writes to that user's
records in one line, and nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.record_ports import Noted
from memlayer_core.records.record import Record
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.rules.records import confirmed, memory_id, ordinal_of
from memlayer_core.stores import lexical, record_index, shown
from memlayer_core.stores.owed import owe
from memlayer_core.stores.record_rows import (
    changing,
    columns_of,
    labels_of,
    record_of,
    shelf_of,
    shelf_of_row,
)
from memlayer_core.stores.remembered import OWN
from memlayer_core.stores.rows import shard_of, to_micros
from memlayer_core.stores.schema import jobs, labels, namespaces, records, vectors
from memlayer_core.stores.transcript import chunks, reached

__all__ = ["accessed", "forget", "forget_all", "remember", "restore", "revise"]

_IN_FORCE = records.c.replaced_by.is_(None)


def remember(connection: Connection, noted: Noted, now: datetime, shards: int) -> Record:
    """Store a record; where its words are in force, confirm the one that says them."""
    owner = noted.record.owner
    _hold_own(connection, owner, shards)
    row = _same_words(connection, noted.digest)
    if row is None:
        return _add(connection, noted, _count(connection, owner), now, shards)
    record = confirmed(record_of(row), noted.record, now)
    connection.execute(update(records).where(records.c.number == row.number).values(changing(record)))
    return record


def revise(
    connection: Connection,
    reach: Scope,
    record_id: str,
    others: Sequence[str],
    change: Callable[[Record, Sequence[Record]], Noted],
    now: datetime,
    shards: int,
) -> Record:
    """Put what `change` makes of a record, and of others that it takes in, in their place."""
    ids = [record_id, *others]
    shown.drop(connection, [-_find(connection, reach, one).number for one in ids])
    _hold(connection, reach, shards)
    rows = [_find(connection, reach, one) for one in ids]
    stored, *taken = map(record_of, rows)
    noted = change(stored, taken)
    if noted.record == stored and not taken:
        return stored
    _replace(connection, rows, rows[0].ordinal, now)
    same = _same_words(connection, noted.digest)
    if same is not None:
        raise InvalidRecordError(
            f"the record {memory_id(same.user_id, same.ordinal)!r} says the same",
            hint="Merge them: `chat.revise(…, merge=[…])`, or forget one of them.",
        )
    return _add(connection, noted, rows[0].ordinal, now, shards)


def forget(connection: Connection, reach: Scope, record_id: str, now: datetime) -> bool:
    """Delete a record with every version of it, and whatever it took in. Returns whether there was one."""
    user_id, ordinal = ordinal_of(record_id)
    if user_id != reach.user_id:
        return False
    gone, found = set[int](), {ordinal}
    while found - gone:
        gone |= found
        taken_in = select(records.c.ordinal).where(OWN, records.c.replaced_by.in_(gone))
        found = set(connection.scalars(taken_in, reached(reach)))
    return forget_all(connection, reach, records.c.ordinal.in_(gone), now) > 0


def forget_all(connection: Connection, reach: Scope, which: Any, now: datetime) -> int:
    """Delete a user's records that meet a condition, with every version of them. Returns how many records."""
    query = select(records).where(OWN, which)
    keys = [-row.number for row in connection.execute(query, reached(reach))]
    if not keys:
        return 0
    shown.drop(connection, keys)
    record_index.hold(connection, [reach.namespace, reach.commons.namespace])
    rows = connection.execute(query, reached(reach)).all()
    _take_away(connection, [row for row in rows if row.replaced_by is None], now)
    for some in chunks([row.number for row in rows]):
        connection.execute(delete(labels).where(labels.c.number.in_(some)))
        connection.execute(delete(records).where(records.c.number.in_(some)))
    lexical.purge(connection)
    return len({row.ordinal for row in rows})


def restore(connection: Connection, versions: Sequence[Noted], now: datetime, shards: int) -> bool:
    """Store a record that comes from elsewhere, the oldest version first. Returns whether anything was new."""
    newest = versions[-1]
    owner, ordinal = newest.record.owner, ordinal_of(newest.record.memory_id)[1]
    shown.drop(connection, [-row.number for row in _versions(connection, owner, ordinal)])
    _hold(connection, owner, shards)
    if newest.record.replaced_by is None and _same_words(connection, newest.digest) is not None:
        return False
    here = {row.version: row for row in _versions(connection, owner, ordinal)}
    known = {version: bytes(row.digest) for version, row in here.items()}
    coming = {noted.record.version: noted.digest for noted in versions}
    if coming.items() <= known.items():
        return False  # it is here, and may have gone on
    if known.items() <= coming.items():
        _count(connection, owner, ordinal)
        _replace(connection, list(here.values()), ordinal, now)
        versions = [noted for noted in versions if noted.record.version not in here]
    elif newest.record.replaced_by is not None and _ever_said(connection, owner, newest.digest):
        return False
    else:
        versions = _renumbered(versions, owner, _count(connection, owner))
    for noted in versions:
        _add(connection, noted, ordinal_of(noted.record.memory_id)[1], now, shards)
    return True


def _renumbered(versions: Sequence[Noted], owner: Scope, ordinal: int) -> list[Noted]:
    """Return the versions of a record under another id: its own names another record here."""
    former, made = versions[-1].record.memory_id, memory_id(owner.user_id, ordinal)
    return [
        replace(
            noted,
            record=replace(
                noted.record,
                memory_id=made,
                replaced_by=made if noted.record.replaced_by == former else noted.record.replaced_by,
            ),
        )
        for noted in versions
    ]


def accessed(connection: Connection, keys: Sequence[int], now: datetime) -> None:
    """Note when records were recalled; a later moment that is noted already stays."""
    at = to_micros(now)
    for some in chunks([-key for key in keys]):
        earlier = or_(records.c.last_accessed.is_(None), records.c.last_accessed < at)
        connection.execute(
            update(records).where(records.c.number.in_(some), earlier).values(last_accessed=at)
        )


def _hold(connection: Connection, owner: Scope, shards: int) -> None:
    """Let nobody else write to a user's records, or to what the tenant shares, until the end.

    Both are locked in the order of their names, as everywhere.
    """
    for namespace in sorted([owner.namespace, owner.commons.namespace]):
        if namespace == owner.namespace:
            _hold_own(connection, owner, shards)
        else:
            record_index.hold(connection, [namespace])


def _hold_own(connection: Connection, owner: Scope, shards: int) -> None:
    """Let nobody else write to a user's records until the end. The user's row is made if need be."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    made = dialect.insert(namespaces).on_conflict_do_update(
        index_elements=["namespace"], set_={"shard": namespaces.c.shard}
    )
    connection.execute(made, _namespace_row(owner, shards))


def _namespace_row(shelf: Scope | Commons, shards: int) -> dict[str, Any]:
    return {
        "namespace": shelf.namespace,
        "tenant_id": shelf.tenant_id,
        "user_id": shelf.user_id if isinstance(shelf, Scope) else "",
        "shard": shard_of(shelf.namespace, shards),
        "vectors": 0,
    }


def _count(connection: Connection, owner: Scope, given: int = 0) -> int:
    """Return the number of a user's next record, or note that a number is given; none is given twice."""
    highest = namespaces.c.records
    counted = update(namespaces).where(namespaces.c.namespace == owner.namespace)
    if given:
        connection.execute(counted.where(highest < given).values(records=given))
        return given
    next_one = connection.execute(counted.values(records=highest + 1).returning(highest)).scalar_one()
    return int(next_one)


def _add(connection: Connection, noted: Noted, ordinal: int, now: datetime, shards: int) -> Record:
    """Write a version of a record, and what it is found by where it is in force."""
    shelf = shelf_of(noted.record)
    row = columns_of(noted, ordinal)
    number = connection.execute(insert(records).values(row).returning(records.c.number)).scalar_one()
    named = labels_of(noted.record)
    if named:
        connection.execute(insert(labels), [{"number": number, "label": label} for label in sorted(named)])
    if noted.record.replaced_by is None:
        if isinstance(shelf, Commons):
            dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
            made = dialect.insert(namespaces).on_conflict_do_nothing()
            connection.execute(made, _namespace_row(shelf, shards))
        lexical.insert(connection, shelf, [(-number, noted.terms)])
        owe(connection, "index", [-number], shelf.namespace, now)
    return replace(noted.record, memory_id=memory_id(noted.record.user_id, ordinal))


def _replace(connection: Connection, rows: Sequence[Any], by: int, now: datetime) -> None:
    """Let versions that are in force give way to a record of that number."""
    given_up = [row for row in rows if row.replaced_by is None]
    _take_away(connection, given_up, now)
    for some in chunks([row.number for row in given_up]):
        connection.execute(update(records).where(records.c.number.in_(some)).values(replaced_by=by))


def _take_away(connection: Connection, rows: Sequence[Any], now: datetime) -> None:
    """Take away whatever records in force are found by."""
    lexical.delete(connection, [-row.number for row in rows])
    lost: dict[str, int] = {}
    shelves: dict[str, list[int]] = {}
    for row in rows:
        shelves.setdefault(shelf_of_row(row).namespace, []).append(-row.number)
    for namespace, keys in sorted(shelves.items()):
        for some in chunks(keys):
            gone = connection.execute(delete(vectors).where(vectors.c.key.in_(some))).rowcount
            lost[namespace] = lost.get(namespace, 0) + gone
            connection.execute(delete(jobs).where(jobs.c.kind == "index", jobs.c.subject.in_(some)))
        connection.execute(
            update(namespaces)
            .where(namespaces.c.namespace == namespace)
            .values(vectors=namespaces.c.vectors - lost[namespace])
        )
        owe(connection, "unindex", keys, namespace, now)


def _find(connection: Connection, reach: Scope, record_id: str) -> Any:
    """Return the row of a user's record in force.

    Raises:
        UnknownRecordError: There is none.
    """
    user_id, ordinal = ordinal_of(record_id)
    query = select(records).where(OWN, records.c.ordinal == ordinal, _IN_FORCE)
    row = connection.execute(query, reached(reach)).first() if user_id == reach.user_id else None
    if row is None:
        raise UnknownRecordError(
            f"the user {reach.user_id!r:.100} has no record {record_id!r:.100}",
            hint="`memory.records(user_id=…)` lists what there is; it may have been merged or forgotten.",
        )
    return row


def _same_words(connection: Connection, digest: bytes) -> Any | None:
    return connection.execute(select(records).where(records.c.digest == digest, _IN_FORCE)).first()


def _versions(connection: Connection, owner: Scope, ordinal: int) -> Sequence[Any]:
    these = and_(records.c.namespace == owner.namespace, records.c.ordinal == ordinal)
    return connection.execute(select(records).where(these).order_by(records.c.version)).all()


def _ever_said(connection: Connection, owner: Scope, digest: bytes) -> bool:
    said = exists().where(records.c.namespace == owner.namespace, records.c.digest == digest)
    return connection.scalar(select(said)) is True
