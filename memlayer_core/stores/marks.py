"""Where the windows of a session begin, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, delete, exists, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.records.session import Mark, Session
from memlayer_core.stores.prepared import Prepared
from memlayer_core.stores.rows import key_of
from memlayer_core.stores.schema import marks, messages

__all__ = ["find", "move", "unmark"]

_FIND = Prepared(
    select(marks.c.first_seq, marks.c.version).where(
        marks.c.session == bindparam("of"), marks.c.size == bindparam("size")
    )
)


def find(connection: Connection, session: Session, size: int) -> Mark:
    """Return where the window of that size begins; the session's beginning where none is marked."""
    found = _FIND.first(connection, {"of": session.number, "size": size})
    return Mark(found.first_seq, found.version) if found is not None else Mark()


def move(connection: Connection, session: int, size: int, mark: Mark) -> None:
    """Note where a window begins and what stands before it.

    A mark only moves forward, and to a message that is still there.
    """
    if not connection.scalar(select(exists().where(messages.c.key == key_of(session, mark.first)))):
        return
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    made = dialect.insert(marks)
    further = marks.c.first_seq < made.excluded.first_seq
    newer = and_(marks.c.first_seq == made.excluded.first_seq, marks.c.version < made.excluded.version)
    connection.execute(
        made.on_conflict_do_update(
            index_elements=["session", "size"],
            set_={"first_seq": made.excluded.first_seq, "version": made.excluded.version},
            where=or_(further, newer),
        ),
        {"session": session, "size": size, "first_seq": mark.first, "version": mark.version},
    )


def unmark(connection: Connection, session: int) -> None:
    """Let the windows of a session begin anew: there is more room than when they were chosen."""
    connection.execute(delete(marks).where(marks.c.session == session))
