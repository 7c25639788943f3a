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

from memlayer_core.records.candidate import Candidate, Postings, talk_of
from memlayer_core.records.context import Reason
from memlayer_core.records.vector import Neighbour
from memlayer_core.rules.question import Question
from memlayer_core.rules.terms import named

__all__ = ["FLOOR", "LONG", "WEIGHTS", "Ranked", "Weights", "rank", "shortlist", "telling"]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each ingredient counts. Chosen on conversations between two people, checked on chats with an assistant.

    Attributes:
        meaning: A standard deviation of the cosine. The best single source where the embedder knows the language.
        words: A standard deviation of the words that a message shares with the question, rare ones counting more.
            Finds names, numbers and dates that embedders blur.
        session: A standard deviation of the same for whole sessions: the talk about the wedding is where the wedding
            dress was mentioned, whatever the turn itself says.
        named: Said by somebody whom the question names. Twice what meaning gives a very good hit: the other
            speaker's turns remain behind all of theirs that say anything.
        own: Said by the user, where the question says "I": people ask an assistant about themselves.
        when: Said on a day that the question means: "last week" is about nothing else.
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
    neighbours: float = 0.4
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
_NEAREST = 20  # candidates whose neighbours are weighed, too
_SHARES = {-2: 0.5, -1: 1.0, 1: 0.5, 2: 0.25}  # of what a neighbour passes on: the one before it gives most
_APART = 1.5  # deviation of sessions below which they hardly differ: one more common word then says little
_NEAR_ANYWAY = 0.2  # cosine of two texts that have nothing to do with each other
_THEN, _THEN_UNASKED = 0.4, 0.2
"""Support that being said when the question means is worth, whatever was said; less where nothing is asked: "I am tired
today" needs nothing of what was said today."""
_FROM_BESIDE, _OF_BEST = 0.8, 0.5
_BEHIND = 3.0  # in score: the best hit stands three to four above the mean of all
_SATURATION = 0.5  # how soon saying a word again adds nothing: twice counts a quarter more than once

_ASKING = re.compile("[?\uff1f]")

FLOOR = (0.15, 0.05)
"""Support that the best hit of a search must have, or nothing is returned: for words alone, and what is added where the
cosine counts as well. Questions that nothing answers bring nothing back for the most part, and few others suffer.
These are for `MANY` messages and more: among few, the best of what has nothing to do with the question looks less good."""

MANY = 500

FLOOR_ASKED, FLOOR_UNASKED = (0.25, 0.1), (0.4, 0.25)
"""The same for a prompt, whose message was not written to be searched for: one with a question in it, and one without."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A message and what is to be said for it.

    Attributes:
        key: Key of the message.
        score: Larger is better; comparable within one question only.
        support: How much of the question it bears out, whatever else was found: the share of the question's words,
            rare ones counting more, and the cosine as far as the embedder is to be trusted.
        parts: What each ingredient gave; together they are the score.
        near: Cosine to the question, if it is known.
        words: The question's words that it has.
    """

    key: int
    score: float
    support: float
    parts: Mapping[str, float]
    near: float | None
    words: tuple[str, ...]

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
        found = {"words": bool(self.words), "meaning": self.near is not None and "meaning" in self.parts}
        order = sorted(self.parts, key=lambda name: -abs(self.parts[name]))
        return tuple(
            Reason(name, f"{said[name]} ({self.parts[name]:+.2f})")
            for name in order
            if found.get(name, abs(self.parts[name]) >= _SLIGHT)
        )


_SLIGHT = 0.005  # what an ingredient gave, and nobody needs to hear of
_TOLD = {
    "named": "said by one whom the question names",
    "own": "said by the user, who asks about themselves",
    "when": "said when the question means",
    "asks": "ends with a question",
    "long": "long",
    "neighbours": "stands beside what bears on the question",
    "session": "from a talk that bears on the question",
}


def shortlist(
    postings: Postings, near: Sequence[Neighbour], dated: Collection[int], messages: int, most: int
) -> list[int]:
    """Return the keys worth weighing: the best by words, by meaning and by day, and the neighbours of the very best.

    Args:
        postings: Where the question's words stand.
        near: What meaning found, the best first.
        dated: What was said when the question means.
        messages: How many messages there are in all.
        most: How many to take of each source.
    """
    rarity = _rarity(postings, messages)
    by_words = _by_words(postings, rarity)
    told = sorted(by_words, key=lambda key: (-by_words[key], -key))[:most]
    meant = [neighbour.key for neighbour in near[:most]]
    first = chain(told[:_NEAREST], meant[:_NEAREST])
    beside = (key + step for key in first if key > 0 for step in _SHARES)
    then = sorted(dated, key=lambda key: (-by_words.get(key, 0.0), -key))[:most]
    return list(dict.fromkeys(chain(told, meant, then, beside)))


def rank(
    question: Question,
    candidates: Sequence[Candidate],
    postings: Postings,
    messages: int,
    trust: float,
    dated: Collection[int] = (),
    weights: Weights = WEIGHTS,
) -> list[Ranked]:
    """Return candidates in the order of their worth; none if nothing bears on the question.

    Args:
        question: What was asked.
        candidates: What the sources found.
        postings: Where the question's words stand.
        messages: How many messages there are in all.
        trust: How far this embedder's cosine is to be believed for this question, 0 to 1.
        dated: What was said when the question means.
        weights: How much each ingredient counts.
    """
    rarity = _rarity(postings, messages)
    shares = _shares(question, postings, messages)
    by_words = _by_words(postings, rarity)
    by_session = _by_session(postings, candidates)
    shared: dict[int, list[str]] = {}
    for word, keys in postings.items():
        for key in keys:
            shared.setdefault(key, []).append(word)
    words = _standard([by_words.get(one.key, 0.0) for one in candidates])
    near = _standard([one.near if trust else None for one in candidates])
    sessions = _standard([by_session.get(one.session, 0.0) for one in candidates], _APART)
    heard = {one.name for one in candidates if one.name} if question.names else ()
    speakers = {name for name in heard if not question.names.isdisjoint(named(name))}
    then = _THEN if _ASKING.search(question.text) else _THEN_UNASKED
    crowded = min(1.0, len(candidates) / _MANY_RIVALS)
    parts = {
        one.key: {
            **({"meaning": trust * weights.meaning * near[place]} if trust else {}),
            "words": weights.words * words[place],
            "named": weights.named * (one.name in speakers),
            "own": weights.own * (question.own and one.role == "user"),
            "when": weights.when * (one.key in dated),
            "asks": -weights.asks * one.asks,
            "long": -weights.long * crowded * min(max(0.0, math.log2(max(one.tokens, 1) / LONG)), _DOUBLINGS),
        }
        for place, one in enumerate(candidates)
    }
    passed = _passed_on(candidates, {key: sum(given.values()) for key, given in parts.items()})
    found = []
    for place, one in enumerate(candidates):
        given = parts[one.key]
        given["neighbours"] = weights.neighbours * passed[one.key]
        given["session"] = weights.session * sessions[place]
        has = shared.get(one.key, ())
        support = sum(shares.get(word, 0.0) for word in has) + then * (one.key in dated)
        support += trust * max(0.0, (one.near or 0.0) - _NEAR_ANYWAY)
        found.append(Ranked(one.key, sum(given.values()), support, given, one.near, tuple(has)))
    if max((one.support for one in found), default=0.0) < _floor(FLOOR, trust, messages):
        return []
    return sorted(found, key=lambda one: (-one.score, -one.key))


def telling(ranked: Sequence[Ranked], query: str, trust: float, messages: int) -> Sequence[Ranked]:
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


def _rarity(postings: Postings, messages: int) -> dict[str, float]:
    """Return what each word tells, the more the fewer messages have it."""
    total = _total(postings, messages)
    return {
        word: math.log(1 + (total - len(keys) + 0.5) / (len(keys) + 0.5)) for word, keys in postings.items()
    }


def _shares(question: Question, postings: Postings, messages: int) -> dict[str, float]:
    """Return what part of the question each word is. Unlike in the order, a word that stands everywhere is some."""
    total = _total(postings, messages)
    tells = {word: math.log(1 + total / max(len(postings.get(word, ())), 0.5)) for word in question.words}
    whole = math.fsum(tells.values())
    return {word: part / whole for word, part in tells.items()}


def _total(postings: Postings, messages: int) -> int:
    return max([1, messages, *(len(keys) for keys in postings.values())])


def _by_words(postings: Postings, rarity: Mapping[str, float]) -> dict[int, float]:
    """Return what each message's words tell of the question, long messages and short ones alike."""
    found: dict[int, float] = {}
    for word, keys in postings.items():
        for key, times in keys.items():
            share = times * (1 + _SATURATION) / (times + _SATURATION)
            found[key] = found.get(key, 0.0) + rarity[word] * share
    return found


def _by_session(postings: Postings, candidates: Iterable[Candidate]) -> dict[int, float]:
    """Return what each session's words tell of the question: words that few sessions have."""
    having = [set(map(talk_of, keys)) for keys in postings.values()]
    every = len(set().union(*having, (one.session for one in candidates)))
    found: dict[int, float] = {}
    for sessions in having:
        tells = math.log(1 + (every - len(sessions) + 0.5) / (len(sessions) + 0.5))
        for session in sessions:
            found[session] = found.get(session, 0.0) + tells
    return found


def _standard(values: Sequence[float | None], least: float = 1e-9) -> list[float]:
    """Return distances from the mean in standard deviations, of at least `least`; what is not known lies at the mean."""
    known = [value for value in values if value is not None]
    if not known:
        return [0.0] * len(values)
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))
    return [(value - mean) / max(deviation, least) if value is not None else 0.0 for value in values]


def _passed_on(candidates: Iterable[Candidate], worth: Mapping[int, float]) -> dict[int, float]:
    """Return what each candidate has of its neighbours: an answer of its question, a remark of the one before."""
    gives = {one.key: worth[one.key] / (1 + (one.tokens / _SPEECH) ** 2) for one in candidates}
    return {
        key: sum(
            share * gives[key + step]
            for step, share in _SHARES.items()
            if key + step in gives and talk_of(key + step) == talk_of(key)
        )
        for key in gives
    }
