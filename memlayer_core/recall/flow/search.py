"""Searches a user's memory: the order of things."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from memlayer_core.messages.rules.check import at_least_one, in_utc, text_of
from memlayer_core.recall.flow.elsewhere import Meaning, on_snapshot
from memlayer_core.recall.flow.recall import hits, rerank, weigh
from memlayer_core.recall.flow.retrieve import retrieve
from memlayer_core.recall.flow.search_scope import search_scope_of
from memlayer_core.recall.model import Hits
from memlayer_core.recall.rules.filter import check_filter
from memlayer_core.records.rules.records import roles_of
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["outcome_of", "search"]


def outcome_of(result: Hits, reach: Scope, query: str, *_: object, **__: object) -> Outcome:
    """Return what a span says of a search."""
    return Outcome(len(result), query=query, contents=lambda: [hit.text for hit in result])


@traced("search_memory", "search", outcome_of)
async def search(
    rt: Runtime,
    run: Runner,
    reach: Scope,
    query: str,
    limit: int,
    token_limit: int | None,
    roles: object = (),
    now: datetime | None = None,
    recall_filter: object = None,
) -> Hits:
    """Return the best hits: at most `limit`, of at most `token_limit` tokens together."""
    asked, now, known = text_of("query", query), in_utc(now, "now"), roles_of(roles)
    wanted = check_filter(recall_filter)
    at_least_one("limit", limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)

    def look(connection: Connection, meaning: Meaning | None) -> Hits:
        search_scope = search_scope_of(connection, rt, reach, known)
        if search_scope.is_empty:
            return Hits()
        found = retrieve(connection, rt, search_scope, asked, limit, now or rt.now(), meaning, wanted)
        answers = rerank(connection, rt, reach, found, weigh(connection, rt, found))
        return hits(connection, rt, reach, answers, limit, token_limit)

    return await on_snapshot(rt, run, look)
