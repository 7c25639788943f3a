"""What flows ask of other people's models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memlayer_core.records.message import Message
from memlayer_core.records.summary import Reply
from memlayer_core.records.vector import FloatVector

__all__ = ["Embedder", "LanguageModel", "TokenCounter"]


class Embedder(Protocol):
    """Turns texts into vectors.

    Attributes:
        identity: Name of the model, the same in every process: `"minilm"`, `"langchain:…"`.
    """

    @property
    def identity(self) -> str:
        """Name of the model, the same in every process."""
        ...

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector a text, float32, all of one dimension.

        Raises:
            EmbedderError: The model failed, or answered with something that is no vector.
        """
        ...

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same without blocking the event loop."""
        ...

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question; some models embed it differently."""
        ...

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""
        ...


class LanguageModel(Protocol):
    """Answers a prompt with a text. Only background work asks."""

    @property
    def name(self) -> str:
        """What it is called in records, errors and the ledger."""
        ...

    def ask(self, instructions: str, text: str) -> Reply:
        """Ask, and wait for the answer.

        Raises:
            ModelContextError: The prompt is longer than the model can read.
            ModelError: It did not answer.
        """
        ...


class TokenCounter(Protocol):
    """Counts tokens.

    Attributes:
        name: Which counter it is; stored beside each count.
    """

    @property
    def name(self) -> str:
        """Which counter it is; stored beside each count."""
        ...

    def text(self, text: str) -> int:
        """Return the tokens of a text."""
        ...

    def message(self, message: Message) -> int:
        """Return the tokens of a message: text, name, tool calls, media and overhead."""
        ...
