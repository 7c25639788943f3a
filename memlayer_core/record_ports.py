"""What flows ask of the journal about records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from memlayer_core.records.episode import Episode
from memlayer_core.records.job import Job
from memlayer_core.records.record import Reader, Record, RecordType
from memlayer_core.records.scope import Scope
from memlayer_core.records.summary import Cost

__all__ = ["Noted", "RecordFilter", "RecordJournal"]


@dataclass(frozen=True, slots=True)
class Noted:
    """A record that is checked and ready to be written.

    Attributes:
        record: Everything but its id, where it is new.
        digest: 16 bytes that are equal for the same words of one user and agent.
        terms: Words for the lexical index.
    """

    record: Record
    digest: bytes
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records a listing is to show.

    Attributes:
        record_id: Only this one.
        type: Only of this type.
        tags: Only with all of these.
        every: Also versions that others took the place of, and what has expired: the user's own alone.
        shared: Also what other users of the tenant let this one see.
        limit: How many at the most.
        offset: How many to pass over.
    """

    record_id: str | None = None
    type: RecordType | None = None
    tags: tuple[str, ...] = ()
    every: bool = False
    shared: bool = False
    limit: int = 100
    offset: int = 0


class RecordJournal(Protocol):
    """The part of the journal that keeps records. Every method is one transaction.

    A record's key is a negative number: one integer names a message or a record in every table, in the
    lexical index and in Chroma. Each version has a key of its own, so that no key ever means two texts.
    """

    def remember(self, noted: Noted, now: datetime) -> Record:
        """Store a record with the job that indexes it; where its words are in force, confirm that one."""
        ...

    def revise(
        self,
        reach: Scope,
        record_id: str,
        others: Sequence[str],
        change: Callable[[Record, Sequence[Record]], Noted],
        now: datetime,
    ) -> Record:
        """Put what `change` makes of a record, and of others that it takes in, in their place.

        What `change` raises is raised, and nothing changed. What it leaves as it is gets no new version.

        Raises:
            UnknownRecordError: One of them is not in force, or not the user's.
            InvalidRecordError: Another record has the same words.
        """
        ...

    def visible(self, reader: Reader, keys: Collection[int]) -> set[int]:
        """Return those keys of records that the reader may be told of."""
        ...

    def remembered(self, reader: Reader, keys: Sequence[int]) -> dict[int, Record]:
        """Return the records of those keys that the reader may be told of: the last word on that."""
        ...

    def profile(self, reader: Reader, most: int) -> dict[int, Record]:
        """Return a user's own records of type `"profile"` that are worth telling, by their keys.

        The most important come first, so many at the most.
        """
        ...

    def recorded(self, reader: Reader, wanted: RecordFilter) -> list[Record]:
        """Return a user's records, the last written first, each with its vector."""
        ...

    def forget_record(self, reach: Scope, record_id: str, now: datetime) -> bool:
        """Delete a record of a user, every version of it and whatever it took in. Returns whether there was one."""
        ...

    def restore_record(self, versions: Sequence[Noted], now: datetime) -> bool:
        """Store a record that comes from elsewhere, the oldest version first.

        One whose words are in force here, or that is here already, as it is or further on, is left alone.
        Where its id is another record's, it gets a new one. Returns whether anything was stored.
        """
        ...

    def record_pages(
        self, tenant_id: str, user_id: str | None, after: tuple[str, int], limit: int
    ) -> list[tuple[tuple[str, int], list[Record]]]:
        """Return records of a tenant, or of one user, behind a place, in an order that no write changes.

        Each is its place and its versions, the oldest first.
        """
        ...

    def accessed(self, keys: Sequence[int], now: datetime) -> None:
        """Note when records were recalled."""
        ...

    def episode(self, number: int) -> Episode | None:
        """Return the episode of a number, which a job of kind `"episode"` names; None: it is gone."""
        ...

    def keep_episode(
        self, episode: Episode, noted: Noted | None, spent: Sequence[Cost], job: Job, now: datetime
    ) -> Record | None:
        """Store the record of an episode, or that there is nothing to tell, and strike its job off.

        Where its source was changed since it was read, or another worker was quicker, nothing is stored; what
        models were paid is noted in any case. Returns the record where one was stored.
        """
        ...
