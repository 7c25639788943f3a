"""Waits for what happens in the background, and hears of it."""

import time
from collections.abc import Callable
from typing import Any

from memlayer_core import Memory

__all__ = ["heard", "wait_for"]


def wait_for(claim: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: It is not, after so many seconds.
    """
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def heard(memory: Memory, *kinds: type) -> list[Any]:
    """Return a list that gets what a memory tells from now on: every event, or those of some kinds."""
    events: list[Any] = []
    memory.listen(lambda event: events.append(event) if isinstance(event, kinds or object) else None)
    return events
