"""Reads the episode in a model's answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from memlayer_core.storage.terms import searchable
from memlayer_core.summaries.check import Source, Verdict, check

_SHORTEST = 8  # tokens: an episode is a sentence
_BRACES = 50  # places in an answer where JSON is looked for
_ITEMS = 10  # most items of a list
_OPENING = re.compile(r"\{")
_FENCE = re.compile(r"^```\w*$", re.MULTILINE)


class EpisodeText(BaseModel):
    """The content of an episode.

    Attributes:
        summary: One or two sentences.
        key_topics: What it was about.
        actions_taken: What was done.
        outcomes: What came of it.
        importance: 0 to 1.
    """

    model_config = ConfigDict(frozen=True)

    summary: str
    key_topics: tuple[str, ...] = ()
    actions_taken: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    importance: float = Field(default=0.5, ge=0, le=1)

    @field_validator("summary", mode="after")
    @classmethod
    def _in_one_line(cls, value: str) -> str:
        return _line(value)

    @field_validator("key_topics", "actions_taken", "outcomes", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """Accept null for an empty list, and a string for a list of one."""
        return () if value is None else (value,) if isinstance(value, str) else value

    @field_validator("key_topics", "actions_taken", "outcomes", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, map(_line, value))))[:_ITEMS]


def split_episode(answer: str) -> tuple[str, EpisodeText | None]:
    """Return an answer without the JSON object of an episode, and the episode; None without one."""
    decoder = json.JSONDecoder()
    for found in islice(_OPENING.finditer(answer), _BRACES):
        try:
            value, end = decoder.raw_decode(answer, found.start())
            told = EpisodeText.model_validate(value)
        except (ValidationError, ValueError, RecursionError):
            continue
        return _FENCE.sub("", f"{answer[: found.start()]}\n{answer[end:]}").strip(), told
    return answer, None


def check_episode(
    episode: EpisodeText | None, source: Source, longest: int, count: Callable[[str], int]
) -> Verdict:
    """Check a model's episode: its summary as every summary, with a lower bound for its length."""
    if episode is None:
        return Verdict(("unreadable",))
    return check(episode.summary, count(episode.summary), source, longest, _SHORTEST)


def _line(text: str) -> str:
    return " ".join(searchable(text).split())
