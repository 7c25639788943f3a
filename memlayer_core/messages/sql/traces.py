"""Traces of contexts in SQL: which pieces a model saw, without texts. Each function runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, delete, func, select, update

from memlayer_core.message import Message, StoredMessage, TraceDraft
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.messages.rules import traces as rules
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import (
    LAST,
    WITHIN,
    from_micros,
    key_of,
    reach_parameters,
    session_of,
    to_micros,
)
from memlayer_core.storage.statements import ListStatement, Statement, dialect_insert
from memlayer_core.storage.tables import messages, sessions, traces

__all__ = ["delete_all", "heads", "move", "newest", "with_number", "write"]

_OF = traces.c.session == bindparam("of")
_NUMBER = func.coalesce(func.max(traces.c.number), 0) + 1
_DELETE = Statement(delete(traces).where(_OF))
_ALL = Statement(select(traces).where(_OF))
_NEWEST = Statement(select(traces).where(_OF).order_by(traces.c.number.desc()).limit(bindparam("most")))
_ONE = Statement(select(traces).where(_OF, traces.c.number == bindparam("number")))
_HEADS = ListStatement(
    lambda keys: (
        select(*(messages.c[name] for name in ("key", "id", "digest", "role", "name", "created_at")))
        .join(sessions, sessions.c.number == session_of(messages.c.key))
        .where(messages.c.key.in_(keys), WITHIN)
    )
)


@lru_cache(4)
def _write(dialect: str) -> Statement:
    """Return the one statement that finds the next number, and puts a trace into its slot."""
    made = dialect_insert(dialect, traces)
    numbers = [bindparam(name, type_=BigInteger) for name in ("question", "answer", "created_at")]
    values = select(
        bindparam("of", type_=BigInteger),
        _NUMBER % bindparam("slots", type_=BigInteger),
        _NUMBER,
        *numbers,
        bindparam("body", type_=Text),
    ).where(_OF)
    return Statement(
        made.from_select([column.name for column in traces.c], values).on_conflict_do_update(
            index_elements=["session", "slot"],
            set_={name: made.excluded[name] for name in traces.c.keys()[2:]},
        )
    )


def write(
    connection: Connection,
    session: int,
    draft: TraceDraft,
    question: int,
    answer: int,
    fresh: Mapping[int, PreparedMessage],
) -> None:
    """Store the trace of a context, in the place of the oldest one if the session has as many as it may have.

    Args:
        connection: In a transaction that writes.
        session: Number of the session, which is locked.
        draft: The trace. If its session was deleted, and there is another one by now, nothing is stored.
        question: Key of the question, if it is stored with the answer; else 0.
        answer: Key of the answer.
        fresh: The messages that are stored with the answer, by their keys.
    """
    if draft.session not in {0, session}:
        return
    stored = ((key & LAST, one.digest, one.message.id or "") for key, one in fresh.items())
    values = {
        "of": session,
        "slots": draft.limit,
        "question": draft.question or question,
        "answer": answer,
        "created_at": to_micros(draft.created_at),
        "body": rules.complete(draft, stored),
    }
    _write(connection.dialect.name).run(connection, values)


def newest(connection: Connection, session: int, limit: int) -> list[Any]:
    """Return the rows of a session's traces, the newest first."""
    return _NEWEST.all(connection, {"of": session, "most": limit})


def with_number(connection: Connection, session: int, number: int) -> Any | None:
    """Return the row of a trace; None if the session has none of this number."""
    return _ONE.first(connection, {"of": session, "number": number})


def heads(connection: Connection, reach: Scope, keys: Sequence[int]) -> list[StoredMessage]:
    """Return those of the messages of these keys that are in a scope, without content."""
    return [
        StoredMessage(
            row.key,
            reach,
            Message(row.role, "", id=row.id, name=row.name, created_at=from_micros(row.created_at)),
            0,
            "",
            bytes(row.digest),
        )
        for row in _HEADS.all(connection, keys, reach_parameters(reach))
    ]


def move(connection: Connection, session: int, places: Mapping[int, int]) -> None:
    """Follow messages of a session to other places in it."""
    keys = {key_of(session, old): key_of(session, new) for old, new in places.items()}
    for row in _ALL.all(connection, {"of": session}):
        connection.execute(
            update(traces)
            .where(traces.c.session == session, traces.c.slot == row.slot)
            .values(
                question=keys.get(row.question, row.question),
                answer=keys.get(row.answer, row.answer),
                body=rules.move(row.body, places),
            )
        )


def delete_all(connection: Connection, session: int) -> None:
    """Delete the traces of a session."""
    _DELETE.run(connection, {"of": session})
