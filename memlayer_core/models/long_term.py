"""Calls another service that remembers users beyond a conversation: blocking or async, with a time limit for questions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from memlayer_core.errors import LongTermMemoryError, foreign_errors_as
from memlayer_core.message import Message
from memlayer_core.models.deadline import Deadline
from memlayer_core.scope import Scope
from memlayer_core.seams import LongTermMemory

__all__ = ["ForeignLongTermMemory"]

_NAME = "the long-term memory"


class ForeignLongTermMemory:
    """The service of all users. It is asked for one user at a time.

    Args:
        open_memory: Returns the long-term memory of a scope.
        seconds: How long a question may take.
    """

    def __init__(self, open_memory: Callable[[Scope], LongTermMemory], seconds: float) -> None:
        self._open = open_memory
        self._deadline = Deadline(seconds, LongTermMemoryError, "long_term_timeout")

    def retrieve(self, scope: Scope, message: Message) -> str:
        """Return what bears on a message.

        Raises:
            LongTermMemoryError: The service failed, was late, or returned no text.
        """
        with foreign_errors_as(LongTermMemoryError, _NAME):
            return _text(self._deadline.wait(_NAME, partial(self._retrieve, scope, message)))

    async def aretrieve(self, scope: Scope, message: Message) -> str:
        """Do the same without blocking the event loop."""
        with foreign_errors_as(LongTermMemoryError, _NAME):
            found = await self._deadline.await_for(
                _NAME, partial(self._retrieve, scope, message), self._in_loop(scope, message)
            )
            return _text(found)

    def record(self, scope: Scope, messages: Sequence[Message]) -> None:
        """Record messages, without a time limit: it is done in the background.

        Raises:
            LongTermMemoryError: The service failed.
        """
        with foreign_errors_as(LongTermMemoryError, _NAME):
            _done(self._open(scope).record(list(messages)))

    def _retrieve(self, scope: Scope, message: Message) -> Any:
        return _done(self._open(scope).retrieve(message))

    def _in_loop(self, scope: Scope, message: Message) -> Callable[[], Any] | None:
        """Return what to await in the event loop; None if the service's method blocks."""
        service = self._open(scope)
        if not inspect.iscoroutinefunction(service.retrieve):
            return None
        return partial(service.retrieve, message)


def _done(answer: Any) -> Any:
    """Return an answer, after it was awaited if it has to be."""
    return asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer


async def _await(answer: Any) -> Any:
    return await answer


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise LongTermMemoryError(
            f"{_NAME} returned no text but {type(answer).__name__}",
            hint="`retrieve` returns a text, empty if it found nothing.",
        )
    return answer
