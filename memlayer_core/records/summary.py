"""What stands for turns that left the window, and what models were paid for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = ["Cost", "Method", "Reply", "Summary"]

Method = Literal["model", "extract"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered.

    Attributes:
        text: The answer; empty for one that only calls tools.
        tokens_in: Tokens of the prompt, as the provider counted; None where it did not say.
        tokens_out: Tokens of the answer, likewise.
    """

    text: str
    tokens_in: int | None = None
    tokens_out: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model was asked for one kind of work, all in all.

    Attributes:
        kind: Which work, such as `"summarize"`.
        model: Name of the model.
        calls: How often it answered.
        tokens_in: Tokens that it read: counted by the provider, or by memlayer where that did not say.
        tokens_out: Tokens that it wrote.
    """

    kind: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What some turns of a session said, in short.

    Attributes:
        first_seq: Place of the first message that it covers.
        until_seq: Place of the last message that it covers.
        level: 0 for an episode of some rounds, 1 for an overview of older episodes.
        rounds: How many rounds it covers.
        text: The summary.
        tokens: What the text costs, by the counter named in `counter`.
        counter: Name of the token counter.
        method: `"model"`, or `"extract"` for sentences that were said.
        model: Who wrote it; for an extract, the model that it stands in for.
        score: Share of the telling names, numbers and words of its source that it keeps, 0 to 1.
        missing: The weightiest of those that it does not keep.
        version: Its number in the session; versions only go up.
        replaced_by: The version that took its place; None while it is in force.
        created_at: When it was made; None before it is stored.
    """

    first_seq: int
    until_seq: int
    level: int
    rounds: int
    text: str
    tokens: int
    counter: str
    method: Method
    model: str | None
    score: float
    missing: tuple[str, ...] = ()
    version: int = 0
    replaced_by: int | None = None
    created_at: datetime | None = None

    @property
    def stands_in(self) -> bool:
        """Whether it is an extract that waits for a model to be back."""
        return self.method == "extract" and self.model is not None
