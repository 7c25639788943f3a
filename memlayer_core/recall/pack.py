"""What of the hits is told: those that a filter lets through, as many as fit, and where each comes from."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise, zip_longest

from memlayer_core.errors import InputError, InvalidFilterError
from memlayer_core.items.check import conditions_of
from memlayer_core.messages.check import in_utc
from memlayer_core.messages.preview import ELLIPSIS, truncate_text
from memlayer_core.recall.model import Hit, Hits, RecallFilter
from memlayer_core.records.model import TYPES, Record, RecordSource
from memlayer_core.scope import Scope
from memlayer_core.storage.terms import index_terms, parts, sentence_starts, sentences

# Checks a filter of a search.

KINDS = ("message", "record", *TYPES)
"""What the kinds of a filter can be."""

_LISTS = ("kinds", "tags", "speakers", "sessions")


def check_filter(recall_filter: object) -> RecallFilter | None:
    """Return a filter with its times in UTC and each value of a list once; None if everything passes.

    Raises:
        InvalidFilterError: It is no filter, or one of its conditions cannot be checked.
    """
    if recall_filter is None:
        return None
    if not isinstance(recall_filter, RecallFilter):
        raise InvalidFilterError(
            f"`filter` must be a `RecallFilter`, got {recall_filter!r:.80}",
            hint='Such as `RecallFilter(kinds=["record"], tags=["work"])`.',
        )
    lists = {name: _texts(name, getattr(recall_filter, name)) for name in _LISTS}
    for kind in lists["kinds"]:
        if kind not in KINDS:
            raise InvalidFilterError(
                f"`kinds` has {kind!r:.80}, which is no kind", hint=f"There are {', '.join(KINDS)}."
            )
    try:
        since, until = in_utc(recall_filter.since, "since"), in_utc(recall_filter.until, "until")
        conditions_of(recall_filter.metadata)
    except InputError as problem:
        raise InvalidFilterError(str(problem).replace("`filter`", "`metadata`"), hint=problem.hint) from None
    if since is not None and until is not None and since >= until:
        raise InvalidFilterError(
            f"nothing is both since {since.isoformat()} and until {until.isoformat()}",
            hint="`since` is the earlier moment; what was said at `until` does not pass.",
        )
    metadata: Mapping[str, object] = recall_filter.metadata or {}
    checked = RecallFilter(**lists, since=since, until=until, metadata=metadata)
    return checked if any(getattr(checked, one.name) for one in fields(checked)) else None


def _texts(name: str, values: object) -> Sequence[str]:
    if isinstance(values, str) or not isinstance(values, Sequence | set | frozenset):
        raise InvalidFilterError(
            f"`{name}` must be a list of texts, got {values!r:.80}", hint=f'For example `{name}=["…"]`.'
        )
    for value in values:
        if not isinstance(value, str) or not value:
            raise InvalidFilterError(f"`{name}` has {value!r:.80}, which is no text", hint="Leave it out.")
    return tuple(dict.fromkeys(values))


# Says where what a search found comes from, for a model that looks it up.

_FACTS = 5
"""Facts besides the hits of one search."""
SAYS: dict[RecordSource, str] = {
    "explicit_user_input": "said by the user",
    "corrected_memory": "said by the user",
    "implicit_inference": "concluded by an agent",
    "system_generated": "written by memory",
    "external_data": "from elsewhere",
}
"""Who says a record, by its source."""


def origin_of(hit: Hit, scope: Scope) -> str:
    """Return where a hit comes from: this session, another one, a record or an item.

    Args:
        hit: The hit.
        scope: The session of who asks.
    """
    if hit.record is not None:
        return record_origin(hit.record, scope)
    if hit.item is not None:
        return hit.item.address
    return "this conversation" if hit.session_id == scope.session_id else "another conversation"


def record_origin(record: Record, scope: Scope) -> str:
    """Return the id of a record and who says it; no id if it is another user's."""
    if record.user_id != scope.user_id:
        return "shared by somebody else"
    return f"{record.memory_id}, {SAYS[record.source]}"


def facts_about(records: Sequence[Record], query: str, hits: Hits) -> list[Record]:
    """Return facts that are no hits, under whose key or in whose words something is that is looked for."""
    asked = set(index_terms(query))
    seen = {hit.record.memory_id for hit in hits if hit.record is not None}
    about = (
        record
        for record in records
        if record.key is not None
        and record.memory_id not in seen
        and not asked.isdisjoint(index_terms(f"{record.key} {record.value} {record.text}"))
    )
    return list(about)[:_FACTS]


# Chooses what fits into a number of tokens, and cuts a long text to the part that bears on a question.

LEAST = 8
"""Tokens that the shortest recalled turn costs: a date, a name and a word."""

MARGIN = 8
"""Tokens that a recalled turn's line costs beyond the message: its date and name, without the message's frame."""


def longest_turn(budget: int) -> int:
    """Return the tokens that one recalled turn may take: a quarter, so that a long one leaves room for others."""
    return budget // 4


def most_that_fit(budget: int) -> int:
    """Return how many recalled turns to read for a budget: more than fit."""
    return max(1, budget // (4 * LEAST))


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a number of tokens in the proportion of some weights. The parts are whole numbers, and together the total."""
    ends = [total * behind // max(1, sum(weights)) for behind in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


_SAME = 0.9  # share of a line's words in another line, from which on it is said again
_WORD = re.compile("[\u2e80-\uffff]|[^\\W_]+")
_NAME = re.compile(r"\b[A-Z]\w+")
_NEGATION = re.compile(
    r"\b(?:no|not|never|none|nobody|nothing|neither|nor|without|cannot|isn|don|doesn|didn|won|can|couldn|wasn|aren|haven)"
    r"(?:['\u2019]t)\b|\b(?:no|not|never|none|nobody|nothing|neither|nor|without|cannot)\b|[不没别无]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Gist:
    """What a line says.

    Attributes:
        text: The line.
        words: Its words; each character, where words are written without spaces.
    """

    text: str
    words: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Gist:
        """Return the gist of a text."""
        return cls(text, frozenset(_WORD.findall(text.casefold())))

    def repeats(self, other: Gist) -> bool:
        """Tell whether this has nearly no word that another gist lacks: its line would be told twice.

        "Ramen number 2" is no second "ramen number 1", "I eat meat" none of "I never eat meat", and no character may
        differ where words are written without spaces.
        """
        size = len(self.words)
        if not size or len(other.words) < _SAME * size or len(self.words & other.words) < _SAME * size:
            return False
        names = {name.casefold() for name in _NAME.findall(self.text)}
        plain = all(
            word.isalpha() and word.isascii() and word not in names for word in self.words - other.words
        )
        return plain and len(_NEGATION.findall(self.text)) == len(_NEGATION.findall(other.text))


class Gists:
    """The gists of what is told already. Words are bits, so that fifty lines are compared with each other in no time."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._lines: list[tuple[int, Gist]] = []

    def add(self, gist: Gist) -> bool:
        """Add a gist, unless it repeats one that is here. Returns whether it was added."""
        mask = 0
        for word in gist.words:
            mask |= self._bits.setdefault(word, 1 << len(self._bits))
        least = _SAME * len(gist.words)
        if any((mask & other).bit_count() >= least and gist.repeats(line) for other, line in self._lines):
            return False
        self._lines.append((mask, gist))
        return True


def pack(costs: Iterable[int], budget: int) -> list[int]:
    """Choose what fits, the best first; a candidate that is too large is skipped.

    Args:
        costs: Tokens of each candidate, the best first; read one by one, as far as needed.
        budget: Tokens to spend.

    Returns:
        The places in `costs` that fit, in the order of their worth.
    """
    chosen: list[int] = []
    for place, cost in enumerate(costs):
        if cost <= budget:
            chosen.append(place)
            budget -= cost
        if budget < LEAST:
            break
    return chosen


_CHARACTERS = 16  # of a token: hardly any text has so many


def excerpt(
    text: str,
    words: Collection[str],
    budget: int,
    cost: Callable[[str], int],
    cosines: Sequence[float] = (),
) -> str:
    """Return the part of a text around the sentence that has most of the words, and is near in meaning.

    It grows by whole sentences, to both sides, first by those of the same part, as long as it fits. An ellipsis marks each omission. A sentence that is
    too long is truncated. If no sentence has any of the words, and nothing is known of its meaning, the excerpt is the
    beginning.

    Args:
        text: Any text.
        words: A question's index terms.
        budget: Tokens that it may cost.
        cost: Counts tokens.
        cosines: Of each of the text's `parts` to the question; empty if they are not known.

    Returns:
        The text itself if it fits.
    """
    if _fits(text, budget, cost):
        return text
    said = sentences(text)
    if not said:
        return ""
    shares = [len(set(index_terms(sentence)).intersection(words)) / max(1, len(words)) for sentence in said]
    near = _nearness(text, cosines)
    bears = [share + cosine for share, cosine in zip(shares, near, strict=True)]
    best = max(range(len(said)), key=bears.__getitem__)
    left = budget - 2 * cost(f"{ELLIPSIS} ")
    if not _fits(f"{said[best]} ", left, cost):
        return _cut(said[best], budget, cost)
    left -= cost(f"{said[best]} ")
    behind, before = range(best + 1, len(said)), range(best - 1, -1, -1)
    taken = {best}
    around = [place for pair in zip_longest(behind, before) for place in pair if place is not None]
    for place in sorted(around, key=lambda place: near[place] != near[best]):  # the rest of its part first
        beside = not taken.isdisjoint((place - 1, place + 1))
        if beside and _fits(f"{said[place]} ", left, cost):
            taken.add(place)
            left -= cost(f"{said[place]} ")
    first, last = min(taken), max(taken)
    part = " ".join(said[first : last + 1])
    return f"{ELLIPSIS} " * (first > 0) + part + f" {ELLIPSIS}" * (last + 1 < len(said))


def _nearness(text: str, cosines: Sequence[float]) -> list[float]:
    """Return the cosine of the part that each sentence of a text begins in; zeros if the parts are others."""
    starts, ends = sentence_starts(text), list(accumulate(map(len, parts(text))))
    if len(cosines) != len(ends):
        return [0.0] * len(starts)
    return [cosines[bisect_right(ends, start)] for start in starts]


def _fits(text: str, budget: int, cost: Callable[[str], int]) -> bool:
    """Tell whether a text fits into the budget. A text that is far too long is not counted to its end."""
    beginning = text[: _CHARACTERS * max(budget, 1)]
    return cost(beginning) <= budget and (len(beginning) == len(text) or cost(text) <= budget)


def _cut(sentence: str, budget: int, cost: Callable[[str], int]) -> str:
    """Return the beginning of a sentence that is too long. It is shortened until it fits."""
    beginning = sentence[: _CHARACTERS * max(budget, 1)]
    if cost(beginning) > budget:
        sentence = beginning
    characters = len(sentence) * budget // max(cost(sentence), 1)
    while (part := truncate_text(sentence, characters)) and cost(part) > budget:
        characters = characters * 3 // 4
    return part
