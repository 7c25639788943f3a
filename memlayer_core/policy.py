"""Limits of a window: how much of the present session a model sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "Limits",
    "MaxMessages",
    "MaxRounds",
    "MaxTokens",
    "Policy",
    "Portion",
    "quarter_at_most",
    "recall_budget",
]


class Portion(NamedTuple):
    """The size of the newest part of a session, which a policy judges.

    Attributes:
        messages: Number of messages, without system messages and hidden ones.
        rounds: Number of rounds. A round is a user's message and everything up to the next one.
        tokens: Tokens of these messages.
    """

    messages: int
    rounds: int
    tokens: int


@runtime_checkable
class Policy(Protocol):
    """A rule that limits a window: `MaxRounds`, `MaxMessages`, or a class of your own.

    The token limit holds, too. The newest round is always in the window.
    """

    def allows(self, portion: Portion) -> bool:
        """Return whether a window may be so large. If it may, every smaller window must be allowed, too."""
        ...


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """At most so many tokens for the whole context. It is no `Policy`: it replaces `token_limit`.

    Attributes:
        limit: Tokens; 8000 is the common default of layered memories.
    """

    limit: int = 8000


@dataclass(frozen=True, slots=True)
class MaxMessages:
    """At most so many messages of the session, without the system message.

    Attributes:
        limit: Messages; 10 are five exchanges. 8 to 20 messages suit most chats.
    """

    limit: int = 10

    def allows(self, portion: Portion) -> bool:
        """Return whether there are no more messages than the limit."""
        return portion.messages <= self.limit


@dataclass(frozen=True, slots=True)
class MaxRounds:
    """At most so many rounds. A round is a user's message and everything up to the next one.

    Attributes:
        limit: Rounds; 10 is the common default of memories that count rounds.
    """

    limit: int = 10

    def allows(self, portion: Portion) -> bool:
        """Return whether there are no more rounds than the limit."""
        return portion.rounds <= self.limit


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of a window.

    Attributes:
        tokens: The most tokens that the whole context may cost.
        policies: Policies for the messages of the session. All of them must allow a window.
    """

    tokens: int
    policies: tuple[Policy, ...] = ()

    @property
    def slides(self) -> bool:
        """Whether a full window moves with each turn, instead of in large steps."""
        return bool(self.policies)

    def allow(self, portion: Portion) -> bool:
        """Return whether every policy allows a window of this size."""
        return all(policy.allows(portion) for policy in self.policies)


def quarter_at_most(token_limit: int, tokens: int) -> int:
    """Return the tokens that one part of a context may take: at most a quarter of the limit."""
    return min(tokens, token_limit // 4)


_RECALL_ROOT, _RECALL_SHARE = 18, 0.4
"""Tokens of recall for the square root of the limit: 1,609 at 8,000, where more brings hardly any more of the evidence; and
the most at small limits. Chosen on half of LoCoMo's conversations."""


_RECALL_FULL = 0.2
"""Share of the limit that suffices where the session's turns fill it: what a question recalls is new in the prompt, so a
provider's cache has none of it (`benchmarks/prefix.py`)."""


def recall_budget(token_limit: int, tokens: int | None, free: int | None = None) -> int:
    """Return the tokens that the recall may take: they grow with the square root of the limit.

    Args:
        token_limit: Tokens of the whole context.
        tokens: What `Settings.recall_tokens` says; None: as many as suit the limit, and half of what is free at most.
        free: Tokens that the session's turns leave free; None: all of them.
    """
    most = math.floor(_RECALL_SHARE * token_limit)
    if tokens is not None:
        return min(most, tokens)
    enough = token_limit if free is None else max(free // 2, math.floor(_RECALL_FULL * token_limit))
    return min(most, enough, math.floor(_RECALL_ROOT * math.sqrt(token_limit)))
