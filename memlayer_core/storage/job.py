"""Background work, as rows of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Backlog", "Job", "JobKind"]

JobKind = Literal["index", "unindex", "compact", "audit", "erase", "summarize", "episode"]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. One worker at a time has a lease on it.

    Attributes:
        id: Id of its row.
        kind: `"index"` makes a message, a record or an item findable; `"unindex"` removes deleted vectors from Chroma;
            `"summarize"` sums up turns of a session that left its window; `"episode"` writes an episode about a part
            of a session that ended; `"compact"` erases removed vectors of a shard from Chroma's files; `"audit"`
            compares a Chroma server with the journal; `"erase"` erases deleted rows from the journal's files.
        subject: Key of the message, record or item text, or number of the episode or shard; 0 for the whole store.
        namespace: Namespace of the user or folder; empty for a shard and for the whole store.
        attempts: How often it was tried, this time included.
    """

    id: int
    kind: JobKind
    subject: int
    namespace: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many background jobs are left.

    Attributes:
        queued: Jobs that wait or run.
        dead: Dead letters: jobs that failed too often.
    """

    queued: int
    dead: int
