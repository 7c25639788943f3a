"""Moves conversations out of a store and into one, with a bar where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memlayer_core.cli.terminal import console
from memlayer_core.drive import BLOCKING, step
from memlayer_core.flows import transfer
from memlayer_core.stores.files import Outgoing

if TYPE_CHECKING:
    from memlayer_core.memory import Memory
    from memlayer_core.ports import Journal

__all__ = ["send", "take"]


def send(journal: Journal, target: str, tenant_id: str, user_id: str | None) -> int:
    """Write an export to a file, or to the standard output; the journal alone is read."""
    with _watched("Exporting") as progress:
        return step(
            transfer.export(
                journal,
                BLOCKING,
                Outgoing(sys.stdout if target == "-" else target),
                tenant_id=tenant_id,
                user_id=user_id,
                now=datetime.now(UTC),
                progress=progress,
            )
        )


def take(memory: Memory, source: str, tenant_id: str | None) -> transfer.Imported:
    """Import a file, or the standard input."""
    with _watched("Importing") as progress:
        lines = sys.stdin.buffer if source == "-" else source
        return memory.import_from(lines, tenant_id=tenant_id, progress=progress)


@contextmanager
def _watched(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar beside the output, on a terminal alone."""
    from rich.progress import Progress  # noqa: PLC0415  (only where there is something to wait for)

    shown = console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, expected: bar.update(task, completed=done, total=max(done, expected))
