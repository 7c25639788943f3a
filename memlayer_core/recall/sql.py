"""Reads what a search covers, its candidates, and recalled text that stays with its question.

The latter only as far as the reader may see what it quotes.

Each function runs in its caller's transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, exists, func, literal, or_, select

from memlayer_core.items.model import Condition
from memlayer_core.items.rules.filters import passes
from memlayer_core.message import PinnedText, StoredMessage
from memlayer_core.messages.model import PinnedRecall, Session, WindowStart
from memlayer_core.messages.sql.rows import stored_of
from memlayer_core.messages.sql.transcript import find_messages, session_from
from memlayer_core.recall.model import RecallFilter
from memlayer_core.records.model import Reader
from memlayer_core.records.rules.records import memory_id
from memlayer_core.records.sql.reads import visible_keys
from memlayer_core.scope import Scope
from memlayer_core.storage.codec import parse_exact
from memlayer_core.storage.keys import LAST, WITHIN, key_of, reach_parameters, session_of, to_micros
from memlayer_core.storage.scores import Candidate
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.tables import (
    messages,
    namespaces,
    recall_sources,
    records,
    sessions,
    texts,
    window_starts,
)
from memlayer_core.storage.tables import pinned_recalls as recalls
from memlayer_core.storage.vectors import EMBEDDED, part_cosines
from memlayer_core.vector import FloatVector

__all__ = [
    "READ_AHEAD",
    "Beginning",
    "beginning",
    "candidates_of",
    "cosines_of",
    "find_candidates",
    "list_recalls",
    "matching_keys",
    "messages_of",
    "overview",
    "read",
]

_HELD = exists().where(records.c.shelf == namespaces.c.namespace, records.c.replaced_by.is_(None))
_USED = select(literal(1)).where(sessions.c.messages > 0, WITHIN).limit(2).subquery()
_COVERED = (
    namespaces.c.namespace.label("name"),
    namespaces.c.shard.label("shard"),
    namespaces.c.vectors.label("vectors"),
    namespaces.c.texts.label("texts"),
    namespaces.c.version.label("vectors_version"),
    _HELD.label("held"),
    select(func.count()).select_from(_USED).scalar_subquery().label("used"),
)
_NAMED = namespaces.c.namespace.in_([bindparam("of"), bindparam("commons")])
_OVERVIEW = Statement(select(*_COVERED).where(_NAMED))
_current = sessions.alias("current")
_BEGINNING = Statement(
    select(
        *_COVERED,
        *(column for column in _current.c if column.name != "namespace"),
        window_starts.c.first_seq,
        window_starts.c.version.label("summaries_version"),
    )
    .outerjoin(
        _current,
        and_(_current.c.namespace == namespaces.c.namespace, _current.c.lane == bindparam("session_lane")),
    )
    .outerjoin(
        window_starts,
        and_(window_starts.c.session == _current.c.number, window_starts.c.size == bindparam("size")),
    )
    .where(_NAMED)
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a context begins with.

    Attributes:
        session: The session; None before its first message.
        window_start: Where its window begins.
        own: Statistics of the user's own data.
        shared: Statistics of the records that users of the tenant share.
    """

    session: Session | None = None
    window_start: WindowStart = field(default_factory=WindowStart)
    own: ScopeStatistics = field(default_factory=ScopeStatistics)
    shared: ScopeStatistics = field(default_factory=ScopeStatistics)


def overview(connection: Connection, reach: Scope) -> tuple[ScopeStatistics, ScopeStatistics]:
    """Return how much of the user's own data a search can find, and how many records that others share."""
    rows = {row.name: row for row in _OVERVIEW.all(connection, _reach_values(reach))}
    return _statistics(rows.get(reach.namespace)), _statistics(rows.get(reach.commons.namespace))


def beginning(connection: Connection, scope: Scope, size: int) -> Beginning:
    """Return the session of a scope, where its window of a size begins, and what a search of its user covers.

    Args:
        connection: In a transaction.
        scope: The session.
        size: The size of the window: see `size_of`.
    """
    reach = scope.reach()
    values = {**_reach_values(reach), "session_lane": scope.session_lane, "size": size}
    rows = {row.name: row for row in _BEGINNING.all(connection, values)}
    mine = rows.get(reach.namespace)
    own, shared = _statistics(mine), _statistics(rows.get(reach.commons.namespace))
    if mine is None or mine.number is None:
        return Beginning(own=own, shared=shared)
    start = WindowStart() if mine.first_seq is None else WindowStart(mine.first_seq, mine.summaries_version)
    return Beginning(session_from(mine), start, own, shared)


def _reach_values(reach: Scope) -> dict[str, str | None]:
    """Return the values of a reach. What stands alone, a session without a user, sees nothing that is shared."""
    commons = "" if reach.session_id is not None else reach.commons.namespace
    return {**reach_parameters(reach), "commons": commons}


def _statistics(row: Any | None) -> ScopeStatistics:
    if row is None:
        return ScopeStatistics()
    return ScopeStatistics(row.used, row.vectors, row.shard, row.vectors_version, bool(row.held), row.texts)


READ_AHEAD = 1000
"""Characters of a message that are read before it is told. Most have fewer, and are then read whole."""

_END = 8  # characters of a text in which its question mark stands
_ASKS = re.compile("[?\uff1f]\\W*\\Z")
_KEPT = ("key", "id", "digest", "role", "name", "tokens", "counter", "characters", "created_at")
_ROWS = ListStatement(
    lambda keys: (
        select(
            *(messages.c[name] for name in _KEPT),
            func.substr(messages.c.text, 1, READ_AHEAD).label("text"),
            case((messages.c.characters <= READ_AHEAD, messages.c.body)).label("body"),
            func.substr(messages.c.text, messages.c.characters - _END + 1).label("ending"),
            sessions.c.session_id,
            sessions.c.agent_id,
        )
        .join(sessions, sessions.c.number == session_of(messages.c.key))
        .where(messages.c.key.in_(keys), messages.c.tokens > 0, messages.c.role != "system", WITHIN)
    )
)
_VECTORS = ListStatement(
    lambda keys: select(texts.c.key, texts.c.vector, texts.c.vectors).where(texts.c.key.in_(keys), EMBEDDED)
)


def find_candidates(connection: Connection, reach: Scope, keys: Sequence[int]) -> dict[int, Any]:
    """Return the rows of the messages of these keys in a scope, in the order of the keys. Other keys are ignored.

    Of a text, no more than the beginning is read; `messages_of` makes messages of those that have no more.
    """
    rows = {row.key: row for row in _ROWS.all(connection, keys, reach_parameters(reach))}
    return {key: rows[key] for key in keys if key in rows}


def candidates_of(
    rows: Mapping[int, Any], cosines: Mapping[int, float], *, has_text: bool
) -> list[Candidate]:
    """Return rows as candidates.

    Args:
        rows: What `find_candidates` returned.
        cosines: The cosines of those that have one, by key.
        has_text: Whether the beginnings of their texts are wanted.
    """
    return [
        Candidate(
            key,
            row.role,
            row.name,
            row.tokens,
            _ASKS.search(row.ending) is not None,
            cosines.get(key),
            row.text if has_text else "",
        )
        for key, row in rows.items()
    ]


def messages_of(
    connection: Connection, reach: Scope, rows: Mapping[int, Any], keys: Sequence[int]
) -> list[StoredMessage]:
    """Return the messages of these keys that are in a scope.

    Args:
        connection: On the snapshot of the rows.
        reach: The scope.
        rows: What `find_candidates` returned; what is too long for these is read.
        keys: Keys of messages; other keys are ignored.
    """
    found = [
        stored_of(row, Scope(reach.user_id, row.session_id, row.agent_id, reach.tenant_id))
        for key in keys
        if (row := rows.get(key)) is not None and row.characters <= READ_AHEAD
    ]
    long = [key for key in keys if key in rows and rows[key].characters > READ_AHEAD]
    return [*found, *find_messages(connection, reach, long)] if long else found


def matching_keys(
    connection: Connection, reach: Scope, recall_filter: RecallFilter, conditions: Sequence[Condition]
) -> set[int]:
    """Return the keys of the messages in a scope that pass a filter, whatever records it wants.

    Args:
        connection: In a transaction.
        reach: The scope.
        recall_filter: Speakers, sessions and times.
        conditions: What must hold for their metadata.
    """
    query = (select(messages.c.key, messages.c.body) if conditions else select(messages.c.key)).join(
        sessions, sessions.c.number == session_of(messages.c.key)
    )
    query = query.where(WITHIN, sessions.c.superseded == 0)
    if recall_filter.speakers:
        said_by = sorted(recall_filter.speakers)
        query = query.where(or_(messages.c.name.in_(said_by), messages.c.role.in_(said_by)))
    if recall_filter.sessions:
        query = query.where(sessions.c.session_id.in_(sorted(recall_filter.sessions)))
    if recall_filter.since is not None:
        query = query.where(messages.c.created_at >= to_micros(recall_filter.since))
    if recall_filter.until is not None:
        query = query.where(messages.c.created_at < to_micros(recall_filter.until))
    rows = connection.execute(query, reach_parameters(reach))
    if not conditions:
        return set(rows.scalars())
    said = ((row.key, parse_exact(row.body) if row.body else {}) for row in rows)
    return {key for key, body in said if passes(conditions, body.get("metadata", {}))}


def cosines_of(
    connection: Connection, keys: Sequence[int], vector: FloatVector
) -> dict[int, tuple[float, ...]]:
    """Return the cosines of a vector to the parts of those of some texts that have vectors."""
    rows = _VECTORS.all(connection, keys)
    near = part_cosines(rows, vector) if rows else []
    return dict(zip((row.key for row in rows), near, strict=True))


_LISTED = Statement(
    select(recalls.c.key, messages.c.id)
    .join(messages, messages.c.key == recalls.c.key)
    .where(recalls.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(recalls.c.key.desc())
    .limit(bindparam("most"))
    .offset(bindparam("past"))
)
_READ = ListStatement(lambda keys: select(recalls).where(recalls.c.key.in_(keys)))
_QUOTED = ListStatement(
    lambda keys: (
        select(
            recall_sources.c.question,
            recall_sources.c.source,
            messages.c.id,
            records.c.user_id,
            records.c.ordinal,
        )
        .outerjoin(messages, messages.c.key == recall_sources.c.source)
        .outerjoin(records, records.c.key == recall_sources.c.source)
        .where(recall_sources.c.question.in_(keys))
        .order_by(recall_sources.c.question, recall_sources.c.source)
    )
)


def read(connection: Connection, keys: Sequence[int], reader: Reader | None) -> dict[int, PinnedText]:
    """Return what stands with those messages, by their keys, as far as the reader may be told of all that it quotes.

    Without a reader it is told to nobody: it is counted, or compared.
    """
    rows = _READ.all(connection, keys)
    quoted: dict[int, dict[int, str]] = {row.key: {} for row in rows}
    gone, of_records = set[int](), set[int]()
    for row in _QUOTED.all(connection, list(quoted)):
        if row.id is None and row.ordinal is None:
            gone.add(row.source)
            quoted[row.question][row.source] = ""
        else:
            quoted[row.question][row.source] = row.id or memory_id(row.user_id, row.ordinal)
            if row.id is None:
                of_records.add(row.source)
    if reader is not None and of_records:
        gone |= of_records - visible_keys(connection, reader, of_records)
    return {
        row.key: PinnedText(
            row.key,
            row.text,
            row.tokens,
            row.counter,
            tuple(quoted[row.key]),
            tuple(quoted[row.key].values()),
        )
        for row in rows
        if gone.isdisjoint(quoted[row.key])
    }


def list_recalls(
    connection: Connection, session: int, limit: int, offset: int, reader: Reader | None
) -> list[PinnedRecall]:
    """Return the pinned recalls of a session that the reader may see, the newest first."""
    rows = _LISTED.all(
        connection,
        {"first": key_of(session, 0), "last": key_of(session, LAST), "most": limit, "past": offset},
    )
    standing = read(connection, [row.key for row in rows], reader)
    return [
        PinnedRecall(row.id, standing[row.key].text, standing[row.key].tokens, standing[row.key].ids)
        for row in rows
        if row.key in standing
    ]
