"""The journal on SQL: which function runs in which transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Connection

from memlayer_core.ports import Draft, Journal
from memlayer_core.records.candidate import Candidate, Postings
from memlayer_core.records.context import Recalled
from memlayer_core.records.item import Folder
from memlayer_core.records.job import Backlog, Job, JobKind
from memlayer_core.records.message import Beside, Entry, Message, Receipt, Stored
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.records.session import Forgotten, Layout, Mark, Overview, Particulars, Session, Synced
from memlayer_core.records.summary import Cost, Summary
from memlayer_core.records.vector import Filing, FloatVector, Neighbour, Sample, Unindexed
from memlayer_core.rules.align import said
from memlayer_core.stores import (
    candidates,
    conversation,
    embeddings,
    lexical,
    lifetime,
    marks,
    owed,
    restored,
    resync,
    revision,
    rows,
    shown,
    summaries,
    transcript,
)
from memlayer_core.stores.database import Database, PinnedDatabase
from memlayer_core.stores.item_journal import SqlItemJournal
from memlayer_core.stores.list_journal import SqlListJournal
from memlayer_core.stores.migration import migrate
from memlayer_core.stores.record_journal import SqlRecordJournal

__all__ = ["SqlJournal"]

T = TypeVar("T")


class SqlJournal(SqlRecordJournal, SqlListJournal, SqlItemJournal):
    """Implements `memlayer_core.ports.Journal` on SQLite and PostgreSQL.

    Args:
        database: Where it lives.
        shards: Collections that users are spread over, for a store that is made now.

    Raises:
        NewerSchemaError: A newer memlayer has written the store.
        StoreUnavailableError: The database does not answer.
    """

    def __init__(self, database: Database, shards: int) -> None:
        self._db = database
        self._counts: dict[str, int] = {}
        try:
            database.write(lambda c: migrate(c, shards=shards))
            self._shards = self.layout().shards
        except BaseException:
            database.close()
            raise

    def at_once(self, work: Callable[[Journal], T]) -> T:
        """Run several reads on one snapshot."""
        return self._db.read(lambda c: work(self._pinned(c)))

    def _pinned(self, connection: Connection) -> SqlJournal:
        pinned = object.__new__(SqlJournal)
        pinned._db, pinned._shards = PinnedDatabase(connection), self._shards
        pinned._counts = self._counts
        return pinned

    def append(
        self,
        scope: Scope,
        drafts: Sequence[Draft],
        now: datetime,
        *,
        verbatim: bool = False,
        beside: Beside | None = None,
    ) -> Receipt:
        """Store messages at the end of a session, each with the job that indexes it."""
        return self._db.write(
            lambda c: conversation.append(
                c, scope, drafts, now, self._shards, verbatim=verbatim, beside=beside
            )
        )

    def beside(self, keys: Sequence[int]) -> dict[int, Beside]:
        """Return the recalled text that stands with those messages, by their keys."""
        return self._db.read(lambda c: shown.read(c, keys))

    def shown(self, session: Session, limit: int, offset: int) -> list[Recalled]:
        """Return what was recalled for a session's questions, the newest first."""
        return self._db.read(lambda c: shown.listed(c, session.number, limit, offset))

    def rewrite(self, scope: Scope, drafts: Sequence[Draft], now: datetime) -> Receipt:
        """Make a session's messages exactly `drafts`; a common beginning is left as it is."""
        return self._db.write(lambda c: conversation.rewrite(c, scope, drafts, now, self._shards))

    def restore(
        self, scope: Scope, drafts: Sequence[Draft], known: Particulars, now: datetime, *, exactly: bool
    ) -> Receipt:
        """Store a session that comes from elsewhere: exactly that, or what it does not have yet."""
        kept = restored.exactly if exactly else restored.merged
        return self._db.write(lambda c: kept(c, scope, drafts, known, now, self._shards))

    def clear(self, scope: Scope, now: datetime) -> int:
        """Delete a session's messages, and owe their removal from the index. Returns how many."""
        return self._db.write(lambda c: conversation.clear(c, scope, now))

    def session(self, scope: Scope) -> Session | None:
        """Return a session's running totals."""
        return self._db.read(lambda c: transcript.find(c, scope))

    def places(self, session: Session, ids: Sequence[str]) -> dict[str, int]:
        """Return the places of a session's messages by their ids; those that it does not have are missing."""
        return self._db.read(lambda c: transcript.places(c, session, ids))

    def sessions(self, reach: Scope, limit: int, offset: int, *, superseded: bool = False) -> list[Session]:
        """Return the sessions within reach, the last used first; superseded ones only if asked for."""
        return self._db.read(lambda c: transcript.listed(c, reach, limit, offset, superseded=superseded))

    def rename(self, scope: Scope, title: str | None) -> bool:
        """Give a session a title, or take it away. Returns whether there is such a session."""
        return self._db.write(lambda c: lifetime.rename(c, scope, title))

    def end(self, scope: Scope, now: datetime, least: int | None = None) -> Session | None:
        """Let a session's working memory begin anew. Returns what it was, None where there was nothing to end."""
        return self._db.write(lambda c: lifetime.end(c, scope, now, least))

    def end_idle(
        self, before: datetime, limit: int, now: datetime, least: int | None = None
    ) -> list[Session]:
        """End sessions that nobody wrote to since `before`, the longest idle ones first; what they were."""
        if not self._db.read(lambda c: lifetime.is_idle(c, before)):
            return []
        return self._db.write(lambda c: lifetime.end_idle(c, before, limit, now, least))

    def forget(self, reach: Scope, now: datetime) -> Forgotten:
        """Delete everything within reach, a user's, a user's with one agent, or a session's, for good."""
        return self._db.write(lambda c: lifetime.forget(c, reach, now))

    def delete(self, scope: Scope, place: str | int, now: datetime) -> Message:
        """Delete one message, named by its id or its place. Returns it."""
        return self._db.write(lambda c: revision.delete(c, scope, place, now))

    def edit(
        self, scope: Scope, place: str | int, change: Callable[[Message], Draft], now: datetime
    ) -> Message:
        """Put what `change` makes of a message in its place; what it raises is raised, and nothing changed."""
        return self._db.write(lambda c: revision.edit(c, scope, place, change, now))

    def fork(
        self,
        scope: Scope,
        into: str,
        until: str | int | None,
        draft_of: Callable[[Message], Draft],
        now: datetime,
    ) -> int:
        """Copy a session's messages, up to and with one of them, into a new session. Returns how many."""
        return self._db.write(lambda c: revision.fork(c, scope, into, until, draft_of, now, self._shards))

    def resync(
        self, scope: Scope, drafts: Sequence[Draft], now: datetime, fork_id: str, *, replacing: bool
    ) -> Synced:
        """Bring a session to what a list says; what is superseded goes to the session `fork_id`."""
        sent = [said(draft.message, named=draft.given_id) for draft in drafts]  # before others have to wait
        return self._db.write(
            lambda c: resync.resync(c, scope, drafts, sent, now, self._shards, fork_id, replacing=replacing)
        )

    def inventory(self, tenant_id: str, user_id: str | None, after: int, limit: int) -> list[Session]:
        """Return sessions of a tenant, or of one user, with numbers above `after`, in their order."""
        return self._db.read(lambda c: transcript.inventory(c, tenant_id, user_id, after, limit))

    def tail(self, session: Session, before: int | None, limit: int, first: int = 0) -> list[Entry]:
        """Return the last `limit` entries (from place `first` on, before place `before`), newest first."""
        return self._db.read(lambda c: transcript.tail(c, session, before, limit, first))

    def mark(self, session: Session, size: int) -> Mark:
        """Return where the window of that size begins, and what stands before it."""
        return self._db.read(lambda c: marks.find(c, session, size))

    def move_mark(self, session: int, size: int, mark: Mark) -> None:
        """Note where the window of that size begins from now on; it only moves forward."""
        self._db.write(lambda c: marks.move(c, session, size, mark))

    def read(self, session: Session, seqs: Sequence[int]) -> list[Stored]:
        """Return those messages of a session, in their order; ones that are gone are left out."""
        return self._db.read(lambda c: transcript.read(c, session, seqs))

    def history(self, session: Session, after: int, limit: int | None, offset: int = 0) -> list[Stored]:
        """Return a session's messages behind place `after` (-1: all), without the first `offset` of them."""
        return self._db.read(lambda c: transcript.history(c, session, after, limit, offset))

    def spoken(self, reach: Scope | Commons, names: Collection[str]) -> set[str]:
        """Return which of those, as they are filed, are names of people who spoke within reach."""
        return self._db.read(lambda c: lexical.spoken(c, reach, names))

    def postings(self, reach: Scope | Commons | Folder, words: Sequence[str]) -> Postings:
        """Return in which messages and records within reach the words stand, as they are filed."""
        return self._db.read(lambda c: lexical.postings(c, reach, words, self._counts))

    def candidates(
        self,
        reach: Scope,
        keys: Sequence[int],
        near: Mapping[int, float],
        vector: FloatVector | None,
        beginning: int,
    ) -> list[Candidate]:
        """Return what recall weighs of the messages of those keys that lie within reach."""
        return self._db.read(lambda c: candidates.candidates(c, reach, keys, near, vector, beginning))

    def scan(self, reach: Scope | Commons | Folder, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Compare a vector with every one within reach, exactly."""
        return self._db.read(lambda c: embeddings.scan(c, reach, vector, limit))

    def records(self, reach: Scope, keys: Sequence[int]) -> list[Stored]:
        """Return the messages of those keys that lie within reach, in no particular order."""
        return self._db.read(lambda c: transcript.records(c, reach, keys))

    def overview(self, reach: Scope | Commons | Folder) -> Overview:
        """Return how much lies within reach, and how its shard is shared."""
        return self._db.read(lambda c: embeddings.overview(c, reach))

    def numbered(self, number: int) -> Session | None:
        """Return the session of a number."""
        return self._db.read(lambda c: transcript.numbered(c, number))

    def evicted(self, session: int, first: int, now: datetime) -> None:
        """Owe the session a summary of what lies before a place."""
        if not self._db.read(lambda c: summaries.is_owed(c, session, first)):
            self._db.write(lambda c: summaries.evicted(c, session, first, now))

    def summaries(self, session: Session, *, every: bool = False, as_of: int | None = None) -> list[Summary]:
        """Return what stands for a session's older turns, now or as of a version; every version if asked for."""
        if as_of is not None:
            return self._db.read(lambda c: summaries.as_of(c, session.number, as_of))
        read = summaries.every if every else summaries.in_force
        return self._db.read(lambda c: read(c, session.number))

    def summarized(
        self,
        session: Session,
        made: Sequence[tuple[Summary, Sequence[int]]],
        spent: Sequence[Cost],
        job: Job | None,
        now: datetime,
    ) -> bool:
        """Put summaries in the place of others, unless the session was changed since it was read."""
        seen = session.summary_version
        return self._db.write(lambda c: summaries.commit(c, session.number, seen, made, spent, job, now))

    def spend(self, spent: Sequence[Cost]) -> None:
        """Count up what models were paid for nothing that is kept."""
        self._db.write(lambda c: summaries.spend(c, spent))

    def costs(self) -> list[Cost]:
        """Return what models were paid, a line for each kind of work and model."""
        return self._db.read(summaries.ledger)

    def lease(
        self, kinds: Sequence[JobKind], limit: int, owner: str, now: datetime, until: datetime
    ) -> list[Job]:
        """Take jobs that are due; they become due again at `until` unless they are done by then."""
        return self._db.write(lambda c: owed.lease(c, kinds, limit, owner, now, until))

    def finish(self, done: Sequence[Job]) -> None:
        """Strike jobs off."""
        self._db.write(lambda c: owed.finish(c, done))

    def fail(self, failed: Sequence[Job], error: str, due: datetime | None, *, counted: bool = True) -> None:
        """Give jobs back until `due`, or to the dead letters when it is None.

        With `counted=False` the attempt does not bring them nearer to the dead letters.
        """
        self._db.write(lambda c: owed.fail(c, failed, error, due, counted=counted))

    def reclaim(self, owner: str, now: datetime) -> None:
        """Take back at once what others than `owner` hold: they ended without a word. Their attempts count."""
        self._db.write(lambda c: owed.reclaim(c, owner, now))

    def release(self, owner: str, now: datetime) -> None:
        """Give back every job that `owner` holds, without counting the attempt: it is going away."""
        self._db.write(lambda c: owed.release(c, owner, now))

    def revive(self, now: datetime) -> int:
        """Give every dead letter a new start. Returns how many there were."""
        return self._db.write(lambda c: owed.revive(c, now))

    def backlog(self) -> Backlog:
        """Count the jobs."""
        return self._db.read(owed.backlog)

    def unindexed(self, keys: Sequence[int]) -> list[Unindexed]:
        """Return what is to be indexed for those keys; deleted messages are left out."""
        return self._db.read(lambda c: embeddings.unindexed(c, keys))

    def file(self, given: Sequence[Filing]) -> None:
        """Keep vectors of messages that still exist. Filing one twice changes nothing."""
        self._db.write(lambda c: embeddings.file(c, given))

    def present(self, keys: Sequence[int]) -> set[int]:
        """Return those keys whose message exists."""
        return self._db.read(lambda c: embeddings.present(c, keys))

    def filings(self, shard: int | None, after: int, limit: int) -> list[Filing]:
        """Return kept vectors with keys above `after`, in their order, of one shard or of all."""
        return self._db.read(lambda c: embeddings.filings(c, shard, after, limit))

    def samples(self, probes: int) -> list[Sample]:
        """Return what each shard of an index should hold, with a few vectors of each."""
        return self._db.read(lambda c: embeddings.samples(c, self._shards, probes))

    def shard_of(self, namespace: str) -> int:
        """Return the collection that a user belongs to."""
        return rows.shard_of(namespace, self._shards)

    def layout(self) -> Layout:
        """Return what the store was made with."""
        return self._db.read(embeddings.layout)

    def settle(self, embedder: str, dimension: int | None) -> Layout:
        """Record the embedder as long as there is no vector of another one; None before the first vector."""
        return self._db.write(lambda c: embeddings.settle(c, embedder, dimension))

    def forget_vectors(self, now: datetime) -> None:
        """Drop every vector and the embedder's name, and owe the indexing of every message."""
        self._db.write(lambda c: embeddings.forget(c, now))

    def tidy(self) -> None:
        """Do what the database wants done from time to time, off everybody's path."""
        self._db.tidy()

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()
