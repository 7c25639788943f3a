"""Summarizes without a model: chooses the most informative sentences, and keeps their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

from memlayer_core.storage.terms import content_words, sentences

__all__ = ["Extract", "Line", "extract", "labelled_line", "names"]

# Weights of a sentence's features. Facts about people are in the first person, with names and numbers; measured on
# conversations between people, and the same in chats with assistants.
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
    """A line of a conversation.

    Attributes:
        speaker: Who said it.
        text: What was said.
        day: The day, as it is written; empty if it is not known.
    """

    speaker: str
    text: str
    day: str = ""


@dataclass(frozen=True, slots=True)
class Extract:
    """An extract of a conversation.

    Attributes:
        text: Its sentences, a line for each speaker and day.
        lines: Places of the lines that the sentences come from.
    """

    text: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sentence:
    line: int
    text: str
    words: frozenset[str]


def extract(lines: Sequence[Line], budget: int, cost: Callable[[str], int]) -> Extract:
    """Choose the most informative sentences that fit.

    Args:
        lines: The conversation, in order.
        budget: Tokens that the text may cost.
        cost: Counts the tokens of a text.
    """
    said = [
        _Sentence(place, sentence, frozenset(content_words(sentence)))
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
        price = cost(labelled_line(line, sentence.text) + "\n")
        if spent + price > budget:
            continue
        spent += price
        chosen.append(place)
        told |= sentence.words
    kept = [said[place] for place in sorted(chosen)]
    return Extract(_join_sentences(lines, kept), tuple(dict.fromkeys(sentence.line for sentence in kept)))


def names(text: str) -> list[str]:
    """Return the words inside sentences that are written like names, repetitions included."""
    return [name for name in _NAMES.findall(text) if not _PRONOUN.fullmatch(name)]


def labelled_line(line: Line, text: str) -> str:
    """Return a text with the day and the speaker of its line in front."""
    day, speaker = f"[{line.day}] " if line.day else "", f"{line.speaker}: " if line.speaker else ""
    return f"{day}{speaker}{text}"


def _worth(sentence: _Sentence, frequencies: Counter[str], count: int) -> float:
    # fsum: the words of a set come in another order in every process, and `sum` would round differently.
    rarity = math.fsum(math.log(1 + count / frequencies[word]) for word in sentence.words)
    numbers = min(2, len(_NUMBERS.findall(sentence.text)))
    personal = _SELF.search(sentence.text) is not None
    told = _RARITY * rarity + _NAME * len(names(sentence.text)) + _NUMBER * numbers + _FIRST_PERSON * personal
    return told / math.sqrt(len(sentence.text))


def _join_sentences(lines: Sequence[Line], selection: Sequence[_Sentence]) -> str:
    """Join sentences to a text: neighbours of one speaker and day share a line."""
    together: list[tuple[Line, list[str]]] = []
    for sentence in selection:
        line = lines[sentence.line]
        before = together[-1][0] if together else None
        if before is None or (before.day, before.speaker) != (line.day, line.speaker):
            together.append((line, []))
        together[-1][1].append(sentence.text)
    return "\n".join(labelled_line(line, " ".join(texts)) for line, texts in together)
