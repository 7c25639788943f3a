"""Recalled text that stays with the question that it was shown with. Each function runs in its caller's transaction.

A prompt is cheap as long as it begins like the one before. So what was recalled for a question stands with it until
the question leaves the window; and it goes when anything that it quotes is deleted or edited: a message, a record, an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from memlayer_core.message import PinnedText
from memlayer_core.storage.keys import LAST, chunks, key_of, session_of
from memlayer_core.storage.scores import is_item, is_record
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import item_texts, messages, recall_sources, records
from memlayer_core.storage.tables import pinned_recalls as recalls

__all__ = ["drop", "lock", "move", "pin", "questions_of"]

_THERE = ListStatement(
    lambda keys: (
        select(messages.c.key, messages.c.recall_tokens, messages.c.digest)
        .where(messages.c.key.in_(keys))
        .with_for_update(read=True, key_share=True, skip_locked=True)
    )
)
_IN_FORCE = ListStatement(
    lambda keys: (
        select(records.c.key)
        .where(records.c.key.in_(keys), records.c.replaced_by.is_(None))
        .with_for_update(read=True, key_share=True, skip_locked=True)
    )
)
_ITEMS = ListStatement(
    lambda keys: (
        select(item_texts.c.key)
        .where(item_texts.c.key.in_(keys))
        .with_for_update(read=True, key_share=True, skip_locked=True)
    )
)
_QUOTING = ListStatement(
    lambda keys: select(recall_sources.c.question).where(recall_sources.c.source.in_(keys))
)
_PINNED = ListStatement(
    lambda keys: (
        select(messages.c.key)
        .where(messages.c.key.in_(keys), messages.c.recall_tokens.is_not(None))
        .with_for_update(key_share=True, skip_locked=True)
    )
)
_STAND = Statement(
    update(messages).where(messages.c.key == bindparam("of")).values(recall_tokens=bindparam("cost"))
)
_SHOW = Statement(insert(recalls))
_QUOTE = Statement(insert(recall_sources))


def pin(connection: Connection, session: int, recall: PinnedText) -> None:
    """Let recalled text stand with its question of this session from now on, if all that it quotes is still there.

    What it quotes is held until the transaction ends. What somebody else is changing is taken for changed: nobody
    is waited for here.
    """
    if session_of(recall.key) != session:
        return
    there = {row.key: row for row in _THERE.all(connection, [recall.key, *recall.sources])}
    others = {*recall.sources} - there.keys()
    for statement, some in (
        (_IN_FORCE, set(filter(is_record, others))),
        (_ITEMS, set(filter(is_item, others))),
    ):
        others -= {row.key for row in statement.all(connection, list(some))} if some else set()
    if others:
        return
    if recall.key not in there or there[recall.key].recall_tokens is not None:
        return
    if any(bytes(there[key].digest) != digest for key, digest in recall.digests):
        return
    _STAND.run(connection, {"of": recall.key, "cost": recall.tokens})
    if recall.text:
        row = {"key": recall.key, "text": recall.text, "tokens": recall.tokens, "counter": recall.counter}
        _SHOW.run(connection, row)
        _QUOTE.run(connection, *({"source": key, "question": recall.key} for key in recall.sources))


def questions_of(connection: Connection, session: int, text: str) -> list[str]:
    """Return the ids of a session's questions that this text is pinned to."""
    inside = recalls.c.key.between(key_of(session, 0), key_of(session, LAST))
    asked = (
        select(messages.c.id)
        .join(recalls, recalls.c.key == messages.c.key)
        .where(inside, recalls.c.text == text)
    )
    return list(connection.scalars(asked))


def lock(connection: Connection, keys: Sequence[int]) -> None:
    """Lock messages that will be deleted or edited, and messages with pinned recall that quotes them.

    The keys may be of records and items, too. Messages are locked in the order of their keys, as everywhere, and before users
    and records (see `records/sql/writes.py`), so that there is no deadlock. SQLite has one writer, and needs no locks.
    """
    if connection.dialect.name == "sqlite":
        return
    found = {row.question for row in _QUOTING.all(connection, keys)}
    locked = select(messages.c.key).order_by(messages.c.key).with_for_update()
    for some in chunks(sorted(found.union(keys))):
        connection.execute(locked.where(messages.c.key.in_(some)))


def drop(connection: Connection, keys: Sequence[int]) -> None:
    """Delete the pinned recall of messages that are deleted or edited, and all pinned recall that quotes them.

    The messages are locked by `lock`. A question that another transaction deletes at the same time is left out. Most
    messages have no pinned recall, and cost two statements.
    """
    found = {row.question for row in _QUOTING.all(connection, keys)}
    for gone in chunks([row.key for row in _PINNED.all(connection, sorted(found.union(keys)))]):
        connection.execute(delete(recalls).where(recalls.c.key.in_(gone)))
        connection.execute(delete(recall_sources).where(recall_sources.c.question.in_(gone)))
        connection.execute(update(messages).where(messages.c.key.in_(gone)).values(recall_tokens=None))


def move(connection: Connection, keys: Sequence[Mapping[str, int]]) -> None:
    """Replace the keys `old` of messages by the keys `new`."""
    for column in (recalls.c.key, recall_sources.c.question, recall_sources.c.source):
        moving = update(column.table).where(column == bindparam("old")).values({column: bindparam("new")})
        connection.execute(moving, list(keys))
