"""Recalled text that stays with the question that it was shown with. Each function runs in its caller's transaction.

A prompt is cheap as long as it begins like the one before. So what was recalled for a question stands with it until
the question leaves the window; and it goes when anything that it quotes, a message or a record, is deleted or edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from memlayer_core.records.context import Recalled
from memlayer_core.records.message import Beside
from memlayer_core.rules.records import memory_id
from memlayer_core.stores import record_index
from memlayer_core.stores.prepared import Prepared, PreparedList
from memlayer_core.stores.rows import key_of, session_of
from memlayer_core.stores.schema import messages, quotes, records, shown
from memlayer_core.stores.transcript import LAST, chunks

__all__ = ["drop", "listed", "move", "pin", "read"]

_THERE = PreparedList(lambda keys: select(messages.c.key, messages.c.beside).where(messages.c.key.in_(keys)))
_STAND = Prepared(update(messages).where(messages.c.key == bindparam("of")).values(beside=bindparam("cost")))
_SHOW = Prepared(insert(shown))
_QUOTE = Prepared(insert(quotes))
_LISTED = Prepared(
    select(shown.c.key, messages.c.id)
    .join(messages, messages.c.key == shown.c.key)
    .where(shown.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(shown.c.key.desc())
    .limit(bindparam("most"))
    .offset(bindparam("past"))
)
_READ = PreparedList(lambda keys: select(shown).where(shown.c.key.in_(keys)))
_QUOTED = PreparedList(
    lambda keys: (
        select(quotes.c.shown, quotes.c.source, messages.c.id, records.c.user_id, records.c.ordinal)
        .outerjoin(messages, messages.c.key == quotes.c.source)
        .outerjoin(records, records.c.number == -quotes.c.source)
        .where(quotes.c.shown.in_(keys), or_(messages.c.key.is_not(None), records.c.number.is_not(None)))
        .order_by(quotes.c.shown, quotes.c.source)
    )
)


def pin(connection: Connection, session: int, beside: Beside) -> None:
    """Let recalled text stand with its question of this session from now on, if all that it quotes is still there."""
    if session_of(beside.key) != session:
        return
    of_records = {key for key in beside.sources if key < 0}
    wanted = {beside.key, *beside.sources} - of_records
    there = {row.key: row.beside for row in _THERE.all(connection, list(wanted))}
    if of_records and record_index.present(connection, list(of_records)) != of_records:
        return
    if len(there) < len(wanted) or there[beside.key] is not None:
        return
    _STAND.run(connection, {"of": beside.key, "cost": beside.tokens})
    if beside.text:
        row = {"key": beside.key, "text": beside.text, "tokens": beside.tokens, "counter": beside.counter}
        _SHOW.run(connection, row)
        _QUOTE.run(connection, *({"source": key, "shown": beside.key} for key in beside.sources))


def read(connection: Connection, keys: Sequence[int]) -> dict[int, Beside]:
    """Return what stands with those messages, by their keys."""
    rows = _READ.all(connection, keys)
    quoted: dict[int, dict[int, str]] = {row.key: {} for row in rows}
    for row in _QUOTED.all(connection, list(quoted)):
        quoted[row.shown][row.source] = row.id or memory_id(row.user_id, row.ordinal)
    return {
        row.key: Beside(
            row.key,
            row.text,
            row.tokens,
            row.counter,
            tuple(quoted[row.key]),
            tuple(quoted[row.key].values()),
        )
        for row in rows
    }


def listed(connection: Connection, session: int, limit: int, offset: int) -> list[Recalled]:
    """Return what was recalled for a session's questions, the newest first."""
    rows = _LISTED.all(
        connection,
        {"first": key_of(session, 0), "last": key_of(session, LAST), "most": limit, "past": offset},
    )
    standing = read(connection, [row.key for row in rows])
    return [
        Recalled(row.id, standing[row.key].text, standing[row.key].tokens, standing[row.key].ids)
        for row in rows
    ]


def drop(connection: Connection, keys: Sequence[int]) -> None:
    """Take away what stands with messages that are deleted or edited, and whatever quotes them."""
    for some in chunks(keys):
        quoting = select(quotes.c.shown).where(quotes.c.source.in_(some))
        gone = {*some, *connection.scalars(quoting)}
        for part in chunks(list(gone)):
            connection.execute(delete(shown).where(shown.c.key.in_(part)))
            connection.execute(delete(quotes).where(or_(quotes.c.shown.in_(part), quotes.c.source.in_(part))))
            connection.execute(update(messages).where(messages.c.key.in_(part)).values(beside=None))


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Give messages of keys `old` the keys `new`."""
    for column in (shown.c.key, quotes.c.shown, quotes.c.source):
        moving = update(column.table).where(column == bindparam("old")).values({column: bindparam("new")})
        connection.execute(moving, list(keys))
