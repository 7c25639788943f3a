"""Items: what an application puts under keys into folders of a tenant, and what it asks of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

__all__ = [
    "DropItem",
    "End",
    "FindItems",
    "Folder",
    "GetItem",
    "Item",
    "ItemOp",
    "ListFolders",
    "Pattern",
    "PutItem",
    "lanes_of",
]


End = Literal["prefix", "suffix"]
"""Which end of a folder's labels a pattern is about."""


@lru_cache(maxsize=4096)
def _digest(tenant_id: str, labels: tuple[str, ...]) -> str:
    # An object in the place of a text: no scope is written like that, so no user's namespace is a folder's.
    written = json.dumps([tenant_id, {"folder": labels}], separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).hexdigest()


def lanes_of(namespace: str) -> tuple[str, str, str]:
    """Return the tokens that everything of a folder is filed under, of which one would do."""
    return "u" + namespace, "a" + namespace, "s" + namespace


@dataclass(frozen=True, slots=True)
class Folder:
    """A place of a tenant's items, named by labels from the outermost on; no labels: all that the tenant has.

    Backends see digests of tenant and labels: no label is too long or too strange, and nothing in one can
    reach into another folder or another tenant.
    """

    tenant_id: str
    labels: tuple[str, ...] = ()
    agent_id: None = None
    session_id: None = None

    @property
    def namespace(self) -> str:
        """The folder as 32 hexadecimal digits, equal to no user's."""
        return _digest(self.tenant_id, self.labels)

    @property
    def around(self) -> tuple[str, ...]:
        """The folders that it lies in, from the tenant's whole on, with itself as the last one."""
        return tuple(_digest(self.tenant_id, self.labels[:depth]) for depth in range(len(self.labels) + 1))

    @property
    def lane(self) -> str:
        """The token for an index."""
        return self.user_lane

    @property
    def user_lane(self) -> str:
        """The token that everything of this folder is filed under."""
        return lanes_of(self.namespace)[0]

    @property
    def agent_lane(self) -> str:
        """The token in the place of an agent's."""
        return lanes_of(self.namespace)[1]

    @property
    def session_lane(self) -> str:
        """The token in the place of a session's."""
        return lanes_of(self.namespace)[2]


@dataclass(frozen=True, slots=True)
class Item:
    """A value under a key.

    Attributes:
        number: Its row.
        labels: The folder that it lies in.
        key: Its name there.
        value: JSON, or what reads back equal (times, bytes, tuples). A copy: changing it changes nothing stored.
        created_at: When something was first put there, in UTC.
        updated_at: When it was last put.
        ttl: How long it stays after it was last put or read; None: for good.
        expires_at: When that is over.
        score: How well it answers the query that it was found by, 1 at the most: the cosine, or without a
            vector the share of the query's words that it has. None: it was not found by a query.
    """

    number: int
    labels: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    ttl: timedelta | None = None
    expires_at: datetime | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class GetItem:
    """Ask for the item under a key.

    Attributes:
        labels: Its folder.
        key: Its key.
        refresh: Whether reading it lets its time to live begin anew.
    """

    labels: tuple[str, ...]
    key: str
    refresh: bool = True


@dataclass(frozen=True, slots=True)
class PutItem:
    """Put a value under a key, in the place of what is there.

    Attributes:
        labels: The folder.
        key: The key.
        value: What it is.
        texts: What it is found by, each by itself; None: the whole value; none at all: no query finds it.
        ttl: How long it stays after it was last put or read; None: for good.
    """

    labels: tuple[str, ...]
    key: str
    value: Mapping[str, Any]
    texts: tuple[str, ...] | None = None
    ttl: timedelta | None = None


@dataclass(frozen=True, slots=True)
class DropItem:
    """Delete the item under a key; there need not be one."""

    labels: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class FindItems:
    """Look for items in a folder and in all folders inside it.

    Attributes:
        labels: The folder; none: everything of the tenant.
        filter: What their fields must be, see `rules/filters.py`.
        query: What they are to be about; without it, the last put come first.
        limit: How many at the most.
        offset: How many to pass over.
        refresh: Whether finding one lets its time to live begin anew.
    """

    labels: tuple[str, ...] = ()
    filter: Mapping[str, Any] | None = None
    query: str | None = None
    limit: int = 10
    offset: int = 0
    refresh: bool = True


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the labels of a folder begin or end with; `*` stands for any one label."""

    end: End
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListFolders:
    """Ask which folders hold items.

    Attributes:
        patterns: What each of them must match.
        max_depth: Labels of each that are shown; folders that are the same then are shown once.
        limit: How many at the most.
        offset: How many to pass over.
    """

    patterns: tuple[Pattern, ...] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


ItemOp = GetItem | PutItem | DropItem | FindItems | ListFolders
