"""Decides the order of what recall found.

Every ingredient has one weight, and the reason for it is told beside the weight. Two of them are measured on scales of
their own (a cosine, a sum over words): they are compared as distances from the mean of all candidates, in standard
deviations, so that a poor source has little to say where it cannot tell candidates apart, and a missing one leaves
the order of the others as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memlayer_core.records.candidate import Candidate, talk_of
from memlayer_core.records.context import Reason
from memlayer_core.records.vector import Neighbour
from memlayer_core.rules.question import Question
from memlayer_core.rules.standing import Standing
from memlayer_core.rules.terms import named

__all__ = ["FLOOR", "LONG", "WEIGHTS", "Found", "Ranked", "Weights", "rank", "shortlist", "worth_telling"]

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each ingredient counts. Chosen on conversations between two people, checked on chats with an assistant.

    Attributes:
        meaning: A standard deviation of the cosine. The best single source where the embedder knows the language.
        words: A standard deviation of the words that a message shares with the question, rare ones counting more.
            Finds names, numbers and dates that embedders blur.
        session: A standard deviation of the same for whole sessions: the talk about the wedding is where the wedding
            dress was mentioned, whatever the turn itself says. Its best cosine counts a little, too.
        named: Said by somebody whom the question names. Twice what meaning gives a very good hit: the other
            speaker's turns remain behind all of theirs that say anything.
        own: Said by the user, where the question says "I": people ask an assistant about themselves.
        when: Said on a day that the question means: "last week" is about nothing else.
        wishes: Says how the user wants things, where the question asks for help: what was wished holds for
            everything of its kind, though it shares no word with it.
        answers: Has what the question wants, a time or a number. A good hit without it keeps its place.
        neighbours: The part of its worth that a turn passes on to the next one; half of it to the one before and to
            the next but one, as an answer stands behind its question.
        asks: Taken from a turn that ends with a question: it wants to know what others tell.
        long: Taken from a turn for each doubling beyond `LONG` tokens: a long answer touches many words, and takes
            the room of many turns. Less among few candidates.
    """

    meaning: float = 0.6
    words: float = 0.4
    session: float = 0.5
    named: float = 2.0
    own: float = 1.5
    when: float = 2.0
    wishes: float = 2.0
    answers: float = 0.5
    neighbours: float = 0.3
    asks: float = 0.3
    long: float = 0.6


WEIGHTS = Weights()

LONG = 80
"""Tokens of a turn that is as long as people make theirs."""

_DOUBLINGS = (
    3  # of a long turn's length that count: a file that was pasted is found by its words all the same
)
_MANY_RIVALS = 20  # candidates from which on the room that a long turn takes is missed by others
_SPEECH = 80  # tokens at which a turn passes on half as much to its neighbours: a long one stands for itself
_NEAREST = 10  # hits of each source whose neighbours are weighed, too
_SHARES = {-2: 0.5, -1: 1.0, 1: 0.5, 2: 0.25}  # of what a neighbour passes on: the one before it gives most
_APART = 1.5  # deviation of sessions below which they hardly differ: one more common word then says little
_BEST_OF_SESSION = 0.3  # of what a session's words say, that its best cosine does
_NEAR_ANYWAY = 0.2  # cosine of two texts that have nothing to do with each other
_THEN, _THEN_UNASKED = 0.4, 0.2
"""Support that being said when the question means is worth, whatever was said; less where nothing is asked: "I am tired
today" needs nothing of what was said today."""
_FROM_BESIDE, _OF_BEST = 0.8, 0.5
_BEHIND = 3.0  # in score: the best hit stands three to four above the mean of all

_ASKING = re.compile("[?\uff1f]")

FLOOR = (0.15, 0.05)
"""Support that the best hit of a search must have, or nothing is returned: for words alone, and what is added where the
cosine counts as well. Questions that nothing answers bring nothing back for the most part, and few others suffer.
These are for `MANY` messages and more: among few, the best of what has nothing to do with the question looks less good."""

MANY = 500

FLOOR_ASKED, FLOOR_UNASKED = (0.25, 0.1), (0.4, 0.25)
"""The same for a prompt, whose message was not written to be searched for: one with a question in it, and one without."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the sources found, before it is weighed.

    Attributes:
        standing: Where the question's words stand.
        near: What meaning found, the best first.
        dated: What was said when the question means.
        wished: What says how the user wants things, if help is asked for.
    """

    standing: Standing
    near: Sequence[Neighbour] = ()
    dated: Collection[int] = frozenset()
    wished: Collection[int] = frozenset()


class Ranked(NamedTuple):
    """A message and what is to be said for it.

    Attributes:
        key: Key of the message.
        score: Larger is better; comparable within one question only.
        support: How much of the question it bears out, whatever else was found: the share of the question's words,
            rare ones counting more, and the cosine as far as the embedder is to be trusted.
        gave: What each of `INGREDIENTS` gave; together they are the score.
        near: Cosine to the question, if it was weighed.
        words: The question's words that it has.
        shortened: Whether only a part of it is told.
    """

    key: int
    score: float
    support: float
    gave: Sequence[float] = ()
    near: float | None = None
    words: tuple[str, ...] = ()
    shortened: bool = False

    @property
    def parts(self) -> Mapping[str, float]:
        """What each ingredient gave, by its name; together they are the score."""
        return dict(zip(INGREDIENTS, self.gave, strict=True))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What each ingredient gave, the largest first."""
        said = {
            **_TOLD,
            "words": f"has the words {', '.join(self.words)}"
            if self.words
            else "has no word of the question",
            "meaning": "no vector" if self.near is None else f"cosine {self.near:.2f}",
        }
        found = {"words": bool(self.words), "meaning": self.near is not None}
        parts = self.parts
        given = (
            Reason(name, f"{said[name]} ({parts[name]:+.2f})")
            for name in sorted(parts, key=lambda name: -abs(parts[name]))
            if found.get(name, abs(parts[name]) >= _SLIGHT)
        )
        return (*given, *([_SHORTENED] if self.shortened else []))


_SHORTENED = Reason("excerpt", "the part of a long message that bears on the question")
_SLIGHT = 0.005  # what an ingredient gave, and nobody needs to hear of
_TOLD = {
    "named": "said by one whom the question names",
    "own": "said by the user, who asks about themselves",
    "when": "said when the question means",
    "wishes": "says how the user wants things",
    "answers": "has a time or a number, as the question wants",
    "asks": "ends with a question",
    "long": "long",
    "neighbours": "stands beside what bears on the question",
    "session": "from a talk that bears on the question",
}
INGREDIENTS = ("meaning", "words", *_TOLD)
"""What a score is made of, in the order in which `Ranked` keeps them."""


def shortlist(found: Found, most: int) -> list[int]:
    """Return the keys worth weighing: the best of each source, and the neighbours of the very best.

    Args:
        found: What the sources found.
        most: How many to take of each source.
    """
    by_words = found.standing.worth
    told = [key for _, key in sorted(zip(by_words.values(), by_words, strict=True), reverse=True)[:most]]
    meant = [neighbour.key for neighbour in found.near[:most]]
    first = chain(told[:_NEAREST], meant[:_NEAREST])
    beside = (key + step for key in first if key > 0 for step in _SHARES)
    marked = (
        sorted(marked, key=lambda key: (-by_words.get(key, 0.0), -key))[:most]
        for marked in (found.dated, found.wished)
    )
    return list(dict.fromkeys(chain(told, meant, *marked, beside)))


def rank(
    question: Question,
    candidates: Sequence[Candidate],
    found: Found,
    trust: float,
    weights: Weights = WEIGHTS,
) -> list[Ranked]:
    """Return candidates in the order of their worth; none if nothing bears on the question.

    Args:
        question: What was asked.
        candidates: What was read of the messages that the sources found.
        found: What the sources found.
        trust: How far this embedder's cosine is to be believed for this question, 0 to 1.
        weights: How much each ingredient counts.
    """
    if not candidates:
        return []
    standing = found.standing
    keys = [one.key for one in candidates]
    cosines = np.array([one.near if trust and one.near is not None else math.nan for one in candidates])
    dated = np.array([key in found.dated for key in keys])
    support = _column(standing.borne(question.words), keys)
    support += (_THEN if _ASKING.search(question.text) else _THEN_UNASKED) * dated
    support += trust * np.maximum(0.0, np.nan_to_num(cosines) - _NEAR_ANYWAY)
    if support.max() < _floor(FLOOR, trust, standing.messages):
        return []
    near = _standard(cosines)
    speakers = _named_in(question, candidates)
    answer = question.answer
    parts = {
        "meaning": trust * weights.meaning * near,
        "words": weights.words * _standard(_column(standing.worth, keys)),
        "named": weights.named * np.array([one.name in speakers for one in candidates]),
        "own": weights.own * np.array([question.own and one.role == "user" for one in candidates]),
        "when": weights.when * dated,
        "wishes": weights.wishes * np.array([key in found.wished for key in keys]),
        "answers": weights.answers
        * np.array([answer is not None and bool(answer.search(one.beginning)) for one in candidates]),
        "asks": -weights.asks * np.array([one.asks for one in candidates]),
        "long": -weights.long * _too_long(candidates),
    }
    parts["neighbours"] = weights.neighbours * _passed_on(candidates, _sum(parts.values()))
    parts["session"] = weights.session * _of_session(standing, candidates, near)
    table = np.stack([parts[name] for name in INGREDIENTS], axis=1)
    score = _sum(parts.values())
    order = sorted(range(len(keys)), key=lambda place: (-score[place], -keys[place]))
    gave = table.tolist()
    return [
        Ranked(
            keys[place],
            float(score[place]),
            float(support[place]),
            gave[place],
            candidates[place].near if trust else None,
            standing.of(keys[place]),
        )
        for place in order
    ]


def worth_telling(ranked: Sequence[Ranked], query: str, trust: float, messages: int) -> Sequence[Ranked]:
    """Return what is worth its tokens in a prompt: what is not too far behind the best.

    Nothing is, unless the best bears out a good part of what was said; of what asks nothing, a better part still:
    most of what people say to each other needs nothing from the past.

    Args:
        ranked: The best first.
        query: What they were found for.
        trust: How far the embedder's cosine was believed, 0 to 1.
        messages: How many messages there are in all.
    """
    floor = FLOOR_ASKED if _ASKING.search(query) else FLOOR_UNASKED
    support = {one.key: one.support for one in ranked}
    best = max(support.values(), default=0.0)
    if best < _floor(floor, trust, messages):
        return []

    def borne(key: int) -> float:
        beside = max(support.get(key - 1, 0.0), support.get(key + 1, 0.0))
        return max(support[key], _FROM_BESIDE * beside)

    return [
        one for one in ranked if one.score >= ranked[0].score - _BEHIND and borne(one.key) >= _OF_BEST * best
    ]


def _floor(floor: tuple[float, float], trust: float, messages: int) -> float:
    words, meaning = floor
    return (words + meaning * trust) * min(1.0, math.log1p(messages) / math.log1p(MANY))


def _column(values: Mapping[int, float], keys: Sequence[int]) -> Column:
    return np.array([values.get(key, 0.0) for key in keys])


def _sum(columns: Iterable[Column]) -> Column:
    return np.sum(list(columns), axis=0)  # type: ignore[no-any-return]


def _standard(values: Column, least: float = 1e-9) -> Column:
    """Return distances from the mean in standard deviations, of at least `least`; what is not known lies at the mean."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(len(values))
    mean, deviation = values[known].mean(), values[known].std()
    return np.where(known, (values - mean) / max(deviation, least), 0.0)


def _named_in(question: Question, candidates: Iterable[Candidate]) -> set[str]:
    """Return the names of those speakers whom the question names."""
    heard = {one.name for one in candidates if one.name} if question.names else ()
    return {name for name in heard if not question.names.isdisjoint(named(name))}


def _too_long(candidates: Sequence[Candidate]) -> Column:
    """Return in doublings how much longer than people's turns are."""
    tokens = np.array([max(one.tokens, LONG) for one in candidates])
    crowded = min(1.0, len(candidates) / _MANY_RIVALS)
    return crowded * np.minimum(np.log2(tokens / LONG), _DOUBLINGS)


def _of_session(standing: Standing, candidates: Sequence[Candidate], near: Column) -> Column:
    """Return what speaks for the sessions of candidates: words that few sessions have, and their best cosine."""
    talks = [one.session for one in candidates]
    words = _standard(_column(standing.by_session(talks), talks), _APART)
    best: dict[int, float] = {}
    for talk, one in zip(talks, near.tolist(), strict=True):
        best[talk] = max(one, best.get(talk, one))
    return words + _BEST_OF_SESSION * _column(best, talks)


def _passed_on(candidates: Sequence[Candidate], worth: Column) -> Column:
    """Return what each candidate has of its neighbours: an answer of its question, a remark of the one before."""
    own = worth / (1 + (np.array([one.tokens for one in candidates]) / _SPEECH) ** 2)
    gives = dict(zip((one.key for one in candidates), own.tolist(), strict=True))
    return np.array(
        [
            sum(
                share * gives[key + step]
                for step, share in _SHARES.items()
                if key + step in gives and talk_of(key + step) == talk_of(key)
            )
            for key in gives
        ]
    )
