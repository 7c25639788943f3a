"""Ranks the candidates of a search.

Every ingredient of the score has one weight. Cosines and sums over words have scales of their own, so they are
compared as distances from the mean of all candidates, in standard deviations: a source that cannot distinguish the
candidates counts little, and a missing source does not change the order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memlayer_core.recall import question as recall_question
from memlayer_core.recall.model import Reason
from memlayer_core.recall.question import ADJACENT, SEARCH_BAR, Column, Question
from memlayer_core.seams import Neighbour, SimilarityScale
from memlayer_core.storage.terms import is_instruction, possible_names
from memlayer_core.storage.words import Candidate, TermStatistics, is_message


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each ingredient counts. Tuned on conversations between two people, checked on chats with an assistant.

    Attributes:
        meaning: A standard deviation of the cosine. The best single source if the embedder knows the language.
        words: A standard deviation of the words that a message shares with the question, rare ones counting more.
            Finds names, numbers and dates that embedders blur.
        session: A standard deviation of the words that the whole session shares with the question: a turn about the
            dress is in the session about the wedding. The session's best cosine counts a little, too.
        speaker: Said by somebody whom the question names. Twice what meaning gives a very good hit, so that other
            speakers' turns come later.
        own: Said by the user, if the question says "I": people ask an assistant about themselves. Said by the
            assistant, if the question asks for what "you" said.
        when: Said on a day that the question refers to. If the question asks for more than a day, only one message
            gets it that matches by its date alone.
        wishes: States a wish of the user, if the question asks for help: a wish applies even if it shares no word
            with the question.
        answers: Contains what the question asks for, a time or a number.
        neighbours: The share of its score that a turn gives to the next one, because an answer follows its question;
            half as much to the one before and to the next but one.
        asks: Subtracted from a turn that ends with a question.
        long: Subtracted for each doubling of a turn's length beyond `LONG` tokens: a long answer contains many words,
            and takes the place of many turns. Less among few candidates.
    """

    meaning: float = 0.6
    words: float = 0.4
    session: float = 0.5
    speaker: float = 2.0
    own: float = 1.5
    when: float = 2.0
    wishes: float = 2.0
    answers: float = 0.5
    neighbours: float = 0.3
    asks: float = 0.3
    long: float = 0.6


WEIGHTS = Weights()

LONG = 80
"""Tokens of a usual turn of a person."""

_DOUBLINGS = 3  # of a long turn's length that count: a pasted file is found by its words all the same
_MANY_RIVALS = 20  # candidates from which on the room that a long turn takes is missed by others
_NEAREST = 10  # hits of each source whose neighbours are weighed, too
_APART = 1.5  # deviation of sessions below which they hardly differ: one more common word then says little
_BEST_OF_SESSION = 0.3  # of what a session's words say, that its best cosine does
_ALL, _THEN = 1.0, 0.6
"""Support that being said when the question means is worth: all of it, where it asks for nothing else; else a part of it, beside
a word of the question: "Weather in Tokyo today?" needs nothing else of what was said today."""


@dataclass(frozen=True, slots=True)
class Matches:
    """What the sources of a search found.

    Attributes:
        statistics: The question's words in messages and sessions.
        neighbours: The nearest vectors, the best first.
        date_matches: Keys of messages of the days that the question refers to.
        wish_matches: Keys of the user's wishes, if the question asks for help.
        vectors: How many vectors were compared. A long message has several.
    """

    statistics: TermStatistics
    neighbours: Sequence[Neighbour] = ()
    date_matches: Collection[int] = frozenset()
    wish_matches: Collection[int] = frozenset()
    vectors: int = 0


class ScoredCandidate(NamedTuple):
    """A candidate with its score.

    Attributes:
        key: Key of the message.
        score: Larger is better; comparable within one question only.
        support: How much it bears on the question, whatever else was found: the information of the words that it shares
            with the question, and its cosine times the trust in the embedder. 1 is enough for a prompt.
        contributions: The part of the score of each of `INGREDIENTS`.
        cosine: Cosine to the question; None without one.
        words: The question's words that it contains.
        is_excerpt: Whether only an excerpt of it is returned.
        date_only: Whether it matches by its date alone; its neighbours then get nothing from it.
        is_standing: Whether it is a wish that holds for the question.
        part_cosines: The cosine of each part of its text, in their order.
        rerank_score: What the reranker gave it; None: it was not asked.
    """

    key: int
    score: float
    support: float
    contributions: Sequence[float] = ()
    cosine: float | None = None
    words: tuple[str, ...] = ()
    is_excerpt: bool = False
    date_only: bool = False
    is_standing: bool = False
    part_cosines: Sequence[float] = ()
    rerank_score: float | None = None

    @property
    def parts(self) -> Mapping[str, float]:
        """The contributions by name; together they are the score."""
        return dict(zip(INGREDIENTS, self.contributions, strict=True))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The contributions as reasons, the largest first."""
        given = []
        if self.rerank_score is not None:
            said = f"the reranker gave it {self.rerank_score:.3g}"
            given.append(Reason("reranker", said, self.rerank_score))
        for name, value in sorted(self.parts.items(), key=lambda one: -abs(one[1])):
            if -_SLIGHT < value < _SLIGHT and name in _TOLD:
                continue
            if name == "words":
                said = f"has the words {', '.join(self.words)}" if self.words else ""
            elif name == "meaning":
                said = f"cosine {self.cosine:.2f}" if self.cosine is not None else ""
            else:
                said = _TOLD[name]
            if said:
                given.append(Reason(name, f"{said} ({value:+.2f})", value))
        return (*(given or [_LITTLE]), *([_SHORTENED] if self.is_excerpt else []))


_LITTLE = Reason("little", "its score is the sum of small parts")
_SHORTENED = Reason("excerpt", "the part of a long message that bears on the question")
_SLIGHT = 0.005  # what an ingredient gave, and nobody needs to hear of
_TOLD = {
    "named": "said by one whom the question names",
    "own": "said by the one whom the question is about",
    "when": "said when the question means",
    "wishes": "says how the user wants things",
    "answers": "has a time or a number, as the question wants",
    "asks": "ends with a question",
    "long": "long",
    "neighbours": "stands beside what bears on the question",
    "session": "from a talk that bears on the question",
}
INGREDIENTS = ("meaning", "words", *_TOLD)
"""The parts of a score, in the order of `ScoredCandidate.contributions`."""


def shortlist(matches: Matches, limit: int) -> list[int]:
    """Return the keys to rank: the best of each source, and the neighbours of the very best.

    Args:
        matches: What the sources found.
        limit: How many to take of each source.
    """
    by_words = matches.statistics.worth
    told = [key for _, key in sorted(zip(by_words.values(), by_words, strict=True), reverse=True)[:limit]]
    meant = [neighbour.key for neighbour in matches.neighbours[:limit]]
    first = chain(told[:_NEAREST], meant[:_NEAREST])
    beside = (key + step for key in first if is_message(key) for step in ADJACENT)
    marked = (
        sorted(marked, key=lambda key: (-by_words.get(key, 0.0), -key))[:limit]
        for marked in (matches.date_matches, matches.wish_matches)
    )
    return list(dict.fromkeys(chain(told, meant, *marked, beside)))


def most_support(
    question: Question,
    keys: Sequence[int],
    matches: Matches,
    trust: float,
    scale: SimilarityScale,
    part_cosines: Mapping[int, Sequence[float]],
) -> float:
    """Return a support that no text of the shortlist exceeds, before any of them is read; infinite if a wish may hold.

    Args:
        question: The question.
        keys: The shortlist.
        matches: What the sources found.
        trust: How much the embedder's cosine counts for this question, 0 to 1.
        scale: The scale of the embedder's cosines.
        part_cosines: Of the parts of the texts, by key.
    """
    if matches.wish_matches:
        return math.inf
    if not keys:
        return 0.0
    nearest = [max(part_cosines.get(key, (math.nan,))) if trust else math.nan for key in keys]
    support, _ = recall_question.support_of(
        question, keys, np.array(nearest), matches.statistics, matches.vectors, trust, scale
    )
    most: float = (support + _ALL * _among(keys, matches.date_matches)).max()
    return most


def rank(
    question: Question,
    candidates: Sequence[Candidate],
    matches: Matches,
    trust: float,
    weights: Weights = WEIGHTS,
    scale: SimilarityScale = SimilarityScale(),  # noqa: B008  (a frozen value)
    part_cosines: Mapping[int, Sequence[float]] = MappingProxyType({}),
) -> list[ScoredCandidate]:
    """Return candidates sorted by score; none if nothing bears on the question.

    Args:
        question: The question.
        candidates: The messages and records of the shortlist.
        matches: What the sources found.
        trust: How much the embedder's cosine counts for this question, 0 to 1.
        weights: How much each ingredient counts.
        scale: The scale of the embedder's cosines.
        part_cosines: Of the parts of their texts, by key.
    """
    if question.only_when:  # what was said at another time is no answer
        candidates = [one for one in candidates if one.key in matches.date_matches] or candidates
    if not candidates:
        return []
    statistics = matches.statistics
    keys = [one.key for one in candidates]
    cosines = np.array(
        [one.similarity if trust and one.similarity is not None else math.nan for one in candidates]
    )
    support, shares = recall_question.support_of(
        question, keys, cosines, statistics, matches.vectors, trust, scale
    )
    dated = _among(keys, matches.date_matches)
    about = ("assistant",) if question.about_assistant else ("user",) if question.about_user else ()
    own = _among([one.role for one in candidates], about)
    alone = dated & ((support < SEARCH_BAR) | (not question.about)) & (not question.only_when)
    then = dated & ~alone
    if alone.any():  # of what has nothing but its date, one comes in for it
        one = max(np.flatnonzero(alone), key=lambda place: (support[place], own[place], keys[place]))
        then[one] = True
    wishes = _among(keys, matches.wish_matches)
    says = recall_question.says_what(question, statistics.messages)
    standing = [
        wish and recall_question.stands(is_instruction(one.beginning), bears * says)
        for wish, one, bears in zip(wishes.tolist(), candidates, support.tolist(), strict=True)
    ]
    asked = _among(keys, shares if question.asks else ())
    support += (_ALL if question.only_when else _THEN * asked) * then
    if support.max() < SEARCH_BAR and not any(standing):
        return []
    near = _standard(cosines)
    tokens = np.array([one.tokens for one in candidates])
    named = _among([one.name for one in candidates], _speakers_named(question, candidates))
    answer = question.answer
    answers = np.array([answer is not None and answer(one.beginning) for one in candidates])
    parts: dict[str, NDArray[Any]] = {
        "meaning": trust * weights.meaning * near,
        "words": weights.words * _standard(_column(statistics.worth, keys), 1.0),
        "named": weights.speaker * named,
        "own": weights.own * own,
        "when": weights.when * dated,
        "wishes": weights.wishes * wishes,
        "answers": weights.answers * answers,
        "asks": -weights.asks * np.array([one.is_question for one in candidates]),
        "long": -weights.long * _excess_length(tokens),
    }
    passed_on = reduce(np.add, [part for name, part in parts.items() if name != "own"])
    parts["neighbours"] = weights.neighbours * recall_question.worth_of_adjacent(
        candidates, keys, tokens, passed_on
    )
    parts["session"] = weights.session * _of_session(statistics, candidates, near)
    gave = np.stack([parts[name] for name in INGREDIENTS], axis=1).tolist()
    score = reduce(np.add, parts.values())
    order = np.lexsort((-np.array(keys), -score)).tolist()
    having = statistics.words_of(keys)
    scores, supports, by_date = score.tolist(), support.tolist(), alone.tolist()
    return [
        ScoredCandidate(
            keys[place],
            scores[place],
            supports[place],
            gave[place],
            candidates[place].similarity if trust else None,
            having.get(keys[place], ()),
            date_only=by_date[place],
            is_standing=standing[place],
            part_cosines=part_cosines.get(keys[place], ()),
        )
        for place in order
    ]


def _among(values: Sequence[object], some: Collection[object]) -> NDArray[np.bool_]:
    """Return which of the values are among some."""
    return np.array([one in some for one in values]) if some else np.zeros(len(values), bool)


def _column(values: Mapping[int, float], keys: Sequence[int]) -> Column:
    return np.array([values.get(key, 0.0) for key in keys])


def _standard(values: Column, minimum: float = 1e-9) -> Column:
    """Return distances from the mean in standard deviations of at least `minimum`; NaN counts as the mean."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(len(values))
    mean, deviation = values[known].mean(), values[known].std()
    return np.where(known, (values - mean) / max(deviation, minimum), 0.0)


def _speakers_named(question: Question, candidates: Iterable[Candidate]) -> set[str]:
    """Return the names of the speakers that the question names."""
    heard = {one.name for one in candidates if one.name} if question.names else ()
    return {name for name in heard if not question.names.isdisjoint(possible_names(name))}


def _excess_length(tokens: Column) -> Column:
    """Return by how many doublings each is longer than a usual turn."""
    crowded = min(1.0, len(tokens) / _MANY_RIVALS)
    return crowded * np.minimum(np.log2(np.maximum(tokens, LONG) / LONG), _DOUBLINGS)


def _of_session(statistics: TermStatistics, candidates: Sequence[Candidate], cosines: Column) -> Column:
    """Return the scores of the candidates' sessions: words that few sessions have, and their best cosine."""
    talks = [one.session for one in candidates]
    words = _standard(_column(statistics.by_session(talks), talks), _APART)
    best: dict[int, float] = {}
    for talk, one in zip(talks, cosines.tolist(), strict=True):
        best[talk] = max(one, best.get(talk, one))
    return words + _BEST_OF_SESSION * _column(best, talks)


# Puts the best hits in the order of a reranker.

FIRST = 50
"""Hits that a reranker is asked for: on LoCoMo, half of the evidence that is not among the first ten is among these."""


def reorder(candidates: Sequence[ScoredCandidate], scores: Mapping[int, float]) -> list[ScoredCandidate]:
    """Return candidates in the order of a reranker's scores; those without one stay behind in their own order.

    Args:
        candidates: The best first.
        scores: What the reranker gave, by key; equal scores leave the order as it is.
    """
    judged = sorted(
        (one for one in candidates if one.key in scores), key=lambda one: scores[one.key], reverse=True
    )
    others = [one for one in candidates if one.key not in scores]
    if not judged:
        return others
    lowest, best = scores[judged[-1].key], max((one.score for one in others), default=0.0)
    return [
        *(one._replace(score=scores[one.key], rerank_score=scores[one.key]) for one in judged),
        *(one._replace(score=lowest + one.score - best) for one in others),
    ]


def choose(
    eligible: Sequence[ScoredCandidate], candidates: Sequence[ScoredCandidate]
) -> Sequence[ScoredCandidate]:
    """Return as many of the reranked candidates as pass the ranking's gate and cut.

    The ranking decides whether anything is told, and how much; the reranker says what. Wishes that hold for the
    question come first.

    Args:
        eligible: What the ranking lets pass.
        candidates: All candidates, in the order of the reranker.
    """
    told = {one.key for one in eligible if one.is_standing}
    standing = [one for one in candidates if one.key in told]
    others = [one for one in candidates if not one.is_standing]
    return [*standing, *others[: len(eligible) - len(standing)]]
