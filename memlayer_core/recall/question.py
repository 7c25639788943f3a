"""Parses a question: what it asks for, whom and which days it names; and decides whether anything bears on it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import Enum, auto
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memlayer_core.storage import terms as storage_terms
from memlayer_core.storage.terms import MONTHS, SPOKEN, WISH
from memlayer_core.storage.words import SESSION_BITS, Candidate

# Words that are common in everybody's talk: they say little of what a message is about, in however few texts they stand.

_ENGLISH = """
able actually ago already alright also always amazing anybody anyone anything anyway anywhere apparently around ask asked
away awesome awful back bad basically beautiful become began begin believe best better big bit bring bunch busy buy bye call
called came cannot care case certainly chance change cheers clear clearly come coming congrats congratulations cool correct
couple day days course crazy cute dear definitely different difficult done doubt early easy either else end enjoy enough especially
even evening ever every everybody everyone everything exactly example excellent excited exciting explain fact fair fantastic
far fast favorite favourite feel feeling felt figure find fine first forget forgot found full fun funny gave general get
getting give given giving glad go god goes going gone gonna good goodbye got gotta great guess guy guys haha half hand happen
happened happening happy hard hardly hear heard hello help helpful hey hi high hold honestly hope hour huge idea imagine
important incredible indeed instead interested interesting joke keep kept kind knew know known large last late lately later
laugh learn least leave left less let life like liked likely list little live lol long look looked looking lot lots love
loved lovely low luck lucky made main make making many matter may maybe mean means meant mention mind minute mistake moment
month morning mostly move much must name near nearly need needed never new next nice night nobody none nope normal normally
nothing number obviously often oh ok okay old one open opinion option part past people perfect perhaps person pick piece
place plan play pleased plenty point possible possibly practice pretty probably problem put question quick quickly quite rather
read ready real realize really reason recently repeat rest right robot round run sad safe said saw say saying second see seem
seems seen sense sentence set several share short show side simple simply since small somebody someone something sometimes
somewhat somewhere soon sorry sort sound sounds spend start started still stop story stuff stupid sudden super suppose sure
surely surprise sweet take taken talk talking test thank thanks thing things think thinking thought three time times tired
today together tomorrow tonight took top total totally touch tough tried true truly try trying turn two type understand
unfortunately up use used useful usual usually various wait wanna want wanted wants watch way week weekend welcome well went
whatever whether whole wish wonder wonderful word words work working world worry worse worst worth wow write written wrong yeah
year yep yes yesterday yet
monday tuesday wednesday thursday friday saturday sunday
"""
_CHINESE = """
谢谢 多谢 感谢 你好 您好 再见 好的 好吧 可以 没有 没事 没关系 不用 不是 不对 不错 不行 不能 不会 不要 不知 知道 明白 明天 今天 昨天 现在
时间 东西 事情 问题 意思 真的 真是 太好 好了 好像 好啊 很好 非常 有点 一点 一样 一起 一直 一些 一次 两个 已经 可能 可是 但是 然后 还有 还是
就是 就好 就这 这样 那样 这么 那么 这里 那里 觉得 感觉 喜欢 想要 需要 应该 继续 等一 稍等 开始 结束 完美 厉害 哈哈 早上 晚上 晚安 早安 下午 上午
祝你 愉快 大家 别人 有人 人们 出来 起来 上去 下来 过来 回来 说得 说说 试试 再试 测试 解释 什么 怎么 为什 因为 所以 如果 只是 只有 当然 其实
请继 不客 客气 会做 还行 上好 好的 真好 还好 特别 比较 最近 以后 以前 之前 之后 每天 每个 很多 多少 有什 做什 的时 时候 自己 我们 你们 他们 对不 不起 没错 没问 的吗 是的 行吧 随便 也许
列出 写一 一个 一首 一条 一下 这个 那个 怎样 如何 哪些 第一 最大 最高 多长 说出 给我 帮我 推荐 介绍 告诉 请问 希望 打算 准备 生活 工作
"""

_CHARACTERS = (
    "一二三四五六七八九十不有人这那个上下来去到说要会可以能就也都还很好大小多少年月日天时分点里中前后外出生过着把被让给"
    "对为于从向又再才没无最更真想看听做用得地所些每样家行吧呀嘛么事情心自己起回开关话今昨明早晚常等"
)

COMMON = frozenset(
    term
    for word in (_ENGLISH + _CHINESE).split()
    for term in storage_terms.index_terms(word)
    if len(term) > 1
).union(_CHARACTERS)
"""Index terms of common words: about five hundred English words, two hundred Chinese pairs of characters and a hundred
single ones, chosen by hand."""

_PAIR = 2


def is_character(term: str) -> bool:
    """Tell whether an index term is a single character of a language that is written without spaces."""
    return len(term) == 1 and term >= _FIRST_CJK


class Use(Enum):
    """How common a word is, whoever speaks."""

    COMMON = auto()
    CHARACTER = auto()
    PARTLY = auto()
    RARE = auto()


@lru_cache(maxsize=10_000)
def use_of(term: str) -> Use:
    """Return how common an index term is; of a Chinese pair, by its characters as well."""
    if term in COMMON:
        return Use.COMMON
    if is_character(term):
        return Use.CHARACTER
    if len(term) == _PAIR and term[0] >= _FIRST_CJK:
        usual = sum(character in _CHARACTERS for character in term)
        return (Use.RARE, Use.PARTLY, Use.COMMON)[usual]
    return Use.RARE


# Lets a candidate pass on to the turns around it what it is worth: a question finds the answer behind it.

Column = NDArray[np.float64]

_SPEECH = 80  # tokens at which a turn passes on half as much to its neighbours: a long one stands for itself
ADJACENT = {-2: 0.5, -1: 1.0, 1: 0.5, 2: 0.25}
"""Shares of what a neighbour passes on, by its distance: the one before gives most."""

_OWN_SHARE = 0.5  # of that, where one who goes on speaking answers nobody


def worth_of_adjacent(
    candidates: Sequence[Candidate], keys: Sequence[int], tokens: Column, worth: Column
) -> Column:
    """Return what each candidate gets from the turns around it.

    Args:
        candidates: The candidates.
        keys: Their keys.
        tokens: Their tokens.
        worth: What each is worth by itself.
    """
    gives = worth / (1 + (tokens / _SPEECH) ** 2)
    numbers: dict[tuple[str, str | None], int] = {}
    speakers = np.array([numbers.setdefault((one.role, one.name), len(numbers)) for one in candidates])
    own = np.array(keys)
    order = np.argsort(own)
    got = np.zeros(len(own))
    for step, share in ADJACENT.items():
        beside = own + step
        places = order[np.searchsorted(own, beside, sorter=order) % len(own)]
        talks = (own[places] == beside) & (beside >> SESSION_BITS == own >> SESSION_BITS) & (own > 0)
        goes_on = (speakers[places] == speakers) & (abs(step) == 1)
        got += share * np.where(talks, gives[places], 0.0) * np.where(goes_on, _OWN_SHARE, 1.0)
    return got


# Finds the days that a question refers to: "last week", "three days ago", 上个月.
#
# Messages are indexed under their day and month, in UTC. A full date in a question (2023, in May, 5月) is matched as
# words, because the date of a message is indexed as words, too.

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CJK_DAYS = "一二三四五六日"
_NUMBERS = {
    "a": 1,
    "an": 1,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "a couple of": 2,
    "a few": 3,
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
    "十": 10,
}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year"}
_MOST_DAYS = 31
_WEEKEND = (5, 6)

Days = tuple[str, ...]

_COUNT = rf"(\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_AGO = re.compile(rf"\b{_COUNT} (day|week|month|year)s? ago\b", re.IGNORECASE)
_PAST = re.compile(rf"\b(?:in|over|during) the (?:last|past) {_COUNT} (day|week)s\b", re.IGNORECASE)
_NAMED = re.compile(
    rf"\b(last|past|previous|this) (week|weekend|month|year|night|{'|'.join(_DAYS)}|{'|'.join(MONTHS)})\b",
    re.IGNORECASE,
)
_DAY = re.compile(r"\b(?:the )?(day before yesterday|yesterday|today|tonight)\b", re.IGNORECASE)
_CJK_AGO = re.compile("(\\d{1,3}|[一二两三四五六七八九十])\\s*个?(天|日|周|星期|礼拜|月|年)(?:以|之)?前")
_CJK_NAMED = re.compile("(上|这|本)个?(周末|周|星期|礼拜|月)([一二三四五六日天]?)")
_CJK_DAY = re.compile("(大前天|前天|昨天|昨晚|今天|今晚|去年|前年|今年)")
_CJK_OFFSETS = {"今天": 0, "今晚": 0, "昨天": 1, "昨晚": 1, "前天": 2, "大前天": 3}
_CJK_YEARS = {"今年": 0, "去年": 1, "前年": 2}


def days_meant_by(text: str, now: datetime) -> Days:
    """Return the index terms of the days and months that a question refers to.

    Args:
        text: A question.
        now: The time that "last week" refers to.
    """
    today = now.astimezone(UTC).date()
    text = _plain(text)
    found: list[str] = []
    for pattern, days in _READ:
        matches = list(pattern.finditer(text))
        found.extend(day for match in matches for day in days(match, today))
        if matches:  # each word counts once: "night" in "last night" is no second day
            text = pattern.sub(" ", text)
    return tuple(dict.fromkeys(found))


def without_days(text: str) -> str:
    """Return a question without the words for days and months."""
    text = _plain(text)
    for pattern, _ in _READ:
        text = pattern.sub(" ", text)
    return text


def _plain(text: str) -> str:
    return text.replace("\u0131", "i")  # patterns match the Turkish i as an i, but casefold does not


def _ago(count: int, unit: str, today: date) -> Days:
    match unit:
        case "day":
            return (storage_terms.day_term(today - timedelta(days=count)),)
        case "week":
            return _week(today - timedelta(weeks=count))
        case "month":
            return (storage_terms.month_term(_months_before(today, count)),)
        case _:
            return (str(today.year - count),)


def _week(day: date, places: Iterable[int] = range(7)) -> Days:
    monday = day - timedelta(days=day.weekday())
    return tuple(storage_terms.day_term(monday + timedelta(days=place)) for place in places)


def _months_before(day: date, count: int) -> date:
    months = 12 * day.year + day.month - 1 - count
    return date(max(1, months // 12), months % 12 + 1, 1)


def _english_ago(match: re.Match[str], today: date) -> Days:
    return _ago(_number(match[1]), match[2].casefold(), today)


def _english_past(match: re.Match[str], today: date) -> Days:
    days = _number(match[1]) * (7 if match[2].casefold() == "week" else 1)
    return tuple(
        storage_terms.day_term(today - timedelta(days=back)) for back in range(min(days, _MOST_DAYS) + 1)
    )


def _english_named(match: re.Match[str], today: date) -> Days:
    back, what = int(match[1].casefold() != "this"), match[2].casefold()
    if what == "night":
        return (storage_terms.day_term(today - timedelta(days=back)),)
    if what == "weekend":
        return _week(today - timedelta(weeks=back), _WEEKEND)
    if what in _DAYS:  # the one before today, or the one of this week
        behind = (today.weekday() - _DAYS.index(what) - 1) % 7 + 1
        return (
            (storage_terms.day_term(today - timedelta(days=behind)),)
            if back
            else _week(today, [_DAYS.index(what)])
        )
    if what in MONTHS:
        behind = (today.month - MONTHS.index(what) - 2) % 12 + 1
        return (storage_terms.month_term(_months_before(today, behind if back else behind % 12)),)
    return _ago(back, what, today)


def _english_day(match: re.Match[str], today: date) -> Days:
    back = {"yesterday": 1, "day before yesterday": 2}.get(match[1].casefold(), 0)
    return (storage_terms.day_term(today - timedelta(days=back)),)


def _cjk_ago(match: re.Match[str], today: date) -> Days:
    return _ago(_number(match[1]), _UNITS[match[2]], today)


def _cjk_named(match: re.Match[str], today: date) -> Days:
    back, what, day = int(match[1] == "上"), match[2], match[3]
    if what == "周末":
        return _week(today - timedelta(weeks=back), _WEEKEND)
    if day and what != "月":
        return _week(today - timedelta(weeks=back), [_CJK_DAYS.index(day.replace("天", "日"))])
    return _ago(back, _UNITS[what], today)


def _cjk_day(match: re.Match[str], today: date) -> Days:
    if match[1] in _CJK_YEARS:
        return (str(today.year - _CJK_YEARS[match[1]]),)
    return (storage_terms.day_term(today - timedelta(days=_CJK_OFFSETS[match[1]])),)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS[text.casefold()]


_READ: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], date], Days]], ...] = (
    (_AGO, _english_ago),
    (_PAST, _english_past),
    (_NAMED, _english_named),
    (_DAY, _english_day),
    (_CJK_AGO, _cjk_ago),
    (_CJK_NAMED, _cjk_named),
    (_CJK_DAY, _cjk_day),
)


# Decides whether anything bears on a question, and what of it is worth its tokens.
#
# Support is measured against a bar. Meaning counts in standard deviations of the embedder's own scale, words count by their
# information: of a word that everybody uses, or that half of the user's texts have, there is hardly any. Constants were
# chosen with `benchmarks/gate.py` on all texts of `gate.json`, some on `gate_second.json`, too, and on half of LoCoMo's and BEAM's
# conversations.

if TYPE_CHECKING:
    from memlayer_core.recall.rank import ScoredCandidate
    from memlayer_core.seams import SimilarityScale
    from memlayer_core.storage.words import TermStatistics

    Numbers = float | Column


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
_NUMBERS_GATE = frozenset(
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
    return bool(_DIGIT.search(text)) or _has_one(text, _NUMBERS_GATE, _CJK_NUMBER)


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


# Parses a question: what it asks for, and whom it names.

_FIRST_CJK = "\u2e80"  # from here on, names stand among other words without spaces
_ASKING = re.compile(
    r"[?\uff1f]"
    r"|^\W*(?:(?:and|so|but|ok(?:ay)?|hey|hi|then|please)\W+)*"
    r"(?:(?:about|after|at|before|by|during|for|from|in|of|on|since|to|under|until|with)\W+(?:how|what|which|whom?|whose|when|where)"
    r"|what|which|who|whom|whose|when|where|why|how|do|does|did|is|are"
    r"|was|were|am|can|could|will|would|should|has|have|had|tell me|remind me|do you (?:remember|know))\b"
    r"|什么|哪|谁|多少|几[个次岁只点月号天本人]|怎么|怎样|吗|呢\W*$|为何|是否|多[久大长高]|星期几|记得",
    re.IGNORECASE,
)
"""A question mark, or the words that questions begin with: many people write none."""
_FOR_USER = re.compile(
    r"^\W*(?:(?:now|please|(?:can|could|will|would) you)\W+)*"
    r"(?:(?:give|show|teach|help|find|write|make|explain to|walk) (?:me|us)\b|tell (?:me|us)(?= (?:an?|more|about you(?:rself)?)\b))"
    r"|^\W*(?:请|你|您|麻烦|可以|可不可以|能|能不能)*[给帮教]我们?(?![的妈爸爷奶哥姐弟妹儿女家老])",
    re.IGNORECASE,
)
"""What says for whom the assistant is to do something, and not that it is about the user."""
_OBJECT = re.compile(r"(?<!\babout )(?<!\bof )\b(?:me|us)\W*$|我们?(?=[吗吧呢]?\W*$)", re.IGNORECASE)
"""The user as the object of what the assistant is asked: "do you like me?". It is about the assistant."""
_AT_HOME = re.compile(r"\bat (?:home|work|the office)\b|家里|公司里|单位里", re.IGNORECASE)
"""Where the user lives and works, without a word that says whose home it is."""
_REMEMBERS = re.compile(r"\b(?:remember|recall|know)\b|记得|知道", re.IGNORECASE)
"""What asks the assistant for its memory."""
_YES_OR_NO = re.compile(
    r"^\W*(?:(?:and|so|but|ok(?:ay)?|hey|hi|then|please)\W+)*(?:do|does|did|is|are|was|were|am|can|could|may|shall|will|would|should"
    r"|has|have|had|tell me)\b(?!.*\b(?:what|which|whom?|whose|when|where|why|how)\b)|吗\W*$",
    re.IGNORECASE,
)
"""What no more than "yes" or "no" answers."""
_YOU_SAID = re.compile(
    r"\b(?:did|have|had) you (?:ever |just |already |not )?"
    r"(?:sa(?:y|id)|t(?:ell|old)|g(?:ive|iven)|wr(?:ite|itten)|(?:suggest|recommend|mention|explain|answer|show|list|call|offer)(?:ed)?"
    r"|(?:advise|propose|describe|name)d?)\b"
    r"|\byou(?:['\u2019]ve| have| had)? (?:just |already |once )?"
    r"(?:said|told|gave|given|wrote|showed|suggested|recommended|mentioned|explained|answered|advised|proposed|described|listed)\b"
    r"|\byour (?:[a-z]+ )?(?:advice|suggestions?|recommendations?|answers?|repl(?:y|ies)|explanations?|tips?|words)\b"
    r"|你.*(?:推荐|建议|说|提|给|告诉|讲|写|介绍|回答|解释)(?:过|了|的)|你的(?:建议|推荐|回答|解释)",
    re.IGNORECASE,
)
"""What asks for something that the assistant said."""
_SHORT = 4  # words that say what a question is about
_INSIDE = re.compile(r"(?<=[\w,;:] )[^\W\d_]\w+")  # a word within a sentence: with a capital it is a name
_SPACE = re.compile(r"\s+")
_SAID = re.compile(
    r"\b(?:sa(?:y|id|ying)|t(?:ell|old)|talk(?:s|ed|ing)?|sp(?:eak|oke|oken)|mention(?:s|ed)?|discuss(?:ed)?|chat(?:s|ted)?"
    r"|ask(?:ed)?|wr(?:ite|ote|itten)|conversations?|did|done|happen(?:s|ed)?|went|been|spen[dt]|(?:was|were) (?:i|we)"
    r"|(?:i|we) (?:was|were))\b"
    "|说|讲|聊|谈|提|问|告诉|讨论|对话|话题|发生|[做干去忙](?=.*[了过])",
    re.IGNORECASE,
)
"""What asks for whatever was said or done; "do" does not: "what shall I do today?" wants something else."""
_NO_MORE = re.compile(
    r"\b(?:about|(?:any|every|some)?things?|all|else|remember|recall|recap|summari[sz]e|summary|list|show|give|know|let|us"
    r"|up|do|going|go)\b"
    "|些|事情|事|内容|记得|总结|过|到|起|都|跟|对|给|和|哪|还|在|有|来|呀|呢|里|地方",
    re.IGNORECASE,
)
"""What says no more than that beside it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A parsed question.

    Attributes:
        text: What an embedder is given: the question without the names of those who spoke. A name says who, and
            to an embedder it says that every turn with the name in it is near.
        words: Its index terms.
        names: Who is named of those who spoke, as names are filed.
        about_user: Whether users speak of themselves.
        when: Index terms of the days and months that it refers to.
        only_when: Whether it asks for whatever was said or done then, and for nothing else.
        asks: Whether it asks for anything: most of what people say does not.
        dates: Words of it that say when, or that something was said, and nothing of what is asked.
        helps: Whether it asks for help, to which earlier wishes apply.
        answer: Tells which texts can answer it, if that is known.
        about_assistant: Whether users ask for what the assistant said.
        to_assistant: Whether users ask the assistant about itself, or for something that is not about them: "who are you?",
            "tell me a joke".
        only_confirms: Whether it asks for no more than a yes: "am I right?", but not "do you remember my name?".
        content: Those of its words that say what it is about.
        omits_subject: Whether it may be about the user without a word that says so: its language may leave that out, or it asks
            what is at home.
        omits_possessive: Whether its language may leave out whose things it speaks of.
    """

    text: str
    words: tuple[str, ...]
    names: frozenset[str]
    about_user: bool
    when: tuple[str, ...] = ()
    only_when: bool = False
    asks: bool = False
    dates: frozenset[str] = frozenset()
    helps: bool = False
    answer: Callable[[str], bool] | None = None
    about_assistant: bool = False
    to_assistant: bool = False
    only_confirms: bool = False
    content: tuple[str, ...] = ()
    omits_subject: bool = False
    omits_possessive: bool = False

    @property
    def is_personal(self) -> bool:
        """Whether it asks about the user, about what the assistant said, or about somebody who spoke."""
        return self.asks and (
            bool(self.names) or self.about_assistant or (self.about_self and not self.helps)
        )

    @property
    def about_self(self) -> bool:
        """Whether users ask about themselves, and are not only those for whom something is to be done."""
        return self.about_user and not self.to_assistant

    @property
    def about(self) -> tuple[str, ...]:
        """The words that say what is asked."""
        return tuple(word for word in self.words if word not in self.dates)

    def lost_words(self, occurs: Callable[[str], bool]) -> dict[str, str]:
        """Return words that may be parts of others, or have a slip, by their index terms.

        These are the words of a short question that not everybody uses and that no text has. If texts have another one
        of them, only names count: "status" is no slip of "states".

        Args:
            occurs: Tells whether any text has a term.
        """
        if len(self.content) > _SHORT:
            return {}
        rare = [word for word in self.content if use_of(word) is Use.RARE]
        lost = [word for word in rare if not occurs(word)]
        if not lost:
            return {}
        names = (word for word in _INSIDE.findall(self.text) if word[0].isupper())
        words = storage_terms.words_by_term(self.text if len(lost) == len(rare) else " ".join(names))
        return {word: words[word] for word in lost if word in words}

    def read_as(self, terms: Mapping[str, str]) -> Question:
        """Return the question with other terms in place of some words."""
        return replace(
            self,
            words=tuple(dict.fromkeys(terms.get(word, word) for word in self.words)),
            content=tuple(dict.fromkeys(terms.get(word, word) for word in self.content)),
        )

    @property
    def index_terms(self) -> tuple[str, ...]:
        """All index terms to search for."""
        return (*self.words, *self.when, *((WISH,) if self.helps else ()))


def asks_what_was_said(rest: str) -> bool:
    """Tell whether a question asks for whatever was said or done on its day: nothing but words for that remains of it.

    "What did I say", 我说了什么; not "how are you", which asks for nothing that was said.

    Args:
        rest: The question without the day, and without the names of those who spoke.
    """
    return bool(_SAID.search(rest)) and not storage_terms.content_words(
        storage_terms.without_question_words(_NO_MORE.sub(" ", _SAID.sub(" ", rest)))
    )


def question(text: str, speakers: Collection[str], now: datetime, *, explicit: bool = False) -> Question:
    """Read a question.

    Args:
        text: As it was asked.
        speakers: Which of `named(text)` are names of people who spoke.
        now: What "last week" is counted from.
        explicit: Whether it is a question, whatever its words.
    """
    bare = text
    names = {
        part: written for part, written in storage_terms.possible_names(text).items() if part in speakers
    }
    for written in sorted(names.values(), key=len, reverse=True):
        alone = (r"(?<!\w)", r"(?:['\u2019]s)?(?!\w)") if written[0] < _FIRST_CJK else ("", "")
        bare = re.sub(re.escape(written).join(alone), " ", bare)
    bare = _SPACE.sub(" ", bare).strip()
    words = storage_terms.question_terms(bare)
    if names and not storage_terms.content_words(bare):
        bare, words = bare or text, tuple(SPOKEN + name for name in names)
    when = days_meant_by(text, now)
    rest = without_days(bare) if when else bare
    only_when = bool(when) and asks_what_was_said(rest)
    said = (
        ()
        if only_when or not storage_terms.content_words(storage_terms.without_question_words(rest))
        else storage_terms.question_terms(rest)
    )
    if only_when:  # whoever said "today" has said no more of it than others
        words = tuple(word for word in words if word.startswith(SPOKEN))
    dates = frozenset(words).difference(said) if when else frozenset[str]()
    said_by_assistant = bool(_YOU_SAID.search(text))
    language = storage_terms.language_of(text)
    begins, own = storage_terms.question_word(language), storage_terms.first_person(language)
    asks = bool(_ASKING.search(text) or (begins is not None and begins.search(text)))
    return Question(
        bare,
        words,
        frozenset(names),
        about_user=bool(own.search(text)) and not said_by_assistant,
        when=when,
        only_when=only_when,
        asks=explicit or only_when or asks,
        dates=dates,
        helps=storage_terms.asks_for_help(text),
        answer=answers_to(text),
        about_assistant=said_by_assistant,
        to_assistant=_is_to_assistant(text, own, storage_terms.second_person(language)),
        only_confirms=bool(_YES_OR_NO.search(text)) and not _REMEMBERS.search(text),
        content=_content(words, bare, dates),
        omits_subject=storage_terms.omits_subject(language) or bool(_AT_HOME.search(text)),
        omits_possessive=storage_terms.omits_possessive(language),
    )


def _is_to_assistant(text: str, own: re.Pattern[str], your: re.Pattern[str] | None) -> bool:
    rest = _FOR_USER.sub(" ", text)
    if your is not None and your.search(text) and not _REMEMBERS.search(text):
        return not own.search(_OBJECT.sub(" ", rest))
    return rest != text and not own.search(rest)


def _content(words: Sequence[str], text: str, dates: Collection[str]) -> tuple[str, ...]:
    """Return the words that say what a question is about: no stop words, no dates, no letters."""
    if not (
        storage_terms.content_words(storage_terms.without_question_words(text))
        or (words[:1] and words[0].startswith(SPOKEN))
    ):
        return ()
    return tuple(word for word in words if word not in dates and (len(word) > 1 or is_character(word)))
