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


class OtherSide(NamedTuple):
    """What contradicts a message, or was said in its place.

    Attributes:
        key: Key of the message that says it.
        quote: The words of that message which do.
    """

    key: int
    quote: str


def _opposed(keys: Sequence[Any], condition: Any) -> Any:
    return (
        select(
            _one.c.message.label("key"),
            _other.c.message.label("other"),
            _other.c.said_at,
            func.substr(messages.c.text, _other.c.start + 1, _other.c.until - _other.c.start).label("quote"),
        )
        .join(_other, and_(_other.c.namespace == _one.c.namespace, condition))
        .join(messages, messages.c.key == _other.c.message)
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

    The other way round, too. Of several, the one that was said last is the first.
    """
    rows = _OTHER_SIDES.all(connection, keys, {"of": reach.namespace}) if keys else []
    found: dict[int, dict[int, OtherSide]] = {}
    for row in sorted(rows, key=lambda row: (row.said_at, row.other), reverse=True):
        if row.quote:
            found.setdefault(row.key, {}).setdefault(row.other, OtherSide(row.other, row.quote))
    return {key: list(sides.values()) for key, sides in found.items()}
