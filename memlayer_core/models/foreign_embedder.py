"""Wraps an embedder of the user's or a framework's: its answers are checked, and it gets an identity.

Embedders of frameworks are recognised by their methods: no framework is imported.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import ConfigurationError, EmbedderError, EmbedderMismatchError, foreign_errors_as

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["ForeignEmbedder", "foreign_embedder"]

_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@|\?.*$")


class ForeignEmbedder:
    """An embedder of the user's or a framework's. Its vectors are checked and get unit length.

    Args:
        identity: Name of the embedder for the store.
        texts: Embeds a list of texts.
        query: Embeds one question; None: `texts` does.
        atexts: The async form of `texts`; None if it would only call the blocking one.
        aquery: The async form of `query`; None likewise.
        dimension: Length of the store's vectors; None without vectors.
    """

    def __init__(
        self,
        identity: str,
        texts: Callable[[list[str]], Any],
        query: Callable[[str], Any] | None = None,
        atexts: Callable[[list[str]], Awaitable[Any]] | None = None,
        aquery: Callable[[str], Awaitable[Any]] | None = None,
        dimension: int | None = None,
    ) -> None:
        self.identity = identity
        self._texts, self._query, self._atexts, self._aquery = texts, query, atexts, aquery
        self._of_store = dimension
        self._known: dict[str, int] = {}

    @property
    def awaits(self) -> bool:
        """Whether `aembed_query` needs no thread."""
        return self._aquery is not None

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text.

        Raises:
            EmbedderError: It failed, or its answer is no list of vectors.
            EmbedderMismatchError: The store's vectors have another dimension.
        """
        texts = list(texts)
        if not texts:
            return []
        with foreign_errors_as(EmbedderError, f"the embedder {self.identity}"):
            answer = self._texts(texts)
        return self._check_vectors(answer, texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same without blocking the event loop."""
        texts = list(texts)
        if not texts:
            return []
        if self._atexts is None:
            return await asyncio.to_thread(self.embed, texts)
        with foreign_errors_as(EmbedderError, f"the embedder {self.identity}"):
            answer = await self._atexts(texts)
        return self._check_vectors(answer, texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question. Raises what `embed` raises."""
        if self._query is None:
            return self.embed([text])[0]
        with foreign_errors_as(EmbedderError, f"the embedder {self.identity}"):
            answer = self._query(text)
        return self._check_vectors([answer], [text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        if self._aquery is None:
            return await asyncio.to_thread(self.embed_query, text)
        with foreign_errors_as(EmbedderError, f"the embedder {self.identity}"):
            answer = await self._aquery(text)
        return self._check_vectors([answer], [text])[0]

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
        if self._of_store not in {None, size}:
            raise EmbedderMismatchError(
                f"the store's vectors have {self._of_store} dimensions, and those of {self.identity} have {size}",
                hint="It is another embedder under the same name. Open the store with the one that made its vectors, give "
                "this one an `identity` of its own, or embed everything again: `Memory.open(…, reembed=True)`.",
            )
        known = self._known.setdefault("dimension", size)  # atomic: several threads may embed at once
        if size != known:
            raise self._nonsense(f"a vector of {size} dimensions after ones of {known}")

    def _nonsense(self, text: str) -> EmbedderError:
        return EmbedderError(
            f"the embedder {self.identity} answered with {text}",
            hint="It must give one vector of finite numbers, not all zero, always of one length, for each text.",
        )


def foreign_embedder(choice: Any, dimension: int | None = None) -> ForeignEmbedder:
    """Return a user's embedder behind our seam.

    Args:
        choice: The embedder, in any form that `Memory.open` takes.
        dimension: Length of the store's vectors; None without vectors.

    Raises:
        ConfigurationError: It is no embedder.
    """

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
        return ForeignEmbedder(
            choice.identity,
            choice.embed,
            choice.embed_query,
            async_method("aembed"),
            async_method("aembed_query"),
            dimension,
        )
    if has("embed_documents", "embed_query"):
        model = getattr(choice, "underlying_embeddings", choice)  # a cache answers with its model's vectors
        return ForeignEmbedder(
            _identity("langchain", _path(type(model)), lambda name: getattr(model, name, None)),
            choice.embed_documents,
            choice.embed_query,
            async_method("aembed_documents"),
            async_method("aembed_query"),
            dimension,
        )
    if has("get_text_embedding_batch", "get_query_embedding"):
        name = choice.class_name() if has("class_name") else type(choice).__name__
        return ForeignEmbedder(
            _identity("llamaindex", name, lambda name: getattr(choice, name, None)),
            choice.get_text_embedding_batch,
            choice.get_query_embedding,
            async_method("aget_text_embedding_batch", "_aget_text_embedding"),
            async_method("aget_query_embedding", "_aget_query_embedding"),
            dimension,
        )
    if not callable(choice) or any(map(inspect.iscoroutinefunction, (choice, type(choice).__call__))):
        raise ConfigurationError(
            f"embedder={choice!r:.100} is no embedder",
            hint='Pass "auto", "minilm", "hashing", a LangChain `Embeddings`, a LlamaIndex `BaseEmbedding`, a '
            "Chroma embedding function, or a blocking function from a list of texts to their vectors.",
        )
    if has("name") or has("get_config"):
        return ForeignEmbedder(_chroma_identity(choice), choice, _chroma_query(choice), dimension=dimension)
    named = choice
    while isinstance(named, functools.partial):
        named = named.func
    name = _path(named if hasattr(named, "__qualname__") else type(named))
    return ForeignEmbedder(f"callable:{name}", choice, dimension=dimension)


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
