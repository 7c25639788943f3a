"""Summaries of turns that left the window, and what the models' work cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from memlayer_core.show import Mark, Tabular, View, line_of

__all__ = ["Method", "SideTask", "Summary"]

Method = Literal["model", "extract"]


@dataclass(frozen=True, slots=True)
class SideTask:
    """What a model is asked for in the call that sums up messages, besides their summary.

    Attributes:
        numbers: For each message, its number, from 1; None: the task is not about it.
        instructions: What it is to do.
        material: What it needs besides the conversation.
        take: Takes the part of an answer that is about it, and returns the rest.
    """

    numbers: tuple[int | None, ...]
    instructions: str
    material: str
    take: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Summary(Tabular):
    """A summary of some turns of a session.

    Attributes:
        first_seq: Place of the first message that it covers.
        until_seq: Place of the last message that it covers.
        level: 0 for a summary of messages, 1 for an overview: a summary of summaries.
        rounds: Number of rounds that it covers.
        text: The summary.
        tokens: Tokens of the text, by the counter named in `counter`.
        counter: Name of the token counter.
        method: `"model"`: a model wrote it. `"extract"`: it quotes sentences that were said.
        model: Name of the model that wrote it. For an extract: the model that did not answer, or None.
        score: Share of the important names, numbers and words of its source that it contains, 0 to 1.
        missing: The most important of those that it does not contain.
        faults: Faults of the model's answers, such as `"invented"`. If no answer is good, the best one is taken; an
            extract is taken if an answer was refused.
        version: Its number in the session; versions only go up.
        replaced_by: Version of the summary that replaced it; None while it is in force.
        created_at: When it was written; None before it is stored.
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
    faults: tuple[str, ...] = ()

    __repr__ = line_of

    @property
    def is_fallback(self) -> bool:
        """Whether it is an extract in place of a model's summary, because the model did not answer."""
        return self.method == "extract" and self.model is not None

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("version", "of", "what", "tokens", "by", "score", "missing", "when", "state"),
            rows=tuple(
                (
                    one.version,
                    f"{one.rounds} round(s)" + (", overview" if one.level else ""),
                    one.text,
                    one.tokens,
                    one.model if one.method == "model" else "quotes",
                    one.score,
                    ", ".join(one.missing),
                    one.created_at,
                    _state(one),
                )
                for one in values
            ),
            notes=tuple(
                f"version {one.version}: {one.model} did not answer, and sentences are quoted in its place"
                for one in values
                if one.is_fallback
            ),
        )


def _state(summary: Summary) -> Mark:
    if summary.replaced_by is not None:
        return Mark(f"replaced by {summary.replaced_by}")
    return Mark("stands in", "amber") if summary.is_fallback else Mark("in force", "green")
