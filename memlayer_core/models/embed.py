"""Finds the embedder for a memory: the caller's, or the best one that is available.

Embedders of frameworks are recognised by their methods: no framework is imported. Their answers are checked.
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
from memlayer_core.models.deadline import DeadlineEmbedder
from memlayer_core.models.foreign import EmbedderLike
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM
from memlayer_core.seams import Embedder
from memlayer_core.settings import Settings

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["resolve_embedder", "trust_of"]

_WAY_OUT = (
    f"go online once, or put `{minilm.ARCHIVE}` from {minilm.URL} into "
    "`~/.cache/chroma/onnx_models/all-MiniLM-L6-v2`"
)
_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@|\?.*$")

_fetching = threading.Lock()  # one fetch at a time; no later opening waits for one that failed
_failed: dict[Path, str] = {}


def _start_afresh() -> None:
    """Give a forked child its own lock: the parent's may have been held."""
    global _fetching  # noqa: PLW0603  (one a process is the purpose)
    _fetching = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def resolve_embedder(
    choice: EmbedderLike, *, store_identity: str | None, settings: Settings, emit: Callable[[Event], None]
) -> Embedder:
    """Return the embedder for a store. This may take long, since MiniLM is downloaded if it is missing.

    Args:
        choice: `"auto"`: what the store was built with; for a new store MiniLM, and without it the built-in
            hashing embedder. `"minilm"`, `"hashing"`: that one. Or a LangChain `Embeddings`, a LlamaIndex
            `BaseEmbedding`, a Chroma embedding function, a function from a list of texts to their vectors,
            or an `Embedder`. Such an object is called from several threads.
        store_identity: Identity of the embedder that made the store's vectors; None for a new store.
        settings: For `download_timeout` and `embedder_timeout`.
        emit: Receives the event of the fallback to hashing, once per process.

    Raises:
        ConfigurationError: It is no embedder, or the store needs one that must be passed.
        EmbedderError: MiniLM is needed and cannot be loaded.
    """
    match choice:
        case "auto" if store_identity is None:
            return _best(settings, emit)
        case "auto" if store_identity in {minilm.IDENTITY, hashing.IDENTITY}:
            choice = "minilm" if store_identity == minilm.IDENTITY else "hashing"
        case "auto":
            raise ConfigurationError(
                f"the store was built with the embedder {store_identity!r}, which only its owner can make",
                hint="Pass that embedder again (`embedder=...`), or re-embed with `memlayer reindex`.",
            )
        case _:
            pass
    match choice:
        case "hashing":
            return HashingEmbedder()
        case "minilm":
            return _minilm(settings, of_store=store_identity == minilm.IDENTITY)
        case MiniLM() | HashingEmbedder() | DeadlineEmbedder():
            return choice
        case _:
            foreign = _foreign(choice)
            return DeadlineEmbedder(foreign, settings.embedder_timeout, awaits=foreign.awaits)


def trust_of(embedder: Embedder) -> Callable[[str], float]:
    """Return a function that tells how reliable an embedder's cosine is for a question, 0 to 1.

    Only the built-in embedders have such a function. For others, it is always 1.
    """
    return embedder.trust if isinstance(embedder, HashingEmbedder | MiniLM) else lambda _: 1.0


def _best(settings: Settings, emit: Callable[[Event], None]) -> Embedder:
    try:
        where = minilm.folder()
    except RuntimeError as problem:  # no home directory
        where, lost = Path(), str(problem)
    else:
        lost = ""
    with _fetching:
        if not lost and minilm.is_present(where):
            return MiniLM(where)
        if where in _failed:
            return HashingEmbedder()
        try:
            return _fetch_minilm(settings)
        except Exception as problem:  # noqa: BLE001  (without it, whatever the reason, there is another)
            reason = _failed[where] = f"{type(problem).__name__}: {problem}"
    emit(
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
            return _fetch_minilm(settings)
        except Exception as problem:
            who = "MiniLM, which the store was built with," if of_store else "MiniLM"
            other = "`memlayer reindex --embedder hashing`" if of_store else '`embedder="hashing"`'
            raise EmbedderError(
                f"{who} is not at hand and cannot be fetched: {type(problem).__name__}: {problem}",
                hint=f"To have it, {_WAY_OUT}. To go without: {other}.",
            ) from problem


def _fetch_minilm(settings: Settings) -> Embedder:
    where = minilm.folder()
    if not minilm.is_present(where):
        minilm.fetch(where, url=minilm.URL, sha256=minilm.SHA256, seconds=settings.download_timeout)
    return MiniLM(where)


class _Foreign:
    """An embedder of the user's or a framework's. Its vectors are checked and get unit length.

    Args:
        identity: Name of the embedder for the store.
        texts: Embeds a list of texts.
        query: Embeds one question; None: `texts` does.
        atexts: The async form of `texts`; None if it would only call the blocking one.
        aquery: The async form of `query`; None likewise.
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
        """Whether `aembed_query` needs no thread."""
        return self._aquery is not None

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        texts = list(texts)
        if not texts:
            return []
        with self._translate_errors():
            answer = self._texts(texts)
        return self._check_vectors(answer, texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        texts = list(texts)
        if not texts:
            return []
        if self._atexts is None:
            return await asyncio.to_thread(self.embed, texts)
        with self._translate_errors():
            answer = await self._atexts(texts)
        return self._check_vectors(answer, texts)

    def embed_query(self, text: str) -> FloatVector:
        if self._query is None:
            return self.embed([text])[0]
        with self._translate_errors():
            answer = self._query(text)
        return self._check_vectors([answer], [text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        if self._aquery is None:
            return await asyncio.to_thread(self.embed_query, text)
        with self._translate_errors():
            answer = await self._aquery(text)
        return self._check_vectors([answer], [text])[0]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except MemlayerError:
            raise
        except Exception as problem:
            raise EmbedderError(  # its text may quote a message or a key, so only the cause has it
                f"the embedder {self.identity} raised {type(problem).__name__}",
                hint="Look at the error that it was raised from: its model, its credentials or its network.",
            ) from problem

    def _check_vectors(self, answer: Any, texts: list[str]) -> list[FloatVector]:
        """Return an answer as unit vectors.

        A vector of zeros has no direction, so it is an error. Only for a text without a visible character, a fixed
        vector is used instead.
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

    def _nonsense(self, text: str) -> EmbedderError:
        return EmbedderError(
            f"the embedder {self.identity} answered with {text}",
            hint="It must give one vector of finite numbers, not all zero, always of one length, for each text.",
        )


def _foreign(choice: Any) -> _Foreign:
    def has(*methods: str) -> bool:
        return all(callable(getattr(choice, method, None)) for method in methods)

    def async_method(method: str, *doers: str) -> Any:
        """Return an async method if it, or what does its work, awaits something; a thread is better if not."""
        doer = next((doer for doer in doers if has(doer)), method)
        return getattr(choice, method, None) if _awaits(getattr(type(choice), doer, None)) else None

    if isinstance(choice, type):
        raise ConfigurationError(
            f"embedder={choice.__qualname__} is a class",
            hint=f"Pass an object of it: `embedder={choice.__qualname__}(...)`.",
        )
    if isinstance(getattr(choice, "identity", None), str) and has("embed", "embed_query"):
        return _Foreign(
            choice.identity,
            choice.embed,
            choice.embed_query,
            async_method("aembed"),
            async_method("aembed_query"),
        )
    if has("embed_documents", "embed_query"):
        model = getattr(choice, "underlying_embeddings", choice)  # a cache answers with its model's vectors
        return _Foreign(
            _identity("langchain", _path(type(model)), lambda name: getattr(model, name, None)),
            choice.embed_documents,
            choice.embed_query,
            async_method("aembed_documents"),
            async_method("aembed_query"),
        )
    if has("get_text_embedding_batch", "get_query_embedding"):
        name = choice.class_name() if has("class_name") else type(choice).__name__
        return _Foreign(
            _identity("llamaindex", name, lambda name: getattr(choice, name, None)),
            choice.get_text_embedding_batch,
            choice.get_query_embedding,
            async_method("aget_text_embedding_batch", "_aget_text_embedding"),
            async_method("aget_query_embedding", "_aget_query_embedding"),
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
    """Return whether an async method awaits anything. Many only call the blocking method."""
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    waits = {"GET_AWAITABLE", "GET_ANEXT"}
    return code is not None and any(step.opname in waits for step in dis.get_instructions(code))


def _chroma_query(choice: Any) -> Callable[[str], Any] | None:
    if not callable(getattr(choice, "embed_query", None)):
        return None
    return lambda text: choice.embed_query(input=[text])[0]


def _chroma_identity(choice: Any) -> str:
    def call_own(method: str) -> Any:
        """Call a method, unless it is the base class's, which only warns that it is missing."""
        found = getattr(choice, method, None)
        own = callable(found) and getattr(found, "__module__", "") != "chromadb.api.types"
        return found() if own and found is not None else None

    # Chroma's default function lives in the base class's module, and its name is its own.
    name = call_own("name") or ("default" if type(choice).__name__ == "DefaultEmbeddingFunction" else None)
    config = call_own("get_config")
    values = config.get if isinstance(config, dict) else {}.get
    return _identity("chroma", name if isinstance(name, str) else _path(type(choice)), values)


def _identity(framework: str, name: str, value: Callable[[str], Any]) -> str:
    """Return an identity of a model, from what its vectors depend on, without anything secret."""
    models = (value(key) for key in ("model", "model_name", "model_id", "deployment", "deployment_id"))
    model = next((str(found) for found in models if isinstance(found, str | Path) and str(found)), None)
    dimensions = value("dimensions")
    parts = [framework, name]
    if model is not None:
        parts.append(_CREDENTIALS.sub("", model))
    if type(dimensions) is int:
        parts.append(str(dimensions))
    return ":".join(parts)


def _path(target: Any) -> str:
    return f"{target.__module__}.{target.__qualname__}"
