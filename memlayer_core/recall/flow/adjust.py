"""Adjusts what a search found: leaves out episodes that repeat turns, and adds what contradicts a message or replaced it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memlayer_core.messages.model import Session
from memlayer_core.messages.sql import transcript
from memlayer_core.recall.flow.recall import Answers
from memlayer_core.recall.flow.retrieve import Findings
from memlayer_core.recall.rules.rank import LONG, ScoredCandidate
from memlayer_core.recall.sql import candidates as candidates_sql
from memlayer_core.records.episodes import part_of
from memlayer_core.records.model import Record
from memlayer_core.records.sql.other_sides import OtherSide, other_sides
from memlayer_core.scope import Scope
from memlayer_core.storage.scores import is_message
from memlayer_core.storage.terms import index_terms

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["with_other_sides", "without_visible_episodes"]

_OF_EACH = 2
"""Other sides of one message."""
_SURE = 4
"""Messages, the best ones, that are told in any case, since each takes a quarter of the room at most."""


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


def with_other_sides(
    connection: Connection, findings: Findings, answers: Answers, budget: int, seen: Collection[int] = ()
) -> Answers:
    """Put behind each message that contradicts another one, or was replaced by it, the words of that other one.

    So a model is told both sides of what the ledger knows to be in conflict, and what was said since, even where the other
    side would come too late in the order to be told. It is done for as many messages as there is room for together with
    their other sides, and only where the words that are contradicted bear on the question.

    Args:
        connection: On the snapshot of the search.
        findings: What the search found.
        answers: What is worth its tokens.
        budget: Tokens for all of it.
        seen: Keys of what the context already has.
    """
    if not findings.search_scope.own.oppositions:
        return answers
    reach = findings.search_scope.reach
    words = {one.key: one.words for one in answers.candidates if is_message(one.key)}
    told = list(words)
    opposed = other_sides(connection, reach, told[: max(0, budget) // (2 * LONG)])
    sides = {key: _bearing(some, words[key]) for key, some in opposed.items()}
    every = {key for some in sides.values() for key in some}.difference(seen, told[:_SURE])
    if findings.keys is not None:
        every.intersection_update(findings.keys)
    rows = candidates_sql.find_candidates(connection, reach, sorted(every)) if every else {}
    order: dict[int, ScoredCandidate] = {}
    for one in answers.candidates:
        order.setdefault(one.key, one)
        left = [side for key, side in sides.get(one.key, {}).items() if key in rows and key not in order]
        for side in left[:_OF_EACH]:
            order[side.key] = one._replace(
                key=side.key, cosine=None, words=(), part_cosines=(), other_side=side.quote
            )
    return replace(answers, candidates=tuple(order.values()), rows={**answers.rows, **rows})


def _bearing(sides: Sequence[OtherSide], words: Collection[str]) -> dict[int, OtherSide]:
    """Return, by key and in their order, the sides of a message whose contradicted words bear on the question.

    Args:
        sides: The other sides of the message.
        words: The question's words that the message has. Without any, it was found by its meaning, and all of it may bear.
    """
    found: dict[int, OtherSide] = {}
    for side in sides:
        if not words or not set(words).isdisjoint(index_terms(side.against)):
            found.setdefault(side.key, side)
    return found
