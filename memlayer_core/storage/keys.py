"""Keys and times as the tables have them, and the conditions that keep a query within a scope."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, Integer, Text, and_, bindparam, cast, func, or_, select
from sqlalchemy.dialects import sqlite

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import meta, sessions

__all__ = [
    "AT_ONCE",
    "LAST",
    "WITHIN",
    "chunks",
    "from_micros",
    "id_digest",
    "key_of",
    "micros_of",
    "next_number",
    "reach_parameters",
    "retire",
    "session_of",
    "shard_of",
    "to_micros",
]

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_SESSION_BITS = 32

AT_ONCE = 500
"""Values in one IN (…), far below any database's limit."""

LAST = 0xFFFF_FFFF
"""The last place that a session can have."""

WITHIN = and_(
    sessions.c.namespace == bindparam("of"),
    or_(bindparam("agent", type_=Text).is_(None), sessions.c.agent_id == bindparam("agent")),
    or_(bindparam("lane", type_=Text).is_(None), sessions.c.lane == bindparam("lane")),
)
"""The condition on `sessions` that keeps a query within the reach that `reached` gives."""


def key_of(session: int, seq: int) -> int:
    """Return the key of a place in a session.

    Raises:
        ValueError: There is no such place: its key would name one in another session.
    """
    if seq >> _SESSION_BITS:
        raise ValueError(f"a session has no place {seq}")
    return (session << _SESSION_BITS) | seq


def session_of(key: Any) -> Any:
    """Return the session's number of a key, or of a column of keys."""
    return key // 2**_SESSION_BITS


def shard_of(namespace: str, shards: int) -> int:
    """Return the collection that a user belongs to, the same for all time."""
    return int(namespace[:8], 16) % shards


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970, exactly."""
    return (moment - _EPOCH) // _MICRO


def micros_of(span: timedelta) -> int:
    """Return how many microseconds a span has."""
    return span // _MICRO


def from_micros(micros: int) -> datetime:
    """Return the time of that many microseconds since 1970, in UTC."""
    return _EPOCH + micros * _MICRO


def id_digest(session: int, message_id: str) -> bytes:
    """Return 16 bytes that name an id in its session: ids may be longer than an index allows."""
    return hashlib.blake2b(f"{session}:{message_id}".encode(), digest_size=16).digest()


def reach_parameters(reach: Scope | SharedScope | Folder) -> dict[str, str | None]:
    """Return what the parameters of `WITHIN` are for that reach."""
    lane = reach.session_lane if reach.session_id is not None else None
    return {"of": reach.namespace, "agent": reach.agent_id, "lane": lane}


def chunks(keys: Sequence[T]) -> Iterable[Sequence[T]]:
    """Return the keys in pieces that fit into one IN (…)."""
    return (keys[place : place + AT_ONCE] for place in range(0, len(keys), AT_ONCE))


_RETIRED = "retired_session"
_HIGHEST = select(func.coalesce(func.max(sessions.c.number), 0)).scalar_subquery()
_DELETED = func.coalesce(
    select(cast(meta.c.value, Integer)).where(meta.c.name == _RETIRED).scalar_subquery(), 0
)
_NEXT = Statement(select((func.max(_HIGHEST, _DELETED) + 1).label("number")))
_NOTED = sqlite.insert(meta).values(name=_RETIRED, value=bindparam("value"))
_RETIRE = Statement(
    _NOTED.on_conflict_do_update(
        index_elements=["name"],
        set_={"value": _NOTED.excluded.value},
        where=cast(meta.c.value, Integer) < cast(_NOTED.excluded.value, Integer),
    )
)


def next_number(connection: Connection) -> dict[str, int]:
    """Return the number of a new session as a column; an empty dict if the database numbers sessions itself."""
    if connection.dialect.name != "sqlite":
        return {}
    row = _NEXT.first(connection, {})
    assert row is not None  # it is a sum
    return {"number": row.number}


def retire(connection: Connection, number: int) -> None:
    """Note that the session of this number is deleted."""
    if connection.dialect.name == "sqlite":
        _RETIRE.run(connection, {"value": str(number)})
