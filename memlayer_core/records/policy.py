"""How much of the present conversation a model is told: the limits that a window keeps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits", "MaxMessages", "MaxRounds", "MaxTokens", "Policy"]


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """Tell at most so many tokens, everything together.

    Attributes:
        limit: Tokens; 8000 is what layered memories commonly begin with.
    """

    limit: int = 8000


@dataclass(frozen=True, slots=True)
class MaxMessages:
    """Tell at most so many messages of the session, the system message not counted.

    Attributes:
        limit: Messages; 10 are five exchanges. Four to ten exchanges, 8 to 20 messages, suit most chats.
    """

    limit: int = 10


@dataclass(frozen=True, slots=True)
class MaxRounds:
    """Tell at most so many rounds: a user's message and everything up to the next one.

    Attributes:
        limit: Rounds; memories that count in rounds compress after 10.
    """

    limit: int = 10


Policy = MaxTokens | MaxMessages | MaxRounds


@dataclass(frozen=True, slots=True)
class Limits:
    """What a window keeps within.

    Attributes:
        tokens: Of the whole context.
        messages: Of the session, at the most; None: as many as there is room for.
        rounds: Of the session, at the most; None: as many as there is room for.
    """

    tokens: int
    messages: int | None = None
    rounds: int | None = None

    @property
    def slides(self) -> bool:
        """Whether the window moves with each turn once it is full, and not in large steps."""
        return self.messages is not None or self.rounds is not None
