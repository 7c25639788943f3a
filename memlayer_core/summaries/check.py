"""Checks a model's summary before it is used. No check reads a human language."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import regex
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from memlayer_core.facts.check import fold
from memlayer_core.storage.terms import searchable
from memlayer_core.summaries.prompt import INSTRUCTIONS, TAG

CHECKS = ("empty", "too_short", "too_long", "echo", "script")
_SHORTEST, _SHARE = 40, 50  # a summary has so many tokens, or a fiftieth of what it stands for (J35)
_PART = 0.1  # of a talk's words: a script that so many are in is one of the talk's
_FENCE = regex.compile(r"^\s*```[\w-]*\n(.*?)\n?```\s*$", regex.DOTALL)
_WORDS = regex.compile(r"\p{Han}|[\p{L}\p{M}--\p{Han}]+", regex.V1)


@dataclass(frozen=True, slots=True)
class Summed:
    """What a summary stands for.

    Attributes:
        conversation: The lines that the model is given.
        tokens: Tokens of the conversation, and of the summary before it.
        scripts: The scripts that the talk is written in; empty if it has no letters.
    """

    conversation: str
    tokens: int
    scripts: frozenset[str]


def score_of(faults: Sequence[str]) -> float:
    """Return the share of its checks that a summary passed, 0 to 1; what is empty or cannot be read passes none."""
    return 0.0 if {"empty", "unreadable"} & {*faults} else 1 - len(faults) / len(CHECKS)


def unwrapped(answer: str) -> str:
    """Return a model's answer without fences around it."""
    fenced = _FENCE.match(answer)
    return (fenced[1] if fenced else answer).strip()


def check(text: str, tokens: int, source: Summed, longest: int, shortest: int = _SHORTEST) -> tuple[str, ...]:
    """Return the names of the checks that a summary fails; none for a good one.

    Args:
        text: The summary.
        tokens: Its tokens.
        source: What it stands for.
        longest: Tokens that it may have.
        shortest: Tokens that are always enough.
    """
    if not text.strip():
        return ("empty",)
    main = Counter(_scripts(text)).most_common(1)  # none without letters
    failed = {
        "too_short": tokens < shortest and tokens * _SHARE < source.tokens,
        "too_long": tokens > longest,
        "echo": _is_echo(text, source.conversation),
        "script": bool(source.scripts) and not {script for script, _ in main} <= source.scripts,
    }
    return tuple(name for name in CHECKS if failed.get(name))


def scripts_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the scripts that at least a tenth of the words of texts are in. A Chinese character counts as a word."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(_scripts(text))
    return frozenset(script for script, count in words.items() if count >= _PART * words.total())


def _scripts(text: str) -> Iterable[str]:
    """Return the script of each word, by the Unicode name of its first letter, such as "LATIN", "CJK" or "HIRAGANA"."""
    return (unicodedata.name(word[0], "").partition(" ")[0] for word in _WORDS.findall(text))


def _is_echo(text: str, conversation: str) -> bool:
    """Return whether an answer repeats its prompt: its tags, a sentence of its instructions, or the conversation."""
    said, given = fold(text), fold(conversation)
    repeats = any(fold(line) in said for line in INSTRUCTIONS.splitlines() if line)
    return repeats or TAG.search(text) is not None or said in given or (bool(given) and given in said)


# Reads the episode in a model's answer.

_SHORTEST_EPISODES = 8  # tokens: an episode is a sentence
_BRACES = 50  # places in an answer where JSON is looked for
_ITEMS = 10  # most items of a list
_OPENING = re.compile(r"\{")
_FENCE_EPISODES = re.compile(r"^```\w*$", re.MULTILINE)


def _line(text: str) -> str:
    return " ".join(searchable(text).split())


def _as_list(value: Any) -> Any:
    """Accept null for an empty list, and a string for a list of one."""
    return () if value is None else (value,) if isinstance(value, str) else value


def _distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(_line, value))))[:_ITEMS]


_Lines = Annotated[tuple[str, ...], BeforeValidator(_as_list), AfterValidator(_distinct)]


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

    summary: Annotated[str, AfterValidator(_line)]
    key_topics: _Lines = ()
    actions_taken: _Lines = ()
    outcomes: _Lines = ()
    importance: float = Field(default=0.5, ge=0, le=1)


def split_episode(answer: str) -> tuple[str, EpisodeText | None]:
    """Return an answer without the JSON object of an episode, and the episode; None without one."""
    decoder = json.JSONDecoder()
    for found in [*_OPENING.finditer(answer)][:_BRACES]:
        try:
            value, end = decoder.raw_decode(answer, found.start())
            episode = EpisodeText.model_validate(value)
        except (ValidationError, ValueError, RecursionError):
            continue
        return _FENCE_EPISODES.sub("", f"{answer[: found.start()]}\n{answer[end:]}").strip(), episode
    return answer, None


def check_episode(
    episode: EpisodeText | None, source: Summed, longest: int, count: Callable[[str], int]
) -> tuple[str, ...]:
    """Return the checks that a model's episode fails: its summary as every summary, with a lower bound for its length."""
    if episode is None:
        return ("unreadable",)
    return check(episode.summary, count(episode.summary), source, longest, _SHORTEST_EPISODES)
