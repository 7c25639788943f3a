"""Checks a summary before it is used: is it one, does it keep what matters, does it invent anything?

Names, numbers and dates are counted because they cannot be paraphrased, and important facts are mostly next to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import regex

from memlayer_core.storage.terms import content_words, sentences

__all__ = ["Bounds", "Fault", "Verdict", "assess", "is_no_summary", "strip_wrapping", "without_inventions"]

Fault = Literal[
    "empty",
    "unreadable",
    "too_short",
    "too_long",
    "other_language",
    "refusal",
    "instructions",
    "copy",
    "invented",
    "coverage",
]

_UNUSABLE: frozenset[Fault] = frozenset(
    {"empty", "unreadable", "too_long", "other_language", "refusal", "instructions", "invented"}
)
_TELLING_ITEMS = 40  # the most frequent names, numbers and words that coverage asks for
_COPIED = 0.8  # share of a summary's sentences of eight words that stand in the source as they are
_GRAM = 8

_LABEL = regex.compile(r"^(?:\[\d{4}-\d\d-\d\d\] )?(?:(?:user|assistant|tool): )?")
"""The day and the role in front of a line: in English whatever the language, and nothing that a summary has to tell."""

_FENCE = regex.compile(r"^\s*```[\w-]*\n(.*?)\n?```\s*$", regex.DOTALL)
_PREFACE = regex.compile(
    r"^(?:(?:sure|certainly|of course|okay|ok)[,.!]?\s*)?(?:here(?:'s| is| are)\b[^\n:]{0,80}:|(?:updated |rolling |new )?"
    r"summary\s*:|总结[:：]|摘要[:：])\s*",
    regex.IGNORECASE,
)
_REFUSAL = regex.compile(
    r"\b(?:i(?:'|’)?m sorry|i am sorry|i apologi[sz]e|i (?:can(?:no|')t|cannot|am unable|am not able|won't)"
    r"|as an ai\b|as a language model|i do(?:n't| not) have (?:access|enough))"
    r"|\b(?:previous|prior|the) conversation (?:was|is) too long|(?:no|any) conversation (?:was )?(?:provided|given)"
    r"|(?:很|非常)?抱歉[，,]?\s*我|对不起[，,]?\s*我|我无法|作为(?:一个|一名)?(?:AI|人工智能|语言模型)",
    regex.IGNORECASE,
)
_INSTRUCTIONS = regex.compile(
    r"\b(?:ignore|disregard|forget) (?:all |any |the |your )*(?:previous|prior|above|earlier) (?:instructions|prompts?)"
    r"|\b(?:you are now|from now on,? you|your new (?:role|instructions))\b"
    r"|^\s*(?:system|assistant|user)\s*:\s*you (?:must|should|are)"
    r"|<\|?(?:im_start|system|endoftext)\|?>|忽略(?:之前|以上|上述|所有)+(?:的)?(?:指令|提示|说明)",
    regex.IGNORECASE | regex.MULTILINE,
)
_NAME = regex.compile(r"(?<=[\p{Ll}\p{Nd},;:]['\"’”)]?\s)\p{Lu}[\p{L}\p{Nd}'’-]+")
_NUMBER = regex.compile(r"\p{Nd}+(?:[.,:]\p{Nd}+)*")
_CALENDAR = frozenset(
    """
    january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec
    monday tuesday wednesday thursday friday saturday sunday
    """.split()  # noqa: SIM905  (a list of words reads better as prose)
)
_COUNTED = {
    word: str(value)
    for value, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
}
_HAN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_LETTER = regex.compile(r"\p{L}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a summary.

    Attributes:
        shortest: Tokens that the summary of a real conversation needs.
        longest: Tokens that it may cost.
        coverage: The score that it must reach, from 0 to 1.
    """

    shortest: int
    longest: int
    coverage: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the check.

    Attributes:
        score: Share of the source's telling names, numbers and words that are kept, by their weight, 0 to 1;
            0 for a text that is no summary at all.
        faults: What is wrong with it; empty for a good one.
        missing: Important words of the source that it lacks, the most important first.
        inventions: Names and numbers that the source does not have.
    """

    score: float
    faults: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    inventions: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether it may stand for its source."""
        return not self.faults

    @property
    def usable(self) -> bool:
        """Whether it may stand for its source if there is nothing better."""
        return not _UNUSABLE & set(self.faults)


def strip_wrapping(reply: str) -> str:
    """Return a model's reply without fences and a preface."""
    text = reply.strip()
    fenced = _FENCE.match(text)
    if fenced:
        text = fenced[1].strip()
    found = _PREFACE.match(text)
    return text[found.end() :].strip() if found else text


def assess(summary: str, source: Sequence[str], tokens: int, bounds: Bounds) -> Verdict:
    """Judge a summary.

    Args:
        summary: The summary to judge.
        source: The lines that it summarizes, the earlier summary included.
        tokens: Tokens of the summary.
        bounds: Its limits.
    """
    if not summary.strip():
        return Verdict(0.0, ("empty",))
    text = "\n".join(source)
    said = [_LABEL.sub("", line, count=1) for line in source]
    faults: list[Fault] = []
    if tokens < bounds.shortest:
        faults.append("too_short")
    if tokens > bounds.longest:
        faults.append("too_long")
    if abs(_share_of_han(summary) - _share_of_han("\n".join(said))) > _OTHER_SCRIPT:
        faults.append("other_language")
    if _REFUSAL.search(summary) and not _REFUSAL.search(text):
        faults.append("refusal")
    if _INSTRUCTIONS.search(summary):
        faults.append("instructions")
    if _is_copy(summary, text):
        faults.append("copy")
    invented = _inventions(summary, text)
    if invented:
        faults.append("invented")
    score, missing = _coverage(summary, said)
    if score < bounds.coverage:
        faults.append("coverage")
    none = {"refusal", "instructions", "other_language"} & set(faults)
    return Verdict(0.0 if none else score, tuple(faults), missing, invented)


_OTHER_SCRIPT = 0.5


def _share_of_han(text: str) -> float:
    """Return the share of East Asian letters; names of products in the other script do not decide."""
    letters = len(_LETTER.findall(text))
    return len(_HAN.findall(text)) / letters if letters else 0.0


def _is_copy(summary: str, text: str) -> bool:
    """Tell whether it is the source again, or most of it."""
    words, among = content_words(summary), content_words(text)
    grams = [tuple(words[place : place + _GRAM]) for place in range(len(words) - _GRAM + 1)]
    if len(words) < len(among) / 2 or not grams:
        return False
    known = {tuple(among[place : place + _GRAM]) for place in range(len(among) - _GRAM + 1)}
    return sum(gram in known for gram in grams) > _COPIED * len(grams)


def _inventions(summary: str, text: str) -> tuple[str, ...]:
    """Return names and numbers that the source lacks; a date may be written in another way."""
    known, numbers = set(content_words(text)), set[str]()
    for number in _NUMBER.findall(text):
        numbers |= _spellings(number)
    counted = {value for word, value in _COUNTED.items() if word in known}
    names = [
        name for name in _NAME.findall(summary) if name not in text and not _stem(name) <= known | _CALENDAR
    ]
    told = [
        number
        for number in _NUMBER.findall(summary)
        if not _spellings(number) & (numbers | counted) and not _parts_of(number) <= numbers
    ]
    return tuple(dict.fromkeys([*names, *told]))


def _stem(name: str) -> set[str]:
    return set(content_words(regex.sub(r"['’]s?$", "", name)))


def _spellings(number: str) -> set[str]:
    """Return the ways to write a number: without separators, without zeros in front; the parts of a date or time."""
    plain = number.replace(",", "")
    return {number, plain, plain.lstrip("0") or "0", *_parts_of(number)}


def _parts_of(number: str) -> set[str]:
    return {part.lstrip("0") or "0" for part in regex.split(r"[.,:]", number)}


def is_no_summary(verdict: Verdict) -> bool:
    """Tell whether a text is no summary, whoever wrote it and however long it may be."""
    return bool({"empty", "refusal", "instructions"} & set(verdict.faults))


def without_inventions(summary: str, inventions: Sequence[str]) -> str:
    """Return a summary without the sentences that contain inventions."""
    lines = [
        " ".join(sentence for sentence in sentences(line) if not any(item in sentence for item in inventions))
        for line in summary.splitlines()
    ]
    return "\n".join(filter(None, lines))


def _coverage(summary: str, source: Sequence[str]) -> tuple[float, tuple[str, ...]]:
    """Return the share of the source's important words that are kept, and the missing ones; names count double."""
    text = "\n".join(source)
    marked = {
        word for found in (_NAME, _NUMBER) for item in found.findall(text) for word in content_words(item)
    }
    often = Counter(content_words(text))
    weights = {word: (1 + math.log(count)) * (2 if word in marked else 1) for word, count in often.items()}
    wanted = sorted(weights, key=lambda word: -weights[word])[:_TELLING_ITEMS]
    if not wanted:
        return 1.0, ()
    kept = set(content_words(summary))
    missing = [word for word in wanted if word not in kept]
    lost = sum(weights[word] for word in missing)
    return 1 - lost / sum(weights[word] for word in wanted), tuple(missing)
