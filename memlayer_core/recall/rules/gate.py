"""Decides whether anything bears on a question, and what of it is worth its tokens.

Support is measured against a bar. Meaning counts in standard deviations of the embedder's own scale, words count by their
information: of a word that everybody uses, or that half of the user's texts have, there is hardly any. Constants were
chosen with `benchmarks/gate.py` on all texts of `gate.json`, some on `gate_second.json`, too, and on half of LoCoMo's and BEAM's
conversations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from memlayer_core.recall.rules.frequency import Use, use_of

if TYPE_CHECKING:
    from memlayer_core.recall.rules.adjacent import Column
    from memlayer_core.recall.rules.question import Question
    from memlayer_core.recall.rules.rank import ScoredCandidate
    from memlayer_core.storage.scores import TermStatistics
    from memlayer_core.vector import SimilarityScale

    Numbers = float | Column

__all__ = [
    "FOR_REMARK",
    "IN_PROMPT",
    "MEANING",
    "SEARCH_BAR",
    "STRICT",
    "Cut",
    "answers_to",
    "bar_of",
    "chance",
    "information",
    "relevant",
    "says_what",
    "stands",
    "support_of",
    "word_chance",
    "word_support",
]

_PRIOR = 500
"""Messages of anybody that count beside the user's own: ten texts do not tell how common a word is."""

_USUAL = {Use.COMMON: 0.05, Use.CHARACTER: 0.04, Use.PARTLY: 0.01, Use.RARE: 0.0007}
"""Shares of anybody's messages that have a word of this kind."""

_NO_NEWS = 3.0
"""Nats of a word that one in twenty messages has: it tells nothing of what a message is about."""

_LEAST = 1.0
"""Nats of a rare word in whatever number of the user's texts: who always talks of pears may still ask for them."""

_ABOUT, _ENOUGH = 2.5, 2.0
"""Nats from which on a message says what it is about, and with which a text shares enough of them: one rare word."""

MEANING = 2.45
"""Deviations above unrelated texts that suffice alone among few texts: a cosine of 0.24 for MiniLM."""

_FEW, _OF_MANY = 10, 0.23
"""Few texts, and by what share more is needed with each e-fold of them: the best of many that have nothing to do with a
question is nearer to it than the best of few, and shares more of its words."""

_MANY = 60
"""Among more texts than these, a rare word that a text shares with the question tells as much as among these."""

_WORDS, _WORDS_ALONE = 1.1, 2.8
"""Support of a text that has all words of the question: beside a cosine, and without one."""

_PERSONAL, _PERSONAL_ALONE = 0.5, 0.95
"""By how much the bar is lower for questions of the user about themselves, or about somebody who spoke: a memory is there to
answer them. With a cosine, and without one."""

_ASKED, _TASK, _UNASKED = 1.1, 1.5, 2.0
"""The bar for other questions; for requests for help that are not about the user, since what is to be written or explained is
seldom what somebody told; and for remarks and what is asked of the assistant itself, most of which need nothing from the past."""

_OF_WORLD = 0.15
"""By how much the bar is higher for questions where the cosine is trusted fully, in a language that says "my" of what is one's
own. With this and the bar for requests, 10 % of the tasks in `gate_second.json` were told something in 400 English texts, and 16 to
21 % with 1.1 for both; of its questions 95 to 97 and 97 % were answered, and LoCoMo lost the evidence of one question of 786. Of
Chinese tasks 2 to 6 % would be told something, and 6 to 8 % are without it; of the questions 92 to 95 % would be answered, and 94 to
97 % are."""

_MAYBE_PERSONAL = 0.7
"""The bar for what may be about the user: "How do I get to work?" is, "How do I peel an egg?" is not. Many languages leave out
of whom they speak: ¿Dónde vivo?"""

SEARCH_BAR = 0.1
"""Support that the best hit of a search must have. Who searches wants to see what there is, so it is low."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which hits are worth their tokens, if the best support reaches the bar.

    Attributes:
        behind: How far in score a hit may be behind the best one, which stands three to four above the mean of all.
        first: Hits that pass with any support to speak of.
        of_best: Share of the best support that others need.
        from_beside: Share of its support that a turn lends to the ones beside it.
        sure: Support with which a hit passes wherever it stands.
        limit: Hits that pass at most; None: any number.
    """

    behind: float
    first: int
    of_best: float
    from_beside: float
    sure: float = math.inf
    limit: int | None = None


IN_PROMPT = Cut(behind=5.5, first=5, of_best=0.15, from_beside=0.8, sure=0.9)
"""For a question in a prompt: a model passes over a line that it does not need, and cannot ask for one that is missing."""

STRICT = Cut(behind=3.0, first=1, of_best=0.5, from_beside=0.0)
"""For `Chat.recall`, whose caller takes every hit for an answer."""

FOR_REMARK = replace(STRICT, limit=3)
"""For a message that asks nothing. In ordinary chat most are such, and more than some lines would be half of each prompt."""

STANDING = 5
"""Standing wishes that are told with a request for help."""

_SOME = 0.25
"""Support to speak of: a quarter of what is enough."""

_WISH_BAR = 0.5
"""Support from which on a liking bears on a request: less than other texts need, since both speak of what is to come."""


def information(holders: int, messages: int, word: str) -> float:
    """Return the information of a word in nats: 0 for words that everybody uses.

    Args:
        holders: How many messages have it.
        messages: How many messages there are in all.
        word: An index term.
    """
    use = use_of(word)
    least = _LEAST if use is Use.RARE else 0.0
    return max(least, -math.log((holders + _PRIOR * _USUAL[use]) / (messages + _PRIOR)) - _NO_NEWS)


def chance(texts: Numbers) -> Numbers:
    """Return how many times as much the best of so many texts bears on a question by chance as the best of few."""
    return 1 + _OF_MANY * np.log(np.maximum(texts, _FEW) / _FEW)


def word_chance(texts: int, nats: Numbers) -> Numbers:
    """Return the same for shared words of this information: few of many texts share rare words by chance."""
    return chance(np.round(np.maximum(min(texts, _MANY), texts * np.exp(-nats))))


def word_support(share: Numbers, nats: Numbers, trust: float) -> Numbers:
    """Return the support of the words that a text shares with a question.

    Args:
        share: Share of the question's information that they have.
        nats: Their information.
        trust: How much the embedder's cosine counts, 0 to 1; words count more without it.
    """
    return (_WORDS * trust + _WORDS_ALONE * (1 - trust)) * share * np.minimum(1.0, nats / _ENOUGH)


def support_of(
    question: Question,
    keys: Sequence[int],
    cosines: Column,
    statistics: TermStatistics,
    vectors: int,
    trust: float,
    scale: SimilarityScale,
) -> tuple[Column, Mapping[int, float]]:
    """Return how much texts bear on a question, and the information of its words that each text has, by key.

    Args:
        question: The question.
        keys: Keys of the texts.
        cosines: The cosine of each to the question; NaN if there is none.
        statistics: The question's words in messages and sessions.
        vectors: How many vectors were compared.
        trust: How much the embedder's cosine counts, 0 to 1.
        scale: The scale of the embedder's cosines.
    """
    texts = max(vectors, statistics.messages)
    every, shares = statistics.information(question.content, information, keys)
    nats = np.array([shares.get(key, 0.0) for key in keys])
    words = word_support(nats / (every or 1.0), nats, trust) / word_chance(texts, nats)
    above = np.maximum(0.0, np.nan_to_num((cosines - scale.mean) / scale.deviation))
    support: Column = words + trust * above / MEANING / chance(texts)
    if not every:  # nothing but words that everybody uses: who searches for them wants what has them
        support += SEARCH_BAR * np.array([key in statistics.worth for key in keys])
    return support, shares


def says_what(question: Question, messages: int) -> bool:
    """Tell whether the words of a question say what it is about. The arguments are those of `bar_of`."""
    return math.fsum(information(0, messages, word) for word in question.content) >= _ABOUT


def bar_of(question: Question, messages: int, trust: float) -> float:
    """Return the support that the best hit needs before anything is told; infinite if nothing can be meant.

    "Thanks", "are you there?" say nothing of what they are about. "Who called today?" asks for a day.

    Args:
        question: The question.
        messages: How many messages there are in all.
        trust: How much the embedder's cosine counts, 0 to 1.
    """
    if question.only_when:
        return 0.0
    says = says_what(question, messages)
    of_a_day = bool(question.when and question.asks and question.content and not says)
    needs_words = question.only_confirms or question.about_assistant
    if (question.is_personal and (says or bool(question.when) or not needs_words)) or of_a_day:
        return 1.0 - (_PERSONAL * trust + _PERSONAL_ALONE * (1 - trust))
    maybe = question.about_self or (question.omits_subject and says and not question.helps)
    if question.asks and maybe and (says or not needs_words):
        return _MAYBE_PERSONAL
    if not says:
        return _UNASKED if question.about_self and question.asks else math.inf
    return _bar_of_others(question, trust)


def _bar_of_others(question: Question, trust: float) -> float:
    """Return the bar for what says nothing of the user: a task, a remark, a question about the world."""
    if question.helps:
        return _ASKED if question.about_self else _TASK
    if not question.asks or question.to_assistant:
        return _UNASKED
    return _ASKED if trust < 1 or question.omits_possessive else _ASKED + _OF_WORLD


def stands(instruction: bool, support: float) -> bool:
    """Tell whether a wish holds for a request: an instruction always, a liking if it bears on it.

    Args:
        instruction: Whether it says how to answer, and not what somebody likes.
        support: How much it bears on the request.
    """
    return instruction or support >= _WISH_BAR


def relevant(
    candidates: Sequence[ScoredCandidate], bar: float, cut: Cut = IN_PROMPT
) -> Sequence[ScoredCandidate]:
    """Return the candidates that are worth their tokens.

    These are the best of the wishes that hold for the question, and others if the best of them reaches the bar.

    Args:
        candidates: The ranked candidates, the best first.
        bar: What `bar_of` returned.
        cut: How far behind the best one others may be.
    """
    standing = {one.key for one in [one for one in candidates if one.is_standing][:STANDING]}
    others = [one for one in candidates if not one.is_standing]
    best = max((one.support for one in others), default=0.0)
    passing = (
        {one.key for one in islice(_close(others, best, cut), cut.limit)}
        if others and best >= bar
        else set[int]()
    )
    return [one for one in candidates if one.key in standing or one.key in passing]


def _close(candidates: Sequence[ScoredCandidate], best: float, cut: Cut) -> Iterator[ScoredCandidate]:
    """Yield the candidates that are close behind the best."""
    gives = {one.key: cut.from_beside * one.support for one in candidates if not one.date_only}
    dated = 0
    for place, one in enumerate(candidates):
        borne = max(one.support, gives.get(one.key - 1, 0.0), gives.get(one.key + 1, 0.0))
        near = one.score >= candidates[0].score - cut.behind and borne >= cut.of_best * best
        dated += one.date_only
        if one.date_only and dated > 1:
            continue
        if (place < cut.first and borne >= _SOME) or near or one.support >= cut.sure:
            yield one


_CJK_DIGITS = "一二两三四五六七八九十"

_WHEN = re.compile(
    r"\bwhen\b|\bhow long\b|\bwhat (?:date|day|month|year|time)\b|\bhow many (?:days|weeks|months|years)\b"
    r"|什么时候|何时|多久|哪(?:一)?(?:天|年|个月)|几(?:月|号|点)",
    re.IGNORECASE,
)
_HOW_MANY = re.compile(r"\bhow (?:many|much|old|often)\b|多少|多大|几(?:个|次|岁|只|本|人)", re.IGNORECASE)

_TIMES = frozenset(
    (  # noqa: SIM905  (words read better as prose)
        "yesterday today tonight tomorrow last next ago week weekend month year morning since monday tuesday wednesday"
        " thursday friday saturday sunday january february march april may june july august september october november"
        " december"
    ).split()
).union(map(str, range(1900, 2100)))
_NUMBERS = frozenset(
    ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "once", "twice")
)
_CJK_TIME = re.compile(
    r"[昨今明前后]天|[上下这]个?(?:周|月|星期|礼拜)|[去今明]年|早上|晚上|周末"
    rf"|[\d{_CJK_DIGITS}]\s*(?:年|月|号|日|点|天|周|星期)"
)
_CJK_NUMBER = re.compile(f"[{_CJK_DIGITS}][个次岁只本人]")
_WORD, _DIGIT = re.compile(r"\w+"), re.compile(r"\d")


def _has_time(text: str) -> bool:
    return _has_one(text, _TIMES, _CJK_TIME)


def _has_number(text: str) -> bool:
    return bool(_DIGIT.search(text)) or _has_one(text, _NUMBERS, _CJK_NUMBER)


def _has_one(text: str, words: frozenset[str], forms: re.Pattern[str]) -> bool:
    # Words are compared, because one pattern of all of them takes ten times as long, and every candidate is read.
    if not words.isdisjoint(_WORD.findall(text.lower())):
        return True
    return not text.isascii() and bool(forms.search(text))


def answers_to(question: str) -> Callable[[str], bool] | None:
    """Return what tells whether a turn can answer the question; None where that cannot be told by a few words.

    People seldom say a date: "I went there yesterday" answers "When …?", as the turn itself has a date.
    """
    if _WHEN.search(question):
        return _has_time
    return _has_number if _HOW_MANY.search(question) else None
