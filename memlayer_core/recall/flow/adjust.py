"""Adjusts what a search found: leaves out episodes that repeat turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memlayer_core.messages.model import Session
from memlayer_core.messages.sql import transcript
from memlayer_core.records.episodes import part_of
from memlayer_core.records.model import Record
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


def without_visible_episodes(
    connection: Connection,
    records: Mapping[int, Record],
    scope: Scope,
    session: Session | None,
    first: int,
) -> Mapping[int, Record]:
    """Leave out episodes of turns that the context already has, or has a summary of.

    Args:
        connection: On the snapshot of the search.
        records: The candidates among the records, by key.
        scope: Scope of the session.
        session: The session as it was read; None before its first message.
        first: Place of the first turn in the context, or in one of its summaries.
    """
    ends = {key: part[1] for key, record in records.items() if (part := part_of(record, scope)) is not None}
    if session is None or not ends:
        return records
    places = transcript.places(connection, session, list(ends.values()))
    return {key: one for key, one in records.items() if key not in ends or places.get(ends[key], -1) < first}
