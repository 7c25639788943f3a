"""Waits for what happens in the background."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_for"]


def wait_for(claim: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: It is not, after so many seconds.
    """
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
