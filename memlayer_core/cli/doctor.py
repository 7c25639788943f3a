"""What `memlayer doctor` looks at: this machine and a store. Nothing is changed."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import ClassVar, Literal

from packaging.requirements import Requirement
from sqlalchemy import Connection, false, func, select, update

from memlayer_core.chroma.places import find_damage
from memlayer_core.chroma.server import ServerPlace
from memlayer_core.cli.store import directory_of, index_at, journal_at, sentence, totals
from memlayer_core.errors import MemlayerError, StoreUnavailableError
from memlayer_core.models import minilm, multilingual, tokens
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.hashing import IDENTITY as HASHING
from memlayer_core.models.tokens import token_counter
from memlayer_core.settings import Settings
from memlayer_core.storage import jobs as storage_jobs
from memlayer_core.storage import vectors
from memlayer_core.storage.database import Database, open_database
from memlayer_core.storage.sqlite import journal_file
from memlayer_core.storage.statements import to_micros
from memlayer_core.storage.tables import jobs, meta

_EXTRAS = ("", "langchain", "classic", "llamaindex", "postgres", "multilingual")
_TOKENS = {"MEMLAYER_MCP_TOKEN", "MEMLAYER_UI_TOKEN"}  # of memlayer-server
_LEAST = 100 * 2**20  # bytes that a disk should have free
_PATIENCE = 2.0  # seconds that a writer is waited for
_IDLE = timedelta(hours=1)  # that a job waits before nobody seems to work


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at.

    Attributes:
        name: What it is.
        state: `"fine"`; `"note"`: it works, and somebody may want to know; `"wrong"`: it should be mended.
        finding: What was found.
        mend: How to mend it; empty if nothing is to be done.
    """

    name: str
    state: Literal["fine", "note", "wrong"]
    finding: str
    mend: str = ""


def examine(path: Path | None, database_url: str | None, chroma_url: str | None) -> Iterator[Check]:
    """Yield what is found on this machine and in a store; without a store, what a new one would get."""
    yield Check("python", "fine", f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    yield _packages()
    yield from _guard("settings", _settings)
    yield _tokenizer()
    directory = directory_of(path, database_url)
    folder = directory if directory is not None and directory.is_dir() else None
    if folder is not None:
        yield from (_permissions(folder), _disk(folder))
    embedder: str | None = None
    if path is None and directory is not None and not journal_file(directory).is_file():
        mend = "Name its directory if it is elsewhere: `memlayer doctor DIRECTORY`."
        yield Check("journal", "note", f"there is no memory in {directory} yet", mend)
    else:
        try:
            with journal_at(directory, database_url) as journal:
                yield from _guard("journal", lambda: _journal(journal.db))
                yield _lock(directory if database_url is None else database_url)
                place = f"'{directory}'" if database_url is None else "--database-url …"
                yield from journal.db.read(lambda connection: list(_queue(connection, place)))
                embedder = journal.db.read(vectors.layout).embedder
        except MemlayerError as problem:
            yield Check("journal", "wrong", str(problem), problem.hint)
    yield from _guard("embedder", lambda: _embedder(embedder))
    if chroma_url is not None:
        yield from _guard("chroma", lambda: _server(chroma_url))
    elif folder is not None:
        yield _chroma(folder)


class _Impatient(Settings):
    busy_timeout: ClassVar[float] = _PATIENCE  # type: ignore[misc]  # a constant otherwise


def _guard(name: str, look: Callable[[], Check]) -> Iterator[Check]:
    """Yield what a look finds; an error of memlayer is something wrong, and its hint the way to mend it."""
    try:
        yield look()
    except MemlayerError as problem:
        yield Check(name, "wrong", str(problem), problem.hint)


def _packages() -> Check:
    """Compare the packages that are installed with what memlayer and its extras need."""
    wrong: dict[str, str] = {}
    for one in map(Requirement, requires("memlayer-core") or ()):
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            continue
        found = _version_of(one.name)
        if found is None and one.marker is None:
            wrong[f"{one.name}{one.specifier}"] = f"{one.name} is missing"
        elif found is not None and not one.specifier.contains(found, prereleases=True):
            wrong[f"{one.name}{one.specifier}"] = f"{one.name} {found} does not fit {one.specifier}"
    if wrong:
        mend = " ".join(f"'{one}'" for one in wrong)
        return Check("packages", "wrong", "; ".join(wrong.values()), f"pip install {mend}")
    return Check("packages", "fine", f"memlayer {version('memlayer-core')}, chromadb {version('chromadb')}")


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _settings() -> Check:
    Settings()
    names = [name for name in os.environ if name.startswith("MEMLAYER_")]
    known = {*_TOKENS, *(f"MEMLAYER_{name}".upper() for name in Settings.model_fields)}
    if strange := sorted(name for name in names if name.upper() not in known):
        what = f"in the environment, and no settings: {', '.join(strange)}"
        return Check("settings", "note", what, "Look for a slip: `help(memlayer_core.Settings)` lists all.")
    return Check("settings", "fine", f"{len(names)} from the environment")


def _tokenizer() -> Check:
    name = token_counter("auto").name
    if name == "estimate":
        mend = tokens.how_to_get("o200k_base")
        return Check("tokenizer", "note", "tokens are estimated: no table of tiktoken is at hand", mend)
    return Check("tokenizer", "fine", name)


def _embedder(identity: str | None) -> Check:
    """Look whether the embedder of a store is at hand, and ask it; without one, what a new store would get."""
    is_new = identity is None and not multilingual.is_present()
    if (is_new or "minilm" in (identity or "")) and not minilm.is_present(minilm.folder()):
        mend = (
            f"Go online once (it is fetched when a store is opened), or put {minilm.ARCHIVE} from {minilm.URL} into "
            f"~/.cache/chroma/onnx_models/all-MiniLM-L6-v2. With nothing to fetch: {multilingual.EXTRA}"
        )
        what = (
            "MiniLM (80 MB) is not on this machine; a new store without it finds common words, not meanings"
        )
        return Check("embedder", "note" if is_new else "wrong", what, mend)
    try:
        embedder = resolve_embedder("auto", store_identity=identity, settings=Settings(), emit=lambda _: None)
    except MemlayerError as problem:
        if "only its owner can make" not in str(problem):
            raise
        mend = "Nothing, if it is passed to `Memory.open`. `search` takes it by `--embedder`."
        return Check("embedder", "note", f"{identity}: your application's own", mend)
    says = f"{embedder.identity}, {len(embedder.embed_query('Where did I put my keys?'))} dimensions"
    if embedder.identity == HASHING:
        first = "" if multilingual.is_present() else f"{multilingual.EXTRA}, then "
        mend = f"To find meanings: {first}`memlayer reindex --embedder multilingual`."
        return Check("embedder", "note", f"{says}; it finds common words, not meanings", mend)
    return Check("embedder", "fine", says)


def _permissions(directory: Path) -> Check:
    files = list(directory.glob(f"{journal_file(directory).name}*"))
    if locked := [path for path in (directory, *files) if not os.access(path, os.R_OK | os.W_OK)]:
        mend = "Run as the user whose process has the memory, or give the files to this one: chown -R."
        what = f"this user may not write to {', '.join(map(str, locked))}"
        return Check("permissions", "wrong", what, mend)
    is_open = directory.stat().st_mode & 0o077
    exposed = [path.name for path in files if path.stat().st_mode & 0o077 and is_open]
    if os.name == "posix" and exposed:
        what = f"other users of this machine may read {', '.join(exposed)}"
        return Check("permissions", "wrong", what, f"chmod -R go= '{directory}'")
    return Check("permissions", "fine", f"{directory} can be read and written")


def _disk(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    if free < _LEAST:
        mend = f"Free {(_LEAST - free) / 1e6:,.0f} MB: writes fail on a full disk, and deleted data is not erased."
        return Check("disk", "wrong", f"{free / 1e6:,.0f} MB free", mend)
    return Check("disk", "fine", f"{free / 1e9:,.1f} GB free")


def _journal(db: Database) -> Check:
    db.check()
    schema = db.read(vectors.layout).schema_version
    return Check("journal", "fine", f"{sentence(totals(db))}; schema version {schema}; its pages are sound")


def _lock(target: Path | str | None) -> Check:
    """Take the lock that every write takes, for a moment."""
    db = open_database(target, _Impatient())
    try:
        db.write(lambda connection: connection.execute(update(meta).values(value="").where(false())))
    except StoreUnavailableError as problem:
        mend = (
            "Look again in a minute. If it stays, a process hangs in a write, or may only read: `fuser -v` with the "
            "journal's file, or pg_stat_activity, names it. End that process."
        )
        what = f"nothing could be written within {_PATIENCE:g} seconds: {problem}"
        return Check("lock", "wrong", what, mend)
    finally:
        db.close()
    return Check("lock", "fine", "the journal can be written to")


def _queue(connection: Connection, place: str) -> Iterator[Check]:
    backlog = storage_jobs.backlog(connection)
    query = select(jobs.c.dead, jobs.c.kind, jobs.c.error).where(jobs.c.error.is_not(None)).distinct()
    failures = connection.execute(query.order_by(jobs.c.dead.desc()).limit(5)).all()
    what = "; ".join(f"{row.kind}: {row.error}" for row in failures)
    oldest = connection.scalar(select(func.min(jobs.c.due)).where(jobs.c.dead == 0))
    if backlog.dead:
        mend = f"Mend the cause, then `memlayer work {place} --revive --once` tries them again."
        yield Check("queue", "wrong", f"{backlog.dead} job(s) given up: {what}", mend)
    elif failures:
        yield Check("queue", "note", f"job(s) that failed and are tried again: {what}")
    if oldest is not None and oldest < to_micros(datetime.now(UTC) - _IDLE):
        mend = f"`memlayer work {place}`, or keep a process running that has the store open."
        yield Check("queue", "wrong", f"{backlog.queued:,} job(s) wait, and nobody seems to do them", mend)
    elif not failures:
        yield Check("queue", "fine", f"{backlog.queued:,} job(s) wait, none was given up")


def _server(url: str) -> Check:
    place = ServerPlace(url, None, 10.0)
    place.connect()
    place.disconnect()
    return Check("chroma", "fine", f"a Chroma server answers at {place}")


def _chroma(directory: Path) -> Check:
    """Look at Chroma's files, unless a process has them open."""
    chroma = directory / "chroma"
    is_closed = chroma.is_dir() and not (directory / "chroma.open").exists()
    damage = find_damage(chroma, unclean=False) if is_closed else None
    if damage is not None:
        return Check("chroma", "wrong", damage, f"memlayer verify '{directory}' builds it again.")
    return Check("chroma", "fine", index_at(directory))
