"""Recalls for a prompt that somebody else builds: what bears on a query and is not in that prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.model import Session
from memlayer_core.messages.rules.check import at_least_one, check_messages, text_of
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import recall_budget
from memlayer_core.recall.flow.adjust import without_visible_episodes
from memlayer_core.recall.flow.elsewhere import Meaning, on_snapshot
from memlayer_core.recall.flow.recall import (
    hits,
    relevant_answers,
    weigh,
)
from memlayer_core.recall.flow.retrieve import retrieve
from memlayer_core.recall.flow.search import outcome_of
from memlayer_core.recall.flow.search_scope import search_scope_of
from memlayer_core.recall.model import Hits
from memlayer_core.recall.rules.filter import check_filter
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.telemetry import traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["recall"]

_NEWER = 8  # messages at the session's end that the caller may not have yet


@dataclass(frozen=True, slots=True)
class _VisibleEnd:
    """The part of the session that is in the caller's prompt."""

    session: Session | None = None
    messages: Sequence[StoredMessage] = ()

    @property
    def first(self) -> int:
        """The place of its first turn; without one, the place behind the session."""
        turns = (one.seq for one in self.messages if one.message.role != "system")
        return min(turns, default=self.session.next_seq if self.session is not None else 0)


@traced("search_memory", "recall", outcome_of)
async def recall(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    visible: Iterable[Message],
    roles: Sequence[str] = (),
    recall_filter: object = None,
) -> Hits:
    """Return hits for a query that are not among the visible messages, the best first."""
    asked, known = text_of("query", query), check_messages(visible)
    wanted = check_filter(recall_filter)
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
    reach = scope.reach()

    def look(connection: Connection, meaning: Meaning | None) -> Hits:
        search_scope = search_scope_of(connection, rt, reach, roles)
        if search_scope.is_empty:
            return Hits()
        found = retrieve(connection, rt, search_scope, asked, limit, rt.now(), meaning, wanted, explicit=True)
        end = _visible_end(connection, scope, known)
        seen = {one.key for one in end.messages}
        answers = weigh(
            connection,
            rt,
            found,
            seen,
            lambda records: without_visible_episodes(connection, records, scope, end.session, end.first),
            end.session.number if end.session is not None else 0,
        )
        worth, settings = relevant_answers(connection, rt, reach, found, answers, known), rt.settings
        room = (
            recall_budget(settings.max_tokens, settings.recall_tokens) if token_limit is None else token_limit
        )
        return hits(connection, rt, reach, worth, limit, room, known)

    return await on_snapshot(rt, run, look)


def _visible_end(connection: Connection, scope: Scope, messages: Sequence[Message]) -> _VisibleEnd:
    session = transcript.find(connection, scope)
    if session is None or not messages:
        return _VisibleEnd(session)
    words = {(message.role, message.text) for message in messages}
    last = transcript.tail_messages(connection, session, None, len(messages) + _NEWER)
    return _VisibleEnd(
        session, [one for _, one in reversed(last) if (one.message.role, one.message.text) in words]
    )
