"""Reading what recall weighs, without the messages themselves. Each function runs in its caller's transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import Connection, bindparam, func, select

from memlayer_core.records.candidate import Candidate
from memlayer_core.records.scope import Scope
from memlayer_core.records.vector import FloatVector
from memlayer_core.stores.prepared import PreparedList
from memlayer_core.stores.rows import session_of
from memlayer_core.stores.schema import messages, sessions, vectors
from memlayer_core.stores.transcript import WITHIN, reached

__all__ = ["candidates"]

_END = 8  # characters of a text in which its question mark stands
_ASKS = re.compile("[?\uff1f]\\W*\\Z")
_ROWS = PreparedList(
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
_VECTORS = PreparedList(lambda keys: select(vectors.c.key, vectors.c.vector).where(vectors.c.key.in_(keys)))


def candidates(
    connection: Connection,
    reach: Scope,
    keys: Sequence[int],
    near: Mapping[int, float],
    vector: FloatVector | None,
    beginning: int,
) -> list[Candidate]:
    """Return the messages of those keys that lie within reach, in the order of the keys.

    Args:
        connection: In a transaction.
        reach: Whose messages.
        keys: Of messages; others are passed over.
        near: The cosines that are known.
        vector: The question's; None: no further cosine is computed.
        beginning: Characters of their texts that are wanted.
    """
    wanted = {**reached(reach), "beginning": beginning}
    rows = {row.key: row for row in _ROWS.all(connection, [key for key in keys if key > 0], wanted)}
    missing = [key for key in rows if key not in near] if vector is not None else []
    found = _VECTORS.all(connection, missing)
    cosines = dict(near)
    if found and vector is not None:
        matrix = np.frombuffer(b"".join(row.vector for row in found), dtype="<f4").reshape(len(found), -1)
        cosines |= zip((row.key for row in found), map(float, matrix @ vector), strict=True)
    return [
        Candidate(
            key,
            row.role,
            row.name,
            row.tokens,
            bool(_ASKS.search(row.ending)),
            cosines.get(key),
            row.beginning,
        )
        for key in dict.fromkeys(keys)
        if (row := rows.get(key)) is not None
    ]
