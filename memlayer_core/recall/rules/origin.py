"""Says where what a search found comes from, for a model that looks it up."""

from __future__ import annotations

from collections.abc import Sequence

from memlayer_core.recall.model import Hit, Hits
from memlayer_core.records.model import Record, RecordSource
from memlayer_core.scope import Scope
from memlayer_core.storage.terms import index_terms

__all__ = ["SAYS", "facts_about", "origin_of", "record_origin"]

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
