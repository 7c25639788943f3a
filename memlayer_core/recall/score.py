"""Scores the texts of a search as columns, and decides which are recalled. Pure functions, without rules for a language.

    score = 0.6 z(cosine of the nearest passage) + 0.4 z(words) + who said it - length
            + a share of the neighbours' scores + 0.5 z(words of the whole session) + 0.3 z(best cosine of the session)

`z` is the distance from the mean of all texts in standard deviations: a source that cannot distinguish the texts counts little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memlayer_core.recall.model import Reason
from memlayer_core.seams import FloatVector, SimilarityScale
from memlayer_core.storage.terms import name_parts
from memlayer_core.storage.vectors import Samples, TextColumns
from memlayer_core.storage.words import Postings

Column = NDArray[np.float64]
Rows = NDArray[np.int64]

# chosen on: half of LoCoMo's and BEAM's conversations and six talks of `benchmarks/data/talks`, kept on three others of these
_WEIGHTS = {"meaning": 0.6, "words": 0.4, "named": 2.0, "user": 1.7, "long": -0.5}
_TALK = {"session": 0.5, "topic": 0.3}
# How far away; the share of its score that a text gives to the ones behind it, and to those before.
_NEIGHBOURS = ((1, 0.2, 0.1), (2, 0.1, 0.05))
_SATURATION = 0.5  # how soon saying a word again adds nothing: twice counts a quarter more than once

# chosen on: `languages.json`, and small talk and tasks of the same six talks
_BAR, _SURE = 1.8, 3.0
"""Support of the best text: below the first number nothing is recalled, and below the second no more than the best five."""

LEADING = 5  # texts among which the best support counts
_FEW, _LEAST = 5, 4  # lines between the two bars, and above both at least

# chosen on: the same six talks
_SHARE, _OWN = 0.47, 1.5
"""Share of the best score that a line needs, and the support that each line but the first needs itself."""

# chosen on: questions, small talk and tasks of these talks; kept on the three others and on `languages.json`
_SELF_CONTAINED = 0.8
"""Support that a message needs more for each deviation by which it is nearer to small talk and tasks that say all they need than
to questions about what was said."""

_NEAREST = 3  # samples whose mean cosine counts

_USUAL = 1000
"""Minimum number of texts for a word's information: ten texts do not show how rare a word is."""

_WORDS = 0.5
"""Weight of the information of shared words, in nats over the root of the question's, against deviations of the cosine;
without a cosine, in nats."""

FOLLOWS = 4.5
"""Support below which a question is asked together with the round before it."""


class Texts:
    """The texts that a search looks at, as columns in the order of their keys.

    Args:
        places: Those that have vectors, place by place.
        others: Keys of texts that have words of the question, shape (m,); some may have no vector yet.
        talk_of: Returns of some texts the numbers of their sessions, where they are messages; asked for those without a vector.
        eligible: Keys of the texts that pass the caller's filter; None: all do.
        asks: Key of the text that asks, which is left out; 0: there is none.
        size: How many texts the search covers, where an index chose; None: all of them are here.

    Attributes:
        keys: Their keys, shape (n,).
        sessions: For each the number of its session; of what is not a message, its key below zero. Shape (n,).
        as_said: Their rows, each session's as they were said. Shape (n,).
        talks: The sessions as numbers from 0 on, shape (n,).
        passages: How many vectors each has, shape (n,).
        size: How many texts the search covers: n or more.
        is_whole: Whether they are all texts that the search covers.
    """

    def __init__(
        self,
        places: Sequence[TextColumns],
        others: NDArray[np.int64],
        talk_of: Callable[[Sequence[int]], Mapping[int, int]] = lambda _: {},
        eligible: Collection[int] | None = None,
        asks: int = 0,
        size: int | None = None,
    ) -> None:
        embedded = np.concatenate([np.zeros(0, np.int64), *(place.keys for place in places)])
        for place in places:
            at = np.minimum(np.searchsorted(place.keys, others), len(place.keys) - 1)
            others = others[place.keys[at] != others] if len(place.keys) else others
        keys = np.concatenate([embedded, others])
        order = np.argsort(keys, kind="stable")
        if eligible is not None:
            order = order[np.isin(keys[order], np.fromiter(eligible, np.int64))]
        order = order[keys[order] != asks]
        self._places, self._order, self._others = places, order, len(others)
        self._common = np.full(len(order), np.nan)
        self.keys = keys[order]
        talks = talk_of(others.tolist()) if len(others) else {}
        here = [np.array([talks.get(key, -key) for key in others.tolist()], np.int64)]
        self.sessions: NDArray[np.int64] = np.concatenate([*(one.sessions for one in places), *here])[order]
        self.as_said = np.argsort(self.sessions, kind="stable")
        ordered = self.sessions[self.as_said]
        self.talks = np.empty(len(order), np.int64)
        self.talks[self.as_said] = np.cumsum(np.diff(ordered, prepend=ordered[:1]) != 0)
        self.passages = self._column([place.passages for place in places], 1)
        self.is_whole = size is None or eligible is not None
        self.size = len(order) if size is None or eligible is not None else max(size, len(order))

    def cosines(self, vector: FloatVector | None) -> Column:
        """Return the cosine of each to a question, of its nearest passage; NaN without a vector. Shape (n,)."""
        if vector is None:
            return np.full(len(self.keys), np.nan)
        return self._column([place.cosines(vector) for place in self._places], np.nan)

    def commonness(self, rows: Rows) -> Column:
        """Return how much nearer than the mean text some are to all texts of their place, at least 0, in the order of `rows`."""
        new = rows[np.isnan(self._common[rows])]  # what a question supports, the same with its round may, too
        self._common[new], among, begin = 0.0, self._order[new], 0
        for place in self._places:
            here = (begin <= among) & (among < begin + len(place.keys))
            self._common[new[here]] = place.commonness(among[here] - begin)
            begin += len(place.keys)
        return self._common[rows]

    def by_speaker(self, value: Callable[[str], float]) -> Column:
        """Return for each text the value of its speaker; 0 if that is not known. Shape (n,)."""
        values = [np.array([*map(value, place.names), 0.0])[place.speakers] for place in self._places]
        return self._column(values, 0.0)

    def passage_cosines(self, key: int, vector: FloatVector | None) -> tuple[float, ...]:
        """Return the cosines of a text's passages, in their order; none if they are not known."""
        if vector is None:
            return ()
        return next(filter(None, (place.passage_cosines(key, vector) for place in self._places)), ())

    def order(self, total: Column, hidden: Collection[int] = (), limit: int | None = None) -> Rows:
        """Return the rows of the best texts, the best first, without those of some keys; of equal ones the newest first."""
        rows = np.flatnonzero(~np.isin(self.keys, np.fromiter(hidden, np.int64)))
        if limit is not None and limit < len(rows):
            rows = rows[np.argpartition(-total[rows], limit)[:limit]]
        best: Rows = rows[np.lexsort((-self.keys[rows], -total[rows]))]
        return best

    def _column(self, values: Sequence[NDArray[Any]], fill: float) -> Column:
        column: Column = np.concatenate([np.zeros(0), *values, np.full(self._others, fill)])[self._order]
        return column.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What each text is worth for a question.

    Attributes:
        total: The score: larger is better. Shape (n,).
        support: Returns how relevant the texts of some rows are to the question, whatever else there is: deviations of
            the cosine above unrelated texts (above the text's own cosine to all texts, where that is larger: "ok, nice"
            is near everything), and the information of the words that it shares.
        parts: The parts of the score by name, each of shape (n,).
        cosines: Of the nearest passage, NaN without a vector. Shape (n,).
        words: The texts that have words of the question.
        has_words: Whether the question has any word that is not a stop word.
    """

    total: Column
    support: Callable[[Rows], Column]
    parts: Mapping[str, Column]
    cosines: Column
    words: Postings
    has_words: bool

    def with_round(self, both: Scores) -> Scores:
        """Return the scores of a question that goes on, with those of the same together with the round before it."""
        return Scores(
            self.total + both.total,
            lambda rows: np.maximum(self.support(rows), both.support(rows)),
            {name: part + both.parts[name] for name, part in self.parts.items()},
            np.fmax(self.cosines, both.cosines),
            both.words,
            both.has_words,
        )

    def reasons(self, place: int, words: Sequence[str]) -> tuple[Reason, ...]:
        """Return the parts of a text's score as reasons, the largest first, with the question's words that it has."""
        given = []
        values = {name: float(part[place]) for name, part in self.parts.items()}
        for name, value in sorted(values.items(), key=lambda one: -abs(one[1])):
            if name == "meaning" and not math.isnan(self.cosines[place]):
                said = f"cosine {self.cosines[place]:.2f}"
            elif name == "words":
                said = f"has the words {', '.join(words)}" if words else ""
            else:
                is_told = value >= _SLIGHT or (name == "long" and value <= -_SLIGHT)
                said = _TOLD.get(name, "") if is_told else ""
            if said:
                given.append(Reason(name, f"{said} ({value:+.2f})", value))
        return tuple(given) or (_LITTLE,)


_LITTLE = Reason("little", "its score is the sum of small parts")
_SLIGHT = 0.005  # a part of the score below which it is not named as a reason
_TOLD = {
    "named": "said by somebody whom the question names",
    "user": "said by the user",
    "long": "long",
    "neighbours": "stands next to what bears on the question",
    "session": "from a talk that bears on the question",
    "topic": "from a talk that is near in meaning",
}


class Look(NamedTuple):
    """What the queries of a search look at.

    Attributes:
        texts: The texts.
        words: Of each query the index terms without stop words.
        postings: The texts that have the terms.
        scale: The scale of the embedder's cosines.
    """

    texts: Texts
    words: Sequence[Sequence[str]]
    postings: Postings
    scale: SimilarityScale


def score(look: Look, vector: FloatVector | None, words: Sequence[str], speakers: Collection[str]) -> Scores:
    """Return what texts are worth for a question.

    Args:
        look: The texts, and which of them have the words.
        vector: The question's; None: words alone count.
        words: The question's index terms without stop words.
        speakers: The parts of names of speakers that the question has.
    """
    texts, postings, scale = look.texts, look.postings, look.scale
    keys, size, cosines = texts.keys, texts.size, texts.cosines(vector)
    session, sessions = texts.talks, int(texts.talks.max(initial=0)) + 1
    wanted, counts = {*words}, np.bincount(postings.word, minlength=len(postings.terms))
    # Without words that nobody said, or too many did.
    counted = np.array(list(map(wanted.__contains__, postings.terms)), bool) & (counts > 0)
    found = postings.where(counted[postings.word])
    rows = np.searchsorted(keys, found.keys)  # all of them are here
    least = math.log(max(size, _USUAL) + 1)
    nats = least - np.log(counts + 0.5)
    unsaid = len(wanted.difference(postings.terms))
    asked = float(nats[counted].sum()) + unsaid * (least - math.log(0.5))
    gain = _rarity(counts, size)[found.word] * found.times * (1 + _SATURATION) / (found.times + _SATURATION)
    bm25 = np.bincount(rows, gain, len(keys))
    information: Column = np.bincount(rows, nats[found.word], len(keys)).astype(np.float64, copy=False)
    if speakers:  # their names are words of the question, too
        named = texts.by_speaker(lambda name: float(_is_named(name, speakers)))
        of_name = least - math.log(named.sum() + 0.5)
        information, asked = information + of_name * named, asked + of_name
    word, talk = np.divmod(np.unique(found.word * sessions + session[rows]), sessions)
    of_talks = _rarity(np.bincount(word, minlength=len(counts)), sessions)
    of_session = np.bincount(talk, of_talks[word], sessions)

    def above(some: Rows) -> Column:
        return np.nan_to_num((cosines[some] - texts.commonness(some) - scale.mean) / scale.deviation)

    supports = np.full(len(keys), np.nan)

    def support(some: Rows) -> Column:
        new = some[np.isnan(supports[some])]  # a search asks several times for its best texts
        if len(new):
            # Said a moment ago, or the embedder fails: words are all there is.
            share = _WORDS / np.where(np.isnan(cosines[new]), 1.0, math.sqrt(asked or 1.0))
            supports[new] = above(new) + share * information[new]
        return supports[some]

    # Of an index's choice, the mean says nothing.
    near = _standard(cosines, size) if texts.is_whole else above(np.arange(len(keys)))
    parts = {
        "meaning": _WEIGHTS["meaning"] * near,
        "words": _WEIGHTS["words"] * _standard(bm25, size),
        "named" if speakers else "user": texts.by_speaker(lambda name: _bonus(name, speakers)),
        "long": _WEIGHTS["long"] * np.log2(np.maximum(texts.passages, 1)),
    }
    own: Column = sum(parts.values(), np.zeros(len(keys)))
    parts["neighbours"] = np.zeros(len(keys))
    parts["neighbours"][texts.as_said] = _of_neighbours(own[texts.as_said], session[texts.as_said])
    parts["session"] = _TALK["session"] * _standard(of_session[session], size)
    best = np.full(sessions, -np.inf)
    np.maximum.at(best, session, near)
    parts["topic"] = _TALK["topic"] * _standard(best[session], size)
    total: Column = sum(parts.values(), np.zeros(len(keys)))
    return Scores(total, support, parts, cosines, found, bool(words))


def _rarity(counts: NDArray[np.int64], every: int) -> Column:
    rarity: Column = np.log1p((np.maximum(every, counts) - counts + 0.5) / (counts + 0.5))
    return rarity


def _standard(values: NDArray[Any], size: int) -> Column:
    """Return distances from the mean in standard deviations; NaN counts as the mean, texts that are not here as zeros."""
    unknown = np.isnan(values)
    is_whole = not unknown.any()
    known = values if is_whole else values[~unknown]
    every = max(len(known), size if is_whole else 0)
    if not every:
        return np.zeros(len(values))
    mean = known.sum() / every
    deviation = math.sqrt(max(0.0, np.square(known).sum() / every - mean * mean))
    apart: Column = (values - mean) / max(deviation, 1e-6)
    return apart if is_whole else np.nan_to_num(apart)


def _bonus(name: str, speakers: Collection[str]) -> float:
    """Return what the texts of a speaker get: if the question names them, or else if it is the user."""
    if speakers:
        return _WEIGHTS["named"] * _is_named(name, speakers)
    return _WEIGHTS["user"] * name.startswith("u")


def _is_named(name: str, speakers: Collection[str]) -> bool:
    return any(part in speakers for part in name_parts(name[1:]))


def _of_neighbours(own: Column, session: NDArray[Any]) -> Column:
    """Return what each text gets from those next to it: an answer follows its question."""
    got = np.zeros(len(own))
    for step, ahead, back in _NEIGHBOURS:
        same = session[step:] == session[:-step]
        got[step:] += ahead * own[:-step] * same
        got[:-step] += back * own[step:] * same
    return got


def excess(vector: FloatVector, samples: Samples, deviation: float) -> float:
    """Return how much more support a message with this vector needs than a question about what was said, at least 0."""
    questions, rest = (float(np.sort(some @ vector)[-_NEAREST:].mean()) for some in samples)
    return _SELF_CONTAINED * max(0.0, rest - questions) / deviation


def is_near(scores: Scores, rows: Any, best: int) -> Any:
    """Return whether a row, or each of some rows, has enough of the best one's score."""
    return scores.total[rows] >= _SHARE * scores.total[best]


def selected(scores: Scores, order: Rows, limit: int | None, more: float = 0.0) -> Rows:
    """Return which texts of an order are worth their tokens: none if nothing is relevant to the question.

    Args:
        scores: The scores.
        order: Rows of texts, the best first.
        limit: How many lines there may be; None: any number, however far behind the best one.
        more: How much more support the message needs that asks: see `excess`.
    """
    best = float(scores.support(order[:LEADING]).max(initial=0.0)) - more
    if not len(order) or best < (_BAR if scores.has_words else _SURE):
        return order[:0]
    if best < _SURE:
        order = order[:_FEW]
    elif limit is not None:
        stays = is_near(scores, order, order[0])
        stays[:_LEAST] = True
        order = order[stays]
    if limit is not None:
        order = np.concatenate([order[:1], order[1:][scores.support(order[1:]) - more >= _OWN]])
    return order
