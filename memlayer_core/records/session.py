"""What is known of a session, of a user's memory, and of the store as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from memlayer_core.records.scope import Scope

__all__ = ["Forgotten", "Layout", "Mark", "Overview", "Part", "Particulars", "Session", "Synced", "beginning"]

Part = Literal["active", "archived"]
"""The part of a session from where its working memory begins on, or what lies before that."""

_LABEL = 60  # characters of a label that nobody wrote


def beginning(text: str, limit: int = _LABEL) -> str:
    """Return a text's first words in one line: as many as `limit` characters hold, cut between words."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    head = line[: limit - 1]
    whole = head if line[limit - 1] == " " else head.rpartition(" ")[0]
    return (whole if 2 * len(whole) > limit else head).rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Session:
    """A session's running totals: reading them costs the same at any length.

    Attributes:
        scope: Whose it is.
        number: The journal's own number for it.
        messages: How many messages it has.
        tokens: What they cost together, each as counted when it was written.
        created_at: When its first message was written.
        updated_at: When it was last written to.
        title: What it is called; None until somebody says.
        instructions: Key of the newest system message, the only one that a model is told; None without one.
        begins: The place where working memory begins: what lies before was ended, and stays in the history.
        ended: Whether it has been ended, and nothing was said since.
        opening: How the first thing that a user said begins; None where it was not asked for.
        forked_from: Id of the session that it comes from; None where it began by itself.
        superseded: Whether it keeps what made room for others: to be read, and never recalled.
        summary_version: Goes up with each summary, and when what was said is changed; 0: there is no summary.
        next_seq: The place of the next message.
    """

    scope: Scope
    number: int
    messages: int
    tokens: int
    created_at: datetime
    updated_at: datetime
    title: str | None = None
    instructions: int | None = None
    begins: int = 0
    ended: bool = False
    opening: str | None = None
    forked_from: str | None = None
    superseded: bool = False
    summary_version: int = 0
    next_seq: int = 0

    @property
    def label(self) -> str:
        """What to call it in a list: its title, the beginning of what the user said first, or its id."""
        return self.title or beginning(self.opening or "") or (self.scope.session_id or "")


@dataclass(frozen=True, slots=True)
class Mark:
    """How a window of about one size begins, so that the next prompt begins like this one.

    Attributes:
        first: Place of its first message; 0 where none is marked.
        version: The session's summaries stand before it as they were in force as of this version.
    """

    first: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Particulars:
    """What goes with a session's messages to another place.

    Attributes:
        title: What it is called; None if nobody said.
        ended_with: Id of the last message that was ended: working memory begins behind it.
        created_at: When its first message was written.
        updated_at: When it was last written to.
        forked_from: Id of the session that it is a copy of.
        superseded: Whether it keeps what made room for others.
    """

    title: str | None = None
    ended_with: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    forked_from: str | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """What became of a list of messages that a framework sent, after the commit.

    Attributes:
        ids: The id of each message given, in their order; the stored one's where it was known.
        stored: How many are new.
        unchanged: How many the session had already.
        superseded: How many messages of the session made room for others.
        fork: Id of the session that keeps those; None where nothing was superseded.
        answered: Whether one of the new ones is a model's answer; an edited one is not.
    """

    ids: tuple[str, ...]
    stored: int
    unchanged: int = 0
    superseded: int = 0
    fork: str | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was deleted for good.

    Attributes:
        sessions: How many sessions.
        messages: How many messages they had.
        records: How many records, each with all its versions.
    """

    sessions: int
    messages: int
    records: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """How much lies within reach of a search.

    Attributes:
        sessions: Sessions with messages; at most two are counted.
        vectors: Vectors of the user.
        shard: The collection that the user belongs to.
        alone: Whether no other user's vectors are in that collection.
        records: Whether there are records.
    """

    sessions: int
    vectors: int
    shard: int
    alone: bool
    records: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What a store was made with.

    Attributes:
        store_id: A UUID, made with the store.
        schema_version: Version of the tables.
        shards: How many collections the users are spread over.
        embedder: Identity of the embedder that made the vectors; None before the first one.
        dimension: Length of the vectors; None before the first one.
    """

    store_id: str
    schema_version: int
    shards: int
    embedder: str | None
    dimension: int | None
