"""Writes the prompt that asks a model for facts: the day, the known facts, and the lines of a conversation."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib.resources import files

from memlayer_core.extraction.model import Line
from memlayer_core.extraction.rules.worth import what_may_state_facts
from memlayer_core.records.facts import Fact
from memlayer_core.records.rules.keys import known_keys
from memlayer_core.storage.languages import ENGLISH, language_of

__all__ = [
    "facts_prompt",
    "language_of_lines",
    "prompt_of",
    "retry_prompt",
    "side_task_prompt",
    "system_prompt",
]

_SPACE = re.compile(r"\s+")
_LEAST = 8  # tokens of a line that are always shown
_CONTEXT = 60  # tokens of a line without a number
_QUOTE = 80  # characters of a known fact's value, and of its sentence


@cache
def _prompts() -> dict[str, dict[str, str]]:
    """Return the data file, by language."""
    return tomllib.loads((files("memlayer_core.extraction") / "data" / "prompts.toml").read_text("utf-8"))


def _words_of(language: str) -> dict[str, str]:
    return _prompts().get(language, _prompts()[ENGLISH])


def language_of_lines(lines: Sequence[Line]) -> str:
    """Return the code of the language in which the prompt is written: that of the numbered lines, or English."""
    language = language_of(" ".join(line.text for line in lines if line.number is not None))
    return language if language in _prompts() else ENGLISH


def system_prompt(language: str, keys: Sequence[str] | None = None) -> str:
    """Return the instructions for a model.

    Args:
        language: As `language_of_lines` returns it.
        keys: The keys that it must use, each with what it means if that is known; None: those of the data file, or its own.
    """
    words = _words_of(language)
    named = ", ".join(keys if keys is not None else known_keys())
    return (
        words["instructions"].strip().replace("KEYS", named + (words["other_keys"] if keys is None else ""))
    )


def side_task_prompt(instructions: str, language: str) -> str:
    """Return the instructions for a model that sums up the lines first."""
    return f"{_words_of(language)['side_task']}\n\n{instructions}"


def facts_prompt(language: str, now: datetime, facts: Sequence[Fact]) -> str:
    """Return what a model needs besides the lines: the day and the known facts, whose places, from 1, are their numbers."""
    words = _words_of(language)
    head = [words["today"].format(day=f"{now:%Y-%m-%d}")]
    if facts:
        head += [words["facts"], *(f"{number}. {_fact(fact)}" for number, fact in enumerate(facts, 1))]
    return "\n".join(head)


def prompt_of(
    language: str,
    now: datetime,
    facts: Sequence[Fact],
    lines: Sequence[Line],
    budget: int,
    cost: Callable[[str], int],
) -> str:
    """Return the prompt. Of lines that are too long for it, what may state facts is shown, about as much of each.

    Args:
        language: As `language_of_lines` returns it.
        now: The present.
        facts: The known facts; their places, from 1, are their numbers.
        lines: The conversation, in its order.
        budget: Tokens that the prompt may cost.
        cost: Counts the tokens of a text.
    """
    head = [*facts_prompt(language, now, facts).splitlines(), _words_of(language)["messages"]]
    shown = [_line(line) for line in lines]
    costs = [cost(text) + 1 for text in shown]
    costs = [
        min(price, _CONTEXT) if line.number is None else price
        for line, price in zip(lines, costs, strict=True)
    ]
    room = budget - sum(cost(text) + 1 for text in head)
    most = _most(costs, room)
    for place, (line, price) in enumerate(zip(lines, costs, strict=True)):
        if line.number is not None and price > most:
            shown[place] = _line(replace(line, text=what_may_state_facts(line.text)))
            costs[place] = cost(shown[place]) + 1
    most = _most(costs, room)
    cut = [_beginning(text, min(price, most), cost) for text, price in zip(shown, costs, strict=True)]
    return "\n".join([*head, *cut])


def retry_prompt(language: str, prompt: str, problem: str) -> str:
    """Return the prompt after an answer that could not be read: the same, and what is wrong."""
    return f"{prompt}\n\n{_words_of(language)['retry'].format(problem=problem)}"


def _fact(fact: Fact) -> str:
    since = f", {fact.valid_from:%Y-%m-%d}" if fact.valid_from is not None else ""
    key = f"{fact.key} = {_one_line(fact.value)[:_QUOTE]} " if fact.key is not None else ""
    return f'{fact.subject}: {key}({fact.modality}{since}) "{_one_line(fact.text)[:_QUOTE]}"'


def _line(line: Line) -> str:
    number = f"[{line.number}] " if line.number is not None else ""
    return f"{number}{line.said_at:%Y-%m-%d} {line.speaker}: {_one_line(line.text)}"


def _one_line(text: str) -> str:
    """Return a text without line breaks, so that nothing in it looks like another line."""
    return _SPACE.sub(" ", text).strip()


def _most(costs: Sequence[int], budget: int) -> int:
    """Return the largest number of tokens that each line may cost so that all of them fit."""
    left, lines = budget, len(costs)
    for price in sorted(costs):
        if price * lines > left:
            return max(_LEAST, left // lines)
        left, lines = left - price, lines - 1
    return max(costs, default=0)


def _beginning(text: str, budget: int, cost: Callable[[str], int]) -> str:
    price = cost(text)
    while price > budget and len(text) > 1:
        text = text[: max(1, len(text) * budget // (price + 1))].rstrip() + "…"
        price = cost(text)
    return text
