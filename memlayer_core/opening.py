"""Opens and closes everything that a memory works with in one process."""

import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, Unpack

from memlayer_core.errors import ConfigurationError, repr_of, require
from memlayer_core.events import EventBus, Health
from memlayer_core.index import flow as index_flow
from memlayer_core.messages.preview import truncate_text
from memlayer_core.models import foreign
from memlayer_core.models.embed import check_embedder, resolve_embedder, scales_of
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.llm import language_model
from memlayer_core.models.tokens import token_counter
from memlayer_core.runtime import Runtime, Threads, VectorIndex
from memlayer_core.scope import Scope
from memlayer_core.seams import Embedder, LanguageModel, LongTermMemory, Redactor
from memlayer_core.settings import Settings
from memlayer_core.show import Mark, View, Viewable, line_of
from memlayer_core.storage import outbox, vectors
from memlayer_core.storage.database import Database, ensure_tables, open_database
from memlayer_core.storage.jobs import Backlog
from memlayer_core.telemetry import Telemetry
from memlayer_core.worker import Worker, owner_name

_URL = re.compile(r"([A-Za-z][\w+.-]+):/")  # a `Path` has one slash less, and a drive of Windows one letter


@dataclass(frozen=True, slots=True)
class Status(Viewable):
    """The state of a memory.

    Attributes:
        store_id: A UUID, made with the store.
        embedder: Identity of the embedder in use.
        index: `"held"`: this process keeps Chroma up to date. `"not held"`: another process does, or none yet.
            `"none"`: the memory works without Chroma.
        backlog: Background jobs that are left.
        problems: Problems at the moment: the reason, by the source of the problem.
        calls: How often models answered in the background, for all users; `memory.admin.costs(user_id=…)` has those of one.
        tokens: Tokens that they read and wrote.
        facts: Facts that were learned.
        summarizer: The model of this process that sums up and writes episodes; None: it has none.
        extractor: Its model that reads facts; None: it has none.
    """

    store_id: str
    embedder: str
    index: str
    backlog: Backlog
    problems: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0
    tokens: int = 0
    facts: int = 0
    summarizer: str | None = None
    extractor: str | None = None

    __repr__ = line_of

    @property
    def without_model(self) -> str:
        """What does not happen by itself because this process has no model for it, in one line; empty if it has both."""
        tasks = ("summaries, no episodes", self.summarizer), ("facts by themselves", self.extractor)
        missing = ", no ".join(task for task, model in tasks if model is None)
        instead = "Recall and history find what was said. See `Memory.open(model=…)`."
        return f"No model: no {missing}. {instead}" if missing else ""

    def _view(self) -> View:
        backlog = f"{self.backlog.queued:,} job(s) queued, {self.backlog.dead:,} given up"
        return View(
            rows=(
                ("Store", self.store_id),
                ("Embedder", self.embedder),
                ("Index", self.index),
                ("Backlog", Mark(backlog, "red") if self.backlog.dead else backlog),
                ("Models", f"{self.calls:,} call(s), {self.tokens:,} tokens"),
                ("Learned", f"{self.facts:,} fact(s)"),
            ),
            notes=(
                *([self.without_model] if self.without_model else []),
                *(Mark(f"{source}: {reason}", "red") for source, reason in self.problems.items()),
            ),
        )


class Options(TypedDict, total=False):
    """The options of a memory besides its places: `Memory.open` describes each of them."""

    embedder: foreign.EmbedderLike
    tokenizer: foreign.TokenizerLike
    truncate_with: Callable[[str, int], str] | None
    model: foreign.LanguageModelLike | None
    summarizer: foreign.LanguageModelLike | None
    extractor: foreign.LanguageModelLike | None
    reranker: foreign.RerankerLike | None
    redactor: Redactor | None
    long_term_memory: Callable[[Scope], LongTermMemory] | None
    settings: Settings | None


_FUNCTIONS = {
    "truncate_with": "It is given a text and a number of characters, and returns a shorter text.",
    "long_term_memory": "It is given a `Scope`, and returns an object with `record` and `retrieve` for that user.",
    "redactor": "It is given a text, and returns the text as it may be remembered.",
}


def check_options(options: Mapping[str, object]) -> None:
    """Check the names of options, and what would otherwise fail only in background work.

    Raises:
        TypeError: An option has an unknown name, as in any call.
        ConfigurationError: `settings` is not a `Settings`, or an argument that must be a function is not one.
    """
    for name in options.keys() - Options.__annotations__.keys():
        raise TypeError(f"a memory has no option {name!r}: there are {', '.join(Options.__annotations__)}")
    given, hint = options.get("settings"), "Such as `Settings(max_tokens=4000)`."
    require(isinstance(given, Settings | None), "settings", "a `Settings`", given, hint, ConfigurationError)
    for name, hint in _FUNCTIONS.items():
        given = options.get(name)
        require(given is None or callable(given), name, "a function", given, hint, ConfigurationError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a memory is; if nothing is named, in this process alone.

    Attributes:
        database: What has the journal: a directory, or the URL of a database.
        directory: The memory's directory.
        chroma_url: A Chroma server.
    """

    database: Path | str | None = field(default=None, repr=False)
    directory: Path | None = None
    chroma_url: str | None = None


class Resources:
    """Everything that a memory has open in one process: runtime, worker, directory."""

    def __init__(
        self, bus: EventBus, *, place: Place, reembed: bool = False, **options: Unpack[Options]
    ) -> None:
        settings = options.get("settings") or Settings()
        redactor, judge = options.get("redactor"), options.get("reranker")
        service, patience = options.get("long_term_memory"), settings.long_term_timeout

        self.pid, self.directory = os.getpid(), place.directory
        health = Health(bus.emit)
        counter = token_counter(options.get("tokenizer", "auto"), health)
        writer, reader = _models(options, settings)
        long_term = None if service is None else foreign.ForeignLongTermMemory(service, patience)
        reorders = None if judge is None else foreign.ForeignReranker(judge, settings.reranker_timeout)
        db, chosen, layout, index = _store(place, options, settings, reembed)
        self.store_id = layout.store_id
        redact: Callable[[str], str] = str if redactor is None else foreign.CheckedRedactor(redactor, health)
        telemetry = Telemetry(settings, layout.store_id, redact)
        self.worker = Worker(owner_name())
        self.runtime = Runtime(
            db=db,
            shards=layout.shards,
            index=index,
            embedder=chosen,
            embeds_here=isinstance(chosen, foreign.BlockingEmbedder),
            embeds_at_once=isinstance(chosen, HashingEmbedder),
            tokens=counter,
            settings=settings,
            emit=bus.emit,
            health=health,
            wake=self.worker.wake,
            vectors=vectors.VectorCache(settings.vector_cache_bytes, scales_of(chosen)),
            summarizer=writer,
            extractor=reader,
            reranker=reorders,
            long_term=long_term,
            redact=redact,
            truncate_with=options.get("truncate_with") or truncate_text,
            threads=Threads(settings.async_threads),
            telemetry=telemetry,
            now=lambda: datetime.now(UTC),
            new_id=lambda: str(uuid.uuid4()),
            secret=layout.secret,
        )
        self._finalizer = weakref.finalize(self, _close_all, self.worker, self.runtime, self.pid)
        self.worker.employ(self.runtime)

    def use_model(self, model: foreign.LanguageModelLike) -> None:
        """Use a model for the work that has no model so far."""
        given = language_model(model, self.runtime.settings.model_timeout)
        writer, reader = self.runtime.summarizer or given, self.runtime.extractor or given
        self.runtime = replace(self.runtime, summarizer=writer, extractor=reader)
        self.worker.employ(self.runtime)

    def close(self) -> None:
        """Close everything. A second call does nothing."""
        self._finalizer()


def _models(options: Options, settings: Settings) -> tuple[LanguageModel | None, LanguageModel | None]:
    """Return the model that sums up, and the one that learns."""
    both = language_model(options.get("model"), settings.model_timeout)
    writer = language_model(options.get("summarizer"), settings.model_timeout, task="a summariser") or both
    reader = language_model(options.get("extractor"), settings.model_timeout, task="an extractor") or both
    if settings.extraction_with_summaries and (writer is None or reader is None):
        raise ConfigurationError(
            "`Settings.extraction_with_summaries` needs a model that sums up and learns",
            hint="Pass one: Memory.open(path, model=model).",
        )
    return writer, reader


def _store(
    place: Place, options: Options, settings: Settings, reembed: bool
) -> tuple[Database, Embedder, vectors.Layout, VectorIndex | None]:
    """Open the database with this version of the tables, the embedder that made its vectors or is to make them, and the index."""
    embedder = options.get("embedder", "auto")
    check_embedder(embedder)
    if place.chroma_url is not None:
        from memlayer_core.chroma.index import server_url

        server_url(place.chroma_url)
    db = open_database(place.database, settings)
    try:
        db.write(ensure_tables, shards=settings.chroma_collections)
        layout = db.read(vectors.layout)
        recorded = None if reembed and embedder != "auto" else layout.embedder
        dimension = None if reembed else layout.dimension
        chosen = resolve_embedder(embedder, store_identity=recorded, settings=settings, dimension=dimension)
        if reembed and not _made(chosen, layout):
            db.write(vectors.forget, datetime.now(UTC))
            layout = db.read(vectors.layout)
        index_flow.check_embedder(layout, chosen.identity)
        if layout.embedder != chosen.identity:
            db.write(vectors.set_embedder, chosen.identity, None, scales_of(chosen))
        # A store in memory starts no Chroma unless it is to be asked.
        is_asked = place.database is None and not settings.exact_scan_limit
        return db, chosen, layout, _index(db, layout.store_id, place, is_asked=is_asked)
    except BaseException:
        db.close()
        raise


def _made(embedder: Embedder, layout: vectors.Layout) -> bool:
    """Return whether an embedder made the vectors of a store: it has the name of that one, and its dimensions."""
    if layout.embedder != embedder.identity:
        return False
    return layout.dimension in {None, len(embedder.embed(["length"])[0])}


def directory_at(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a memory's directory. The directory need not exist.

    Raises:
        ConfigurationError: It is not a path, is a URL, is empty, has NUL in it, or is SQLite's name for a database in memory.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    url = _URL.match(text.strip())
    if url is not None:  # what follows may hold a password
        given = "chroma_url" if url[1].lower() in {"http", "https"} else "database_url"
        raise ConfigurationError(
            f"a memory's directory cannot be a URL ({url[1]}://…)",
            hint=f"Pass it as `{given}=…`"
            + ("; for SQLite give a directory." if url[1].lower().startswith("sqlite") else "."),
        )
    if text in ("", ":memory:") or "\0" in text:
        raise ConfigurationError(
            f"a memory's directory cannot be {repr_of(path)}",
            hint='Pass a path, such as "./memory"; `Memory.in_memory()` needs none.',
        )
    return Path(path).expanduser().resolve()


def _close_all(worker: Worker, rt: Runtime, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child: all of this belongs to its parent
    if threading.current_thread().name.startswith("memlayer-"):
        # The garbage collector may close a forgotten memory in one of its own threads, which would wait for itself.
        threading.Thread(target=_close_all, args=(worker, rt, pid)).start()
        return
    rt.threads.close()
    worker.close()
    if rt.index is not None:
        rt.index.close()
    rt.db.close()


def _index(db: Database, store_id: str, place: Place, *, is_asked: bool) -> VectorIndex | None:
    from memlayer_core.chroma.directory import EmbeddedChroma
    from memlayer_core.chroma.index import ChromaServer

    if place.chroma_url is None and place.directory is None and not is_asked:
        return None
    if not db.read(outbox.is_projected):
        db.write(outbox.begin)
    if place.chroma_url is not None:
        return ChromaServer(place.chroma_url, store_id=store_id)
    return EmbeddedChroma(place.directory and place.directory / "chroma", store_id=store_id)
