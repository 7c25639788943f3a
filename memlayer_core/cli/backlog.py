"""Waits for background work, and shows the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from memlayer_core.errors import FlushTimeoutError
from memlayer_core.events import Event, MessagesIndexed
from memlayer_core.storage.job_queue import Backlog

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["show_backlog", "work_off"]

_PATIENCE = 60.0  # seconds without any progress before the waiting ends


def work_off(console: Console, memory: Memory) -> Backlog:
    """Wait, with a progress bar, until no job is queued; stop when nothing progresses any more."""
    left = memory.status().backlog.queued
    if not left:
        return memory.flush()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Indexing", total=left)

        def on_event(event: Event) -> None:
            if isinstance(event, MessagesIndexed):
                bar.advance(task, event.messages)

        stop = memory.listen(on_event)
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
    """Show how many jobs are queued, and how many are dead letters."""
    dead = f"[red]{backlog.dead} given up[/] (`memlayer work --revive`)" if backlog.dead else "0 given up"
    console.print(f"Backlog  {backlog.queued} job(s) owed, {dead}")
