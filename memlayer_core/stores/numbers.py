"""Numbers of sessions, which are never given twice: the keys of a deleted one may still stand in Chroma.

PostgreSQL counts them in a sequence, which goes on whatever is deleted. SQLite gives the number after the
highest that is there, and so would give that of the newest session again once it is deleted: the highest number that
was ever deleted is therefore written down.
"""

from __future__ import annotations

from sqlalchemy import Connection, Integer, cast, func, select
from sqlalchemy.dialects import sqlite

from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.schema import meta, sessions

__all__ = ["fresh", "retire"]

_RETIRED = "retired_session"
_HIGHEST = select(func.coalesce(func.max(sessions.c.number), 0)).scalar_subquery()
_DELETED = func.coalesce(
    select(cast(meta.c.value, Integer)).where(meta.c.name == _RETIRED).scalar_subquery(), 0
)
_NEXT = Prepared(select((func.max(_HIGHEST, _DELETED) + 1).label("number")))


def fresh(connection: Connection) -> dict[str, int]:
    """Return the number of a new session as a column, or nothing where the database knows better."""
    if connection.dialect.name != "sqlite":
        return {}
    row = _NEXT.first(connection, {})
    assert row is not None  # noqa: S101  (it is a sum)
    return {"number": row.number}


def retire(connection: Connection, number: int) -> None:
    """Note that a session of that number is deleted for good."""
    if connection.dialect.name != "sqlite":
        return
    noted = sqlite.insert(meta)
    connection.execute(
        noted.on_conflict_do_update(
            index_elements=["name"],
            set_={"value": noted.excluded.value},
            where=cast(meta.c.value, Integer) < cast(noted.excluded.value, Integer),
        ),
        {"name": _RETIRED, "value": str(number)},
    )
