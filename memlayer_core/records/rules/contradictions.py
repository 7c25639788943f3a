"""Finds which facts a statement without a key contradicts, by words alone.

A contradiction says nearly the same with another value, or with a "not". Facts are ranked by the words and pairs of
words that they share with the statement, common ones counting less. The first may be contradicted: surely so if it is
denied, or if the one value that its frame can have is another one; perhaps so if enough of the frame is the same.
What words cannot tell apart is a conflict, never a replacement: "enjoys sailing" does not end "enjoys hiking".

"I've never used Zotero" says of everything that was ever done that it was not. If the first contradicts nothing, such a
denial is in conflict with the fact that says most of what is denied; and another statement with such a denial.

Thresholds were chosen on half of the cases of an update set (ten facts about people, a statement against one of them);
the docstring of `benchmarks/learning.py` says how to measure them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from itertools import chain, pairwise
from math import fsum, log
from typing import Literal

from memlayer_core.records.rules.frames import frames
from memlayer_core.storage.terms import content_words, index_terms

__all__ = ["Contradiction", "Texts", "bears_on", "contradicts"]

Verdict = Literal["supersede", "conflict", "none"]

_FRAME = 0.15
"""Share of the words besides names that two texts about the same must have in common: 92 % of the contradicted facts
are marked with it, and one statement in six that contradicts nothing."""
_CONTRASTED = 0.08
"""The same where only one of the two says "not", "only" or "instead"."""
_ALONE = 0.5
"""The same where the two name nobody in common: "Ben hosts the show" against "Ann hosts the show"."""
_DENIED = 0.6
"""Share of a fact's words that a denial must repeat to end it: below, it denies another fact of the same person."""
_NEVER = 0.4
"""Share of what somebody says that they never did which another statement must have, to be in conflict with it. Chosen,
like the next, on the development half of BEAM, whose contradictions are of this kind, and on the "never" of LoCoMo's."""
_NEVER_NAMED = 0.15
"""The same if what they never did has a name, which the other statement must have, too."""
_CHANGED = 6  # words of a value that was replaced
_FRAMED = 3  # words in front of it
_READ = 400  # characters of a text that are compared
_CACHED = 10_000  # texts: those of one user are compared again and again
_ROUNDED = 1e-9  # by which a sum may differ if its terms come in another order
_COSINE = 0.2  # what a cosine of 1 adds to a rank; it decides nothing

_WORD = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(r"[^,.;:!?，。；：！？]+[?？]?")  # noqa: RUF001
_ASKS = ("?", "？")
_NOBODY = frozenset("the a an both in on at all he she they this that there his her".split())  # noqa: SIM905
Weight = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What a statement means for one fact.

    Attributes:
        place: The fact's place in the sequence.
        score: How much the two have in common: 0 to 1, and more with a cosine.
        verdict: `"supersede"`: the statement replaces the fact. `"conflict"`: it may. `"none"`: it does not.
        reason: Why, in plain words.
    """

    place: int
    score: float
    verdict: Verdict
    reason: str


def contradicts(
    statement: str, facts: Sequence[str], cosines: Sequence[float] | None = None
) -> list[Contradiction]:
    """Rank facts by how likely a statement contradicts them. Only the first may have another verdict than `"none"`.

    Args:
        statement: What was said.
        facts: Texts of facts, in any order.
        cosines: The cosine of each fact and the statement; it moves ranks, and decides no verdict.

    Returns:
        One value for each fact, the likeliest first.
    """
    statement = statement[:_READ]
    texts = [fact[:_READ] for fact in facts]
    weight = _weights(_count(_terms, texts), len(texts))
    said = _terms(statement)
    scores = _overlaps(said, [_terms(text) for text in texts], weight)
    if cosines is not None:
        scores = [score + _COSINE * cosine for score, cosine in zip(scores, cosines, strict=True)]
    order = sorted(range(len(texts)), key=lambda place: (-scores[place], place))
    ranked = [Contradiction(place, scores[place], "none", "another fact is nearer") for place in order]
    if ranked:
        place = order[0]
        nearest, verdict, reason = _judge_first(
            statement, texts[place], texts, weight, lambda: _count(_things, texts)
        )
        if nearest != texts[place]:
            place = texts.index(nearest)
        first = Contradiction(place, scores[place], verdict, reason)
        ranked = [first, *(one for one in ranked if one.place != place)]
    return ranked


class Texts:
    """Texts of facts that one statement after the other is compared with.

    It counts their words once, and compares a statement with those alone that may be the nearest.
    """

    def __init__(self) -> None:
        self._known: Counter[str] = Counter()
        self._terms: Counter[str] = Counter()
        self._things: Counter[str] = Counter()
        self._holders: defaultdict[str, set[str]] = defaultdict(set)

    def first(self, statement: str, facts: Sequence[str]) -> Contradiction | None:
        """Return the first of what `contradicts` returns; None without facts.

        Args:
            statement: What was said.
            facts: Texts of all facts that are in force now.
        """
        statement = statement[:_READ]
        texts = [fact[:_READ] for fact in facts]
        self._renew(texts)
        if not texts:
            return None
        weight = _weights(self._terms, len(texts))
        nearest = self._nearest(statement, texts, weight)
        nearest, verdict, reason = _judge_first(statement, nearest, texts, weight, lambda: self._things)
        [score] = _overlaps(_terms(statement), [_terms(nearest)], weight)
        return Contradiction(texts.index(nearest), score, verdict, reason)

    def _renew(self, texts: Sequence[str]) -> None:
        """Count what came, and what is gone."""
        now = Counter(texts)
        for text in {text for text, _ in now.items() ^ self._known.items()}:
            more = now[text] - self._known[text]
            for counts, terms in ((self._terms, _terms(text)), (self._things, _things(text))):
                counts.update(dict.fromkeys(terms, more))
            for term in _terms(text):
                (self._holders[term].add if now[text] else self._holders[term].discard)(text)
        self._known = now

    def _nearest(self, statement: str, texts: Sequence[str], weight: Weight) -> str:
        """Return the text that has most in common with a statement; the first of equal ones."""
        said = _terms(statement)
        whole = fsum(map(weight, said))
        common: defaultdict[str, float] = defaultdict(float)
        for term in said:
            for text in self._holders.get(term, ()):
                common[text] += weight(term)
        best, most = texts[0], 0.0
        for text in sorted(common, key=common.__getitem__, reverse=True):
            if 2 * common[text] / (whole + common[text]) < most - _ROUNDED:
                break  # even if it said nothing else
            [score] = _overlaps(said, [_terms(text)], weight)
            if score > most or (score == most and texts.index(text) < texts.index(best)):
                best, most = text, score
        return best


def _count(words: Callable[[str], frozenset[str]], texts: Sequence[str]) -> Counter[str]:
    """Return how many texts have a word."""
    return Counter(chain.from_iterable(map(words, texts)))


def _judge_first(
    statement: str,
    nearest: str,
    texts: Sequence[str],
    weight: Weight,
    things: Callable[[], Mapping[str, int]],
) -> tuple[str, Verdict, str]:
    """Judge a statement against the nearest text, or against one if either says that it never was so.

    `weight` is that of a term among all texts; `things` returns how many of them have a content word. The text that it is judged
    against is returned first.
    """
    verdict, reason = _judge(statement, nearest, weight)
    if verdict != "supersede":
        denial = _denied(statement)
        opposed = texts if denial else [text for text in texts if _denied(text)]
        by_word = _weights(things() if opposed else {}, len(texts))
        shares = [
            _share(denial or _denied(text) or "", text if denial else statement, by_word) for text in opposed
        ]
        if best := max(shares, default=0.0):
            return opposed[shares.index(best)], "conflict", "one says that it never was so"
    return nearest, verdict, reason


def _share(denial: str, text: str, weight: Weight) -> float:
    """Return the weight of what is denied that a text says, as a share of all of it; 0 if that is too little."""
    affirmed = _affirmed(text)
    names = _names(denial) - {"i"}
    if not affirmed or (names and names.isdisjoint(_names(affirmed))):
        return 0.0
    every = _things(denial)
    share = fsum(map(weight, every & _things(affirmed))) / (fsum(map(weight, every)) or 1)
    return share if share >= (_NEVER_NAMED if names else _NEVER) else 0.0


@lru_cache(maxsize=_CACHED)
def _things(text: str) -> frozenset[str]:
    return frozenset(content_words(text))


@lru_cache(maxsize=_CACHED)
def _denied(text: str) -> str | None:
    """Return what somebody says that they never did; None if they say no such thing."""
    found = frames().forms["never"].search(text)
    return next(filter(None, found.groups())) if found is not None else None


@lru_cache(maxsize=_CACHED)
def _affirmed(text: str) -> str:
    """Return the parts of a text that deny and ask nothing; nothing if nobody speaks of what they did themselves.

    "Can I use Flask?" is no word of having used it.
    """
    denial = frames().forms["denial"]
    parts = [part for part in _CLAUSE.findall(text) if not denial.search(part) and not part.endswith(_ASKS)]
    said = " ".join(parts)
    return said if frames().forms["myself"].search(said) else ""


def bears_on(statement: str, fact: str, *, has_key: bool) -> bool:
    """Tell whether a statement speaks of the same as a fact, and so may replace or end it if somebody says that it does.

    Args:
        statement: What was said.
        fact: The text of the fact.
        has_key: Whether the fact has a key. Then a word of one kind is enough: "moved" and "live". Of others, one wrong fact
            in eleven would pass by that, and one in twenty-eight passes without.
    """
    if has_key:
        kinds = [
            {term for term in _terms(text[:_READ]) if term.startswith("~")} for text in (statement, fact)
        ]
        if not kinds[0].isdisjoint(kinds[1]):
            return True
    statement, fact = statement[:_READ], fact[:_READ]
    weight = _weights(_count(_terms, [fact]), 1)
    verdict, _ = _judge(statement, fact, weight, self_counts=True)
    if verdict == "none":
        _, verdict, _ = _judge_first(statement, fact, [fact], weight, lambda: _count(_things, [fact]))
    return verdict != "none"


@lru_cache(maxsize=_CACHED)
def _terms(text: str) -> frozenset[str]:
    """Return the stems of a text, its pairs of neighbours, and the groups that its words belong to."""
    stems = index_terms(text)
    groups = frames().groups
    return frozenset(
        (*stems, *(f"{a} {b}" for a, b in pairwise(stems)), *(groups[s] for s in stems if s in groups))
    )


def _weights(counts: Mapping[str, int], texts: int) -> Weight:
    """Return the weight of a term: less if many of the texts have it.

    Args:
        counts: How many texts have a term.
        texts: How many there are.
    """

    @cache
    def weight(term: str) -> float:
        return log(1 + (texts + 1) / (counts.get(term, 0) + 0.5))

    return weight


def _overlaps(one: frozenset[str], others: Sequence[frozenset[str]], weight: Weight) -> list[float]:
    """Return, for each of some texts, the weight of the terms that it shares with one text, as a share of both.

    `fsum` has one result whatever the order of the terms, which differs between processes.
    """
    whole = fsum(map(weight, one))
    common = (one & other for other in others)
    return [
        2 * fsum(map(weight, both)) / (whole + fsum(map(weight, other))) if both else 0.0
        for both, other in zip(common, others, strict=True)
    ]


def _judge(statement: str, fact: str, weight: Weight, *, self_counts: bool = False) -> tuple[Verdict, str]:
    """Judge a statement against the fact that is nearest to it.

    That both are about whoever speaks says little, since all that users say of themselves is. It counts with `self_counts`:
    where somebody says already that the two belong together.
    """
    forms = frames().forms
    names = _names(statement) & _names(fact)
    said, known = (_terms(_without(text, names)) for text in (statement, fact))
    common = fsum(map(weight, said & known))
    if _words(statement) == _words(fact):
        return "none", "it says the same"
    if not forms["doubt"].search(fact) and not forms["doubt"].search(statement):
        denies = bool(forms["denial"].search(statement)) and not forms["denial"].search(fact)
        if names and denies and common >= _DENIED * fsum(map(weight, known)):
            return "supersede", "it denies the fact"
        if _has_other_value(statement, fact):
            return "supersede", "it names another value in the same frame"
    [frame] = _overlaps(said, [known], weight)
    contrast = bool(forms["contrast"].search(statement)) != bool(forms["contrast"].search(fact))
    persons = names if self_counts else names - {"i"}
    if frame >= _ALONE or (persons and (frame >= _FRAME or (contrast and frame >= _CONTRASTED))):
        return "conflict", "it speaks of the same, and may contradict it"
    return "none", "they have too little in common"


def _has_other_value(statement: str, fact: str) -> bool:
    """Tell whether two texts are equal but for one value, where only one value can be."""
    old, new = _words(fact), _words(statement)
    changes = [
        each for each in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    if len(changes) != 1 or changes[0][0] != "replace":
        return False
    _, start, end, from_, to = changes[0]
    if start < _FRAMED or max(end - start, to - from_) > _CHANGED:
        return False
    forms = frames().forms
    values = " ".join(old[start:end]), " ".join(new[from_:to])
    if end - start == to - from_ == 1 and all(value.isdecimal() for value in values):
        return True
    return bool(forms["single"].search(" ".join(old[:start]))) and _is_name(fact, old[start:end])


def _is_name(text: str, words: Sequence[str]) -> bool:
    """Tell whether words are a name or a number in a text: they are capitalised there, but for "of" and "the"."""
    written = {word.casefold() for word in _WORD.findall(text) if word[0].isupper() or word[0].isdecimal()}
    return all(word in written or word in {"of", "the"} for word in words)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _names(text: str) -> set[str]:
    """Return whom a text is about, roughly: its capitalised words, and "i" for whoever speaks of themselves."""
    names = {word.casefold() for word in _WORD.findall(text) if word[0].isupper()} - _NOBODY
    return names | {"i"} if frames().forms["person"].search(text) else names


def _without(text: str, names: set[str]) -> str:
    return " ".join(word for word in _WORD.findall(text) if word.casefold() not in names)
