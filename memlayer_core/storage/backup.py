"""Copies a journal of SQLite that other processes may be using: the copy is of one moment, and complete."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from memlayer_core.errors import ConfigurationError, InputError, StoreUnavailableError
from memlayer_core.storage.connections import damage_error, translate_errors
from memlayer_core.storage.files import flush_directory, private_directory, private_file
from memlayer_core.storage.sqlite import journal_file, read_only_uri

__all__ = ["copy_journal"]

_PAGES = 1000  # copied at a time; Ctrl-C is heard in between
_PARTIAL = "journal.sqlite3.partial"


def copy_journal(source: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy the journal of one directory into another one, as it is at this moment.

    A read transaction is held meanwhile: others write, and nothing of that is in the copy. The copy appears when it is
    complete.

    Args:
        source: The memory's directory.
        target: The directory of the copy. It is made if it is missing.
        progress: Called with the pages that are copied, and all pages.

    Returns:
        The size of the copy, in bytes.

    Raises:
        InputError: The target has a memory already.
        ConfigurationError: The target cannot be written.
        StoreUnavailableError: The disk is full, or the journal cannot be read.
        JournalCorruptError: The journal is damaged.
    """
    if journal_file(target).exists():
        raise InputError(
            f"there is a memory in {str(target)!r} already, and a backup replaces none",
            hint="Name a new directory for each backup, such as one with the day in its name.",
        )
    partial, is_new = target / _PARTIAL, not target.exists()
    try:
        private_directory(target)
        _remove(partial)  # of a backup that was killed
        private_file(partial)
    except OSError as problem:
        raise ConfigurationError(
            f"the backup's directory {str(target)!r} cannot be written: {problem.strerror or problem}",
            hint="Choose a directory that this process may create and write to.",
        ) from problem
    try:
        with translate_errors():
            _copy(journal_file(source), partial, progress)
        size = partial.stat().st_size
        partial.replace(journal_file(target))
        flush_directory(target)
    except OSError as problem:
        raise StoreUnavailableError(
            f"the backup cannot be written: {problem.strerror or problem}",
            hint="Free some space, or choose another directory.",
        ) from problem
    finally:
        _remove(partial)
        if is_new and not journal_file(target).exists():
            with suppress(OSError):  # somebody else put something there
                target.rmdir()
    return size


def _copy(source: Path, target: Path, progress: Callable[[int, int], None] | None) -> None:
    """Copy all pages of one moment, and read the copy."""

    def on_progress(_: int, rest: int, pages: int) -> None:
        if progress is not None:
            progress(pages - rest, pages)

    may_lock = all(os.access(one, os.W_OK) for one in (source, source.parent))
    uri = f"{source.absolute().as_uri()}?mode=rw" if may_lock else read_only_uri(source)
    with (
        closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as original,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        original.execute("BEGIN")  # SQLite begins a copy anew when somebody writes, unless it has a snapshot
        original.execute("SELECT count(*) FROM sqlite_master").fetchone()
        original.backup(copy, pages=_PAGES, progress=on_progress, sleep=0)
        original.execute("ROLLBACK")
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise damage_error(found.strip().splitlines()[-1])


def _remove(partial: Path) -> None:
    for end in ("", "-journal", "-wal", "-shm"):
        partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
