"""Adding messages to a session, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from memlayer_core.message import PinnedText, Receipt
from memlayer_core.messages.draft import PreparedMessage
from memlayer_core.messages.rules import splice as planners
from memlayer_core.messages.sql import pinned_recalls
from memlayer_core.messages.sql.conversation import list_by_id, list_where, lock_or_make_session
from memlayer_core.messages.sql.splice import apply
from memlayer_core.scope import Scope
from memlayer_core.storage.tables import messages

__all__ = ["append"]


def append(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    now: datetime,
    shards: int,
    fork_id: str | None = None,
    *,
    verbatim: bool = False,
    recall: PinnedText | None = None,
) -> Receipt:
    """Store messages at a session's end. A message of a stored id replaces the stored message if it differs.

    Args:
        connection: In a transaction that writes.
        scope: The session.
        drafts: The messages.
        now: The present.
        shards: Number of collections that users are spread over.
        fork_id: The session for versions of replaced messages; None: they are erased.
        verbatim: Whether a system message without an id of its own is stored even if it is equal to the one in force.
        recall: The recall to pin to the question that the messages answer.
    """
    row = lock_or_make_session(connection, scope, now, shards)
    named = [draft.message.id or "" for draft in drafts if draft.has_own_id]
    existing = {one.message.id or "": one for one in list_by_id(connection, scope, row.number, named)}
    in_force = None
    if not verbatim and row.instructions is not None and any(map(planners.is_instruction, drafts)):
        in_force = next(iter(list_where(connection, scope, messages.c.key == row.instructions)), None)
    splice = planners.append(existing, drafts, in_force, verbatim=verbatim, erase=fork_id is None)
    keys = apply(connection, scope, row, splice, now, shards, fork_id)
    if splice.answered and recall is not None:
        fresh = reversed([*zip(keys, (draft.message for _, draft in splice.insertions), strict=True)])
        asked = next((key for key, one in fresh if one.role == "user" and one.model_visible), 0)
        pinned_recalls.pin(connection, row.number, replace(recall, key=recall.key or asked))
    return splice.receipt
