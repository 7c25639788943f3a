"""Checks a model's summary before it is used. No check reads a human language."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import regex

from memlayer_core.summaries.prompt import INSTRUCTIONS, TAG

CHECKS = ("empty", "too_short", "too_long", "echo", "script")
_SHORTEST, _SHARE = 40, 50  # a summary has so many tokens, or a fiftieth of what it stands for (J35)
_PART = 0.1  # of a talk's words: a script that so many are in is one of the talk's
_FENCE = regex.compile(r"^\s*```[\w-]*\n(.*?)\n?```\s*$", regex.DOTALL)
_WORDS = regex.compile(r"\p{Han}|[\p{L}\p{M}--\p{Han}]+", regex.V1)


@dataclass(frozen=True, slots=True)
class Source:
    """What a summary stands for.

    Attributes:
        conversation: The lines that the model is given.
        tokens: Tokens of the conversation, and of the summary before it.
        scripts: The scripts that the talk is written in; empty if it has no letters.
    """

    conversation: str
    tokens: int
    scripts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks say.

    Attributes:
        faults: Names of the checks that failed; empty for a good summary.
    """

    faults: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The share of its checks that it passed, 0 to 1; what is empty or cannot be read passes none."""
        nothing = {"empty", "unreadable"} & set(self.faults)
        return 0.0 if nothing else 1 - len(self.faults) / len(CHECKS)


def unwrapped(answer: str) -> str:
    """Return a model's answer without fences around it."""
    fenced = _FENCE.match(answer)
    return (fenced[1] if fenced else answer).strip()


def check(text: str, tokens: int, source: Source, longest: int, shortest: int = _SHORTEST) -> Verdict:
    """Check a summary.

    Args:
        text: The summary.
        tokens: Its tokens.
        source: What it stands for.
        longest: Tokens that it may have.
        shortest: Tokens that are always enough.
    """
    if not text.strip():
        return Verdict(("empty",))
    failed = {
        "too_short": tokens < shortest and tokens * _SHARE < source.tokens,
        "too_long": tokens > longest,
        "echo": _is_echo(text, source.conversation),
        "script": bool(source.scripts) and not _main_scripts(text) <= source.scripts,
    }
    return Verdict(tuple(name for name in CHECKS if failed.get(name)))


def scripts_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the scripts that at least a tenth of the words of texts are in. A Chinese character counts as a word."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(_scripts(text))
    return frozenset(script for script, count in words.items() if count >= _PART * words.total())


def _main_scripts(text: str) -> frozenset[str]:
    """Return the script that most words of a text are in; none if it has no letters."""
    return frozenset(script for script, _ in Counter(_scripts(text)).most_common(1))


def _scripts(text: str) -> Iterable[str]:
    """Return the script of each word, by the Unicode name of its first letter, such as "LATIN", "CJK" or "HIRAGANA"."""
    return (unicodedata.name(word[0], "").partition(" ")[0] for word in _WORDS.findall(text))


def _is_echo(text: str, conversation: str) -> bool:
    """Tell whether an answer repeats its prompt: its tags, a sentence of its instructions, or the conversation."""
    said, given = _folded(text), _folded(conversation)
    told: Sequence[str] = [_folded(line) for line in INSTRUCTIONS.splitlines() if line]
    repeats = any(line in said for line in told)
    return repeats or TAG.search(text) is not None or said in given or (bool(given) and given in said)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
