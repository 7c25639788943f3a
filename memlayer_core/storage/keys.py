"""Keys and times as the tables have them, and the conditions that keep a query within a scope."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Text, and_, bindparam, or_

from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.tables import sessions

__all__ = [
    "AT_ONCE",
    "LAST",
    "WITHIN",
    "chunks",
    "from_micros",
    "id_digest",
    "key_of",
    "reach_parameters",
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
