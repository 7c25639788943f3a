"""Reads candidates of recall, and recalled text that stays with its question, as far as the reader may see what it quotes.

Each function runs in its caller's transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from memlayer_core.message import PinnedText
from memlayer_core.messages.model import PinnedRecall
from memlayer_core.records.model import Reader
from memlayer_core.records.rules.records import memory_id
from memlayer_core.records.sql.reads import visible_keys
from memlayer_core.scope import Scope
from memlayer_core.storage.keys import LAST, WITHIN, key_of, reach_parameters, session_of
from memlayer_core.storage.scores import Candidate
from memlayer_core.storage.statements import ListStatement, Statement
from memlayer_core.storage.tables import messages, recall_sources, records, sessions, texts
from memlayer_core.storage.tables import pinned_recalls as recalls
from memlayer_core.storage.vectors import EMBEDDED, cosines
from memlayer_core.vector import FloatVector

__all__ = ["candidates", "list_recalls", "read"]

_END = 8  # characters of a text in which its question mark stands
_ASKS = re.compile("[?\uff1f]\\W*\\Z")
_ROWS = ListStatement(
    lambda keys: (
        select(
            messages.c.key,
            messages.c.role,
            messages.c.name,
            messages.c.tokens,
            func.substr(messages.c.text, messages.c.characters - _END + 1).label("ending"),
            func.substr(messages.c.text, 1, bindparam("beginning")).label("beginning"),
        )
        .join(sessions, sessions.c.number == session_of(messages.c.key))
        .where(messages.c.key.in_(keys), messages.c.tokens > 0, messages.c.role != "system", WITHIN)
    )
)
_VECTORS = ListStatement(
    lambda keys: select(texts.c.key, texts.c.vector).where(texts.c.key.in_(keys), EMBEDDED)
)


def candidates(
    connection: Connection,
    reach: Scope,
    keys: Sequence[int],
    cosines_by_key: Mapping[int, float],
    vector: FloatVector | None,
    beginning: int,
) -> list[Candidate]:
    """Return candidates for the keys of messages in a scope, in the order of the keys.

    Args:
        connection: In a transaction.
        reach: The scope; messages outside of it are left out.
        keys: Keys of messages; other keys are ignored.
        cosines_by_key: Cosines that are known already, by key.
        vector: Vector of the question; None: no other cosines are computed.
        beginning: How many characters of each text's beginning to return.
    """
    wanted = {**reach_parameters(reach), "beginning": beginning}
    rows = {row.key: row for row in _ROWS.all(connection, keys, wanted)}
    missing = [key for key in rows if key not in cosines_by_key] if vector is not None else []
    found = _VECTORS.all(connection, missing)
    known = dict(cosines_by_key)
    if found and vector is not None:
        computed = cosines([row.vector for row in found], vector).tolist()
        known |= zip((row.key for row in found), computed, strict=True)
    return [
        Candidate(
            key,
            row.role,
            row.name,
            row.tokens,
            bool(_ASKS.search(row.ending)),
            known.get(key),
            row.beginning,
        )
        for key in dict.fromkeys(keys)
        if (row := rows.get(key)) is not None
    ]


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
        )
        .outerjoin(messages, messages.c.key == recall_sources.c.source)
        .outerjoin(records, records.c.key == recall_sources.c.source)
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
        if row.id is None and row.ordinal is None:
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
