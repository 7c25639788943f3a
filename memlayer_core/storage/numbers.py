"""Numbers of sessions. None is used twice, since Chroma may still have keys of a deleted session.

PostgreSQL counts them in a sequence. SQLite would use the number of the newest session again when that is deleted, so
the highest number of a deleted session is stored.
"""

from __future__ import annotations

from sqlalchemy import Connection, Integer, bindparam, cast, func, select
from sqlalchemy.dialects import sqlite

from memlayer_core.storage.statements import Statement
from memlayer_core.storage.tables import meta, sessions

__all__ = ["next_number", "retire"]

_RETIRED = "retired_session"
_HIGHEST = select(func.coalesce(func.max(sessions.c.number), 0)).scalar_subquery()
_DELETED = func.coalesce(
    select(cast(meta.c.value, Integer)).where(meta.c.name == _RETIRED).scalar_subquery(), 0
)
_NEXT = Statement(select((func.max(_HIGHEST, _DELETED) + 1).label("number")))
_NOTED = sqlite.insert(meta).values(name=_RETIRED, value=bindparam("value"))
_RETIRE = Statement(
    _NOTED.on_conflict_do_update(
        index_elements=["name"],
        set_={"value": _NOTED.excluded.value},
        where=cast(meta.c.value, Integer) < cast(_NOTED.excluded.value, Integer),
    )
)


def next_number(connection: Connection) -> dict[str, int]:
    """Return the number of a new session as a column; an empty dict if the database numbers sessions itself."""
    if connection.dialect.name != "sqlite":
        return {}
    row = _NEXT.first(connection, {})
    assert row is not None  # it is a sum
    return {"number": row.number}


def retire(connection: Connection, number: int) -> None:
    """Note that the session of this number is deleted."""
    if connection.dialect.name == "sqlite":
        _RETIRE.run(connection, {"value": str(number)})
