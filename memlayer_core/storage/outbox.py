"""What must be copied to Chroma: the keys of texts with new, changed or deleted vectors, marked in the same transaction.

Chroma is a copy that may be thrown away whole. Its collections are numbered: users share the first ones, and a user
with many vectors gets a separate one. Each batch that is written to a collection has a random name, which its metadata
and a row of `meta` have, too. Where they differ, the collection is of another time or another server: it is dropped,
and all of its keys are marked again.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa

from memlayer_core.scope import Reach
from memlayer_core.seams import IndexEntry
from memlayer_core.storage import blobs, jobs as storage_jobs, statements
from memlayer_core.storage.statements import ListStatement, Statement, is_item
from memlayer_core.storage.tables import jobs, meta, namespaces, outbox, texts

_GATHERING = timedelta(hours=1)
"""How long deleted vectors may stay in Chroma's files unless somebody flushes: to erase them, the collection is filled again."""
_INDEX = "index"
"""The row of `meta` that a store has since a process with an index opened it: which job may write to it, and until when. With a
number, a collection's row: the names of its last batches."""
_STALE = "stale:"  # with the number of a collection whose files have deleted vectors: the row of `meta` that says since when
_IS_STALE = meta.c.name.startswith(_STALE)
_NOW = "0"  # in the place of that time: the files are to be erased of them at once
EMBEDDED = texts.c.vectors.is_not(None)
"""The condition that texts have their vectors; the indexes of the table contain no others."""
IS_PROJECTED = sa.exists().where(meta.c.name == _INDEX)
"""The condition that vectors of this store go to an index."""

OWNED = texts.join(namespaces, namespaces.c.namespace == texts.c.namespace)
"""Texts, each with the row of its namespace."""
_BEFORE = sa.select(outbox).where(outbox.c.key <= sa.bindparam("until"))
_FIRST = Statement(_BEFORE.order_by(outbox.c.shard, outbox.c.key).limit(sa.bindparam("most")))
_IS_ON = outbox.c.shard == sa.bindparam("on")
_HERE = Statement(sa.select(outbox.c.key).where(_IS_ON).limit(sa.bindparam("most")))
_NAME = Statement(sa.select(meta.c.value).where(meta.c.name == sa.bindparam("of")))
_OWN_ROWS = sa.select(texts, namespaces.c.shard).select_from(OWNED)
_ROWS = statements.rows_by(_OWN_ROWS.where(EMBEDDED), texts.c.key)
_THERE = ListStatement(sa.select(texts.c.key).where(is_item(texts.c.key), EMBEDDED))
_IS_SAME = outbox.c.key == sa.bindparam("of"), outbox.c.version == sa.bindparam("seen")
_DONE = Statement(sa.delete(outbox).where(_IS_ON, *_IS_SAME))
_HOLD = Statement(sa.update(meta).where(meta.c.name == _INDEX).values(value=sa.bindparam("by")))


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """One batch for a collection.

    Attributes:
        shard: Number of the collection.
        versions: The marked keys, with the versions of their marks.
        entries: The vectors of those that have some; the others leave the collection.
        made_for: Identity and dimension of the embedder that made them.
        before: Names of the batches that the collection may have got last; with an empty one, there may be no collection.
        name: The name of this one.
    """

    shard: int
    versions: Mapping[int, int]
    entries: Sequence[IndexEntry]
    made_for: tuple[str, int]
    before: tuple[str, ...] = ("",)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def stale(self) -> list[int]:
        """The keys for which the collection may have something outdated."""
        new = {entry.key for entry in self.entries}
        return [key for key, version in self.versions.items() if version > 1 or key not in new]


def is_projected(connection: sa.Connection) -> bool:
    """Return whether vectors of this store go to an index."""
    return bool(connection.scalar(sa.select(IS_PROJECTED)))


def begin(connection: sa.Connection) -> None:
    """Mark what a store has, once: from now on its vectors go to an index."""
    if statements.note(connection, _INDEX, ""):
        _mark_where(connection, sa.true())


def mark(connection: sa.Connection, keys: Sequence[int]) -> None:
    """Mark texts whose vectors were stored, or will be deleted in this transaction."""
    _MARK.run(connection, keys)


def mark_removed(connection: sa.Connection, shard: int, keys: Sequence[int], now: datetime) -> None:
    """Mark texts that will be deleted in this transaction, and the files of their collection."""
    mark(connection, keys)
    statements.note(connection, f"{_STALE}{shard}", str(statements.to_micros(now)))


def refill(connection: sa.Connection, shards: Collection[int], now: datetime) -> int:
    """Mark all texts of some collections, which are empty by now. Returns how many vectors they have."""
    names = [name for shard in shards for name in (f"{_INDEX}:{shard}", f"{_STALE}{shard}")]
    connection.execute(sa.delete(meta).where(meta.c.name.in_(names)))
    connection.execute(sa.delete(outbox).where(outbox.c.shard.in_(shards)))  # there is nothing to delete
    within = namespaces.c.shard.in_(shards)
    _mark_where(connection, within)
    check(connection, now)
    return int(connection.scalar(sa.select(sa.func.sum(namespaces.c.vectors)).where(within)) or 0)


def stale(connection: sa.Connection) -> list[int]:
    """Return the collections whose files are to be erased of deleted vectors now."""
    due = sa.select(meta.c.name).where(_IS_STALE, meta.c.value == _NOW)
    return [int(name.removeprefix(_STALE)) for name in connection.scalars(due)]


def leave(connection: sa.Connection) -> None:
    """Take back the marks of files with deleted vectors: a server erases its files itself."""
    connection.execute(sa.delete(meta).where(_IS_STALE))


def newest(connection: sa.Connection) -> int:
    """Return the newest key of a text, or of one that was deleted and is marked."""
    return max(connection.scalar(sa.select(sa.func.max(one.c.key))) or 0 for one in (texts, outbox))


def owe(
    connection: sa.Connection, now: datetime, until: int = statements.LAST, *, at_once: bool = False
) -> bool:
    """Queue a job for what is marked. Returns whether anything is.

    Args:
        connection: In a transaction that writes.
        now: The present.
        until: Newer texts than that of this key do not count: others may be written all the time.
        at_once: Whether files are erased of deleted vectors at once, and not an hour after the first was deleted.
    """
    latest = str(statements.to_micros(now if at_once else now - _GATHERING))  # all have as many digits
    due = connection.execute(sa.update(meta).where(_IS_STALE, meta.c.value <= latest).values(value=_NOW))
    is_marked = connection.scalar(sa.select(outbox.c.key).where(outbox.c.key <= until).limit(1)) is not None
    if is_marked or due.rowcount:
        check(connection, now)
    return is_marked or due.rowcount > 0


def count(connection: sa.Connection, until: int) -> int:
    """Return how many texts are marked, of those up to a key."""
    return connection.scalar(sa.select(sa.func.count()).where(outbox.c.key <= until)) or 0


def check(connection: sa.Connection, now: datetime) -> None:
    """Queue a job of kind `"copy"`, which begins with a look whether the collections are those that the journal knows."""
    storage_jobs.enqueue_once(connection, "copy", [0], now)


def condemn(connection: sa.Connection, shard: int, now: datetime) -> None:
    """Note that a collection is damaged: the next job of kind `"copy"` drops it and fills it again."""
    statements.set_note(connection, f"{_INDEX}:{shard}", "damaged")
    check(connection, now)


def separate(connection: sa.Connection, few: int, shared: int, capacity: int, now: datetime) -> None:
    """Give each user who has more than `few` vectors a separate collection, as long as there are fewer than `capacity`."""
    every = sa.select(namespaces).where(namespaces.c.vectors > few, namespaces.c.shard < shared)
    if not (large := connection.execute(every.limit(capacity)).all()):
        return
    newest = max(shared - 1, connection.scalar(sa.select(sa.func.max(namespaces.c.shard))) or 0)
    alone = sa.select(sa.func.count()).select_from(namespaces).where(namespaces.c.shard >= shared)
    left = max(0, capacity - shared - (connection.scalar(alone) or 0))
    for number, row in enumerate(large[:left], newest + 1):
        is_theirs = namespaces.c.namespace == row.namespace
        _mark_where(connection, is_theirs)  # they leave the collection that others share
        connection.execute(sa.update(namespaces).where(is_theirs).values(shard=number))
        _mark_where(connection, is_theirs)
        mark_removed(connection, row.shard, [], now)


def has_large(connection: sa.Connection, few: int) -> bool:
    """Return whether a user has more vectors than are compared one by one."""
    return bool(connection.scalar(sa.select(sa.exists().where(namespaces.c.vectors > few))))


def batches(connection: sa.Connection) -> dict[int, tuple[str, ...]]:
    """Return for each collection the names of the batches that it may have got last."""
    rows = connection.execute(sa.select(meta).where(meta.c.name.startswith(f"{_INDEX}:")))
    return {int(row.name.partition(":")[2]): tuple(row.value.split(" ")) for row in rows}


def sizes(connection: sa.Connection) -> dict[int, int]:
    """Return how many vectors each collection has, without those of marked texts."""
    counted = sa.select(namespaces.c.shard, sa.func.sum(namespaces.c.vectors).label("number"))
    counted = counted.where(namespaces.c.shard.not_in(sa.select(outbox.c.shard))).group_by(namespaces.c.shard)
    return {row.shard: int(row.number) for row in connection.execute(counted)}


def take(connection: sa.Connection, job: storage_jobs.Job, now: datetime, until: datetime) -> bool:
    """Let a job alone write to the index until then. Returns False if another one may at the moment."""
    named = sa.select(meta.c.value).where(meta.c.name == _INDEX).with_for_update()
    holder, _, ends = (connection.scalar(named) or "").partition(" ")
    if holder not in {"", str(job.id)} and int(ends) > statements.to_micros(now):
        return False
    return _is_held(connection, job, until)


def give_back(connection: sa.Connection, job: storage_jobs.Job) -> None:
    """Let another job write to the index: this one is done."""
    if storage_jobs.finish_once(connection, [job]):
        _HOLD.run(connection, {"by": ""})


def begin_batch(
    connection: sa.Connection,
    job: storage_jobs.Job,
    until: datetime,
    limit: int,
    made_for: tuple[str, int],
    newest: int,
) -> VectorBatch | None:
    """Return the next batch for one collection; None if there is nothing, or if another process has the job by now.

    Args:
        connection: In a transaction that writes.
        job: The job, whose lease is extended.
        until: When the lease ends.
        limit: Maximum number of texts.
        made_for: Identity and dimension of the embedder.
        newest: Newer texts than that of this key wait for the next job.
    """
    if not _is_held(connection, job, until):
        return None
    every = _FIRST.all(connection, {"most": limit, "until": newest})
    if not every:
        return None
    shard = every[0].shard
    marked = {row.key: row.version for row in every if row.shard == shard}
    entries = [blobs.entry_of(row) for row in _ROWS.all(connection, list(marked)) if row.shard == shard]
    known = _NAME.first(connection, {"of": f"{_INDEX}:{shard}"})
    names = "" if known is None else known.value
    batch = VectorBatch(shard, marked, entries, made_for, tuple(names.split(" ")))
    statements.set_note(connection, f"{_INDEX}:{shard}", f"{names} {batch.name}")
    return batch


def end_batch(connection: sa.Connection, job: storage_jobs.Job, batch: VectorBatch, until: datetime) -> bool:
    """Take the marks of a batch back that were not renewed. Returns False if another process has the job by now.

    What was deleted since gets its mark again: a process that was paused may have brought it back.
    """
    keys = [entry.key for entry in batch.entries]
    gone = set(keys).difference(row.key for row in _THERE.all(connection, keys))
    is_held = _is_held(connection, job, until)
    if is_held:
        done = ({"on": batch.shard, "of": key, "seen": seen} for key, seen in batch.versions.items())
        _DONE.run(connection, *done)
        statements.set_note(connection, f"{_INDEX}:{batch.shard}", batch.name)
    if gone:
        again = statements.dialect_insert(connection.dialect.name, outbox).on_conflict_do_nothing()
        connection.execute(again, [{"shard": batch.shard, "key": key, "version": 2} for key in gone])
    return is_held


def search_state(
    connection: sa.Connection, reach: Reach, shard: int, limit: int
) -> tuple[tuple[str, ...], list[int]] | None:
    """Return the batches that a collection may have got last, and the marked texts in a scope, which it may lack.

    None if it is not filled yet: there are more than `limit`.
    """
    known = _NAME.first(connection, {"of": f"{_INDEX}:{shard}"})
    waiting = [row.key for row in _HERE.all(connection, {"on": shard, "most": limit + 1})]
    if known is None or len(waiting) > limit:
        return None
    bucket = {"a": texts.c.agent_bucket, "s": texts.c.session_bucket}.get(reach.bucket[0])
    within = texts.c.namespace == reach.namespace if bucket is None else bucket == reach.bucket
    there = sa.select(texts.c.key).where(within, EMBEDDED, texts.c.key.in_(waiting))
    return tuple(known.value.split(" ")), list(connection.scalars(there)) if waiting else []


def _is_held(connection: sa.Connection, job: storage_jobs.Job, until: datetime) -> bool:
    """Extend the lease of a job, and of the index. Returns False if another process has the job by now."""
    same = jobs.c.id == job.id, jobs.c.attempts == job.attempts
    due = statements.to_micros(until)
    if connection.execute(sa.update(jobs).where(*same).values(due=due)).rowcount != 1:
        return False
    _HOLD.run(connection, {"by": f"{job.id} {due}"})
    return True


def _marking(dialect: str, condition: sa.ColumnElement[bool]) -> sa.Executable:
    every = sa.select(namespaces.c.shard, texts.c.key, sa.literal(1)).select_from(OWNED)
    marked = statements.dialect_insert(dialect, outbox)
    marked = marked.from_select(["shard", "key", "version"], every.where(EMBEDDED, condition))
    version = outbox.c.version + 1
    return marked.on_conflict_do_update(index_elements=["shard", "key"], set_={"version": version})


_MARK = ListStatement(lambda dialect: _marking(dialect, is_item(texts.c.key)))


def _mark_where(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> None:
    connection.execute(_marking(connection.dialect.name, condition))
