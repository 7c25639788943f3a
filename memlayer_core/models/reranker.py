"""Calls a user's reranker: a function, a document compressor of LangChain, or a node postprocessor of LlamaIndex.

Those of frameworks are recognised by their methods. They return texts in their order and may leave some out, so a text's
score is its place from the end, and 0 if it was left out.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from memlayer_core.errors import ConfigurationError, RerankerError, foreign_errors_as
from memlayer_core.models.deadline import Deadline
from memlayer_core.seams import Reranker

__all__ = ["ForeignReranker", "resolve_reranker"]

_Ask = Callable[[str, list[str]], Any]
_AsyncAsk = Callable[[str, list[str]], Awaitable[Any]]

_PLACE = "memlayer_place"  # in the metadata of a document or node: its place among the texts


class ForeignReranker:
    """A user's reranker behind our seam, with a time limit.

    Args:
        name: Its name, for errors.
        ask: Function of a query and texts that returns a score for each text.
        aask: The same as a coroutine function, which needs no thread; None: `ask` is called in a thread.
        seconds: How long it may take.
    """

    def __init__(self, name: str, ask: _Ask, aask: _AsyncAsk | None, seconds: float) -> None:
        self.name = name
        self._ask, self._aask = ask, aask
        self._deadline = Deadline(seconds, RerankerError, "reranker_timeout")

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text.

        Raises:
            RerankerError: It raised, did not answer in time, or returned something else.
        """
        with foreign_errors_as(RerankerError, f"the reranker {self.name}"):
            answer = self._deadline.wait(f"the reranker {self.name}", partial(self._ask, query, list(texts)))
            return self._check(answer, len(texts))

    async def ascores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Do the same without blocking the event loop."""
        aask = partial(self._aask, query, list(texts)) if self._aask is not None else None
        with foreign_errors_as(RerankerError, f"the reranker {self.name}"):
            ask = partial(self._ask, query, list(texts))
            answer = await self._deadline.await_for(f"the reranker {self.name}", ask, aask)
            return self._check(answer, len(texts))

    def _check(self, answer: Iterable[Any], count: int) -> list[float]:
        scores = [float(score) for score in answer]
        if len(scores) == count and all(map(math.isfinite, scores)):
            return scores
        told = "NaN or infinity" if len(scores) == count else f"{len(scores)} scores for {count} texts"
        raise RerankerError(
            f"the reranker {self.name} answered with {told}",
            hint="It must return one finite number for each text.",
        )


def resolve_reranker(choice: Any, seconds: float) -> Reranker | None:
    """Return a user's reranker behind our seam; None if there is none.

    Args:
        choice: What `Memory.open` takes.
        seconds: How long it may take.

    Raises:
        ConfigurationError: It is no reranker.
    """
    if choice is None:
        return None

    asks = None if isinstance(choice, type) else _asks(choice)
    if asks is None:
        raise ConfigurationError(
            f"reranker={choice!r:.100} is no reranker",
            hint="Pass a function of a query and a list of texts that returns a score for each, a LangChain "
            "`BaseDocumentCompressor`, or a LlamaIndex `BaseNodePostprocessor`; an object, not its class.",
        )
    own = getattr(choice, "name", None)
    name = own if isinstance(own, str) else getattr(choice, "__qualname__", type(choice).__name__)
    return ForeignReranker(name, *asks, seconds)


def _asks(choice: Any) -> tuple[_Ask, _AsyncAsk | None] | None:
    """Return how a reranker is asked, blocking and async; None if it is none."""

    def has(*methods: str) -> bool:
        return all(callable(getattr(choice, method, None)) for method in methods)

    if has("scores", "ascores"):
        return choice.scores, choice.ascores
    if has("compress_documents"):
        own = _is_own(choice, "acompress_documents")
        return partial(_compress, choice), partial(_acompress, choice) if own else None
    if has("postprocess_nodes"):
        own = _is_own(choice, "_apostprocess_nodes")
        return partial(_postprocess, choice), partial(_apostprocess, choice) if own else None
    if not callable(choice):
        return None
    awaits = any(map(inspect.iscoroutinefunction, (choice, type(choice).__call__)))
    return partial(_run, choice), choice if awaits else None


def _is_own(choice: Any, method: str) -> bool:
    """Tell whether a class has an async method of its own; a framework's only calls the blocking one in a thread."""
    found = getattr(type(choice), method, None)
    base = {"langchain_core.documents.compressor", "llama_index.core.postprocessor.types"}
    return found is not None and found.__module__ not in base


def _run(function: Callable[[str, list[str]], Any], query: str, texts: list[str]) -> Any:
    answer = function(query, texts)
    return asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer


async def _await(answer: Any) -> Any:
    return await answer


def _documents(texts: Sequence[str]) -> list[Any]:
    made = import_module("langchain_core.documents").Document  # whoever has a compressor has it
    return [made(text, metadata={_PLACE: place}) for place, text in enumerate(texts)]


def _compress(compressor: Any, query: str, texts: list[str]) -> list[float]:
    return _by_place(compressor.compress_documents(_documents(texts), query), len(texts))


async def _acompress(compressor: Any, query: str, texts: list[str]) -> list[float]:
    return _by_place(await compressor.acompress_documents(_documents(texts), query), len(texts))


def _nodes(texts: Sequence[str]) -> list[Any]:
    schema = import_module("llama_index.core.schema")
    nodes = [schema.TextNode(text=text, metadata={_PLACE: place}) for place, text in enumerate(texts)]
    for node in nodes:  # no model reads the place
        node.excluded_llm_metadata_keys = node.excluded_embed_metadata_keys = [_PLACE]
    # Scores that fall from text to text: some postprocessors sort by them, others leave out what has none.
    return [schema.NodeWithScore(node=node, score=1 - place / len(nodes)) for place, node in enumerate(nodes)]


def _postprocess(postprocessor: Any, query: str, texts: list[str]) -> list[float]:
    return _by_place(postprocessor.postprocess_nodes(_nodes(texts), query_str=query), len(texts))


async def _apostprocess(postprocessor: Any, query: str, texts: list[str]) -> list[float]:
    return _by_place(await postprocessor.apostprocess_nodes(_nodes(texts), query_str=query), len(texts))


def _by_place(order: Iterable[Any], count: int) -> list[float]:
    """Return the scores of documents or nodes: places from the end.

    Raises:
        ValueError: They are others than those that were given, or one comes twice.
    """
    places = [one.metadata[_PLACE] for one in order]
    if len(set(places)) != len(places) or not set(places) <= set(range(count)):
        raise ValueError("the reranker returned texts that it was not given")
    scores = [0.0] * count
    for rank, place in enumerate(places):
        scores[place] = float(count - rank)
    return scores
