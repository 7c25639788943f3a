"""Writes records in SQL: remember, revise, forget. Each function runs in its caller's transaction.

Every write locks in this order: messages, owners, records (see `texts`). So writes to one user's records happen one after the other,
and there is no deadlock.

Each version of a record has its own key, so that no key ever means two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, and_, bindparam, case, delete, exists, insert, or_, select, update

from memlayer_core.errors import InvalidRecordError, UnknownRecordError
from memlayer_core.records.model import PreparedRecord, Record
from memlayer_core.records.rules.records import confirm, memory_id, ordinal_of
from memlayer_core.records.sql import evidence
from memlayer_core.records.sql.reads import OWN
from memlayer_core.records.sql.rows import (
    changing_columns,
    columns_of,
    labels_of,
    readers_of,
    record_of,
    shelf_of,
)
from memlayer_core.scope import Scope, SharedScope
from memlayer_core.storage import texts
from memlayer_core.storage.job_queue import enqueue_erasure
from memlayer_core.storage.keys import chunks, reach_parameters, shard_of, to_micros
from memlayer_core.storage.statements import Statement, dialect_insert
from memlayer_core.storage.tables import labels, namespaces, records

__all__ = [
    "add_version",
    "count",
    "delete_records",
    "forget",
    "forget_all",
    "hold",
    "hold_own",
    "list_rows",
    "note_recall",
    "remember",
    "restore",
    "revise",
    "same_words",
    "supersede",
    "take_away",
]

_DAY = 86_400_000_000  # microseconds
_IN_FORCE = records.c.replaced_by.is_(None)
_OWNED = Statement(
    select(records).where(
        OWN,
        or_(bindparam("session", type_=Text).is_(None), records.c.session_id == bindparam("session")),
    )
)


def remember(
    connection: Connection,
    draft: PreparedRecord,
    now: datetime,
    shards: int,
    narrow: Callable[[Record], PreparedRecord] | None = None,
) -> Record:
    """Store a record, and queue its index job. If a record in force has the same words, that one is confirmed instead.

    Args:
        connection: In a transaction that writes.
        draft: The record.
        now: The present.
        shards: Number of collections that users are spread over.
        narrow: Returns the confirmed record with access for the readers that both name; None: its access stays.
    """
    owner = draft.record.owner
    hold(connection, owner, shards)
    row = same_words(connection, draft.digest)
    if row is None:
        return add_version(connection, draft, count(connection, owner), now, shards)
    record = confirm(record_of(row), draft.record, now)
    narrowed = narrow(record) if narrow is not None else None
    if narrowed is not None and narrowed.record != record:
        supersede(connection, [row], row.ordinal, now)
        return add_version(connection, narrowed, row.ordinal, now, shards)
    connection.execute(update(records).where(records.c.number == row.number).values(changing_columns(record)))
    return record


def revise(
    connection: Connection,
    reach: Scope,
    record_id: str,
    others: Sequence[str],
    change: Callable[[Record, Sequence[Record]], PreparedRecord],
    now: datetime,
    shards: int,
) -> Record:
    """Replace a record, and others that are merged into it, by the result of `change`.

    If `change` raises, nothing is changed. If it changes nothing, there is no new version.

    Raises:
        UnknownRecordError: One of them is not in force, or not the user's.
        InvalidRecordError: Another record has the same words.
    """
    hold(connection, reach, shards)
    rows = [_find(connection, reach, one) for one in (record_id, *others)]
    stored, *taken = map(record_of, rows)
    noted = change(stored, taken)
    if noted.record == stored and not taken:
        return stored
    supersede(connection, rows, rows[0].ordinal, now)
    same = same_words(connection, noted.digest)
    if same is not None:
        raise InvalidRecordError(
            f"the record {memory_id(same.user_id, same.ordinal)!r} says the same",
            hint="Merge them: `chat.revise(…, merge=[…])`, or forget one of them.",
        )
    return add_version(connection, noted, rows[0].ordinal, now, shards)


def forget(connection: Connection, reach: Scope, record_id: str, now: datetime) -> bool:
    """Delete a record with every version of it, and whatever it took in. Returns whether there was one."""
    user_id, ordinal = ordinal_of(record_id)
    if user_id != reach.user_id:
        return False
    gone, found = set[int](), {ordinal}
    while found - gone:
        gone |= found
        merged = and_(
            records.c.replaced_by.in_(gone), records.c.about.is_(None)
        )  # a past fact is not taken in
        taken_in = select(records.c.ordinal).where(OWN, merged)
        found = set(connection.scalars(taken_in, reach_parameters(reach)))
    return forget_all(connection, reach, records.c.ordinal.in_(gone), now) > 0


def forget_all(connection: Connection, reach: Scope, condition: Any, now: datetime) -> int:
    """Delete a user's records that meet a condition, with every version of them. Returns how many records."""
    query = select(records).where(OWN, condition)
    if connection.execute(query, reach_parameters(reach)).first() is None:
        return 0
    texts.lock_owners(connection, [reach.namespace, reach.commons.namespace])
    return delete_records(connection, connection.execute(query, reach_parameters(reach)).all(), now)


def list_rows(connection: Connection, reach: Scope) -> list[Any]:
    """Return the rows of every version of a user's records: of one agent or one session, if the scope names it."""
    return _OWNED.all(connection, {**reach_parameters(reach.reach()), "session": reach.session_id})


def delete_records(connection: Connection, rows: Sequence[Any], now: datetime) -> int:
    """Delete records, of which these are all versions. They are locked. Returns how many records."""
    if not rows:
        return 0
    take_away(connection, [row for row in rows if row.replaced_by is None], now)
    for namespace in {row.namespace for row in rows}:
        evidence.release(connection, namespace, {row.ordinal for row in rows if row.namespace == namespace})
    for some in chunks([row.number for row in rows]):
        connection.execute(delete(labels).where(labels.c.number.in_(some)))
        connection.execute(delete(records).where(records.c.number.in_(some)))
    enqueue_erasure(connection, now)
    return len({row.ordinal for row in rows})


def restore(connection: Connection, versions: Sequence[PreparedRecord], now: datetime, shards: int) -> bool:
    """Store a record that comes from elsewhere, the oldest version first. Returns whether anything was stored.

    One whose words are in force here, or that is here already, as it is or further on, is left alone.
    Where its id is another record's, it gets a new one.
    """
    newest = versions[-1]
    owner, ordinal = newest.record.owner, ordinal_of(newest.record.memory_id)[1]
    hold(connection, owner, shards)
    if newest.record.replaced_by is None and same_words(connection, newest.digest) is not None:
        return False
    here = {row.version: row for row in _versions(connection, owner, ordinal)}
    known = {version: bytes(row.digest) for version, row in here.items()}
    coming = {noted.record.version: noted.digest for noted in versions}
    if coming.items() <= known.items():
        return False  # it is here, and may have gone on
    if known.items() <= coming.items():
        count(connection, owner, ordinal)
        supersede(connection, list(here.values()), ordinal, now)
        versions = [noted for noted in versions if noted.record.version not in here]
    elif newest.record.replaced_by is not None and _ever_said(connection, owner, newest.digest):
        return False
    else:
        versions = _renumbered(versions, owner, count(connection, owner))
    for noted in versions:
        add_version(connection, noted, ordinal_of(noted.record.memory_id)[1], now, shards)
    return True


def _renumbered(versions: Sequence[PreparedRecord], owner: Scope, ordinal: int) -> list[PreparedRecord]:
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


def note_recall(connection: Connection, keys: Sequence[int], now: datetime) -> None:
    """Note when records were recalled, and on how many days; a later moment that is noted already stays."""
    at = to_micros(now)
    first_today = or_(records.c.last_accessed.is_(None), records.c.last_accessed < at - at % _DAY)
    noted = {"last_accessed": at, "accesses": records.c.accesses + case((first_today, 1), else_=0)}
    for some in chunks(keys):
        earlier = or_(records.c.last_accessed.is_(None), records.c.last_accessed < at)
        connection.execute(update(records).where(records.c.key.in_(some), earlier).values(noted))


def hold(connection: Connection, owner: Scope, shards: int) -> None:
    """Lock a user's records and the tenant's shared ones until the transaction ends.

    Both are locked in the order of their names, as everywhere.
    """
    for namespace in sorted([owner.namespace, owner.commons.namespace]):
        if namespace == owner.namespace:
            hold_own(connection, owner, shards)
        else:
            texts.lock_owners(connection, [namespace])


def hold_own(connection: Connection, owner: Scope, shards: int) -> None:
    """Lock a user's records until the transaction ends. The user's row is created if needed."""
    made = dialect_insert(connection.dialect.name, namespaces).on_conflict_do_update(
        index_elements=["namespace"], set_={"shard": namespaces.c.shard}
    )
    connection.execute(made, _namespace_row(owner, shards))


def _namespace_row(shelf: Scope | SharedScope, shards: int) -> dict[str, Any]:
    return {
        "namespace": shelf.namespace,
        "tenant_id": shelf.tenant_id,
        "user_id": shelf.user_id if isinstance(shelf, Scope) else "",
        "shard": shard_of(shelf.namespace, shards),
        "vectors": 0,
    }


def count(connection: Connection, owner: Scope, ordinal: int = 0) -> int:
    """Return the number of a user's next record, or note that `ordinal` is used. No number is used twice."""
    highest = namespaces.c.records
    counted = update(namespaces).where(namespaces.c.namespace == owner.namespace)
    if ordinal:
        connection.execute(counted.where(highest < ordinal).values(records=ordinal))
        return ordinal
    next_one = connection.execute(counted.values(records=highest + 1).returning(highest)).scalar_one()
    return int(next_one)


def add_version(
    connection: Connection,
    draft: PreparedRecord,
    ordinal: int,
    now: datetime,
    shards: int,
    *,
    is_filed: bool = True,
) -> Record:
    """Write a version of a record, and index it if it is in force, not archived by an import, and `is_filed`."""
    shelf = shelf_of(draft.record)
    row = columns_of(draft, ordinal)
    stored = connection.execute(insert(records).values(row).returning(records.c.number, records.c.key)).one()
    named = [{"number": stored.number, "label": label} for label in sorted(labels_of(draft.record))]
    if named:
        connection.execute(insert(labels), named)
    if draft.record.replaced_by is None and draft.record.archived_because is None and is_filed:
        if isinstance(shelf, SharedScope):
            made = dialect_insert(connection.dialect.name, namespaces).on_conflict_do_nothing()
            connection.execute(made, _namespace_row(shelf, shards))
        found = [(stored.key, draft.terms)]
        texts.add(connection, "record", shelf, found, now, readers_of(draft.record))
    return replace(draft.record, memory_id=memory_id(draft.record.user_id, ordinal))


def supersede(connection: Connection, rows: Sequence[Any], ordinal: int, now: datetime) -> None:
    """Replace versions in force by the record of this number."""
    given_up = [row for row in rows if row.replaced_by is None]
    take_away(connection, given_up, now)
    for some in chunks([row.number for row in given_up]):
        connection.execute(update(records).where(records.c.number.in_(some)).values(replaced_by=ordinal))


def take_away(connection: Connection, rows: Sequence[Any], now: datetime) -> None:
    """Delete everything that finds these records."""
    shelves: dict[str, list[int]] = {}
    for row in rows:
        shelves.setdefault(row.shelf, []).append(row.key)
    for namespace, some in sorted(shelves.items()):
        texts.remove(connection, namespace, some, now)


def _find(connection: Connection, reach: Scope, record_id: str) -> Any:
    """Return the row of a user's record in force.

    Raises:
        UnknownRecordError: There is none.
    """
    user_id, ordinal = ordinal_of(record_id)
    query = select(records).where(OWN, records.c.ordinal == ordinal, _IN_FORCE)
    row = connection.execute(query, reach_parameters(reach)).first() if user_id == reach.user_id else None
    if row is None:
        raise UnknownRecordError(
            f"the user {reach.user_id!r:.100} has no record {record_id!r:.100}",
            hint="`memory.records(user_id=…)` lists the user's records; this one may be merged or forgotten.",
        )
    return row


def same_words(connection: Connection, digest: bytes) -> Any | None:
    """Return the row of the record in force with these words; None if there is none."""
    return connection.execute(select(records).where(records.c.digest == digest, _IN_FORCE)).first()


def _versions(connection: Connection, owner: Scope, ordinal: int) -> Sequence[Any]:
    these = and_(records.c.namespace == owner.namespace, records.c.ordinal == ordinal)
    return connection.execute(select(records).where(these).order_by(records.c.version)).all()


def _ever_said(connection: Connection, owner: Scope, digest: bytes) -> bool:
    said = exists().where(records.c.namespace == owner.namespace, records.c.digest == digest)
    return connection.scalar(select(said)) is True
