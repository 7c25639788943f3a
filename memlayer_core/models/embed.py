"""Finds the embedder that a memory was given, or the best that is to be had.

Embedders of frameworks are known by their methods: nothing of a framework is imported. Their answers are
checked, as a wrong one would be noticed much later, as a memory that finds nothing.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import ConfigurationError, EmbedderError, MemlayerError
from memlayer_core.events import EmbedderFallback, Event
from memlayer_core.models import hashing, minilm
from memlayer_core.models.bounded import BoundedEmbedder
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM
from memlayer_core.ports import Embedder
from memlayer_core.settings import Settings

if TYPE_CHECKING:
    from memlayer_core.records.vector import FloatVector

__all__ = ["resolve_embedder", "trust_of"]

_WAY_OUT = (
    f"go online once, or put `{minilm.ARCHIVE}` from {minilm.URL} into "
    "`~/.cache/chroma/onnx_models/all-MiniLM-L6-v2`"
)
# What an error's text may quote of a key, and what a model's address may carry of one.
_SECRET = re.compile(r"(?i)(\bsk-|\bbearer\s+|\bapi[ _-]?key\b[^\w]{1,4})[\w.*-]+")
_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@|\?.*$")

# One fetch at a time, and what came of those that failed: no later opening waits for the same again.
_fetching = threading.Lock()
_failed: dict[Path, str] = {}


def _start_afresh() -> None:
    """Give a forked child its own lock: the parent's may have been held."""
    global _fetching  # noqa: PLW0603  (one a process is the purpose)
    _fetching = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def resolve_embedder(
    choice: Any, *, recorded: str | None, settings: Settings, tell: Callable[[Event], None]
) -> Embedder:
    """Return the embedder for a store. May take long: MiniLM is fetched where it is not at hand.

    Args:
        choice: `"auto"`: what the store was built with; for a new store MiniLM, and without it the built-in
            hashing embedder. `"minilm"`, `"hashing"`: that one. Or a LangChain `Embeddings`, a LlamaIndex
            `BaseEmbedding`, a Chroma embedding function, a function from a list of texts to their vectors,
            or an `Embedder`. Such an object is called from several threads.
        recorded: Identity of the embedder that the store was built with, if it was.
        settings: For `download_timeout` and `embedder_timeout`.
        tell: Hears of the fallback to hashing, once per process.

    Raises:
        ConfigurationError: No such embedder, or the store needs one that has to be passed.
        EmbedderError: MiniLM is needed and is not to be had.
    """
    match choice:
        case "auto" if recorded is None:
            return _best(settings, tell)
        case "auto" if recorded in {minilm.IDENTITY, hashing.IDENTITY}:
            choice = "minilm" if recorded == minilm.IDENTITY else "hashing"
        case "auto":
            raise ConfigurationError(
                f"the store was built with the embedder {recorded!r}, which only its owner can make",
                hint="Pass that embedder again (`embedder=...`), or re-embed with `memlayer reindex`.",
            )
        case _:
            pass
    match choice:
        case "hashing":
            return HashingEmbedder()
        case "minilm":
            return _minilm(settings, of_store=recorded == minilm.IDENTITY)
        case MiniLM() | HashingEmbedder() | BoundedEmbedder():
            return choice
        case _:
            foreign = _foreign(choice)
            return BoundedEmbedder(foreign, settings.embedder_timeout, awaits=foreign.awaits)


def trust_of(embedder: Embedder) -> Callable[[str], float]:
    """Return how far an embedder's cosine is to be believed for a question, 0 to 1.

    The built-in ones know what they are worth. Others are taken at their word.
    """
    return embedder.trust if isinstance(embedder, HashingEmbedder | MiniLM) else lambda _: 1.0


def _best(settings: Settings, tell: Callable[[Event], None]) -> Embedder:
    try:
        where = minilm.folder()
    except RuntimeError as problem:  # no home directory
        where, lost = Path(), str(problem)
    else:
        lost = ""
    with _fetching:
        if not lost and minilm.at_hand(where):
            return MiniLM(where)
        if where in _failed:
            return HashingEmbedder()
        try:
            return _fetched(settings)
        except Exception as problem:  # noqa: BLE001  (without it, whatever the reason, there is another)
            reason = _failed[where] = f"{type(problem).__name__}: {problem}"
    tell(
        EmbedderFallback(
            f"MiniLM cannot be fetched ({reason}). The built-in hashing embedder finds common words, not "
            f"meanings. To have MiniLM, {_WAY_OUT}; a store that was begun without needs `memlayer reindex` "
            'then. If hashing is what you want, say `embedder="hashing"`.'
        )
    )
    return HashingEmbedder()


def _minilm(settings: Settings, *, of_store: bool) -> Embedder:
    with _fetching:
        try:
            return _fetched(settings)
        except Exception as problem:
            who = "MiniLM, which the store was built with," if of_store else "MiniLM"
            other = "`memlayer reindex --embedder hashing`" if of_store else '`embedder="hashing"`'
            raise EmbedderError(
                f"{who} is not at hand and cannot be fetched: {type(problem).__name__}: {problem}",
                hint=f"To have it, {_WAY_OUT}. To go without: {other}.",
            ) from problem


def _fetched(settings: Settings) -> Embedder:
    where = minilm.folder()
    if not minilm.at_hand(where):
        minilm.fetch(where, url=minilm.URL, sha256=minilm.SHA256, seconds=settings.download_timeout)
    return MiniLM(where)


class _Foreign:
    """Somebody else's embedder: called, checked, and made unit length.

    Args:
        identity: What a store remembers it by.
        texts: Embeds a list of texts.
        query: Embeds one question; without it `texts` does.
        atexts: The async twin of `texts`, if it is more than a blocking call in disguise.
        aquery: The same of `query`.
    """

    def __init__(
        self,
        identity: str,
        texts: Callable[[list[str]], Any],
        query: Callable[[str], Any] | None = None,
        atexts: Callable[[list[str]], Awaitable[Any]] | None = None,
        aquery: Callable[[str], Awaitable[Any]] | None = None,
    ) -> None:
        self.identity = identity
        self._texts, self._query, self._atexts, self._aquery = texts, query, atexts, aquery
        self._known: dict[str, int] = {}

    @property
    def awaits(self) -> bool:
        """Whether a question is embedded without a thread."""
        return self._aquery is not None

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        texts = list(texts)
        if not texts:
            return []
        with self._named():
            answer = self._texts(texts)
        return self._checked(answer, texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        texts = list(texts)
        if not texts:
            return []
        if self._atexts is None:
            return await asyncio.to_thread(self.embed, texts)
        with self._named():
            answer = await self._atexts(texts)
        return self._checked(answer, texts)

    def embed_query(self, text: str) -> FloatVector:
        if self._query is None:
            return self.embed([text])[0]
        with self._named():
            answer = self._query(text)
        return self._checked([answer], [text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        if self._aquery is None:
            return await asyncio.to_thread(self.embed_query, text)
        with self._named():
            answer = await self._aquery(text)
        return self._checked([answer], [text])[0]

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except MemlayerError:
            raise
        except Exception as problem:
            said = _SECRET.sub(r"\1…", str(problem))[:500]
            raise EmbedderError(
                f"the embedder {self.identity} raised {type(problem).__name__}: {said}",
                hint="The cause is shown above: its model, its credentials or its network.",
            ) from problem

    def _checked(self, answer: Any, texts: list[str]) -> list[FloatVector]:
        """Return an answer as unit vectors.

        A vector of zeros has no direction and would be near nothing: an error, except for a text without a
        visible character, where a fixed vector takes its place.
        """
        try:
            rows = [np.asarray(row, dtype=np.float64) for row in answer]
        except (TypeError, ValueError) as problem:
            raise self._nonsense(f"{type(answer).__name__} that is no list of vectors") from problem
        if len(rows) != len(texts):
            raise self._nonsense(f"{len(rows)} vectors for {len(texts)} texts")
        vectors = []
        for row, text in zip(rows, texts, strict=True):
            if row.ndim != 1 or not row.size:
                raise self._nonsense(f"something of shape {row.shape} in place of a vector")
            if not np.isfinite(row).all():
                raise self._nonsense("a vector with NaN or infinity in it")
            self._measure(row.size)
            largest = float(np.abs(row).max())
            if largest == 0:
                if text.strip():
                    raise self._nonsense("a vector of zeros")
                row, largest = np.eye(1, row.size)[0], 1.0  # noqa: PLW2901
            scaled = row / largest  # so that squares neither overflow nor vanish
            vectors.append((scaled / np.linalg.norm(scaled)).astype(np.float32))
        return vectors

    def _measure(self, size: int) -> None:
        known = self._known.setdefault("dimension", size)  # atomic: several threads may embed at once
        if size != known:
            raise self._nonsense(f"a vector of {size} dimensions after ones of {known}")

    def _nonsense(self, what: str) -> EmbedderError:
        return EmbedderError(
            f"the embedder {self.identity} answered with {what}",
            hint="It must give one vector of finite numbers, not all zero, always of one length, for each text.",
        )


def _foreign(choice: Any) -> _Foreign:
    def has(*methods: str) -> bool:
        return all(callable(getattr(choice, method, None)) for method in methods)

    def own(method: str, *doers: str) -> Any:
        """Return an async method if it, or what does its work, awaits something; a thread is better if not."""
        doer = next((doer for doer in doers if has(doer)), method)
        return getattr(choice, method, None) if _awaits(getattr(type(choice), doer, None)) else None

    if isinstance(choice, type):
        raise ConfigurationError(
            f"embedder={choice.__qualname__} is a class",
            hint=f"Pass an object of it: `embedder={choice.__qualname__}(...)`.",
        )
    if isinstance(getattr(choice, "identity", None), str) and has("embed", "embed_query"):
        return _Foreign(choice.identity, choice.embed, choice.embed_query, own("aembed"), own("aembed_query"))
    if has("embed_documents", "embed_query"):
        model = getattr(choice, "underlying_embeddings", choice)  # a cache answers with its model's vectors
        return _Foreign(
            _identity("langchain", _path(type(model)), lambda name: getattr(model, name, None)),
            choice.embed_documents,
            choice.embed_query,
            own("aembed_documents"),
            own("aembed_query"),
        )
    if has("get_text_embedding_batch", "get_query_embedding"):
        name = choice.class_name() if has("class_name") else type(choice).__name__
        return _Foreign(
            _identity("llamaindex", name, lambda name: getattr(choice, name, None)),
            choice.get_text_embedding_batch,
            choice.get_query_embedding,
            own("aget_text_embedding_batch", "_aget_text_embedding"),
            own("aget_query_embedding", "_aget_query_embedding"),
        )
    if not callable(choice) or any(map(inspect.iscoroutinefunction, (choice, type(choice).__call__))):
        raise ConfigurationError(
            f"embedder={choice!r:.100} is no embedder",
            hint='Pass "auto", "minilm", "hashing", a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a '
            "Chroma embedding function, or a blocking function from a list of texts to their vectors.",
        )
    if has("name") or has("get_config"):
        return _Foreign(_chroma_identity(choice), choice, _chroma_query(choice))
    named = choice
    while isinstance(named, functools.partial):
        named = named.func
    return _Foreign(f"callable:{_path(named if hasattr(named, '__qualname__') else type(named))}", choice)


def _awaits(method: Any) -> bool:
    """Tell whether an async method ever gives the loop back; many only call their blocking twin."""
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    waits = {"GET_AWAITABLE", "GET_ANEXT"}
    return code is not None and any(step.opname in waits for step in dis.get_instructions(code))


def _chroma_query(choice: Any) -> Callable[[str], Any] | None:
    if not callable(getattr(choice, "embed_query", None)):
        return None
    return lambda text: choice.embed_query(input=[text])[0]


def _chroma_identity(choice: Any) -> str:
    def said(method: str) -> Any:
        """Call a method, unless it is the base class's, which only warns that it is missing."""
        found = getattr(choice, method, None)
        own = callable(found) and getattr(found, "__module__", "") != "chromadb.api.types"
        return found() if own and found is not None else None

    # Chroma's default function lives in the base class's module, and its name is its own.
    name = said("name") or ("default" if type(choice).__name__ == "DefaultEmbeddingFunction" else None)
    config = said("get_config")
    values = config.get if isinstance(config, dict) else {}.get
    return _identity("chroma", name if isinstance(name, str) else _path(type(choice)), values)


def _identity(framework: str, name: str, value: Callable[[str], Any]) -> str:
    """Name a foreign model by what its vectors depend on, and by nothing that may be secret."""
    models = (value(key) for key in ("model", "model_name", "model_id", "deployment", "deployment_id"))
    model = next((str(found) for found in models if isinstance(found, str | Path) and str(found)), None)
    dimensions = value("dimensions")
    parts = [framework, name]
    if model is not None:
        parts.append(_CREDENTIALS.sub("", model))
    if type(dimensions) is int:
        parts.append(str(dimensions))
    return ":".join(parts)


def _path(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"
