"""Items: JSON values under keys in folders of a tenant, and the operations on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from memlayer_core.message import JSON
from memlayer_core.scope import Folder

End = Literal["prefix", "suffix"]
"""Whether a pattern matches the beginning or the end of a folder's labels."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value under a key.

    Attributes:
        number: Number of its row.
        labels: Labels of its folder.
        key: Its key in the folder.
        value: JSON; times, bytes and tuples come back equal, too. A copy: changing it changes nothing stored.
        created_at: When a value was first put under the key, in UTC.
        updated_at: When the value was last put, in UTC.
        ttl: How long it lives after it was last put or read; None: it does not expire.
        expires_at: When it expires; None: never.
        score: How well it matches the query, at most 1: the cosine, or without a vector the share of the query's words
            that it contains. None: it was not found by a query.
    """

    number: int
    labels: tuple[str, ...]
    key: str
    value: dict[str, JSON]
    created_at: datetime
    updated_at: datetime
    ttl: timedelta | None = None
    expires_at: datetime | None = None
    score: float | None = None

    @property
    def address(self) -> str:
        """What it is called among hits: its labels and its key, `"memories/ada/boat"`."""
        return "/".join((*self.labels, self.key))


@dataclass(frozen=True, slots=True)
class GetItem:
    """Read the item under a key.

    Attributes:
        labels: Labels of its folder.
        key: Its key.
        refresh: Whether reading it restarts its time to live.
    """

    labels: tuple[str, ...]
    key: str
    refresh: bool = True


@dataclass(frozen=True, slots=True)
class PutItem:
    """Put a value under a key. It replaces the value that is there.

    Attributes:
        labels: Labels of the folder.
        key: The key.
        value: The value.
        texts: Texts that queries find it by, each for itself; None: the whole value; empty: no query finds it.
        ttl: How long it lives after it was last put or read; None: it does not expire.
        created_at: When it was first put, if it comes from elsewhere; None: now.
        updated_at: When it was last put, if it comes from elsewhere; None: now.
    """

    labels: tuple[str, ...]
    key: str
    value: Mapping[str, JSON]
    texts: tuple[str, ...] | None = None
    ttl: timedelta | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DropItem:
    """Delete the item under a key, if there is one."""

    labels: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class FindItems:
    """Find items in a folder and in all folders inside it.

    Attributes:
        labels: Labels of the folder; empty: all of the tenant.
        filter: Conditions on their fields, see `memlayer_core.items.check`.
        query: What the items shall be about. Without it, the last put come first.
        limit: Maximum number of items.
        offset: How many items to skip.
        refresh: Whether finding an item restarts its time to live.
    """

    labels: tuple[str, ...] = ()
    filter: Mapping[str, JSON] | None = None
    query: str | None = None
    limit: int = 10
    offset: int = 0
    refresh: bool = True


@dataclass(frozen=True, slots=True)
class Pattern:
    """Labels that a folder's labels begin or end with. `*` stands for any one label."""

    end: End
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListFolders:
    """List the folders that hold items.

    Attributes:
        patterns: Patterns that a folder must match, all of them.
        max_depth: Number of labels to return of each folder. Folders that are equal then are returned once.
        limit: Maximum number of folders.
        offset: How many folders to skip.
    """

    patterns: tuple[Pattern, ...] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


ItemOp = GetItem | PutItem | DropItem | FindItems | ListFolders


Condition = Callable[[Mapping[Any, Any]], bool]
"""Whether a value passes one condition of a filter."""


@dataclass(frozen=True, slots=True)
class Put:
    """An item that is checked and ready to be written.

    Attributes:
        folder: Its folder.
        key: Its key.
        value: Its value as JSON; None deletes the item under the key, if there is one.
        texts: Texts that queries find it by, each with its terms for the word index.
        ttl: How long it lives after it was last put or read; None: it does not expire.
        created_at: When it was created, if it is imported; None: now.
        updated_at: When it was last put, if it is imported; None: now.
    """

    folder: Folder
    key: str
    value: str | None
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ttl: timedelta | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Which items to find.

    Attributes:
        folder: The items are in this folder, or in a folder inside it.
        conditions: Conditions on their fields.
        live_at: Items that had expired at this time are left out; None: expired items are found until they are swept.
    """

    folder: Folder
    conditions: tuple[Condition, ...] = ()
    live_at: datetime | None = None
