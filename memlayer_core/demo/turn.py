"""What happens when one question is put to a model that has a memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from memlayer_core.chat import Chat
from memlayer_core.errors import MemlayerError
from memlayer_core.records.context import Context

__all__ = ["ModelFailedError", "Player", "Received", "Stage", "Turn", "stopwatch"]

Received = tuple[tuple[str, str], ...]
"""The messages that reached the model: role and text."""


class ModelFailedError(MemlayerError):
    """The model that was asked for raised."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, answered.

    Attributes:
        question: What the user said.
        answer: What the model said.
        received: What reached the model through the framework.
        context: What the memory had put together for it.
        seconds: How long all of it took: storing the question, recalling, the model, storing the answer.
    """

    question: str
    answer: str
    received: Received
    context: Context
    seconds: float

    @property
    def note(self) -> str:
        """What it was given and what it cost, in a line."""
        recalled = sum(piece.kind == "recall" for piece in self.context.pieces)
        return (
            f"{len(self.received)} message(s) given, {recalled} recalled, "
            f"{self.context.tokens} of {self.context.token_limit} tokens, {self.seconds * 1000:.0f} ms"
        )


class Player(Protocol):
    """Plays a session with one framework."""

    def ask(self, question: str) -> Turn:
        """Put a question to the model, with memory, and store both sides."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a session is played.

    Attributes:
        chat: The conversation.
        token_limit: Tokens that a context may cost.
        replies: What the scripted model recites, in this order.
        model: Name of a real model, for the player that can use one.
    """

    chat: Chat
    token_limit: int
    replies: tuple[str, ...]
    model: str | None = None


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Measure the time inside; the list holds the seconds afterwards."""
    taken: list[float] = []
    begin = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - begin)
