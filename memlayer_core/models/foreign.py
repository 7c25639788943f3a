"""What a user may pass: models, which are recognised by methods, and functions; all but redactors have a time limit."""

import _thread
import asyncio
import contextvars
import inspect
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

from memlayer_core import errors
from memlayer_core.events import Health
from memlayer_core.message import Message
from memlayer_core.runtime import Ask, Asking, ask
from memlayer_core.scope import Scope
from memlayer_core.seams import Embedder, FloatVector, LanguageModel, LongTermMemory, Redactor

# Types of embedders, tokenizers and summarisers that a user may pass. Models of frameworks are recognised by methods.
#
# No framework is imported here; its classes fit these protocols as they are.

Vectors: TypeAlias = Iterable[Iterable[float]]
"""One vector for each text: lists of numbers, or an array."""


class LangChainEmbeddings(Protocol):
    """LangChain's `Embeddings`."""

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""

    def embed_query(self, text: str) -> Iterable[float]:
        """Return the vector of a question."""


class LlamaIndexEmbedding(Protocol):
    """LlamaIndex's `BaseEmbedding`."""

    def get_text_embedding_batch(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""

    def get_query_embedding(self, query: str) -> Iterable[float]:
        """Return the vector of a question."""


class LangChainModel(Protocol):
    """LangChain's `BaseChatModel` or `BaseLLM`."""

    def invoke(self, *args: Any, **kwargs: Any) -> object:
        """Answer messages."""


class LlamaIndexModel(Protocol):
    """LlamaIndex's `LLM`."""

    def complete(self, *args: Any, **kwargs: Any) -> object:
        """Answer a prompt."""


EmbedderName: TypeAlias = Literal["auto", "minilm", "multilingual", "hashing"]
"""The embedders that memlayer has itself. `"auto"`: MiniLM where it is at hand or can be downloaded, together with the
multilingual one where its extra is installed; one of them alone; or hashing."""

EmbedderLike: TypeAlias = (
    EmbedderName | Embedder | LangChainEmbeddings | LlamaIndexEmbedding | Callable[[list[str]], Vectors]
)
"""What `Memory.open` takes as an embedder. Chroma's embedding functions are functions of a list of texts."""

TokenizerLike: TypeAlias = str | Callable[[str], int | Sized]
"""A model's or an encoding's name, or a function from a text to its number of tokens or to the tokens."""

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

RerankerLike: TypeAlias = Callable[[str, list[str]], Scores | Awaitable[Scores]]
"""What `Memory.open` takes as a reranker: a function of the query and the texts, blocking or async."""


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

    def ask(self, call: Callable[..., Any], *args: object) -> Ask[Any]:
        """Return a call, blocking or async, for a flow to yield. Its answer raises what `wait` raises."""
        return ask(self.wait, self.await_for, call, *args)

    def wait(self, call: Callable[..., Any], *args: object) -> Any:
        """Call it, and wait for its answer, which may be a coroutine's.

        Raises:
            MemlayerError: It failed, did not answer in time, or was late a moment ago.
        """

        def answer() -> Any:
            with errors.foreign_errors_as(self._error, self._who):
                return finish(call(*args))

        with self._limit():
            return in_thread(answer).result(self._seconds)

    async def await_for(self, call: Callable[..., Any], *args: object) -> Any:
        """Do the same without blocking the event loop: call it in a thread; a coroutine's answer is awaited here."""
        with self._limit():
            async with asyncio.timeout(self._seconds):
                with errors.foreign_errors_as(self._error, self._who):
                    answer = await asyncio.wrap_future(in_thread(lambda: call(*args)))
                    return await answer if inspect.isawaitable(answer) else answer

    @contextmanager
    def _limit(self) -> Iterator[None]:
        left = self._late_until - time.monotonic()
        if left > 0:
            raise self._error(f"{self._who} was late, and is asked again in {left:.1f} s", hint=self._hint)
        try:
            yield
        except TimeoutError:
            self._late_until = time.monotonic() + self._seconds
            raise self._error(
                f"{self._who} did not answer a question within {self._seconds:g} seconds", hint=self._hint
            ) from None


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do work in a thread that does not keep the process alive if it hangs."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # who waits no longer cannot cancel what has begun

    def do() -> None:
        try:
            answer.set_result(work())
        except Exception as problem:  # noqa: BLE001  (it is raised where the answer is waited for)
            answer.set_exception(problem)
        except BaseException as problem:  # noqa: BLE001  (such as a `SystemExit`, which would end who waits)
            answer.set_exception(RuntimeError(type(problem).__name__))

    context = contextvars.copy_context()
    _thread.start_new_thread(context.run, (do,))  # `Thread.start` would wait for it, in the event loop
    return answer


def cut(text: str, characters: int) -> str:
    """Return the beginning of a text, encodable, with single spaces: a long one may begin with many."""
    return " ".join(text[: 4 * characters].split())[:characters].encode("utf-8", "replace").decode()


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


class BlockingEmbedder:
    """An embedder that runs in this process and waits for nothing. For async callers, it runs in a worker thread."""

    identity: str

    @classmethod
    def at_hand(cls, seconds: float) -> Self:
        """Return the embedder. One that has to be fetched may take so long.

        Raises:
            EmbedderError: It is not on this machine, and cannot be fetched.
        """
        return cls()

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text."""
        raise NotImplementedError

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question."""
        return self.embed([text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.embed_query, text)


def has(candidate: object, *methods: str) -> bool:
    """Return whether an object has all of some methods: frameworks' models are recognised by them."""
    return all(callable(getattr(candidate, method, None)) for method in methods)


def path_of(target: Any) -> str:
    """Return the module and the name of a function or a class; of any other object, those of its class."""
    named = target if hasattr(target, "__qualname__") else type(target)
    # Methods of built-in types have no module of their own.
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


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
        self._health.down("redactor", f"{reason}; what it should redact is not remembered, indexed or shown")
        return errors.RedactorError(
            f"the redactor failed: {reason}; what it should have redacted was not written",
            hint="Correct the function that was passed as `redactor`, and call again.",
        )


# Calls a user's reranker, with a time limit.


class ForeignReranker:
    """A user's reranker: a flow from a query and texts to their scores.

    Args:
        function: The user's function.
        seconds: How long it may take.

    Raises:
        ConfigurationError: It is not a function.
    """

    def __init__(self, function: RerankerLike, seconds: float) -> None:
        if isinstance(function, type) or not callable(function):
            raise errors.ConfigurationError(
                f"reranker={errors.repr_of(function, 100)} is not a reranker",
                hint="Pass a function of a query and a list of texts that returns a score for each. docs/search.md "
                "has one for LangChain's compressors, and one for LlamaIndex's postprocessors.",
            )
        self._function = function
        self._name = f"the reranker {getattr(function, '__qualname__', type(function).__name__)}"
        self._deadline = Deadline(self._name, seconds, errors.RerankerError, "reranker_timeout")

    def __call__(self, query: str, texts: list[str]) -> Asking[list[float]]:
        """Return one score for each text.

        Raises:
            RerankerError: It failed, was late, or answered something else.
        """
        answer = yield self._deadline.ask(self._function, query, texts)
        with errors.foreign_errors_as(errors.RerankerError, self._name):
            scores = [float(score) for score in answer]
        if len(scores) != len(texts):
            wrong = f"{len(scores)} scores for {len(texts)} texts"
        elif all(map(math.isfinite, scores)):
            return scores
        else:
            wrong = "NaN or infinity"
        raise errors.RerankerError(
            f"{self._name} answered with {wrong}", hint="It must return one finite number for each text."
        )


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

    def retrieve(self, scope: Scope, message: Message) -> Asking[str]:
        """Return what is relevant to a message.

        Raises:
            LongTermMemoryError: The service failed, was late, or returned no text.
        """
        answer = yield self._deadline.ask(lambda: self._open(scope).retrieve(message))
        if not isinstance(answer, str):
            raise errors.LongTermMemoryError(
                f"{_NAME} returned no text but {type(answer).__name__}",
                hint="`retrieve` returns a text, empty if it found nothing.",
            )
        return answer

    def record(self, scope: Scope, messages: Sequence[Message]) -> None:
        """Record messages, without a time limit: it is done in the background.

        Raises:
            LongTermMemoryError: The service failed.
        """
        with errors.foreign_errors_as(errors.LongTermMemoryError, _NAME):
            finish(self._open(scope).record(list(messages)))
