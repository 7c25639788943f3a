"""The part of the journal that keeps records: which function runs in which transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from memlayer_core.record_ports import Noted, RecordFilter
from memlayer_core.records.episode import Episode
from memlayer_core.records.job import Job
from memlayer_core.records.record import Reader, Record
from memlayer_core.records.scope import Scope
from memlayer_core.records.summary import Cost
from memlayer_core.stores import episodic, noting, remembered
from memlayer_core.stores.database import Database

__all__ = ["SqlRecordJournal"]


class SqlRecordJournal:
    """Implements `memlayer_core.record_ports.RecordJournal` on SQLite and PostgreSQL."""

    _db: Database
    _shards: int

    def remember(self, noted: Noted, now: datetime) -> Record:
        """Store a record with the job that indexes it; where its words are in force, confirm that one."""
        return self._db.write(lambda c: noting.remember(c, noted, now, self._shards))

    def revise(
        self,
        reach: Scope,
        record_id: str,
        others: Sequence[str],
        change: Callable[[Record, Sequence[Record]], Noted],
        now: datetime,
    ) -> Record:
        """Put what `change` makes of a record, and of others that it takes in, in their place."""
        return self._db.write(lambda c: noting.revise(c, reach, record_id, others, change, now, self._shards))

    def visible(self, reader: Reader, keys: Collection[int]) -> set[int]:
        """Return those keys of records that the reader may be told of."""
        return self._db.read(lambda c: remembered.visible(c, reader, keys))

    def remembered(self, reader: Reader, keys: Sequence[int]) -> dict[int, Record]:
        """Return the records of those keys that the reader may be told of: the last word on that."""
        return self._db.read(lambda c: remembered.remembered(c, reader, keys))

    def profile(self, reader: Reader, most: int) -> dict[int, Record]:
        """Return a user's own records of type `"profile"` by their keys, the most important first."""
        return self._db.read(lambda c: remembered.profile(c, reader, most))

    def recorded(self, reader: Reader, wanted: RecordFilter) -> list[Record]:
        """Return a user's records, the last written first, each with its vector."""
        return self._db.read(lambda c: remembered.recorded(c, reader, wanted))

    def forget_record(self, reach: Scope, record_id: str, now: datetime) -> bool:
        """Delete a record of a user, every version of it and whatever it took in. Returns whether there was one."""
        return self._db.write(lambda c: noting.forget(c, reach, record_id, now))

    def restore_record(self, versions: Sequence[Noted], now: datetime) -> bool:
        """Store a record that comes from elsewhere, the oldest version first. Returns whether it was new."""
        return self._db.write(lambda c: episodic.restore(c, versions, now, self._shards))

    def record_pages(
        self, tenant_id: str, user_id: str | None, after: tuple[str, int], limit: int
    ) -> list[tuple[tuple[str, int], list[Record]]]:
        """Return records of a tenant, or of one user, with their versions, behind a place."""
        return self._db.read(lambda c: remembered.pages(c, tenant_id, user_id, after, limit))

    def accessed(self, keys: Sequence[int], now: datetime) -> None:
        """Note when records were recalled."""
        self._db.write(lambda c: noting.accessed(c, keys, now))

    def episode(self, number: int) -> Episode | None:
        """Return the episode of a number; None: it is gone."""
        return self._db.read(lambda c: episodic.find(c, number))

    def keep_episode(
        self, episode: Episode, noted: Noted | None, spent: Sequence[Cost], job: Job, now: datetime
    ) -> Record | None:
        """Store the record of an episode, or that there is nothing to tell, and strike its job off."""
        return self._db.write(lambda c: episodic.keep(c, episode, noted, spent, job, now, self._shards))
