"""Exports, imports and copies a memory, with a progress bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from memlayer_core.cli.terminal import console
from memlayer_core.runner import SYNC, step
from memlayer_core.storage.backup import copy_journal
from memlayer_core.storage.files import FileWriter
from memlayer_core.transfer.flow import export as transfer
from memlayer_core.transfer.flow import imports

if TYPE_CHECKING:
    from memlayer_core.memory import Memory
    from memlayer_core.storage.database import Database

__all__ = ["read_import", "write_backup", "write_export"]


def write_export(db: Database, target: str, tenant_id: str, user_id: str | None) -> int:
    """Write an export to a file, or to the standard output; only the journal is read."""
    with _progress_bar("Exporting") as progress:
        return step(
            transfer.export(
                db,
                SYNC,
                FileWriter(sys.stdout if target == "-" else target),
                tenant_id=tenant_id,
                user_id=user_id,
                now=datetime.now(UTC),
                progress=progress,
            )
        )


def read_import(
    memory: Memory, source: str, tenant_id: str | None, user_id: str | None
) -> imports.ImportReport:
    """Import a file, or the standard input."""
    with _progress_bar("Importing") as progress:
        lines = sys.stdin.buffer if source == "-" else source
        return memory.import_from(lines, user_id=user_id, tenant_id=tenant_id, progress=progress)


def write_backup(source: Path, target: Path) -> int:
    """Copy a journal of SQLite into another directory. Returns its size in bytes."""
    with _progress_bar("Copying") as progress:
        return copy_journal(source, target, progress)


@contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the standard error, if that is a terminal."""
    terminal = console(stderr=True)
    with Progress(
        console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=False
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=max(count, total))
