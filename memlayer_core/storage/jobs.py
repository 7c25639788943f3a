"""A background job, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from memlayer_core.show import Report

__all__ = ["LONGEST_BACKOFF", "Backlog", "Job", "JobKind", "backoff", "latest"]

JobKind = Literal[
    "index",
    "upsert",
    "unindex",
    "compact",
    "audit",
    "erase",
    "summarize",
    "episode",
    "learn",
    "maintain",
    "record",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. One worker at a time has a lease on it.

    Attributes:
        id: Id of its row.
        kind: `"index"` makes a message, a record or an item findable; `"upsert"` copies its vectors to Chroma, since its
            namespace has many by now; `"unindex"` removes deleted vectors from Chroma; `"summarize"` sums up turns of a
            session that left its window; `"episode"` writes an episode about a part of a session that ended; `"learn"`
            lets a model read facts in a message; `"record"` passes a round to another long-term memory; `"compact"`
            erases removed vectors of a shard from Chroma's files; `"audit"` compares a Chroma server with the journal;
            `"erase"` erases deleted rows from the journal's files; `"maintain"` does what time asks for, once a day.
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
class Backlog(Report):
    """How many background jobs are left.

    Attributes:
        queued: Jobs that wait or run.
        dead: Dead letters: jobs that failed too often.
    """

    queued: int
    dead: int


LONGEST_BACKOFF = 600.0
"""The most seconds that a job waits, after a failure or for a batch."""


def backoff(first: float, attempts: int) -> float:
    """Return the seconds that a job waits after failed attempts: twice as long each time.

    Args:
        first: Seconds after the first attempt.
        attempts: Number of failed attempts, at least 1.
    """
    wait = first
    for _ in range(attempts - 1):
        if wait >= LONGEST_BACKOFF:
            break
        wait *= 2
    return min(LONGEST_BACKOFF, wait)


def latest(now: datetime, until: datetime) -> datetime:
    """Return the latest plausible end of a wait; a later one was set by a clock that was ahead.

    Clocks may differ by up to the longest wait.

    Args:
        now: The present.
        until: The end of a lease that begins now.
    """
    return now + 2 * max(until - now, timedelta(seconds=LONGEST_BACKOFF))
