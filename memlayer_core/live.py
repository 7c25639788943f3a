"""Opens everything that a memory works with, in the process that opens it, and closes it again."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import ConfigurationError
from memlayer_core.events import Health, Switchboard
from memlayer_core.flows import index as index_flows
from memlayer_core.settings import Settings
from memlayer_core.work import Worker

if TYPE_CHECKING:
    from memlayer_core.ports import Embedder, Index, Journal, LanguageModel, TokenCounter, World

__all__ = ["Live", "directory_at"]


class Live:
    """What a memory has open, in the process that opened it."""

    def __init__(
        self,
        switchboard: Switchboard,
        *,
        database: Path | str | None,
        directory: Path | None,
        chroma_url: str | None,
        embedder: Any,
        tokenizer: Any,
        truncate_with: Callable[[str, int], str] | None,
        summarizer: Any,
        settings: Settings | None,
        reembed: bool,
    ) -> None:
        settings = Settings() if settings is None else settings
        _check(settings, truncate_with)
        from memlayer_core.models.asked import AskedEmbedder  # noqa: PLC0415
        from memlayer_core.models.embed import resolve_embedder, trust_of  # noqa: PLC0415  (numpy, SQLAlchemy: a second)
        from memlayer_core.models.llm import language_model  # noqa: PLC0415
        from memlayer_core.models.tokens import token_counter  # noqa: PLC0415
        from memlayer_core.ports import World  # noqa: PLC0415
        from memlayer_core.rules.truncate import truncate_text  # noqa: PLC0415
        from memlayer_core.stores.database import open_database  # noqa: PLC0415
        from memlayer_core.stores.journal import SqlJournal  # noqa: PLC0415
        from memlayer_core.stores.temporary import Temporaries  # noqa: PLC0415

        self.pid = os.getpid()
        self.directory = directory
        counter: TokenCounter = token_counter(tokenizer)
        summarizes = summarizer is not None and summarizer != "off"
        model: LanguageModel | None = None
        if summarizes and summarizer != "extractive":
            model = language_model(summarizer)
        journal: Journal = SqlJournal(open_database(database, settings), settings.chroma_collections)
        try:
            layout = journal.layout()
            self.store_id = layout.store_id
            recorded = None if reembed and embedder != "auto" else layout.embedder
            chosen: Embedder = resolve_embedder(
                embedder, recorded=recorded, settings=settings, tell=switchboard.tell
            )
            if reembed and layout.embedder not in {None, chosen.identity}:
                journal.forget_vectors(_now())
            else:
                index_flows.check_embedder(layout, chosen.identity)
            if layout.embedder != chosen.identity:
                journal.settle(chosen.identity, None)
            index = _index(journal, directory, chroma_url)
        except BaseException:
            journal.close()
            raise
        self.worker = Worker(owner=f"{self.pid}-{uuid.uuid4().hex[:12]}")
        self.world: World = World(
            journal=journal,
            index=index,
            embedder=AskedEmbedder(chosen),
            tokens=counter,
            settings=settings,
            tell=switchboard.tell,
            health=Health(switchboard.tell),
            wake=self.worker.wake,
            trust=trust_of(chosen),
            suspect=self.worker.suspect,
            evicted=self.worker.evicted if summarizes else None,
            accessed=self.worker.accessed,
            summarizer=model,
            temporaries=Temporaries(),
            truncate_with=truncate_with or truncate_text,
            now=_now,
            new_id=_new_id,
        )
        self._finalizer = weakref.finalize(self, _let_go, self.worker, index, journal, self.pid)
        self.worker.employ(self.world)

    def close(self) -> None:
        """Let go of everything, once."""
        self._finalizer()

    def disown(self) -> None:
        """Leave everything as it is: it belongs to the parent process."""
        self._finalizer.detach()


def directory_at(path: str | os.PathLike[str]) -> Path:
    """Return the whole path of a memory's directory, there or not.

    Raises:
        ConfigurationError: It is no path, or empty: that would be whatever directory the process is in.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigurationError(
            f"a memory's directory cannot be {path!r:.80}", hint='Pass a path, such as "./memory".'
        )
    return Path(path).expanduser().resolve()


def _check(settings: object, truncate_with: object) -> None:
    """Refuse what only background work would stumble over.

    Raises:
        ConfigurationError: The settings are none, or what shortens texts cannot be called.
    """
    if not isinstance(settings, Settings):
        raise ConfigurationError(
            f"`settings` must be a `Settings`, got {settings!r:.80}",
            hint="Such as `Settings(max_tokens=4000)`.",
        )
    if truncate_with is not None and not callable(truncate_with):
        raise ConfigurationError(
            f"`truncate_with` must be a function, got {truncate_with!r:.80}",
            hint="It is given a text and a number of characters, and returns a shorter text.",
        )


def _let_go(worker: Worker, index: Index | None, journal: Journal, pid: int) -> None:
    if os.getpid() != pid:
        return
    worker.close()
    if index is not None:
        index.close()
    journal.close()


def _index(journal: Journal, directory: Path | None, chroma_url: str | None) -> Index | None:
    from memlayer_core.stores.chroma import ChromaServer, EmbeddedChroma  # noqa: PLC0415

    layout = journal.layout()

    def embedder() -> tuple[str, int] | None:
        known = journal.layout()
        return (known.embedder, known.dimension) if known.embedder and known.dimension else None

    if chroma_url is not None:
        return ChromaServer(chroma_url, store_id=layout.store_id, shards=layout.shards, embedder=embedder)
    if directory is not None:
        return EmbeddedChroma(
            directory / "chroma", store_id=layout.store_id, shards=layout.shards, embedder=embedder
        )
    return None


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return str(uuid.uuid4())
