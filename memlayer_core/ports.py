"""What flows ask of the world. Stores and models answer; tests may put anything in their place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from memlayer_core.events import Event, Health
from memlayer_core.item_ports import ItemJournal
from memlayer_core.list_ports import ListJournal
from memlayer_core.model_ports import Embedder, LanguageModel, TokenCounter
from memlayer_core.record_ports import RecordJournal
from memlayer_core.records.candidate import Candidate, Postings
from memlayer_core.records.context import Recalled
from memlayer_core.records.draft import Draft
from memlayer_core.records.item import Folder
from memlayer_core.records.job import Backlog, Job, JobKind
from memlayer_core.records.message import Beside, Entry, Message, Receipt, Stored
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.records.session import (
    Forgotten,
    Layout,
    Mark,
    Overview,
    Particulars,
    Session,
    Synced,
)
from memlayer_core.records.summary import Cost, Summary
from memlayer_core.records.vector import Filing, FloatVector, Neighbour, Sample, Unindexed
from memlayer_core.settings import Settings

__all__ = ["Draft", "Embedder", "Index", "Journal", "LanguageModel", "Temporaries", "TokenCounter", "World"]

T = TypeVar("T")


class Journal(RecordJournal, ItemJournal, ListJournal, Protocol):
    """The truth: messages and owed work in one database. Every method is one transaction."""

    def at_once(self, work: Callable[[Journal], T]) -> T:
        """Run several reads on one snapshot: `work` gets a journal that only reads."""
        ...

    def append(
        self,
        scope: Scope,
        drafts: Sequence[Draft],
        now: datetime,
        *,
        verbatim: bool = False,
        beside: Beside | None = None,
    ) -> Receipt:
        """Store messages at the end of a session, each with the job that indexes it.

        A system message without an id of its own that says what the one in force says is left out, unless
        all is to be stored `verbatim`. A draft whose id the session has already is compared: equal ones are
        left, others take the old one's place. What was recalled for the question that they answer stands
        `beside` it from now on.
        """
        ...

    def beside(self, keys: Sequence[int]) -> dict[int, Beside]:
        """Return the recalled text that stands with those messages, by their keys."""
        ...

    def shown(self, session: Session, limit: int, offset: int) -> list[Recalled]:
        """Return what was recalled for a session's questions, the newest first."""
        ...

    def rewrite(self, scope: Scope, drafts: Sequence[Draft], now: datetime) -> Receipt:
        """Make a session's messages exactly `drafts`; a common beginning is left as it is."""
        ...

    def restore(
        self, scope: Scope, drafts: Sequence[Draft], known: Particulars, now: datetime, *, exactly: bool
    ) -> Receipt:
        """Store a session that comes from elsewhere.

        `exactly`: it becomes that. Otherwise messages that it does not have come to its end, and what is
        known of it here stays: its title, its times where they are earlier or later, and an end further on.
        """
        ...

    def session(self, scope: Scope) -> Session | None:
        """Return a session's running totals."""
        ...

    def places(self, session: Session, ids: Sequence[str]) -> dict[str, int]:
        """Return the places of a session's messages by their ids; those that it does not have are missing."""
        ...

    def sessions(self, reach: Scope, limit: int, offset: int, *, superseded: bool = False) -> list[Session]:
        """Return the sessions within reach, the last used first; superseded ones only if asked for."""
        ...

    def rename(self, scope: Scope, title: str | None) -> bool:
        """Give a session a title, or take it away. Returns whether there is such a session."""
        ...

    def end(self, scope: Scope, now: datetime, least: int | None = None) -> Session | None:
        """Let a session's working memory begin anew. Returns what it was, None where there was nothing to end.

        Owes an episode of at least so many messages; None: it owes none.
        """
        ...

    def end_idle(
        self, before: datetime, limit: int, now: datetime, least: int | None = None
    ) -> list[Session]:
        """End sessions that nobody wrote to since `before`, the longest idle ones first; what they were."""
        ...

    def forget(self, reach: Scope, now: datetime) -> Forgotten:
        """Delete everything within reach, a user's, a user's with one agent, or a session's, for good."""
        ...

    def delete(self, scope: Scope, place: str | int, now: datetime) -> Message:
        """Delete one message, named by its id or its place. Returns it.

        Raises:
            UnknownMessageError: The session does not have it.
        """
        ...

    def edit(
        self, scope: Scope, place: str | int, change: Callable[[Message], Draft], now: datetime
    ) -> Message:
        """Put what `change` makes of a message in its place; what it raises is raised, and nothing changed.

        Raises:
            UnknownMessageError: The session does not have it.
        """
        ...

    def fork(
        self,
        scope: Scope,
        into: str,
        until: str | int | None,
        draft_of: Callable[[Message], Draft],
        now: datetime,
    ) -> int:
        """Copy a session's messages, up to and with one of them, into a new session. Returns how many.

        Raises:
            UnknownMessageError: There is no such message, or no such session.
            InvalidScopeError: The new session exists already.
        """
        ...

    def resync(
        self, scope: Scope, drafts: Sequence[Draft], now: datetime, fork_id: str, *, replacing: bool
    ) -> Synced:
        """Bring a session to what a list says (`rules/align.py`); what is superseded goes to session `fork_id`.

        `replacing`: a list that has nothing in common with the history takes its place, and one that ends
        inside it is its end.
        """
        ...

    def inventory(self, tenant_id: str, user_id: str | None, after: int, limit: int) -> list[Session]:
        """Return sessions of a tenant, or of one user, with numbers above `after`, in their order."""
        ...

    def tail(self, session: Session, before: int | None, limit: int, first: int = 0) -> list[Entry]:
        """Return the last `limit` entries (from place `first` on, before place `before`), newest first."""
        ...

    def mark(self, session: Session, size: int) -> Mark:
        """Return where the window of that size begins, and what stands before it."""
        ...

    def move_mark(self, session: int, size: int, mark: Mark) -> None:
        """Note where the window of that size begins from now on; it only moves forward."""
        ...

    def read(self, session: Session, seqs: Sequence[int]) -> list[Stored]:
        """Return those messages of a session, in their order; ones that are gone are left out."""
        ...

    def history(self, session: Session, after: int, limit: int | None, offset: int = 0) -> list[Stored]:
        """Return a session's messages behind place `after` (-1: all), without the first `offset` of them."""
        ...

    def clear(self, scope: Scope, now: datetime) -> int:
        """Delete a session's messages, and owe their removal from the index. Returns how many."""
        ...

    def spoken(self, reach: Scope | Commons, names: Collection[str]) -> set[str]:
        """Return which of those, as they are filed, are names of people who spoke within reach."""
        ...

    def postings(self, reach: Scope | Commons | Folder, words: Sequence[str]) -> Postings:
        """Return in which messages and records within reach the words stand, as they are filed."""
        ...

    def candidates(
        self,
        reach: Scope,
        keys: Sequence[int],
        near: Mapping[int, float],
        vector: FloatVector | None,
        beginning: int,
    ) -> list[Candidate]:
        """Return what recall weighs of the messages of those keys that lie within reach.

        `beginning`: characters of their texts that are wanted.
        """
        ...

    def scan(self, reach: Scope | Commons | Folder, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Compare a vector with every one within reach, exactly."""
        ...

    def records(self, reach: Scope, keys: Sequence[int]) -> list[Stored]:
        """Return the messages of those keys that lie within reach, in no particular order."""
        ...

    def overview(self, reach: Scope | Commons | Folder) -> Overview:
        """Return how much lies within reach, and how its shard is shared."""
        ...

    def numbered(self, number: int) -> Session | None:
        """Return the session of a number."""
        ...

    def evicted(self, session: int, first: int, now: datetime) -> None:
        """Owe the session a summary of what lies before a place."""
        ...

    def summaries(self, session: Session, *, every: bool = False, as_of: int | None = None) -> list[Summary]:
        """Return what stands for a session's older turns, now or as of a version; every version if asked for."""
        ...

    def summarized(
        self,
        session: Session,
        made: Sequence[tuple[Summary, Sequence[int]]],
        spent: Sequence[Cost],
        job: Job | None,
        now: datetime,
    ) -> bool:
        """Put summaries in the place of others, each with the versions that it replaces.

        Nothing is put in force where the session was changed since it was read; what models were paid is
        noted in any case, and a job given begins anew. Returns whether they are in force.
        """
        ...

    def spend(self, spent: Sequence[Cost]) -> None:
        """Count up what models were paid for nothing that is kept."""
        ...

    def costs(self) -> list[Cost]:
        """Return what models were paid, a line for each kind of work and model."""
        ...

    def lease(
        self, kinds: Sequence[JobKind], limit: int, owner: str, now: datetime, until: datetime
    ) -> list[Job]:
        """Take jobs that are due; they become due again at `until` unless they are done by then."""
        ...

    def finish(self, done: Sequence[Job]) -> None:
        """Strike jobs off."""
        ...

    def fail(self, failed: Sequence[Job], error: str, due: datetime | None, *, counted: bool = True) -> None:
        """Give jobs back until `due`, or to the dead letters when it is None.

        With `counted=False` the attempt does not bring them nearer to the dead letters.
        """
        ...

    def reclaim(self, owner: str, now: datetime) -> None:
        """Take back at once what others than `owner` hold: they ended without a word. Their attempts count."""
        ...

    def release(self, owner: str, now: datetime) -> None:
        """Give back every job that `owner` holds, without counting the attempt: it is going away."""
        ...

    def revive(self, now: datetime) -> int:
        """Give every dead letter a new start. Returns how many there were."""
        ...

    def backlog(self) -> Backlog:
        """Count the jobs."""
        ...

    def unindexed(self, keys: Sequence[int]) -> list[Unindexed]:
        """Return what is to be indexed for those keys; what was deleted is left out."""
        ...

    def file(self, given: Sequence[Filing]) -> None:
        """Keep vectors of messages and records that still exist. Filing one twice changes nothing."""
        ...

    def present(self, keys: Sequence[int]) -> set[int]:
        """Return those keys whose message or record exists."""
        ...

    def filings(self, shard: int | None, after: int, limit: int) -> list[Filing]:
        """Return kept vectors with keys above `after`, in their order, of one shard or of all."""
        ...

    def samples(self, probes: int) -> list[Sample]:
        """Return what each shard of an index should hold, with a few vectors of each."""
        ...

    def shard_of(self, namespace: str) -> int:
        """Return the collection that a user belongs to."""
        ...

    def layout(self) -> Layout:
        """Return what the store was made with."""
        ...

    def settle(self, embedder: str, dimension: int | None) -> Layout:
        """Record the embedder as long as there is no vector of another one; None before the first vector."""
        ...

    def forget_vectors(self, now: datetime) -> None:
        """Drop every vector and the embedder's name, and owe the indexing of everything."""
        ...

    def tidy(self) -> None:
        """Do what the database wants done from time to time, off everybody's path."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class Index(Protocol):
    """A projection of the journal's vectors that answers nearest-neighbour questions.

    Attributes:
        repaired: Why all of it was thrown away and begun anew, or None; set to None once told.
        exclusive: Whether one process at a time holds it; otherwise several work on it together.
    """

    repaired: str | None
    exclusive: bool

    @property
    def held(self) -> bool:
        """Whether this process may use it."""
        ...

    def acquire(self) -> bool:
        """Take hold of it; False while another process has it.

        Raises:
            IndexUnavailableError: It cannot be reached.
        """
        ...

    def audit(self, samples: Sequence[Sample]) -> list[int]:
        """Return the shards that are damaged or do not hold what they should."""
        ...

    def upsert(self, filings: Sequence[Filing]) -> None:
        """Put vectors in; again is the same as once."""
        ...

    def remove(self, shard: int, keys: Sequence[int]) -> None:
        """Take vectors out; missing ones are fine."""
        ...

    def nearest(self, shard: int, lane: str | None, vector: FloatVector, limit: int) -> list[Neighbour]:
        """Return the nearest of a lane, or of the whole shard when `lane` is None, the nearest first.

        Raises:
            IndexUnavailableError: It cannot be reached.
            IndexCorruptError: It answered that its files are damaged.
        """
        ...

    def reset(self, shard: int) -> None:
        """Empty a shard, whatever state it is in."""
        ...

    def close(self) -> None:
        """Let go of it, leaving it whole."""
        ...


class Temporaries(Protocol):
    """Messages that are told to a model until it has answered, and kept by nobody."""

    def add(self, message: Stored) -> list[Stored]:
        """Keep a message until a model has answered to it. Returns those given up for it, of one session."""
        ...

    def show(self, scope: Scope) -> list[Stored]:
        """Return a session's messages, and remember that they were shown: the next answer ends them."""
        ...

    def recalled(self, scope: Scope, beside: Beside | None) -> None:
        """Remember what was recalled for the question that is being answered."""
        ...

    def standing(self, scope: Scope) -> Beside | None:
        """Return what was recalled for the question that is being answered."""
        ...

    def answered(self, scope: Scope) -> None:
        """Let go of what was shown: the model's call has succeeded."""
        ...

    def clear(self, scope: Scope) -> int:
        """Let go of all of a session. Returns how many there were."""
        ...

    def forget(self, reach: Scope) -> None:
        """Let go of all within reach: of a user, of a user with one agent, or of a session."""
        ...


@dataclass(frozen=True)
class World:
    """Everything that a flow works with.

    Attributes:
        journal: The truth.
        index: The projection for nearest neighbours; None: the journal's vectors are compared one by one.
        embedder: Makes vectors of texts.
        tokens: Counts tokens.
        settings: Every default.
        tell: Hears what happened.
        health: Remembers what does not work at the moment, so that it is told once.
        wake: Tells the worker that there is work.
        trust: How far the embedder's cosine is to be believed for a question, 0 to 1.
        suspect: Tells the worker that a shard of the index is damaged.
        evicted: Tells the worker that a session's turns before a place left the window; None: nothing is
            summarised.
        accessed: Tells the worker which records were recalled.
        summarizer: Writes summaries; None: they are extracts of what was said.
        temporaries: Messages that are shown once.
        truncate_with: Shortens a text to so many characters, where messages are truncated.
        now: The clock, in UTC.
        new_id: Makes ids for messages that have none.
    """

    journal: Journal
    index: Index | None
    embedder: Embedder
    tokens: TokenCounter
    settings: Settings
    tell: Callable[[Event], None]
    health: Health
    wake: Callable[[], None]
    trust: Callable[[str], float]
    suspect: Callable[[int], None]
    evicted: Callable[[int, int], None] | None
    accessed: Callable[[Sequence[int]], None]
    summarizer: LanguageModel | None
    temporaries: Temporaries
    truncate_with: Callable[[str, int], str]
    now: Callable[[], datetime]
    new_id: Callable[[], str]
