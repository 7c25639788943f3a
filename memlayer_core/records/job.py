"""Background work that is owed, as rows of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Backlog", "Job", "JobKind"]

JobKind = Literal["index", "unindex", "summarize", "episode"]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work, leased to one worker at a time.

    Attributes:
        id: Its row.
        kind: `"index"` makes a message, a record or an item findable; `"unindex"` takes what was deleted out of Chroma;
            `"summarize"` tells in short what lies before it in its session; `"episode"` remembers a part of
            a session that ended.
        subject: Key of the message, of the record or of the item's text, or the number of the episode.
        namespace: The user whose it is, or the folder.
        attempts: How often it was tried, this time included.
    """

    id: int
    kind: JobKind
    subject: int
    namespace: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """What background work is left.

    Attributes:
        queued: Jobs waiting or running.
        dead: Jobs given up after too many attempts.
    """

    queued: int
    dead: int
