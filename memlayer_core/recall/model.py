"""What a search finds, with reasons; and the recall that stays with a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import datetime
from typing import Literal, Self

from memlayer_core.errors import InputError, InvalidFilterError
from memlayer_core.facts.check import CONCLUDED
from memlayer_core.facts.model import TYPES, Record, RecordSource
from memlayer_core.items.check import conditions_of
from memlayer_core.items.model import Item
from memlayer_core.message import JSON, Role, with_offset
from memlayer_core.scope import Scope
from memlayer_core.show import Tabular, View, Viewable, line_of
from memlayer_core.storage.terms import index_terms


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is in a context or a result, or why it was left out.

    Attributes:
        code: A stable code for programs, such as `"newest_turn_over_limit"`.
        text: The same as a sentence for people.
        value: The number in it, if it has one: a part of a score, how many turns were left out.
    """

    code: str
    text: str
    value: float | None = None

    def __str__(self) -> str:
        """Return the text for people."""
        return self.text


@dataclass(frozen=True, slots=True)
class RecallFilter:
    """Which messages and records a search, a recall or a context may find.

    Every given condition must hold; with any condition, no items are found. What does not pass takes no place in the
    result: the search works as if it were not stored.

    Attributes:
        kinds: `"message"`, `"record"` (of any type), or types of records, such as `"preference"`. Empty: all.
        tags: Only records with all of these tags; messages have none.
        speakers: Only messages of these speakers: names, or roles such as `"assistant"`. Records have none.
        sessions: Only messages of the sessions with these ids, and records that come from there.
        since: Only what was said or happened at this moment or later. A moment without a time zone is taken as UTC.
        until: Only what was said or happened before this moment.
        metadata: Conditions on the `metadata` of messages: `{"project": "apollo"}`, `{"user": {"team": "red"}}`,
            `{"score": {"$gte": 3}}`; operators are `$eq`, `$ne`, `$gt`, `$gte`, `$lt` and `$lte`. Records have none.
    """

    _: KW_ONLY
    kinds: Sequence[str] = ()
    tags: Sequence[str] = ()
    speakers: Sequence[str] = ()
    sessions: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit(Tabular):
    """A message, a record or an item that a search found.

    Attributes:
        text: The text of the message or record.
        score: Larger is better. Compare scores of one search only.
        kind: `"message"`, `"record"`, or `"item"`: a value in a namespace that is declared to be the user's.
        message_ids: Ids of the messages that it comes from; empty for a record or an item.
        session_id: Id of its session; empty if it is not known.
        speaker: The speaker's name, or the role if there is no name. For a record, its type; for an item, `"item"`.
        created_at: When it was said, or when it happened.
        tokens: Tokens that it costs in a context.
        reasons: Why it was found, by each part of the search.
        record: The record that was found; None for anything else.
        role: The speaker's role; `"user"` for a record or an item.
        item: The item that was found; None for anything else.
    """

    text: str
    score: float
    kind: Literal["message", "record", "item"]
    message_ids: tuple[str, ...]
    session_id: str
    speaker: str
    created_at: datetime
    tokens: int
    reasons: tuple[Reason, ...]
    record: Record | None = None
    role: Role = "user"
    item: Item | None = None

    __repr__ = line_of

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("score", "when", "who", "what", "why", "where"),
            rows=tuple(
                (
                    hit.score,
                    hit.created_at.date(),
                    hit.speaker,
                    hit.text,
                    "; ".join(map(str, hit.reasons)),
                    _place(hit.record or hit.item) or hit.session_id,
                )
                for hit in values
            ),
        )


def _place(one: Record | Item | None) -> str | None:
    return one.memory_id if isinstance(one, Record) else one.address if one is not None else None


class Hits(Viewable, tuple[Hit, ...]):
    """A tuple of hits, the best first. Jupyter shows it as a table."""

    __slots__ = ()

    def _view(self) -> View:
        if not self:
            return View("Nothing was found.")
        return replace(Hit._table(self), title=f"Hits: {len(self):,}")  # noqa: SLF001  (its own row)


# Checks filters, and says where a hit comes from.

KINDS = ("message", "record", *TYPES)
"""What the kinds of a filter can be."""

_LISTS = ("kinds", "tags", "speakers", "sessions")


def check_filter(recall_filter: object) -> RecallFilter | None:
    """Return a filter with its times in UTC and each value of a list once; None if everything passes.

    Raises:
        InvalidFilterError: It is not a filter, or one of its conditions cannot be checked.
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
                f"`kinds` has {kind!r:.80}, which is not a kind", hint=f"There are {', '.join(KINDS)}."
            )
    try:
        since, until = with_offset(recall_filter.since, "since"), with_offset(recall_filter.until, "until")
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
            raise InvalidFilterError(f"`{name}` has {value!r:.80}, which is not text", hint="Leave it out.")
    return tuple(dict.fromkeys(values))


# Says where each hit of a search comes from, for a model that looks something up.

_FACTS = 5
"""Facts besides the hits of one search."""
SAYS: dict[RecordSource, str] = {
    "explicit_user_input": "said by the user",
    "corrected_memory": "said by the user",
    "implicit_inference": CONCLUDED,
    "system_generated": "written by memory",
    "external_data": "from elsewhere",
}
"""Who says a record, by its source."""


def origin_of(hit: Hit, scope: Scope) -> str:
    """Return where a hit comes from: this session, another one, a record or an item.

    Args:
        hit: The hit.
        scope: The session that asks.
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
    """Return facts that are not hits, but have something of the query in their key or their words."""
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
