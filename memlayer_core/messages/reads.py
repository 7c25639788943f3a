"""Reads sessions and messages in SQL. Each function runs in its caller's transaction."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from memlayer_core.codec import json_text
from memlayer_core.errors import InvalidScopeError
from memlayer_core.message import SYSTEM_ROLES, Entry, Message, Raw, StoredMessage, ToolCall, is_task
from memlayer_core.messages.align import in_force, is_instruction
from memlayer_core.messages.check import fields_of
from memlayer_core.messages.model import STEP, Batch, PreparedMessage, Session, Stage, User
from memlayer_core.messages.preview import unpack
from memlayer_core.scope import Scope
from memlayer_core.storage import statements, texts
from memlayer_core.storage.statements import EVERY, LAST, TEXTS, WITHIN, ListStatement, Statement, is_item
from memlayer_core.storage.tables import IN_FORCE, IN_FORCE_BY_KEY, messages, namespaces, records, sessions
from memlayer_core.storage.terms import index_terms, searchable

# How a message becomes a row, and a row a message.


def columns_of(session: int, draft: PreparedMessage) -> dict[str, Any]:
    """Return the columns for a message's content, without its key and its position."""
    message = draft.message
    assert message.id is not None  # a draft is complete
    assert message.created_at is not None
    text = searchable(message.text)
    return {
        "id": message.id,
        "id_digest": statements.id_digest(session, message.id),
        "digest": draft.digest,
        "role": "system" if message.role in SYSTEM_ROLES else message.role,
        "name": message.name,
        "text": text,
        "tokens": draft.tokens,
        "characters": len(unpack(message).text),
        "counter": draft.counter,
        "links": _links(message),
        "created_at": statements.to_micros(message.created_at),
        "utc_offset": statements.offset_of(message.created_at),
        "body": _body(message, text),
    }


def stored_of(row: Any, scope: Scope) -> StoredMessage:
    """Return the message of a row, equal to what went in."""
    body: Mapping[str, Any] = json.loads(row.body) if row.body else {}
    content = body.get("content", row.text)
    raw = body.get("raw")
    message = Message(
        body.get("role", row.role),
        content if isinstance(content, str) else tuple(content),
        id=row.id,
        name=row.name,
        tool_calls=tuple(ToolCall(*call) for call in body.get("tool_calls", ())),
        tool_call_id=body.get("tool_call_id"),
        created_at=statements.from_micros(row.created_at, row.utc_offset),
        metadata=body.get("metadata", {}),
        model_visible=body.get("model_visible", True),
        raw=Raw(*raw) if raw else None,
    )
    return StoredMessage(row.key, scope, message, row.tokens, row.counter, bytes(row.digest), row.position)


def _links(message: Message) -> str | None:
    """Return what distinguishes a message from a question: it is hidden from prompts, is a result, or belongs to a task."""
    links = {"hidden": not message.is_told, "answers": message.turn_role == "tool", "task": is_task(message)}
    said = {name: True for name, is_so in links.items() if is_so}
    return json_text(said) if said else None


def _body(message: Message, text: str) -> str | None:
    """Return the fields that have no column; most plain messages have none of them."""
    body = {name: value for name, value in fields_of(message).items() if name != "name"}
    if message.role != "developer":
        del body["role"]
    if message.content == text:
        del body["content"]
    return json_text(body) if body else None


texts.register(
    "message",
    texts.TextSource(
        sa.select(
            *(messages.c[name] for name in ("key", "text", "role", "name", "created_at", "utc_offset"))
        ),
        lambda row: row.text,
        lambda row, redact: index_terms(
            redact(row.text[: texts.INDEXED]),
            row.name,
            statements.from_micros(row.created_at, row.utc_offset),
        ),
        lambda row: row.role[0] + (row.name or ""),
    ),
)


# The rows of sessions and of their users in SQL: locked, created and read. Each runs in its caller's transaction.


def later(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column's time, or that of the parameter `at` if this is later."""
    return sa.case((column > sa.bindparam("at"), column), else_=sa.bindparam("at"))


def span_of(drafts: Sequence[PreparedMessage], now: datetime) -> tuple[datetime, datetime]:
    """Return when the first and the last of some messages was said; without any, and in the future, that is now."""
    times = [min(draft.message.created_at or now, now) for draft in drafts]
    return min(times, default=now), max(times, default=now)


_LOCK = Statement(sa.select(sessions).where(sessions.c.bucket == sa.bindparam("bucket")).with_for_update())
TOTALS = {
    "next_position": sessions.c.next_position + sa.bindparam("further"),
    "messages": sessions.c.messages + sa.bindparam("more"),
    "tokens": sessions.c.tokens + sa.bindparam("cost"),
    "updated_at": later(sessions.c.updated_at),
}
"""What follows from messages that a session gets or loses."""
_count = (
    sa.update(sessions)
    .where(sessions.c.bucket == sa.bindparam("of"))
    .values(**TOTALS, idle_since=later(sessions.c.idle_since))
    .returning(sessions)
)
_COUNT = {
    "sqlite": Statement(_count),
    "postgresql": Statement(_count.returning(statements.KEYS_OF_MORE.label("keys"))),  # in one round trip
}
HAS_ID = messages.c.id_digest.in_(sa.select(sa.func.decode(TEXTS.c.value, "hex")))
"""The condition that messages have one of the ids whose digests are given, in hexadecimal digits. A digest is of one session."""
_NAMED = ListStatement(sa.select(messages).where(HAS_ID, IN_FORCE))


def lock_session(connection: sa.Connection, scope: Scope) -> Any | None:
    """Lock the session until the transaction ends. Returns its row; None if there is no such session."""
    return _LOCK.first(connection, {"bucket": scope.session_bucket})


_LOCKED = statements.rows_by(
    sa.select(*(messages.c[name] for name in ("key", "position", "role", "tokens"))).with_for_update(),
    messages.c.key,
)


def lock_messages(connection: sa.Connection, keys: Iterable[int]) -> dict[int, Any]:
    """Lock messages that will be deleted, edited or learned from, before users and records (see `facts/writes.py`).

    They are locked in the order of their keys, as everywhere, so that there is no deadlock. Returns what they say.
    """
    return {row.key: row for row in _LOCKED.all(connection, sorted(keys))}


def lock_and_count(connection: sa.Connection, batch: Batch) -> tuple[Any, Sequence[int]] | None:
    """Lock the session until the transaction ends, and count messages that will be added to its end.

    Returns its row, with the position of the first of them as `next_position`, and their keys; None if there is no such session.
    """
    count = len(batch.drafts)
    values = {
        "of": batch.scope.session_bucket,
        "more": count,
        "further": STEP * count,
        "cost": sum(draft.tokens for draft in batch.drafts),
        "at": statements.to_micros(span_of(batch.drafts, batch.now)[1]),
    }
    row = _COUNT[connection.dialect.name].first(connection, values)
    if row is None:
        return None
    keys = getattr(row, "keys", None) or statements.take_keys(connection, count)
    return row._replace(next_position=row.next_position - STEP * count), keys


def lock_or_make_session(connection: sa.Connection, scope: Scope, now: datetime, **more: Any) -> Any:
    """Lock the session until the transaction ends, and create it, with `more` columns, if needed. Returns its row."""
    row = lock_session(connection, scope)
    if row is not None:
        return row
    texts.hold_owner(connection, scope)
    _make_session(connection, scope, now, **more)
    return lock_session(connection, scope)


def make_fork(connection: sa.Connection, row: Any, scope: Scope, now: datetime) -> int:
    """Create another session of the same user. Returns its number.

    The user's row exists while the first session is locked, so it is not touched here. Only sessions without a user
    have a row each.
    """
    if scope.namespace != row.namespace:
        texts.hold_owner(connection, scope)
    number = _make_session(connection, scope, now, forked_from=row.session_id)
    if number is None:
        raise InvalidScopeError(
            f"the session {scope.session_id!r} exists already",
            hint="Fork into a new `session_id`, or leave it out.",
        )
    return number


def inside(number: Any) -> Any:
    """Return the condition on `messages` for a session's messages, without versions."""
    return sa.and_(messages.c.session == number, IN_FORCE)


def ever_inside(number: Any) -> Any:
    """Return the condition on `messages` for a session's messages and their versions. No index has both: each is asked for."""
    return sa.or_(inside(number), sa.and_(messages.c.session == number, ~IN_FORCE))


def within(scope: Scope, part: Stage | None = None) -> sa.ColumnElement[bool]:
    """Return the condition on `messages` for the messages of a scope's session, or of a part of it."""
    number, start = (
        sa.select(column).where(sessions.c.bucket == scope.session_bucket).scalar_subquery()
        for column in (sessions.c.number, sessions.c.memory_start)
    )
    border = {"active": messages.c.position >= start, "archived": messages.c.position < start}
    return sa.and_(inside(number), border.get(part or "", sa.true()))


def newest_digests(connection: sa.Connection, scope: Scope, limit: int) -> Counter[bytes]:
    """Return how often the newest messages of a session have each digest."""
    newest = sa.select(messages.c.digest).where(within(scope)).order_by(messages.c.position.desc())
    return Counter(map(bytes, connection.scalars(newest.limit(limit))))


def list_where(
    connection: sa.Connection, scope: Scope, *where: Any, limit: int | None = None, offset: int = 0
) -> list[StoredMessage]:
    """Return the messages of a session for which conditions hold, in their order, or a page of them."""
    query = sa.select(messages).where(*where).order_by(messages.c.position)
    if limit is not None or offset:
        query = query.limit(EVERY if limit is None else limit).offset(offset)
    return [stored_of(row, scope) for row in connection.execute(query)]


def list_keys(connection: sa.Connection, scope: Scope, keys: Sequence[int]) -> list[StoredMessage]:
    """Return those messages of a session that have some keys, in their order."""
    return list_where(connection, scope, within(scope), messages.c.key.in_(keys))


def list_by_id(
    connection: sa.Connection, scope: Scope, number: int, ids: Sequence[str]
) -> list[StoredMessage]:
    """Return the messages of a session that have one of the ids, in their order."""
    rows = _NAMED.all(connection, [statements.id_digest(number, one).hex() for one in ids])
    return sorted((stored_of(row, scope) for row in rows), key=lambda one: one.position)


def _make_session(connection: sa.Connection, scope: Scope, now: datetime, **more: Any) -> int | None:
    """Create a session's row, with `more` columns. Returns its number; None if the session exists already."""
    number: int | None = connection.scalar(
        statements.dialect_insert(connection.dialect.name, sessions)
        .on_conflict_do_nothing()
        .returning(sessions.c.number),
        {
            "bucket": scope.session_bucket,
            "namespace": scope.namespace,
            **asdict(scope),
            "next_position": STEP,
            **dict.fromkeys(("messages", "tokens", "memory_start"), 0),
            **dict.fromkeys(("created_at", "updated_at", "idle_since"), statements.to_micros(now)),
            **more,
        },
    )
    return number


# Reads sessions and messages in SQL. Each function runs in its caller's transaction.

T = TypeVar("T")
_TOGETHER = 10  # system messages that may be in force together
_OPENING = 200  # characters that a label is made of

_FIND = Statement(sa.select(sessions).where(sessions.c.bucket == sa.bindparam("bucket")))
_SPAN = sa.and_(
    inside(sa.bindparam("of")), messages.c.position.between(sa.bindparam("first"), sa.bindparam("last"))
)
_newest_first = messages.c.position.desc()
_LAST = Statement(sa.select(messages).where(_SPAN).order_by(_newest_first).limit(sa.bindparam("most")))
_last = messages.alias("last_one")
_its_session, _its_position = (
    sa.select(column)
    .where(_last.c.key == sa.bindparam("key"), _last.c.replaced_at.is_(None))
    .scalar_subquery()
    for column in (_last.c.session, _last.c.position)
)
_UP_TO = Statement(
    sa.select(messages)
    .where(inside(_its_session), messages.c.position <= _its_position)
    .order_by(_newest_first)
    .limit(sa.bindparam("most"))
)
_QUESTION = Statement(
    sa.select(messages)
    .where(
        _SPAN,
        messages.c.role == "user",
        # No result, and not hidden.
        sa.or_(messages.c.links.is_(None), messages.c.links == json_text({"task": True})),
    )
    .order_by(_newest_first)
    .limit(1)
)
_RECORDS = ListStatement(
    sa.select(messages, sessions.c.session_id, sessions.c.agent_id)
    .join(sessions, sessions.c.number == messages.c.session)
    # Hidden ones cost nothing.
    .where(is_item(messages.c.key), IN_FORCE_BY_KEY, messages.c.tokens > 0, WITHIN)
)
_said_first = (  # by a user, and to a model
    sa.select(sa.func.substr(messages.c.text, 1, _OPENING))
    .where(inside(sessions.c.number), messages.c.role == "user", messages.c.tokens > 0)
    .order_by(messages.c.position)
    .limit(1)
    .scalar_subquery()
)
_LISTED = Statement(
    sa.select(sessions, _said_first.label("opening"))
    .where(WITHIN)
    .order_by(sessions.c.updated_at.desc(), sessions.c.number.desc())
    .limit(sa.bindparam("most"))
    .offset(sa.bindparam("behind"))
)


def find(connection: sa.Connection, scope: Scope) -> Session | None:
    """Return the session of a scope; None if there is none."""
    row = _FIND.first(connection, {"bucket": scope.session_bucket})
    return session_from(row) if row is not None else None


def find_by_number(connection: sa.Connection, number: int) -> Session | None:
    """Return the session of this number; None if there is none."""
    row = connection.execute(sa.select(sessions).where(sessions.c.number == number)).first()
    return session_from(row) if row is not None else None


def positions(connection: sa.Connection, session: Session, ids: Sequence[str]) -> dict[str, int]:
    """Return the positions of a session's messages by their ids. Ids that it does not have are left out."""
    found = list_by_id(connection, session.scope, session.number, ids)
    return {one.message.id or "": one.position for one in found}


def list_sessions(connection: sa.Connection, reach: Scope, limit: int | None, offset: int) -> list[Session]:
    """Return the sessions in a scope, the last used first."""
    page = {"most": EVERY if limit is None else limit, "behind": offset}
    rows = _LISTED.all(connection, {**statements.reach_parameters(reach), **page})
    return [session_from(row) for row in rows]


def of_tenant(tenant_id: str, user_id: str | None) -> Any:
    """Return the condition on `sessions` for those of a tenant, or of one user."""
    if user_id is None:
        return sessions.c.tenant_id == tenant_id
    return sessions.c.namespace == Scope(user_id, tenant_id=tenant_id).namespace


def inventory(
    connection: sa.Connection, tenant_id: str, user_id: str | None, after: int, limit: int
) -> list[Session]:
    """Return a page of sessions of a tenant, or of one user, in the order of their numbers.

    No write changes this order, so no session is missed or returned twice.
    """
    these = sessions.c.number > after, of_tenant(tenant_id, user_id)
    query = sa.select(sessions).where(*these).order_by(sessions.c.number).limit(limit)
    return [session_from(row) for row in connection.execute(query)]


def tail_messages(
    connection: sa.Connection, session: Session, before: int | None, limit: int, first: int = 0
) -> list[tuple[Entry, StoredMessage]]:
    """Return a session's last messages from position `first` on, those in front of `before`, the newest first."""
    last = LAST if before is None else before - 1
    span = {"of": session.number, "first": first, "last": last, "most": limit}
    return [
        (_kept_row if row.body is None and row.characters <= _SHORT else _entry_and_message)(
            row, session.scope
        )
        for row in _LAST.all(connection, span)
    ]


def _entry_and_message(row: Any, scope: Scope) -> tuple[Entry, StoredMessage]:
    one = stored_of(row, scope)
    return Entry.of(one.position, one.message, one.tokens, one.counter, row.characters), one


_SHORT = 2000  # characters of a message that is text alone: a turn has most of the turn before again
_kept_row = lru_cache(maxsize=4096)(_entry_and_message)


def count_between(connection: sa.Connection, session: Session, first: int, end: int) -> int:
    """Return how many messages a session has from a position on, in front of another one."""
    span = inside(session.number), messages.c.position >= first, messages.c.position < end
    return connection.scalar(sa.select(sa.func.count()).where(*span)) or 0


def up_to(connection: sa.Connection, key: int, limit: int) -> tuple[Session | None, Sequence[StoredMessage]]:
    """Return the session of a message, and that message with those in front of it, the newest first; None if it is gone."""
    rows = _UP_TO.all(connection, {"key": key, "most": limit})
    session = find_by_number(connection, rows[0].session) if rows else None
    return session, [stored_of(row, session.scope) for row in rows if session is not None]


def last_question(connection: sa.Connection, session: Session) -> StoredMessage | None:
    """Return the user's last message in working memory that a model may see."""
    span = {"of": session.number, "first": session.memory_start, "last": LAST}
    row = _QUESTION.first(connection, span)
    return stored_of(row, session.scope) if row is not None else None


def instructions(connection: sa.Connection, scope: Scope, session: Any) -> tuple[list[StoredMessage], bool]:
    """Return the system messages in force, and whether nothing else was said yet in the session.

    Args:
        connection: In a transaction.
        scope: The session.
        session: Its row, or what was read of it.
    """
    if session is None or session.instructions is None:
        return [], False
    last = {"key": session.instructions, "most": _TOGETHER}
    page = [stored_of(row, scope) for row in _UP_TO.all(connection, last)][::-1]
    places = in_force([one.message for one in page], begins=len(page) < _TOGETHER)
    begins = session.messages == len(page) and all(is_instruction(one.message) for one in page)
    return [page[at] for at in places], begins


def history(
    connection: sa.Connection, session: Session, after: int, limit: int | None, offset: int = 0
) -> list[StoredMessage]:
    """Return a session's messages behind a position, without the first `offset` of them."""
    behind = inside(session.number), messages.c.position > after
    return list_where(connection, session.scope, *behind, limit=limit, offset=offset)


def versions(
    connection: sa.Connection, session: Session, after: int = 0, until: int = LAST
) -> list[StoredMessage]:
    """Return a session's versions, in order: each has the position of the message in front of which it stands.

    Args:
        connection: In a transaction.
        session: The session.
        after: Only versions behind this position.
        until: And up to this one.
    """
    at = messages.c.position
    former = messages.c.session == session.number, ~IN_FORCE, at > after, at <= until
    in_order = at, messages.c.created_at, messages.c.replaced_at, messages.c.key
    rows = connection.execute(sa.select(messages).where(*former).order_by(*in_order))
    return [_version_of(row, session.scope) for row in rows]


def count_all(connection: sa.Connection, tenant_id: str, user_id: str | None) -> int:
    """Return how many messages and versions a tenant has, or one user."""
    whose = of_tenant(tenant_id, user_id)
    now = sa.select(sa.func.coalesce(sa.func.sum(sessions.c.messages), 0)).where(whose)
    former = sa.and_(messages.c.session == sessions.c.number, ~IN_FORCE)
    before = sa.select(sa.func.count()).select_from(sessions).join(messages, former).where(whose)
    return int(connection.scalar(now) or 0) + (connection.scalar(before) or 0)


def _version_of(row: Any, scope: Scope) -> StoredMessage:
    stored = stored_of(row, scope)
    left = statements.from_micros(row.replaced_at)
    return replace(stored, message=replace(stored.message, withdrawn_at=left))


def find_messages(connection: sa.Connection, reach: Scope, keys: Sequence[int]) -> list[StoredMessage]:
    """Return the messages of these keys that are in a scope. This decides who may see which message."""
    rows = _RECORDS.all(connection, keys, statements.reach_parameters(reach))
    talks = {(row.session_id, row.agent_id) for row in rows}
    scopes = {whose: Scope(reach.user_id, *whose, reach.tenant_id) for whose in talks}
    return [stored_of(row, scopes[row.session_id, row.agent_id]) for row in rows]


_AS_STORED = (
    *("number", "messages", "tokens", "title", "instructions", "memory_start", "forked_from"),
    *("summary_version", "summary_due", "summary_tries", "next_position"),
)
"""Fields of a session that are columns, too."""


def session_from(row: Any) -> Session:
    """Return the session of a row."""
    return Session(
        scope=Scope(row.user_id, row.session_id, row.agent_id, row.tenant_id),
        created_at=statements.from_micros(row.created_at),
        updated_at=statements.from_micros(row.updated_at),
        ended=row.idle_since is None,
        opening=getattr(row, "opening", None),
        windows={int(size): start for size, start in json.loads(row.windows or "{}").items()},
        **{name: getattr(row, name) for name in _AS_STORED},
    )


# Lists the users of a store in SQL. Each function runs in its caller's transaction.


def list_users(connection: sa.Connection, text: str, limit: int | None, offset: int = 0) -> list[User]:
    """Return users and sessions without a user, of all tenants, the last used first.

    Args:
        connection: In a transaction.
        text: Only users with these characters in their id or their tenant's, in any case; empty: all.
        limit: Maximum number of them.
        offset: How many to skip.
    """
    of_user = sessions.c.namespace == namespaces.c.namespace
    used = sa.select(sa.func.max(sessions.c.updated_at)).where(of_user).scalar_subquery()
    ids = namespaces.c["tenant_id", "user_id"]
    query = sa.select(namespaces.c.namespace, *ids, used.label("used")).where(namespaces.c.user_id != "")
    if text:
        query = query.where(sa.or_(*(one.icontains(text, autoescape=True) for one in ids)))
    # Of the page alone, the rest is counted.
    page = query.order_by(used.desc().nulls_last(), namespaces.c.namespace).limit(limit).offset(offset)
    some = page.subquery()

    def count(name: str, what: Any, table: Any, *where: Any) -> Any:
        counted = sa.select(what).where(table.c.namespace == some.c.namespace, *where)
        return counted.scalar_subquery().label(name)

    said = sa.func.coalesce(sa.func.sum(sessions.c.messages), 0)
    counts = (
        count("sessions", sa.func.count(), sessions),
        count("messages", said, sessions),
        count("records", sa.func.count(), records, records.c.replaced_by.is_(None)),
    )
    in_order = some.c.used.desc().nulls_last(), some.c.namespace
    users: list[User] = []
    for row in connection.execute(sa.select(some, *counts).order_by(*in_order)):
        at = None if row.used is None else statements.from_micros(row.used)
        users.append(User(row.user_id, row.tenant_id, row.sessions, int(row.messages), row.records, at))
    return users


# Where the windows of a session begin, in SQL. Each function runs in its caller's transaction.


def move_window_start(connection: sa.Connection, row: Any, size: int, start: int) -> None:
    """Store where a window of a session begins.

    A start only moves forward, and only to a message that exists. The row of the session is locked.
    """
    known = session_from(row).windows
    there = inside(row.number), messages.c.position == start
    if start > known.get(size, 0) and connection.scalar(sa.select(sa.exists().where(*there))):
        windows = json.dumps({**known, size: start})
        connection.execute(sa.update(sessions).where(sessions.c.number == row.number).values(windows=windows))
