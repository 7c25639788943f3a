"""Lets days pass for a memory."""

from datetime import UTC, datetime, timedelta

from memlayer_core import Memory
from memlayer_core.messages.flow import end_idle


def set_ahead(memory: Memory, days: float) -> None:
    """Set a memory's clock so many days ahead of the present, and end what was idle for long by then."""
    rt = memory._resources.runtime
    object.__setattr__(rt, "now", lambda: datetime.now(UTC) + timedelta(days=days))
    end_idle(rt)
