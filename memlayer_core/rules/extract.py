"""Summarises without a model: the sentences that tell most, in their own words and in their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

from memlayer_core.rules.sentences import sentences
from memlayer_core.rules.terms import telling

__all__ = ["Extracted", "Line", "extract", "names", "written"]

# What a sentence is worth beyond its rare words. Facts about people are told in the first person, with names
# and numbers; measured on conversations between people, and the same in assistants' chats.
_RARITY = 0.3
_FIRST_PERSON = 4.0
_NAME = 1.0
_NUMBER = 2.0
_SAME = 0.7  # share of a sentence's words that another has already said

_SELF = regex.compile(r"(?i)\b(?:i|i'm|i've|i'd|i'll|my|me|mine|we|we're|we've|our|us)\b|[我咱]")
_NAMES = regex.compile(r"(?<=\w[\w'’]*\W{1,2})\p{Lu}[\p{L}'’]*")
_NUMBERS = regex.compile(r"\p{Nd}+|[一二三四五六七八九十百千]+[年月日号点岁个]")
_PRONOUN = regex.compile(r"I(?:['’]\w+)?")


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody said.

    Attributes:
        speaker: Who.
        text: What.
        day: When, as it is to be shown; empty where it is not known.
    """

    speaker: str
    text: str
    day: str = ""


@dataclass(frozen=True, slots=True)
class Extracted:
    """What stands for a conversation.

    Attributes:
        text: Its sentences, a line for each speaker and day.
        lines: Places of the lines that they come from.
    """

    text: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sentence:
    line: int
    text: str
    words: frozenset[str]


def extract(lines: Sequence[Line], room: int, cost: Callable[[str], int]) -> Extracted:
    """Choose the sentences that tell most, as many as there is room for.

    Args:
        lines: The conversation, in its order.
        room: What the text may cost.
        cost: What a text costs; more for a longer one.
    """
    said = [
        _Sentence(place, sentence, frozenset(telling(sentence)))
        for place, line in enumerate(lines)
        for sentence in sentences(line.text)
    ]
    often = Counter(word for sentence in said for word in sentence.words)
    worth = [_worth(sentence, often, len(said)) for sentence in said]
    best = sorted(range(len(said)), key=lambda place: (-worth[place], place))
    spent, chosen, told = 0, list[int](), set[str]()
    for place in best:
        sentence = said[place]
        if not sentence.words or len(sentence.words & told) > _SAME * len(sentence.words):
            continue
        line = lines[sentence.line]
        price = cost(written(line, sentence.text) + "\n")
        if spent + price > room:
            continue
        spent += price
        chosen.append(place)
        told |= sentence.words
    kept = [said[place] for place in sorted(chosen)]
    return Extracted(_together(lines, kept), tuple(dict.fromkeys(sentence.line for sentence in kept)))


def names(text: str) -> list[str]:
    """Return the words inside of sentences that are written like names, as often as they are there."""
    return [name for name in _NAMES.findall(text) if not _PRONOUN.fullmatch(name)]


def written(line: Line, text: str) -> str:
    """Return words of a line with the day and the speaker in front."""
    day, speaker = f"[{line.day}] " if line.day else "", f"{line.speaker}: " if line.speaker else ""
    return f"{day}{speaker}{text}"


def _worth(sentence: _Sentence, often: Counter[str], count: int) -> float:
    rarity = sum(math.log(1 + count / often[word]) for word in sentence.words)
    numbers = min(2, len(_NUMBERS.findall(sentence.text)))
    personal = _SELF.search(sentence.text) is not None
    told = _RARITY * rarity + _NAME * len(names(sentence.text)) + _NUMBER * numbers + _FIRST_PERSON * personal
    return told / math.sqrt(len(sentence.text))


def _together(lines: Sequence[Line], kept: Sequence[_Sentence]) -> str:
    """Write sentences down: neighbours of one speaker and day share a line."""
    together: list[tuple[Line, list[str]]] = []
    for sentence in kept:
        line = lines[sentence.line]
        before = together[-1][0] if together else None
        if before is None or (before.day, before.speaker) != (line.day, line.speaker):
            together.append((line, []))
        together[-1][1].append(sentence.text)
    return "\n".join(written(line, " ".join(texts)) for line, texts in together)
