"""How a record fades while it is not used.

What fades is never stored: it follows from the value that was given, the last use, and the present. So to compute it
again changes nothing, and a record that is used again is as it was.

::

    days  = days since the record was last recalled or written, less 30, less 30 for each day of recall (12 count)
    importance  x 0.5 ** (days / 90)           of episodes whose importance somebody rated
    decay_score ** (1 + days / 90)             0.5 has a half-life of 90 days, 0.95 is below 0.2 after 7 years, 1 never

What is told in every context is used in every context, and does not fade.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import log2

from memlayer_core.records.model import Record

__all__ = [
    "ACCESSES",
    "HALF_LIFE",
    "PATIENCE",
    "decay_score_at",
    "halvings",
    "importance_at",
    "importance_halvings",
]

PATIENCE = timedelta(days=30)
"""How long nothing fades after the last use (J28 in layered agent memories), and what each day of recall adds to it."""

HALF_LIFE = timedelta(days=90)
"""Time in which an importance halves (J28 in layered agent memories)."""

ACCESSES = 12
"""Days of recall that count: what was often recalled begins to fade a year later."""

_NOTHING = 1e6
"""Halvings of a share of zero: more than a clock has time for."""


def importance_at(record: Record, now: datetime) -> float:
    """Return the importance at a moment."""
    if importance_halvings(record) is None:
        return record.importance
    return float(record.importance * 0.5 ** _half_lives(record, now))


def decay_score_at(record: Record, now: datetime) -> float:
    """Return the decay score at a moment."""
    return float(record.decay_score ** (1 + _half_lives(record, now)))


def importance_halvings(record: Record) -> float | None:
    """Return how often one must be halved to get the importance; None if it does not fade.

    Only the importance of episodes fades, and only where somebody rated it: a default says nothing.
    """
    fades = record.type == "episodic" and record.is_rated
    return halvings(record.importance) if fades else None


def halvings(share: float) -> float:
    """Return how often one must be halved to get a share."""
    return max(0.0, -log2(share)) if share > 0 else _NOTHING


def _half_lives(record: Record, now: datetime) -> float:
    """Return for how many half-lives a record has faded."""
    if record.always or record.type == "profile":
        return 0.0
    used = max(record.updated_at, record.last_accessed or record.updated_at)
    idle = now - used - PATIENCE * (1 + min(record.accesses, ACCESSES))
    return max(0.0, idle / HALF_LIFE)
