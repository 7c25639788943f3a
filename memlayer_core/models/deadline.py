"""A time limit for the user's embedder: if it is late, a search uses words only."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from memlayer_core.errors import EmbedderError
from memlayer_core.seams import Embedder

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["DeadlineEmbedder"]


class DeadlineEmbedder:
    """An embedder with a time limit for questions. Texts are embedded in the background, without a limit.

    After it was late, it is not called for the same time, so that the next searches do not wait for it, too.

    Args:
        embedder: The embedder that does the work.
        seconds: How long a question may take.
        awaits: Whether its `aembed_query` needs no thread.
    """

    def __init__(self, embedder: Embedder, seconds: float, *, awaits: bool) -> None:
        self._embedder, self._seconds, self._awaits = embedder, seconds, awaits
        self._late_until = 0.0

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
        self._check()
        answer = self._start(text)
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            raise self._late() from None

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        self._check()
        asked = self._embedder.aembed_query(text) if self._awaits else asyncio.wrap_future(self._start(text))
        try:
            return await asyncio.wait_for(asked, self._seconds)
        except TimeoutError:
            raise self._late() from None

    def _start(self, text: str) -> Future[FloatVector]:
        """Call the embedder in a thread that does not keep the process alive if it hangs."""
        answer: Future[FloatVector] = Future()

        def work() -> None:
            try:
                vector = self._embedder.embed_query(text)
            except BaseException as problem:  # noqa: BLE001  (it is raised where the answer is waited for)
                _settle(answer, problem)
            else:
                _settle(answer, vector)

        context = contextvars.copy_context()
        _thread.start_new_thread(context.run, (work,))  # `Thread.start` would wait for it, in the event loop
        return answer

    def _check(self) -> None:
        left = self._late_until - time.monotonic()
        if left > 0:
            raise EmbedderError(
                f"the embedder {self.identity} was late, and is asked again in {left:.1f} seconds",
                hint="Look at its network or its load; `Settings.embedder_timeout` says how long a search waits.",
            )

    def _late(self) -> EmbedderError:
        self._late_until = time.monotonic() + self._seconds
        return EmbedderError(
            f"the embedder {self.identity} did not answer a question within {self._seconds:g} seconds",
            hint="Look at its network or its load; `Settings.embedder_timeout` says how long a search waits.",
        )


def _settle(answer: Future[FloatVector], outcome: FloatVector | BaseException) -> None:
    if not answer.set_running_or_notify_cancel():
        return  # nobody waits any more
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
