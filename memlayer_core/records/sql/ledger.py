"""The ledger in SQL: every statement about somebody, where it was said, and what became of it.

Each function runs in its caller's transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields as fields_of
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, func, select, update

from memlayer_core.records.facts import Candidate, Evidence
from memlayer_core.records.rules.replay import topic_of
from memlayer_core.records.rules.sameness import plain
from memlayer_core.scope import Scope
from memlayer_core.storage.codec import json_text
from memlayer_core.storage.keys import LAST, chunks, from_micros, session_of, to_micros
from memlayer_core.storage.keys import key_of as message_key
from memlayer_core.storage.statements import ListStatement, dialect_insert, rows_by
from memlayer_core.storage.tables import ledger, messages, sessions

__all__ = [
    "DELETED",
    "FACTLESS",
    "FORGOTTEN",
    "QUARANTINED",
    "add",
    "candidate_of",
    "digest_of",
    "evidence_of",
    "forget_owner",
    "forgotten",
    "from_users",
    "insert_row",
    "last_spoken",
    "message_keys",
    "newest",
    "of_messages",
    "of_records",
    "of_topic",
    "outcome_of",
    "quarantined",
    "quotes",
    "release",
    "take_back",
    "unlearned",
]

FORGOTTEN = "forgotten"
"""The outcome of a statement whose record was deleted by hand. It keeps the words from being learned again."""

DELETED = "deleted"
"""The outcome of a record that was archived for long. The entry has no words."""

FACTLESS = ("refused", "given up", DELETED)
"""Outcomes on which no fact rests. `FORGOTTEN` is none of them: without it, the words would be learned again."""
QUARANTINED = "quarantined"
"""The outcome of a statement that seems to instruct a model. No record is made of it."""

_TIMES = frozenset({"valid_from", "valid_until"})
_BODY = tuple(
    field.name for field in fields_of(Candidate) if field.name not in {"said_at", "evidence", *_TIMES}
)
_ROWS = select(
    ledger,
    messages.c.id.label("id"),
    messages.c.role.label("role"),
    func.substr(messages.c.text, ledger.c.start + 1, ledger.c.until - ledger.c.start).label("quote"),
).outerjoin(messages, messages.c.key == ledger.c.message)


_SPOKEN = (
    select(
        *(messages.c[name] for name in ("key", "id", "id_digest", "digest", "text", "created_at")),
        *(sessions.c[name] for name in ("namespace", "tenant_id", "user_id", "agent_id")),
    )
    .join(sessions, sessions.c.number == session_of(messages.c.key))
    .where(messages.c.role == "user", messages.c.tokens > 0, sessions.c.superseded == 0)
)
_FROM_USERS = rows_by(_SPOKEN, messages.c.key)
_KNOWN = ListStatement(lambda keys: select(ledger.c.message).where(ledger.c.message.in_(keys)))


def last_spoken(connection: Connection, scope: Scope, limit: int) -> list[Any]:
    """Return what the user said last in a session, the newest first, in the rows of `unlearned`."""
    number = connection.scalar(select(sessions.c.number).where(sessions.c.lane == scope.session_lane))
    if number is None:
        return []
    inside = messages.c.key.between(message_key(number, 0), message_key(number, LAST))
    return list(connection.execute(_SPOKEN.where(inside).order_by(messages.c.key.desc()).limit(limit)))


def outcome_of(connection: Connection, message: Any, candidate: Candidate) -> tuple[int | None, str] | None:
    """Return the number of the record that a statement of a message made or confirmed, and what became of it."""
    these = _ROWS.where(ledger.c.message == message.key).order_by(ledger.c.number)
    for row in connection.execute(these):
        body = json.loads(row.body)
        same = plain(body.get("value") or "") == plain(candidate.value)
        if same and body.get("key") == candidate.key:
            return row.ordinal, row.outcome
    return None


def unlearned(connection: Connection, keys: Sequence[int]) -> list[Any]:
    """Return those of some messages that a user said and nothing was learned from, as `from_users` does."""
    known = {row.message for row in _KNOWN.all(connection, keys)}
    return [row for row in from_users(connection, keys) if row.key not in known]


def from_users(connection: Connection, keys: Sequence[int]) -> list[Any]:
    """Return those of some messages that a user said: their key, id, text and time, and whose they are.

    Hidden messages, replaced versions and sessions without a user are left out.
    """
    return [
        row
        for row in _FROM_USERS.all(connection, keys)
        if Scope.of_user(row.user_id, tenant_id=row.tenant_id).session_id is None
    ]


def add(
    connection: Connection,
    owner: Scope,
    candidate: Candidate,
    now: datetime,
    message: Any = None,
    ordinal: int | None = None,
) -> tuple[int, bytes] | None:
    """Enter a statement. Returns its number and its topic; None if it is entered already, or in quarantine.

    Args:
        connection: In a transaction that writes. The owner's records are locked.
        owner: Whose records they are, with the agent.
        candidate: The statement.
        now: The present.
        message: The row of the message that says it; None: the application does.
        ordinal: Number of the record that it made, if that exists.
    """
    topic = None
    if candidate.quarantine is None:
        topic = topic_of(owner.namespace, owner.agent_id, candidate.subject, candidate.key)
    place = candidate.evidence[0] if message is not None else None
    named = [
        owner.namespace if message is None else bytes(message.id_digest).hex(),
        str(to_micros(now)) if message is None else None,
        None if place is None else [place.start, place.end],
        [candidate.subject, candidate.key, candidate.value, candidate.ends],
    ]
    row = {
        "namespace": owner.namespace,
        "agent_id": owner.agent_id,
        "topic": topic,
        "digest": digest_of(named),
        "message": None if message is None else message.key,
        "start": None if place is None else place.start,
        "until": None if place is None else place.end,
        "said_at": to_micros(candidate.said_at),
        "body": json_text(_body(candidate) | _redacted_quote(place, message)),
        "outcome": "stored" if topic is not None else QUARANTINED,
        "reason": candidate.quarantine or "",
        "ordinal": ordinal,
        "at": to_micros(now),
    }
    number = insert_row(connection, row)
    return None if number is None or topic is None else (number, topic)


def message_keys(connection: Connection, namespace: str, ordinals: Collection[int]) -> dict[int, list[int]]:
    """Return the keys of the messages that records were learned from, by the records' numbers."""
    found: dict[int, list[int]] = {}
    for some in chunks(sorted(ordinals)):
        these = ledger.c.namespace == namespace, ledger.c.ordinal.in_(some), ledger.c.message.is_not(None)
        for row in connection.execute(select(ledger.c.ordinal, ledger.c.message).where(*these)):
            found.setdefault(row.ordinal, []).append(row.message)
    return found


def forgotten(connection: Connection, keys: Sequence[int]) -> set[int]:
    """Return those of some messages of which somebody deleted a record."""
    gone = ledger.c.outcome == FORGOTTEN
    return {
        key
        for some in chunks(keys)
        for key in connection.scalars(select(ledger.c.message).where(ledger.c.message.in_(some), gone))
    }


def of_messages(connection: Connection, keys: Sequence[int]) -> list[Any]:
    """Return the statements that were read in some messages and are no notes."""
    return [
        row
        for some in chunks(keys)
        for row in connection.execute(
            _ROWS.where(ledger.c.message.in_(some), ledger.c.outcome.not_in([*FACTLESS, FORGOTTEN]))
        )
    ]


def of_topic(connection: Connection, topic: bytes) -> list[Any]:
    """Return the statements about a topic in the order in which they were said."""
    order = (ledger.c.said_at, func.coalesce(ledger.c.message, 2**62), ledger.c.start, ledger.c.number)
    return list(connection.execute(_ROWS.where(ledger.c.topic == topic).order_by(*order)))


def of_records(connection: Connection, namespace: str, ordinals: Collection[int]) -> list[Any]:
    """Return the statements that made, confirmed and ended a user's records."""
    these = and_(ledger.c.namespace == namespace, ledger.c.ordinal.in_(ordinals), ledger.c.outcome != DELETED)
    return list(connection.execute(_ROWS.where(these).order_by(ledger.c.said_at, ledger.c.number)))


def quotes(
    connection: Connection, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[Evidence, ...]]:
    """Return the words that records were learned from, by their namespace and number.

    Records that the application had a hand in are left out.
    """
    found: dict[tuple[str, int], list[Evidence | None]] = {}
    for namespace in sorted({namespace for namespace, _ in places}):
        ordinals = [ordinal for one, ordinal in places if one == namespace]
        for row in of_records(connection, namespace, ordinals):
            found.setdefault((namespace, row.ordinal), []).append(evidence_of(row))
    return {
        place: tuple(quote for quote in said if quote is not None)
        for place, said in found.items()
        if None not in said
    }


def _whose(reach: Scope) -> Any:
    """Return the condition that statements are a user's; with an agent, only those of this agent."""
    whose = ledger.c.namespace == reach.namespace
    return whose if reach.agent_id is None else and_(whose, ledger.c.agent_id == reach.agent_id)


def quarantined(connection: Connection, reach: Scope) -> list[Any]:
    """Return a user's statements that seem to instruct a model, the first one first."""
    these = _ROWS.where(_whose(reach), ledger.c.outcome == QUARANTINED)
    return list(connection.execute(these.order_by(ledger.c.number)))


def newest(connection: Connection, reach: Scope, limit: int, offset: int) -> list[Any]:
    """Return a page of a user's statements, the last one first; with an agent, only of this agent."""
    page = _ROWS.where(_whose(reach)).order_by(ledger.c.number.desc()).limit(limit).offset(offset)
    return list(connection.execute(page))


def take_back(connection: Connection, numbers: Iterable[int]) -> None:
    """Delete statements whose words are not there any more."""
    for some in chunks(sorted(numbers)):
        connection.execute(delete(ledger).where(ledger.c.number.in_(some)))


def release(connection: Connection, namespace: str, ordinals: Collection[int]) -> None:
    """Let statements make no record any more, and delete what they say. Their words are not learned again."""
    for some in chunks(sorted(ordinals)):
        these = and_(ledger.c.namespace == namespace, ledger.c.ordinal.in_(some))
        connection.execute(delete(ledger).where(these, ledger.c.message.is_(None)))
        gone = {
            "topic": None,
            "ordinal": None,
            "against": None,
            "start": None,
            "until": None,
            "body": "{}",
            "outcome": FORGOTTEN,
            "reason": "",
        }
        connection.execute(update(ledger).where(these).values(gone))


def forget_owner(connection: Connection, reach: Scope) -> None:
    """Delete all statements of a user, or of a user with one agent."""
    connection.execute(delete(ledger).where(_whose(reach)))


def candidate_of(row: Any) -> Candidate:
    """Return the statement of a row, with the words of its message."""
    body = json.loads(row.body)
    body.pop("quote", None)
    times: Any = {name: from_micros(body.pop(name)) for name in _TIMES if name in body}
    quoted = evidence_of(row)
    return Candidate(
        **body, **times, said_at=from_micros(row.said_at), evidence=() if quoted is None else (quoted,)
    )


def evidence_of(row: Any) -> Evidence | None:
    """Return the words that a statement rests on; None if the application made it."""
    if row.id is None or row.start is None:
        return None
    redacted = json.loads(row.body).get("quote") if '"quote"' in row.body else None
    return Evidence(row.id, row.start, row.until, row.quote if redacted is None else redacted, row.role)


def insert_row(connection: Connection, row: dict[str, Any]) -> int | None:
    """Enter a row. Returns its number; None if it is entered already."""
    made = (
        dialect_insert(connection.dialect.name, ledger)
        .values(row)
        .on_conflict_do_nothing()
        .returning(ledger.c.number)
    )
    number: int | None = connection.scalar(made)
    return number


def _redacted_quote(place: Evidence | None, message: Any) -> dict[str, str]:
    """Return the quote if it is not what the message says there: parts of it are redacted."""
    if place is None or place.quote == message.text[place.start : place.end]:
        return {}
    return {"quote": place.quote}


def _body(candidate: Candidate) -> dict[str, Any]:
    said = {name: getattr(candidate, name) for name in _BODY}
    times = {name: getattr(candidate, name) for name in _TIMES}
    said |= {name: to_micros(moment) for name, moment in times.items() if moment is not None}
    return {name: value for name, value in said.items() if value is not None and value is not False}


def digest_of(parts: Any) -> bytes:
    """Return 16 bytes, equal for equal entries."""
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).digest()
