"""What flows ask of the journal about items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from memlayer_core.records.item import Folder, Item
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.filters import Condition, Field

__all__ = ["Change", "Dropped", "ItemJournal", "ItemText", "Put", "Sought"]


@dataclass(frozen=True, slots=True)
class Put:
    """An item that is checked and ready to be written.

    Attributes:
        folder: Where it goes.
        key: Its key.
        value: Its value as JSON.
        fields: What filters can ask of it.
        texts: What queries find it by, each with its words for the lexical index.
        ttl: How long it stays after it was last put or read.
        created_at: When it came into being, if that was elsewhere.
        updated_at: When it was put there.
    """

    folder: Folder
    key: str
    value: str
    fields: tuple[Field, ...]
    texts: tuple[tuple[str, tuple[str, ...]], ...]
    ttl: timedelta | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A key whose item goes, if there is one."""

    folder: Folder
    key: str


Change = Put | Dropped


@dataclass(frozen=True, slots=True)
class Sought:
    """Which items are looked for.

    Attributes:
        folder: Items in it, and in all folders inside it.
        conditions: What their fields must be.
        live_at: Those that had expired by then are left out; None: they are there until they are swept.
    """

    folder: Folder
    conditions: tuple[Condition, ...] = ()
    live_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ItemText:
    """What an item is found by.

    Attributes:
        number: The item's.
        key: Key of a text of it, as for messages and records; None: nothing finds it.
        embedded: Whether that text has its vector.
    """

    number: int
    key: int | None
    embedded: bool


class ItemJournal(Protocol):
    """The part of the journal that keeps items. Every method is one transaction.

    A text that an item is found by has a key, below those of records. It is never used again: an item that says
    something else has other keys.
    """

    def items(self, wanted: Sequence[tuple[Folder, str]], live_at: datetime | None) -> list[Item | None]:
        """Return what lies under each of those keys."""
        ...

    def find_items(self, sought: Sought, limit: int, offset: int) -> list[Item]:
        """Return items, the last put first."""
        ...

    def numbered_items(self, sought: Sought, numbers: Sequence[int]) -> dict[int, Item]:
        """Return those of the items that are sought, by their numbers: the last word on what may be found."""
        ...

    def item_texts(self, sought: Sought, limit: int | None) -> list[ItemText]:
        """Return what items are found by, those of the last put first."""
        ...

    def texts_of_items(self, sought: Sought, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Return those of the keys whose items are sought, each behind its item's number."""
        ...

    def scan_items(
        self, sought: Sought, vector: FloatVector, keys: Sequence[int] | None = None
    ) -> list[Neighbour]:
        """Compare a vector with those of the texts of items that are sought, exactly; with all, or of those keys."""
        ...

    def folders(self, top: Folder, live_at: datetime | None, limit: int | None = None) -> list[Folder]:
        """Return the folders that hold items, inside of one and itself, in no particular order."""
        ...

    def change_items(self, changes: Sequence[Change], now: datetime) -> None:
        """Write and delete items, all or none, with the jobs that index them."""
        ...

    def refresh_items(self, numbers: Sequence[int], now: datetime) -> None:
        """Let the time to live of items begin anew."""
        ...

    def restore_item(self, put: Put, now: datetime) -> bool:
        """Store an item that comes from elsewhere, unless what is here is as new. Returns whether it was stored."""
        ...

    def item_pages(self, top: Folder, after: int, limit: int) -> list[tuple[Item, tuple[str, ...]]]:
        """Return items with numbers above `after`, in that order, each with the texts that it is found by."""
        ...

    def sweep_items(self, top: Folder, now: datetime) -> int:
        """Delete what has expired in a folder and inside it. Returns how many items."""
        ...

    def forget_items(self, top: Folder, now: datetime) -> int:
        """Delete everything in a folder and inside it, for good. Returns how many items."""
        ...
