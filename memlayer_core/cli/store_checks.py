"""What `memlayer doctor` looks at in a store: files, journal, locks, queue, index. Nothing is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import false, func, select, update

from memlayer_core.chroma.files import find_damage
from memlayer_core.chroma.server import ServerPlace
from memlayer_core.cli.checks import Check, embedder_check, guard
from memlayer_core.cli.views import journal_at, journal_size
from memlayer_core.errors import MemlayerError, StoreUnavailableError
from memlayer_core.settings import Settings
from memlayer_core.storage import job_queue, vectors
from memlayer_core.storage.database import open_database
from memlayer_core.storage.keys import to_micros
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.tables import jobs, meta

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection, Database

__all__ = ["store_checks"]

_LEAST = 100 * 2**20  # bytes that a disk should have free
_REWRITTEN = 2**28  # a journal up to this size is written anew after a deletion
_PATIENCE = 2.0  # seconds that a writer is waited for
_IDLE = timedelta(hours=1)  # that a job waits before nobody seems to work


def store_checks(directory: Path | None, database_url: str | None, chroma_url: str | None) -> Iterator[Check]:
    """Yield what is found in a store.

    Args:
        directory: The memory's directory; None: there is none.
        database_url: PostgreSQL that holds the journal; None: SQLite in the directory.
        chroma_url: A Chroma server; None: Chroma's files in the directory.
    """
    if directory is not None and directory.is_dir():
        yield _permissions(directory)
        yield _disk(directory)
    identity, dimension = None, None
    try:
        with journal_at(directory, database_url) as db:
            yield guard("journal", lambda: _journal(db))
            yield guard("lock", lambda: _lock(directory if database_url is None else database_url))
            yield from db.read(_queue, _place(directory, database_url))
            layout = db.read(vectors.layout)
            identity, dimension = layout.embedder, layout.dimension
    except MemlayerError as problem:
        yield Check("journal", "wrong", str(problem), problem.hint)
    yield guard("embedder", lambda: embedder_check(identity, dimension))
    if chroma_url is not None:
        yield guard("chroma", lambda: _server(chroma_url))
    elif directory is not None and directory.is_dir():
        yield _chroma(directory)


def _place(directory: Path | None, database_url: str | None) -> str:
    return f"'{directory}'" if database_url is None else "--database-url …"


def _permissions(directory: Path) -> Check:
    files = [path for path in directory.iterdir() if path.name.startswith(journal_file(directory).name)]
    locked = [path for path in (directory, *files) if not os.access(path, os.R_OK | os.W_OK)]
    if locked:
        return Check(
            "permissions",
            "wrong",
            f"this user may not write to {', '.join(map(str, locked))}",
            "Run as the user whose process has the memory, or give the files to this one: chown -R.",
        )
    is_open = directory.stat().st_mode & 0o077
    exposed = [path for path in files if path.stat().st_mode & 0o077 and is_open]
    if os.name == "posix" and exposed:
        return Check(
            "permissions",
            "wrong",
            f"other users of this machine may read {', '.join(path.name for path in exposed)}",
            f"chmod -R go= '{directory}'",
        )
    return Check("permissions", "fine", f"{directory} can be read and written")


def _disk(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    journal = journal_file(directory)
    size = journal.stat().st_size if journal.exists() else 0
    least = max(_LEAST, 2 * size if size <= _REWRITTEN else 0)
    says = f"{free / 1e9:,.1f} GB free; the journal has {size / 1e6:,.1f} MB"
    if free < least:
        mend = f"Free {(least - free) / 1e6:,.0f} MB: writes fail on a full disk, and deleted data is not erased."
        return Check("disk", "wrong", says, mend)
    return Check("disk", "fine", says)


def _journal(db: Database) -> Check:
    db.check()
    totals = journal_size(db)
    version = db.read(vectors.layout).schema_version
    kept = "{messages:,} message(s) in {sessions:,} session(s) of {users:,} user(s)".format(**totals)
    return Check("journal", "fine", f"{kept}; schema version {version}; its pages are sound")


def _lock(target: Path | str | None) -> Check:
    """Take the lock that every write takes, for a moment."""
    db = open_database(target, Settings().replace(busy_timeout=_PATIENCE))
    try:
        db.write(lambda connection: connection.execute(update(meta).values(value="").where(false())))
    except StoreUnavailableError as problem:
        return Check(
            "lock",
            "wrong",
            f"nothing could be written within {_PATIENCE:g} seconds: {problem}",
            "Look again in a minute. If it stays, a process hangs in a write, or may only read: "
            "`fuser -v` with the journal's file, or pg_stat_activity, names it. End that process.",
        )
    finally:
        db.close()
    return Check("lock", "fine", "the journal can be written to")


def _queue(connection: Connection, place: str) -> Iterator[Check]:
    backlog = job_queue.backlog(connection)
    dead = connection.execute(
        select(jobs.c.kind, jobs.c.error, func.count().label("number"))
        .where(jobs.c.dead != 0)
        .group_by(jobs.c.kind, jobs.c.error)
        .limit(5)
    ).all()
    failures = connection.execute(
        select(jobs.c.kind, jobs.c.error).where(jobs.c.dead == 0, jobs.c.error.is_not(None)).limit(5)
    ).all()
    oldest = connection.scalar(select(func.min(jobs.c.due)).where(jobs.c.dead == 0))
    checks = []
    if dead:
        what = "; ".join(f"{row.number} of kind {row.kind}: {row.error}" for row in dead)
        mend = f"Mend the cause, then `memlayer work {place} --revive --once` tries them again."
        checks.append(Check("queue", "wrong", f"{backlog.dead} job(s) given up: {what}", mend))
    if backlog.queued > Settings().backlog_limit or (
        oldest is not None and oldest < to_micros(datetime.now(UTC) - _IDLE)
    ):
        checks.append(
            Check(
                "queue",
                "wrong",
                f"{backlog.queued:,} job(s) wait, and nobody seems to do them",
                f"`memlayer work {place}`, or keep a process running that has the store open.",
            )
        )
    if failures:
        what = "; ".join(f"{row.kind}: {row.error}" for row in failures)
        checks.append(Check("queue", "note", f"job(s) that failed and are tried again: {what}"))
    return iter(checks or [Check("queue", "fine", f"{backlog.queued:,} job(s) wait, none was given up")])


def _server(url: str) -> Check:
    place = ServerPlace(url, None, 10.0)
    place.connect()
    place.disconnect()
    return Check("chroma", "fine", f"a Chroma server answers at {place}")


def _chroma(directory: Path) -> Check:
    """Look at Chroma's files, unless a process has them open."""
    chroma, marker = directory / "chroma", directory / "chroma.open"
    if not chroma.is_dir():
        return Check("chroma", "fine", "no index yet: the first process that needs one builds it")
    owner = ""
    with suppress(OSError):
        owner = marker.read_text(encoding="utf-8").strip()
    if _is_held(directory / "chroma.lock"):
        return Check("chroma", "fine", f"{chroma}, {owner or 'in use'}")
    damage = find_damage(chroma, unclean=bool(owner))
    if damage is not None:
        return Check("chroma", "wrong", damage, f"memlayer verify '{directory}' builds it again.")
    if owner:
        what = f"{owner}, which was killed: the next process that opens it tries the files out first"
        return Check("chroma", "note", what, "Nothing.")
    return Check("chroma", "fine", f"{chroma}, not in use")


def _is_held(lock_file: Path) -> bool:
    from filelock import FileLock, Timeout

    if not (lock_file.exists() and os.access(lock_file, os.W_OK)):
        return False
    lock = FileLock(lock_file, mode=0o600)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False
