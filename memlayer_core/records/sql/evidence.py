"""The words that records rest on, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from memlayer_core.records.facts import Evidence, EvidenceKind, Statement
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import LAST, chunks, from_micros, id_digest, key_of, session_of, to_micros
from memlayer_core.storage.statements import rows_by
from memlayer_core.storage.tables import evidence, messages, sessions

_SPOKEN = (
    select(
        *(messages.c[name] for name in ("key", "id", "digest", "text", "created_at")),
        *(sessions.c[name] for name in ("namespace", "tenant_id", "user_id", "agent_id", "session_id")),
    )
    .join(sessions, sessions.c.number == session_of(messages.c.key))
    .where(messages.c.role == "user", messages.c.tokens > 0, sessions.c.superseded == 0)
)
_FROM_USERS = rows_by(_SPOKEN, messages.c.key)
_ROWS = (
    select(
        evidence,
        messages.c.id,
        messages.c.role,
        sessions.c.session_id,
        func.substr(messages.c.text, evidence.c.start + 1, evidence.c.until - evidence.c.start).label(
            "quote"
        ),
    )
    .join(messages, messages.c.key == evidence.c.message)
    .join(sessions, sessions.c.number == session_of(evidence.c.message))
)


def from_users(connection: Connection, keys: Sequence[int]) -> list[Any]:
    """Return those of some messages that a user said: their key, id, text and time, and whose they are.

    Hidden messages, replaced versions and sessions without a user are left out.
    """
    return [
        row
        for row in _FROM_USERS.all(connection, keys)
        if Scope.of_user(row.user_id, tenant_id=row.tenant_id).session_id is None
    ]


def last_spoken(connection: Connection, scope: Scope, limit: int) -> list[Any]:
    """Return what the user said last in a session, the newest first, in the rows of `from_users`."""
    number = connection.scalar(select(sessions.c.number).where(sessions.c.lane == scope.session_lane))
    if number is None:
        return []
    inside = messages.c.key.between(key_of(number, 0), key_of(number, LAST))
    return list(connection.execute(_SPOKEN.where(inside).order_by(messages.c.key.desc()).limit(limit)))


def add(
    connection: Connection,
    owner: Scope,
    ordinal: int,
    statement: Statement,
    kind: EvidenceKind,
    model: str | None,
) -> int:
    """Let a record rest on the words of a statement. Returns on how many messages more it rests by that."""
    keys = [key for key, _, _ in statement.quotes]
    these = evidence.c.namespace == owner.namespace, evidence.c.ordinal == ordinal, evidence.c.kind == kind
    here = set(connection.scalars(select(evidence.c.message).where(*these, evidence.c.message.in_(keys))))
    rows = [
        {
            "namespace": owner.namespace,
            "agent_id": owner.agent_id,
            "ordinal": ordinal,
            "message": key,
            "start": start,
            "until": until,
            "kind": kind,
            "said_at": to_micros(statement.record.first_observed),
            "model": model,
        }
        for key, start, until in statement.quotes
        if key not in here
    ]
    if rows:
        connection.execute(insert(evidence), rows)
    return len(rows)


def counts(connection: Connection, namespace: str, ordinal: int, keys: Collection[int]) -> bool:
    """Return whether a record rests on one of some messages already, or on a copy of it in a fork."""
    ids = select(messages.c.id).where(messages.c.key.in_(keys))
    these = evidence.c.namespace == namespace, evidence.c.ordinal == ordinal, messages.c.id.in_(ids)
    found = select(evidence.c.number).join(messages, messages.c.key == evidence.c.message).where(*these)
    return connection.scalar(found.limit(1)) is not None


def of_records(
    connection: Connection, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[Evidence, ...]]:
    """Return what records rest on, by their namespace and number, in the order in which it was said."""
    found: dict[tuple[str, int], list[Evidence]] = {}
    for namespace in sorted({namespace for namespace, _ in places}):
        ordinals = [ordinal for one, ordinal in places if one == namespace]
        for some in chunks(ordinals):
            these = and_(evidence.c.namespace == namespace, evidence.c.ordinal.in_(some))
            for row in connection.execute(_ROWS.where(these).order_by(evidence.c.said_at, evidence.c.number)):
                found.setdefault((namespace, row.ordinal), []).append(_evidence(row))
    return {place: tuple(some) for place, some in found.items()}


def sources(connection: Connection, namespace: str, ordinals: Collection[int]) -> dict[int, list[int]]:
    """Return the keys of the messages that records rest on, by the records' numbers."""
    found: dict[int, list[int]] = {}
    for some in chunks(sorted(ordinals)):
        these = evidence.c.namespace == namespace, evidence.c.ordinal.in_(some)
        for row in connection.execute(select(evidence.c.ordinal, evidence.c.message).where(*these)):
            found.setdefault(row.ordinal, []).append(row.message)
    return found


def forgotten(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those of some messages of which somebody deleted a record: nothing is read in them again."""
    return {
        key
        for some in chunks(keys)
        for key in connection.scalars(
            select(evidence.c.message).where(evidence.c.message.in_(some), evidence.c.ordinal.is_(None))
        )
    }


def release(connection: Connection, namespace: str, ordinals: Collection[int]) -> None:
    """Let no record rest on words any more that some records rest on. The words are not read again."""
    for some in chunks(sorted(ordinals)):
        these = and_(evidence.c.namespace == namespace, evidence.c.ordinal.in_(some))
        connection.execute(update(evidence).where(these).values(ordinal=None, start=0, until=0))


def forget_owner(connection: Connection, reach: Scope) -> None:
    """Delete what a user's records rest on, or those of a user with one agent."""
    whose = evidence.c.namespace == reach.namespace
    if reach.agent_id is not None:
        whose = and_(whose, evidence.c.agent_id == reach.agent_id)
    connection.execute(delete(evidence).where(whose))


def restore(connection: Connection, owner: Scope, ordinal: int, quotes: Sequence[Evidence]) -> None:
    """Let a record from elsewhere rest on those of its messages that are here."""
    for quote in quotes:
        named = sessions.c.namespace == owner.namespace, sessions.c.session_id == quote.session_id
        numbers = connection.scalars(select(sessions.c.number).where(*named)).all()
        digests = [id_digest(number, quote.message_id) for number in numbers]
        key = connection.scalar(select(messages.c.key).where(messages.c.id_digest.in_(digests)))
        if key is None or counts(connection, owner.namespace, ordinal, [key]):
            continue
        row = {
            "namespace": owner.namespace,
            "agent_id": owner.agent_id,
            "ordinal": ordinal,
            "message": key,
            "start": quote.start,
            "until": quote.end,
            "kind": quote.kind,
            "said_at": 0 if quote.said_at is None else to_micros(quote.said_at),
            "model": quote.model,
        }
        connection.execute(insert(evidence).values(row))


def _evidence(row: Any) -> Evidence:
    return Evidence(
        message_id=row.id,
        session_id=row.session_id,
        start=row.start,
        end=row.until,
        quote=row.quote,
        role=row.role,
        kind=row.kind,
        said_at=from_micros(row.said_at),
        model=row.model,
    )
