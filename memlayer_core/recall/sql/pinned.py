"""Reads recalled text that stays with its question, as far as the reader may see what it quotes.

Each function runs in its caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select

from memlayer_core.message import PinnedText
from memlayer_core.messages.model import PinnedRecall
from memlayer_core.records.model import Reader
from memlayer_core.records.rules.records import memory_id
from memlayer_core.records.sql.reads import visible_keys
from memlayer_core.storage.keys import LAST, key_of
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import (
    folders,
    item_texts,
    items,
    messages,
    recall_sources,
    records,
)
from memlayer_core.storage.tables import pinned_recalls as recalls

__all__ = ["list_recalls", "read"]

_LISTED = Statement(
    select(recalls.c.key, messages.c.id)
    .join(messages, messages.c.key == recalls.c.key)
    .where(recalls.c.key.between(bindparam("first"), bindparam("last")))
    .order_by(recalls.c.key.desc())
    .limit(bindparam("most"))
    .offset(bindparam("past"))
)
_READ = ListStatement(lambda keys: select(recalls).where(recalls.c.key.in_(keys)))
_QUOTED = ListStatement(
    lambda keys: (
        select(
            recall_sources.c.question,
            recall_sources.c.source,
            messages.c.id,
            records.c.user_id,
            records.c.ordinal,
            items.c.key.label("item"),
            folders.c.labels,
        )
        .outerjoin(messages, messages.c.key == recall_sources.c.source)
        .outerjoin(records, records.c.key == recall_sources.c.source)
        .outerjoin(item_texts, item_texts.c.key == recall_sources.c.source)
        .outerjoin(items, items.c.number == item_texts.c.item)
        .outerjoin(folders, folders.c.namespace == items.c.namespace)
        .where(recall_sources.c.question.in_(keys))
        .order_by(recall_sources.c.question, recall_sources.c.source)
    )
)


def read(connection: Connection, keys: Sequence[int], reader: Reader | None) -> dict[int, PinnedText]:
    """Return what stands with those messages, by their keys, as far as the reader may be told of all that it quotes.

    Without a reader it is told to nobody: it is counted, or compared.
    """
    rows = _READ.all(connection, keys)
    quoted: dict[int, dict[int, str]] = {row.key: {} for row in rows}
    gone, of_records = set[int](), set[int]()
    for row in _QUOTED.all(connection, list(quoted)):
        if row.item is not None:
            quoted[row.question][row.source] = "/".join((*json.loads(row.labels), row.item))
        elif row.id is None and row.ordinal is None:
            gone.add(row.source)
            quoted[row.question][row.source] = ""
        else:
            quoted[row.question][row.source] = row.id or memory_id(row.user_id, row.ordinal)
            if row.id is None:
                of_records.add(row.source)
    if reader is not None and of_records:
        gone |= of_records - visible_keys(connection, reader, of_records)
    return {
        row.key: PinnedText(
            row.key,
            row.text,
            row.tokens,
            row.counter,
            tuple(quoted[row.key]),
            tuple(quoted[row.key].values()),
        )
        for row in rows
        if gone.isdisjoint(quoted[row.key])
    }


def list_recalls(
    connection: Connection, session: int, limit: int, offset: int, reader: Reader | None
) -> list[PinnedRecall]:
    """Return the pinned recalls of a session that the reader may see, the newest first."""
    rows = _LISTED.all(
        connection,
        {"first": key_of(session, 0), "last": key_of(session, LAST), "most": limit, "past": offset},
    )
    standing = read(connection, [row.key for row in rows], reader)
    return [
        PinnedRecall(row.id, standing[row.key].text, standing[row.key].tokens, standing[row.key].ids)
        for row in rows
        if row.key in standing
    ]
