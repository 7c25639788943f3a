"""Checks a filter of a search, and says where what it found comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from memlayer_core.errors import InputError, InvalidFilterError
from memlayer_core.facts.check import CONCLUDED
from memlayer_core.facts.model import TYPES, Record, RecordSource
from memlayer_core.items.check import conditions_of
from memlayer_core.message import with_offset
from memlayer_core.recall.model import Hit, Hits, RecallFilter
from memlayer_core.scope import Scope
from memlayer_core.storage.terms import index_terms

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
