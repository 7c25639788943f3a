"""What fades, as a formula: the reference for the conditions in SQL."""

from datetime import datetime

from memlayer_core.facts.check import ACCESSES, HALF_LIFE, PATIENCE, importance_halvings
from memlayer_core.facts.model import Record


def importance_at(record: Record, now: datetime) -> float:
    """Return the importance at a moment."""
    if importance_halvings(record) is None:
        return record.importance
    return float(record.importance * 0.5 ** _half_lives(record, now))


def decay_score_at(record: Record, now: datetime) -> float:
    """Return the decay score at a moment."""
    return float(record.decay_score ** (1 + _half_lives(record, now)))


def _half_lives(record: Record, now: datetime) -> float:
    """Return for how many half-lives a record has faded."""
    if record.always or record.type == "profile":
        return 0.0
    used = max(record.updated_at, record.last_accessed or record.updated_at)
    idle = now - used - PATIENCE * (1 + min(record.accesses, ACCESSES))
    return max(0.0, idle / HALF_LIFE)
