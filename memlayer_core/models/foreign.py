"""What a user may pass: models, rerankers, redactors and other memories are recognised by methods, and called with a time limit."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from memlayer_core import errors
from memlayer_core.events import Health
from memlayer_core.message import Message
from memlayer_core.scope import Scope
from memlayer_core.seams import (
    Embedder,
    FloatVector,
    LanguageModel,
    LongTermMemory,
    Redactor,
    Reranker,
    TokenCounter,
)

# Types of embedders, tokenizers and summarisers that a user may pass. Models of frameworks are recognised by methods.
#
# No framework is imported here; its classes fit these protocols as they are.

Vectors: TypeAlias = Iterable[Iterable[float]]
"""One vector for each text: lists of numbers, or an array."""


class LangChainEmbeddings(Protocol):
    """LangChain's `Embeddings`."""

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""
        ...

    def embed_query(self, text: str) -> Iterable[float]:
        """Return the vector of a question."""
        ...


class LlamaIndexEmbedding(Protocol):
    """LlamaIndex's `BaseEmbedding`."""

    def get_text_embedding_batch(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""
        ...

    def get_query_embedding(self, query: str) -> Iterable[float]:
        """Return the vector of a question."""
        ...


class LangChainModel(Protocol):
    """LangChain's `BaseChatModel` or `BaseLLM`."""

    def invoke(self, *args: Any, **kwargs: Any) -> object:
        """Answer messages."""
        ...

    async def ainvoke(self, *args: Any, **kwargs: Any) -> object:
        """Do the same without blocking the event loop."""
        ...


class LangChainCompressor(Protocol):
    """LangChain's `BaseDocumentCompressor`."""

    def compress_documents(self, *args: Any, **kwargs: Any) -> object:
        """Return those of some documents that answer a query, the best first."""
        ...

    async def acompress_documents(self, *args: Any, **kwargs: Any) -> object:
        """Do the same without blocking the event loop."""
        ...


class LlamaIndexPostprocessor(Protocol):
    """LlamaIndex's `BaseNodePostprocessor`."""

    def postprocess_nodes(self, *args: Any, **kwargs: Any) -> object:
        """Return those of some nodes that answer a query, the best first."""
        ...

    async def apostprocess_nodes(self, *args: Any, **kwargs: Any) -> object:
        """Do the same without blocking the event loop."""
        ...


class LlamaIndexModel(Protocol):
    """LlamaIndex's `LLM`."""

    def complete(self, *args: Any, **kwargs: Any) -> object:
        """Answer a prompt."""
        ...

    async def acomplete(self, *args: Any, **kwargs: Any) -> object:
        """Do the same without blocking the event loop."""
        ...


EmbedderName: TypeAlias = Literal["auto", "minilm", "multilingual", "hashing"]
"""The embedders that memlayer has itself. `"auto"`: MiniLM where it is at hand or can be downloaded, together with the
multilingual one where its extra is installed; one of them alone; or hashing."""

EmbedderLike: TypeAlias = (
    EmbedderName | Embedder | LangChainEmbeddings | LlamaIndexEmbedding | Callable[[list[str]], Vectors]
)
"""What `Memory.open` takes as an embedder. Chroma's embedding functions are functions of a list of texts."""

TokenizerLike: TypeAlias = str | TokenCounter | Callable[[str], int | Sized]
"""A model's or an encoding's name, a counter, or a function from a text to its number of tokens or to the tokens."""

LanguageModelLike: TypeAlias = (
    LanguageModel
    | LangChainModel
    | LlamaIndexModel
    | Callable[[str], str | Awaitable[str]]
    | Callable[[str, str], str | Awaitable[str]]
)
"""What `Memory.open` takes as a model. A function of two arguments gets instructions and text separately."""

Scores: TypeAlias = Iterable[float]
"""One score for each text, larger ones for better texts."""

RerankerLike: TypeAlias = (
    Reranker
    | LangChainCompressor
    | LlamaIndexPostprocessor
    | Callable[[str, list[str]], Scores]
    | Callable[[str, list[str]], Awaitable[Scores]]
)
"""What `Memory.open` takes as a reranker. A function is given the query and the texts."""


# A time limit for the user's models: if an embedder or a reranker is late, a search does without it.

T = TypeVar("T")


class Deadline:
    """A time limit for calls of somebody else's model. What it raises becomes an error of ours.

    After a late answer, it is not called for as long as a call may take, so that the next searches do not wait for it.

    Args:
        who: The model, for errors.
        seconds: How long a call may take.
        error: What is raised if it is late or fails.
        setting: The name of the setting that says how long.
    """

    def __init__(self, who: str, seconds: float, error: type[errors.MemlayerError], setting: str) -> None:
        self._who, self._seconds, self._error, self._late_until = who, seconds, error, 0.0
        self._hint = f"Look at its network or its load; `Settings.{setting}` says how long a search waits."

    def wait(self, work: Callable[[], T]) -> T:
        """Do work that calls it, and wait for it.

        Raises:
            MemlayerError: It failed, did not answer in time, or was late a moment ago.
        """
        self._check()

        def guarded() -> T:
            with errors.foreign_errors_as(self._error, self._who):
                return work()

        try:
            return in_thread(guarded).result(self._seconds)
        except TimeoutError:
            raise self._late() from None

    async def await_for(self, work: Callable[[], T], awork: Callable[[], Awaitable[T]] | None = None) -> T:
        """Do the same without blocking the event loop: await `awork` in it if there is one."""
        self._check()

        async def guarded() -> T:
            with errors.foreign_errors_as(self._error, self._who):
                return await (asyncio.wrap_future(in_thread(work)) if awork is None else awork())

        try:
            return await asyncio.wait_for(guarded(), self._seconds)
        except TimeoutError:
            raise self._late() from None

    def _check(self) -> None:
        left = self._late_until - time.monotonic()
        if left > 0:
            raise self._error(
                f"{self._who} was late, and is asked again in {left:.1f} seconds", hint=self._hint
            )

    def _late(self) -> errors.MemlayerError:
        self._late_until = time.monotonic() + self._seconds
        return self._error(
            f"{self._who} did not answer a question within {self._seconds:g} seconds", hint=self._hint
        )


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do work in a thread that does not keep the process alive if it hangs."""
    answer: Future[T] = Future()

    def do() -> None:
        try:
            outcome = work()
        except BaseException as problem:  # noqa: BLE001  (it is raised where the answer is waited for)
            if answer.set_running_or_notify_cancel():
                answer.set_exception(problem)
        else:
            if answer.set_running_or_notify_cancel():  # else nobody waits any more
                answer.set_result(outcome)

    context = contextvars.copy_context()
    _thread.start_new_thread(context.run, (do,))  # `Thread.start` would wait for it, in the event loop
    return answer


class BlockingEmbedder:
    """An embedder that embeds a question like a text, for async callers in a worker thread."""

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text."""
        raise NotImplementedError

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question."""
        return self.embed([text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.embed_query, text)


def finish(answer: Any) -> Any:
    """Return an answer, after it was awaited in an event loop of its own if it has to be."""

    async def wait() -> Any:
        return await answer

    return asyncio.run(wait()) if inspect.isawaitable(answer) else answer


# Calls the redactor: memlayer's own, or a function of the user's that may fail.


class CheckedRedactor:
    """A redactor of the user's. Where it fails, there is an error and a problem, and never the text itself.

    Args:
        redactor: The redactor.
        health: Notes when it fails, and when it works again.
    """

    def __init__(self, redactor: Redactor, health: Health) -> None:
        self._redactor, self._health = redactor, health

    def __call__(self, text: str, /) -> str:
        """Return the text as it may be remembered.

        Raises:
            RedactorError: The redactor raised, or returned no text.
        """
        if not text:
            return text
        try:
            left: object = self._redactor(text)
        except Exception as problem:
            raise self._failure(f"it raised {type(problem).__name__}") from problem
        if not isinstance(left, str):
            raise self._failure(f"it returned {type(left).__name__}, and no text")
        self._health.up("redactor")
        return left

    def _failure(self, reason: str) -> errors.RedactorError:
        self._health.down(
            "redactor", f"{reason}; what it should redact is neither remembered, nor indexed, nor shown"
        )
        return errors.RedactorError(
            f"the redactor failed: {reason}; what it should have redacted was not written",
            hint="Correct the function that was passed as `redactor`, and call again.",
        )


# Calls a user's reranker: a function, a document compressor of LangChain, or a node postprocessor of LlamaIndex.
#
# Those of frameworks are recognised by their methods. They return texts in their order and may leave some out, so a text's
# score is its place from the end, and 0 if it was left out.

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
        self._deadline = Deadline(f"the reranker {name}", seconds, errors.RerankerError, "reranker_timeout")

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text.

        Raises:
            RerankerError: It raised, did not answer in time, or returned something else.
        """
        return self._deadline.wait(lambda: self._check(self._ask(query, list(texts)), len(texts)))

    async def ascores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Do the same without blocking the event loop."""
        aask = self._aask

        async def judge() -> list[float]:
            assert aask is not None
            return self._check(await aask(query, list(texts)), len(texts))

        return await self._deadline.await_for(
            lambda: self._check(self._ask(query, list(texts)), len(texts)), None if aask is None else judge
        )

    def _check(self, answer: Iterable[Any], count: int) -> list[float]:
        scores = [float(score) for score in answer]
        if len(scores) == count and all(map(math.isfinite, scores)):
            return scores
        told = "NaN or infinity" if len(scores) == count else f"{len(scores)} scores for {count} texts"
        raise errors.RerankerError(
            f"the reranker {self.name} answered with {told}",
            hint="It must return one finite number for each text.",
        )


def resolve_reranker(choice: Any, seconds: float) -> Reranker | None:
    """Return a user's reranker behind our seam; None if there is none.

    Args:
        choice: What `Memory.open` takes.
        seconds: How long it may take.

    Raises:
        ConfigurationError: It is not a reranker.
    """
    if choice is None:
        return None

    asks = None if isinstance(choice, type) else _asks(choice)
    if asks is None:
        raise errors.ConfigurationError(
            f"reranker={choice!r:.100} is not a reranker",
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
    return lambda query, texts: finish(choice(query, texts)), choice if awaits else None


def _is_own(choice: Any, method: str) -> bool:
    """Return whether a class has an async method of its own; a framework's only calls the blocking one in a thread."""
    found = getattr(type(choice), method, None)
    base = {"langchain_core.documents.compressor", "llama_index.core.postprocessor.types"}
    return found is not None and found.__module__ not in base


def _documents(texts: Sequence[str]) -> list[Any]:
    made = import_module("langchain_core.documents").Document  # a user of a compressor has it
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


# Calls another service that remembers users beyond a conversation: blocking or async, with a time limit for questions.

_NAME = "the long-term memory"


class ForeignLongTermMemory:
    """The service of all users. It is asked for one user at a time.

    Args:
        open_memory: Returns the long-term memory of a scope.
        seconds: How long a question may take.
    """

    def __init__(self, open_memory: Callable[[Scope], LongTermMemory], seconds: float) -> None:
        self._open = open_memory
        self._deadline = Deadline(_NAME, seconds, errors.LongTermMemoryError, "long_term_timeout")

    def retrieve(self, scope: Scope, message: Message) -> str:
        """Return what is relevant to a message.

        Raises:
            LongTermMemoryError: The service failed, was late, or returned no text.
        """
        return _text(self._deadline.wait(partial(self._retrieve, scope, message)))

    async def aretrieve(self, scope: Scope, message: Message) -> str:
        """Do the same without blocking the event loop."""
        with errors.foreign_errors_as(errors.LongTermMemoryError, _NAME):
            service = self._open(scope)
        awaiting = (
            partial(service.retrieve, message) if inspect.iscoroutinefunction(service.retrieve) else None
        )
        return _text(await self._deadline.await_for(partial(self._retrieve, scope, message), awaiting))

    def record(self, scope: Scope, messages: Sequence[Message]) -> None:
        """Record messages, without a time limit: it is done in the background.

        Raises:
            LongTermMemoryError: The service failed.
        """
        with errors.foreign_errors_as(errors.LongTermMemoryError, _NAME):
            finish(self._open(scope).record(list(messages)))

    def _retrieve(self, scope: Scope, message: Message) -> Any:
        return finish(self._open(scope).retrieve(message))


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise errors.LongTermMemoryError(
            f"{_NAME} returned no text but {type(answer).__name__}",
            hint="`retrieve` returns a text, empty if it found nothing.",
        )
    return answer
