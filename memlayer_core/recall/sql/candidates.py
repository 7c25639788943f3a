"""Reads candidates of recall, without the messages themselves. Each function runs in its caller's transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, func, select

from memlayer_core.scope import Scope
from memlayer_core.storage.candidate import Candidate
from memlayer_core.storage.keys import WITHIN, reach_parameters, session_of
from memlayer_core.storage.statements import ListStatement
from memlayer_core.storage.tables import messages, sessions, texts
from memlayer_core.storage.vectors import EMBEDDED, cosines
from memlayer_core.vector import FloatVector

__all__ = ["candidates"]

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
