"""Reads sessions and messages in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Float, and_, bindparam, cast, func, select, true

from memlayer_core.message import Entry, StoredMessage, Version
from memlayer_core.messages.model import Session
from memlayer_core.messages.sql.rows import entry_of, stored_of
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import (
    LAST,
    WITHIN,
    from_micros,
    id_digest,
    key_of,
    reach_parameters,
    session_of,
)
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import PLACES, messages, sessions, window_starts

__all__ = [
    "ask",
    "ask_page",
    "asked_page",
    "count_before",
    "find",
    "find_by_number",
    "find_messages",
    "history",
    "inventory",
    "last_question",
    "list_sessions",
    "places",
    "read",
    "session_from",
    "tail",
    "tail_messages",
    "versions",
]

T = TypeVar("T")
_OPENING = 200  # characters that a label is made of

_FIND = Statement(select(sessions).where(sessions.c.lane == bindparam("lane")))
_ENTRY = select(
    messages.c.key,
    messages.c.role,
    messages.c.tokens,
    messages.c.counter,
    messages.c.characters,
    messages.c.links,
).where(messages.c.key.between(bindparam("first"), bindparam("last")))
_NAMED = ListStatement(
    lambda digests: select(messages.c.id, messages.c.key).where(messages.c.id_digest.in_(digests))
)
_TAIL = Statement(_ENTRY.order_by(messages.c.key.desc()).limit(bindparam("most")))
_whole = (
    select(messages)
    .where(messages.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(messages.c.key)
)
_FULL = Statement(_whole)
_LAST = Statement(
    select(messages)
    .where(messages.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(messages.c.key.desc())
    .limit(bindparam("most"))
)
_page = (
    select(
        (
            sessions.c.number * PLACES
            + func.greatest(func.coalesce(window_starts.c.first_seq, 0), sessions.c.memory_start)
        ).label("first"),
        (sessions.c.number * PLACES + LAST).label("last"),
        func.least(
            bindparam("most", type_=BigInteger),
            8
            + cast(
                bindparam("budget", type_=Float)
                / func.greatest(1.0, cast(sessions.c.tokens, Float) / func.greatest(1, sessions.c.messages)),
                BigInteger,
            ),
        ).label("size"),
    )
    .outerjoin(
        window_starts,
        and_(window_starts.c.session == sessions.c.number, window_starts.c.size == bindparam("window")),
    )
    .where(sessions.c.lane == bindparam("lane"))
    .subquery()
)
_newest = (
    select(messages)
    .where(messages.c.key.between(_page.c.first, _page.c.last))
    .order_by(messages.c.key.desc())
    .limit(func.greatest(16, _page.c.size) + 2)  # a little more than is needed
    .lateral()
)
_PAGE = Statement(select(_newest).select_from(_page.join(_newest, true())).order_by(_newest.c.key.desc()))
_QUESTION = Statement(
    select(messages)
    .where(
        messages.c.key.between(bindparam("first"), bindparam("last")),
        messages.c.role == "user",
        messages.c.links.is_(None),  # hidden ones have some
    )
    .order_by(messages.c.key.desc())
    .limit(1)
)
_SOME = Statement(_whole.limit(bindparam("most")).offset(bindparam("past")))
_RECORDS = ListStatement(
    lambda keys: (
        select(messages, sessions.c.session_id, sessions.c.agent_id)
        .join(sessions, sessions.c.number == session_of(messages.c.key))
        .where(messages.c.key.in_(keys), messages.c.tokens > 0, WITHIN)  # hidden ones cost nothing
    )
)
_said_first = (  # by a user, and to a model
    select(func.substr(messages.c.text, 1, _OPENING))
    .where(
        messages.c.key.between(sessions.c.number * 2**32, sessions.c.number * 2**32 + LAST),
        messages.c.role == "user",
        messages.c.tokens > 0,
    )
    .order_by(messages.c.key)
    .limit(1)
    .scalar_subquery()
)
_LISTED = Statement(
    select(sessions, _said_first.label("opening"))
    .where(WITHIN, sessions.c.superseded <= bindparam("superseded"))
    .order_by(sessions.c.updated_at.desc(), sessions.c.number.desc())
    .limit(bindparam("most"))
    .offset(bindparam("behind"))
)


def find(connection: Connection, scope: Scope) -> Session | None:
    """Return the session of a scope; None if there is none."""
    row = _FIND.first(connection, {"lane": scope.session_lane})
    return session_from(row) if row is not None else None


def find_by_number(connection: Connection, number: int) -> Session | None:
    """Return the session of this number; None if there is none."""
    row = connection.execute(select(sessions).where(sessions.c.number == number)).first()
    return session_from(row) if row is not None else None


def places(connection: Connection, session: Session, ids: Sequence[str]) -> dict[str, int]:
    """Return the places of a session's messages by their ids. Ids that it does not have are left out."""
    rows = _NAMED.tuples(connection, [id_digest(session.number, one) for one in ids])
    return {name: key & LAST for name, key in rows}


def keys_of(connection: Connection, scope: Scope, ids: Sequence[str]) -> list[int]:
    """Return the keys of a session's messages by their ids, in the order of the session."""
    session = find(connection, scope)
    if session is None:
        return []
    return sorted(key_of(session.number, place) for place in places(connection, session, ids).values())


def list_sessions(
    connection: Connection, reach: Scope, limit: int, offset: int, *, superseded: bool = False
) -> list[Session]:
    """Return the sessions in a scope, the last used first; superseded ones only with `superseded=True`."""
    values = {**reach_parameters(reach), "most": limit, "behind": offset, "superseded": int(superseded)}
    rows = _LISTED.all(connection, values)
    return [session_from(row) for row in rows]


def inventory(
    connection: Connection, tenant_id: str, user_id: str | None, after: int, limit: int
) -> list[Session]:
    """Return a page of sessions of a tenant, or of one user, in the order of their numbers.

    No write changes this order, so no session is missed or returned twice.
    """
    whose = sessions.c.tenant_id == tenant_id
    if user_id is not None:
        whose = and_(whose, sessions.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace)
    query = select(sessions).where(sessions.c.number > after, whose).order_by(sessions.c.number).limit(limit)
    return [session_from(row) for row in connection.execute(query)]


def tail(
    connection: Connection, session: Session, before: int | None, limit: int, first: int = 0
) -> list[Entry]:
    """Return a session's last entries from place `first` on, the newest first."""
    last = key_of(session.number, LAST) if before is None else key_of(session.number, before) - 1
    rows = _TAIL.all(connection, {"first": key_of(session.number, first), "last": last, "most": limit})
    return [entry_of(row) for row in rows]


def tail_messages(
    connection: Connection, session: Session, before: int | None, limit: int, first: int = 0
) -> list[tuple[Entry, StoredMessage]]:
    """Return the same with the messages."""
    last = key_of(session.number, LAST) if before is None else key_of(session.number, before) - 1
    rows = _LAST.all(connection, {"first": key_of(session.number, first), "last": last, "most": limit})
    return [(entry_of(row), stored_of(row, session.scope)) for row in rows]


def ask_page(connection: Connection, scope: Scope, window: int, limit: int, budget: float) -> None:
    """Send to a server ahead of need what `asked_page` returns, before the session is known."""
    _PAGE.ask(connection, _page_values(scope, window, limit, budget))


def asked_page(
    connection: Connection, session: Session, window: int, limit: int, budget: float
) -> list[tuple[Entry, StoredMessage]] | None:
    """Return the newest messages in the window of a session, if they were sent for; else None.

    Args:
        connection: On the snapshot on which they were sent for.
        session: The session.
        window: The size of the window: see `size_of`.
        limit: How many messages are enough.
        budget: Tokens that are enough.
    """
    rows = _PAGE.answer(connection, _page_values(session.scope, window, limit, budget))
    return None if rows is None else [(entry_of(row), stored_of(row, session.scope)) for row in rows]


def _page_values(scope: Scope, window: int, limit: int, budget: float) -> dict[str, Any]:
    return {"lane": scope.session_lane, "window": window, "most": limit, "budget": budget}


def last_question(connection: Connection, session: Session) -> tuple[Entry, StoredMessage] | None:
    """Return the user's last message in working memory that a model may see."""
    span = {"first": key_of(session.number, session.memory_start), "last": key_of(session.number, LAST)}
    row = _QUESTION.first(connection, span)
    return (entry_of(row), stored_of(row, session.scope)) if row is not None else None


def read(connection: Connection, session: Session, seqs: Sequence[int]) -> list[StoredMessage]:
    """Return those messages of a session, in their order."""
    found: list[StoredMessage] = []
    for first, last in _ranges([seq for seq in seqs if 0 <= seq <= LAST]):
        span = {"first": key_of(session.number, first), "last": key_of(session.number, last)}
        found.extend(stored_of(row, session.scope) for row in _FULL.all(connection, span))
    return found


def ask(connection: Connection, session: Session, seq: int) -> None:
    """Send to a server ahead of need what `read` reads of one place."""
    key = key_of(session.number, seq)
    _FULL.ask(connection, {"first": key, "last": key})


def history(
    connection: Connection, session: Session, after: int, limit: int | None, offset: int = 0
) -> list[StoredMessage]:
    """Return a session's messages behind a place, without the first `offset` of them."""
    span = {"first": key_of(session.number, after + 1), "last": key_of(session.number, LAST)}
    if limit is None and not offset:
        return [stored_of(row, session.scope) for row in _FULL.all(connection, span)]
    most = LAST if limit is None else limit
    rows = _SOME.all(connection, {**span, "most": most, "past": offset})
    return [stored_of(row, session.scope) for row in rows]


def versions(connection: Connection, session: Session) -> list[Version]:
    """Return the withdrawn and replaced messages of a session, in no particular order."""
    first = sessions.c.number * PLACES
    kept = (
        select(messages, sessions.c.created_at.label("left"))
        .join(sessions, messages.c.key.between(first, first + LAST))
        .where(sessions.c.origin == session.scope.session_lane)
    )
    return [
        Version(
            row.origin,
            row.key,
            replace(stored_of(row, session.scope).message, withdrawn_at=from_micros(row.left)),
        )
        for row in connection.execute(kept)
    ]


def find_messages(connection: Connection, reach: Scope, keys: Sequence[int]) -> list[StoredMessage]:
    """Return the messages of these keys that are in a scope. This decides who may see which message."""
    found: list[StoredMessage] = []
    scopes: dict[tuple[str, str | None], Scope] = {}
    for row in _RECORDS.all(connection, keys, reach_parameters(reach)):
        whose = (row.session_id, row.agent_id)
        if whose not in scopes:
            scopes[whose] = Scope(reach.user_id, *whose, reach.tenant_id)
        found.append(stored_of(row, scopes[whose]))
    return found


def count_before(connection: Connection, key: int) -> int:
    """Return how many messages of its session are in front of a message."""
    first = key_of(key >> 32, 0)
    query = select(func.count()).where(messages.c.key >= first, messages.c.key < key)
    return connection.scalar(query) or 0


def _ranges(seqs: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return ranges of consecutive places. A window is nearly always one range."""
    first = last = None
    for seq in sorted(seqs):
        if first is None or last is None:
            first = last = seq
        elif seq == last + 1:
            last = seq
        else:
            yield first, last
            first = last = seq
    if first is not None and last is not None:
        yield first, last


def session_from(row: Any) -> Session:
    """Return the session of a row."""
    return Session(
        scope=Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id),
        number=row.number,
        messages=row.messages,
        tokens=row.tokens,
        created_at=from_micros(row.created_at),
        updated_at=from_micros(row.updated_at),
        title=row.title,
        instructions=row.instructions,
        memory_start=row.memory_start,
        ended=row.idle_since is None,
        opening=getattr(row, "opening", None),
        forked_from=row.forked_from,
        superseded=bool(row.superseded),
        summary_version=row.summary_version,
        summary_due=row.summary_due,
        summary_tries=row.summary_tries,
        next_seq=row.next_seq,
    )
