"""Finds, for what was said, what contradicts it or was said in its place. It runs in its caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, select, union_all

from memlayer_core.scope import Scope
from memlayer_core.storage.statements import ListStatement
from memlayer_core.storage.tables import ledger, messages

__all__ = ["OtherSide", "other_sides"]

_one, _other = ledger.alias("one"), ledger.alias("other")
_said, _told = messages.alias("said"), messages.alias("told")


class OtherSide(NamedTuple):
    """What contradicts a message, or was said in its place.

    Attributes:
        key: Key of the message that says it.
        quote: The words of that message which do.
        against: The words that they contradict.
    """

    key: int
    quote: str
    against: str


def _quote(entry: Any, message: Any) -> Any:
    return func.substr(message.c.text, entry.c.start + 1, entry.c.until - entry.c.start)


def _opposed(keys: Sequence[Any], condition: Any) -> Any:
    return (
        select(
            _one.c.message.label("key"),
            _other.c.message.label("other"),
            _other.c.said_at,
            _quote(_other, _told).label("quote"),
            _quote(_one, _said).label("against"),
        )
        .join(_other, and_(_other.c.namespace == _one.c.namespace, condition))
        .join(_told, _told.c.key == _other.c.message)
        .join(_said, _said.c.key == _one.c.message)
        .where(
            _one.c.message.in_(keys),
            _one.c.namespace == bindparam("of"),
            _other.c.message.is_not(None),
            _other.c.message != _one.c.message,
        )
    )


_OTHER_SIDES = ListStatement(
    lambda keys: union_all(
        _opposed(keys, _other.c.ordinal == _one.c.against), _opposed(keys, _other.c.against == _one.c.ordinal)
    )
)


def other_sides(connection: Connection, reach: Scope, keys: Sequence[int]) -> dict[int, list[OtherSide]]:
    """Return, for those of a user's messages that contradict another one, or replace what it says, that one.

    The other way round, too. Of several, the one that was said last is the first. A message may come more than once, with
    other words.
    """
    rows = _OTHER_SIDES.all(connection, keys, {"of": reach.namespace}) if keys else []
    found: dict[int, list[OtherSide]] = {}
    for row in sorted(rows, key=lambda row: (row.said_at, row.other), reverse=True):
        if row.quote:
            found.setdefault(row.key, []).append(OtherSide(row.other, row.quote, row.against))
    return found
