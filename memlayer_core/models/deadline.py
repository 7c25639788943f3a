"""A time limit for the user's models: if an embedder or a reranker is late, a search does without it."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memlayer_core.errors import EmbedderError, MemlayerError
from memlayer_core.seams import Embedder

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["Deadline", "DeadlineEmbedder", "in_thread"]

T = TypeVar("T")


class Deadline:
    """A time limit for calls of somebody else's model.

    After it was late, it is not called for the same time, so that the next searches do not wait for it, too.

    Args:
        seconds: How long a call may take.
        error: What is raised for a late one.
        setting: The name of the setting that says how long.
    """

    def __init__(self, seconds: float, error: type[MemlayerError], setting: str) -> None:
        self._seconds, self._error, self._late_until = seconds, error, 0.0
        self._hint = f"Look at its network or its load; `Settings.{setting}` says how long a search waits."

    def wait(self, who: str, work: Callable[[], T]) -> T:
        """Do work, and wait for it.

        Args:
            who: The model, for the error.
            work: Calls it.

        Raises:
            MemlayerError: It did not answer in time, or was late a moment ago.
        """
        self._check(who)
        answer = in_thread(work)
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            if answer.done():
                raise  # it is the work's own
            raise self._late(who) from None

    async def await_for(
        self, who: str, work: Callable[[], T], awork: Callable[[], Awaitable[T]] | None = None
    ) -> T:
        """Do the same without blocking the event loop: await `awork` in it if there is one."""
        self._check(who)
        asked = awork() if awork is not None else asyncio.wrap_future(in_thread(work))
        try:
            return await asyncio.wait_for(asked, self._seconds)
        except TimeoutError:
            raise self._late(who) from None

    def _check(self, who: str) -> None:
        left = self._late_until - time.monotonic()
        if left > 0:
            raise self._error(f"{who} was late, and is asked again in {left:.1f} seconds", hint=self._hint)

    def _late(self, who: str) -> MemlayerError:
        self._late_until = time.monotonic() + self._seconds
        return self._error(
            f"{who} did not answer a question within {self._seconds:g} seconds", hint=self._hint
        )


class DeadlineEmbedder:
    """An embedder with a time limit for questions. Texts are embedded in the background, without a limit.

    Args:
        embedder: The embedder that does the work.
        seconds: How long a question may take.
        awaits: Whether its `aembed_query` needs no thread.
    """

    def __init__(self, embedder: Embedder, seconds: float, *, awaits: bool) -> None:
        self._embedder, self._awaits = embedder, awaits
        self._deadline = Deadline(seconds, EmbedderError, "embedder_timeout")

    @property
    def identity(self) -> str:
        """Name of the model, the same in every process."""
        return self._embedder.identity

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text."""
        return self._embedder.embed(texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same without blocking the event loop."""
        return await self._embedder.aembed(texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question.

        Raises:
            EmbedderError: It failed, or did not answer in time.
        """
        return self._deadline.wait(f"the embedder {self.identity}", partial(self._embedder.embed_query, text))

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        return await self._deadline.await_for(
            f"the embedder {self.identity}",
            partial(self._embedder.embed_query, text),
            partial(self._embedder.aembed_query, text) if self._awaits else None,
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
