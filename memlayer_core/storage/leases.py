"""Decides when a job runs again after a failure, or after its worker died."""

from __future__ import annotations

from datetime import datetime, timedelta

__all__ = ["LONGEST_BACKOFF", "backoff", "latest"]

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
