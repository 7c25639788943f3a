"""The part of the journal that keeps items: which function runs in which transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memlayer_core.item_ports import Change, ItemText, Put, Sought
from memlayer_core.records.item import Folder, Item
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.stores import item_reading, item_writing
from memlayer_core.stores.database import Database

__all__ = ["SqlItemJournal"]


class SqlItemJournal:
    """Implements `memlayer_core.item_ports.ItemJournal` on SQLite and PostgreSQL."""

    _db: Database
    _shards: int

    def items(self, wanted: Sequence[tuple[Folder, str]], live_at: datetime | None) -> list[Item | None]:
        """Return what lies under each of those keys."""
        return self._db.read(lambda c: item_reading.get(c, wanted, live_at))

    def find_items(self, sought: Sought, limit: int, offset: int) -> list[Item]:
        """Return items, the last put first."""
        return self._db.read(lambda c: item_reading.find(c, sought, limit, offset))

    def numbered_items(self, sought: Sought, numbers: Sequence[int]) -> dict[int, Item]:
        """Return those of the items that are sought, by their numbers: the last word on what may be found."""
        return self._db.read(lambda c: item_reading.numbered(c, sought, numbers))

    def item_texts(self, sought: Sought, limit: int | None) -> list[ItemText]:
        """Return what items are found by, those of the last put first."""
        return self._db.read(lambda c: item_reading.texts(c, sought, limit))

    def texts_of_items(self, sought: Sought, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Return those of the keys whose items are sought, each behind its item's number."""
        return self._db.read(lambda c: item_reading.texts_of(c, sought, keys))

    def scan_items(
        self, sought: Sought, vector: FloatVector, keys: Sequence[int] | None = None
    ) -> list[Neighbour]:
        """Compare a vector with those of the texts of items that are sought, exactly; with all, or of those keys."""
        return self._db.read(lambda c: item_reading.scan(c, sought, vector, keys))

    def folders(self, top: Folder, live_at: datetime | None, limit: int | None = None) -> list[Folder]:
        """Return the folders that hold items, inside of one and itself, in no particular order."""
        return self._db.read(lambda c: item_reading.listed(c, top, live_at, limit))

    def change_items(self, changes: Sequence[Change], now: datetime) -> None:
        """Write and delete items, all or none, with the jobs that index them."""
        self._db.write(lambda c: item_writing.change(c, changes, now, self._shards))

    def refresh_items(self, numbers: Sequence[int], now: datetime) -> None:
        """Let the time to live of items begin anew."""
        self._db.write(lambda c: item_writing.refresh(c, numbers, now))

    def restore_item(self, put: Put, now: datetime) -> bool:
        """Store an item that comes from elsewhere, unless what is here is as new. Returns whether it was stored."""
        return self._db.write(lambda c: item_writing.restore(c, put, now, self._shards))

    def item_pages(self, top: Folder, after: int, limit: int) -> list[tuple[Item, tuple[str, ...]]]:
        """Return items with numbers above `after`, in that order, each with the texts that it is found by."""
        return self._db.read(lambda c: item_reading.pages(c, top, after, limit))

    def sweep_items(self, top: Folder, now: datetime) -> int:
        """Delete what has expired in a folder and inside it. Returns how many items."""
        return self._db.write(lambda c: item_writing.sweep(c, top, now))

    def forget_items(self, top: Folder, now: datetime) -> int:
        """Delete everything in a folder and inside it, for good. Returns how many items."""
        return self._db.write(lambda c: item_writing.forget(c, top, now))
