"""Plays a session with the core alone, where no framework is installed."""

from __future__ import annotations

from memlayer_core.demo.turn import Stage, Turn, stopwatch

__all__ = ["CALLS", "NAME", "PlainPlayer", "player"]

NAME = "plain Python"
CALLS = "Chat.add, Chat.context"


class PlainPlayer:
    """Stores, reads and recites."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._replies = iter(stage.replies)

    def ask(self, question: str) -> Turn:
        """Put a question to the scripted model, with memory, and store both sides."""
        chat = self._stage.chat
        with stopwatch() as taken:
            chat.add("user", question)
            context = chat.context(token_limit=self._stage.token_limit)
            answer = next(self._replies)
            chat.add("assistant", answer)
        received = tuple((message.role, message.text) for message in context.messages)
        return Turn(question, answer, received, context, taken[0])


def player(stage: Stage) -> PlainPlayer:
    """Return what plays a session here."""
    return PlainPlayer(stage)
