"""Waits for background work, and shows what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from memlayer_core.errors import FlushTimeoutError
from memlayer_core.events import Event, Indexed
from memlayer_core.records.job import Backlog

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["show_backlog", "work_off"]

_PATIENCE = 60.0  # seconds without any progress before the waiting ends


def work_off(console: Console, memory: Memory) -> Backlog:
    """Wait, with a bar, until nothing is owed; give up when nothing moves any more."""
    from rich.progress import Progress  # noqa: PLC0415  (only where there is something to wait for)

    left = memory.status().backlog.queued
    if not left:
        return memory.flush()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Indexing", total=left)

        def hear(event: Event) -> None:
            if isinstance(event, Indexed):
                bar.advance(task, event.messages)

        stop = memory.listen(hear)
        try:
            while True:
                try:
                    return memory.flush(_PATIENCE)
                except FlushTimeoutError:
                    before, left = left, memory.status().backlog.queued
                    if left >= before:
                        raise
        finally:
            stop()


def show_backlog(console: Console, backlog: Backlog) -> None:
    """Show what is owed, and what was given up."""
    dead = f"[red]{backlog.dead} given up[/] (`memlayer work --revive`)" if backlog.dead else "0 given up"
    console.print(f"Backlog  {backlog.queued} job(s) owed, {dead}")
