"""Where the windows of a session begin, in SQL. Each function runs in its caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, delete, exists, or_, select

from memlayer_core.messages.model import Session, WindowStart
from memlayer_core.storage.keys import key_of
from memlayer_core.storage.statements import Statement, dialect_insert
from memlayer_core.storage.tables import messages, window_starts

__all__ = ["find", "move", "unmark"]

_FIND = Statement(
    select(window_starts.c.first_seq, window_starts.c.version).where(
        window_starts.c.session == bindparam("of"), window_starts.c.size == bindparam("size")
    )
)
_UNMARK = Statement(delete(window_starts).where(window_starts.c.session == bindparam("of")))


def find(connection: Connection, session: Session, size: int) -> WindowStart:
    """Return where the window of this size begins; the session's beginning if no start is stored."""
    found = _FIND.first(connection, {"of": session.number, "size": size})
    return WindowStart(found.first_seq, found.version) if found is not None else WindowStart()


def move(connection: Connection, session: int, size: int, start: WindowStart) -> None:
    """Store where a window begins, and the version of the summaries before it.

    A start only moves forward, and only to a message that exists.
    """
    if not connection.scalar(select(exists().where(messages.c.key == key_of(session, start.first)))):
        return
    made = dialect_insert(connection.dialect.name, window_starts)
    further = window_starts.c.first_seq < made.excluded.first_seq
    newer = and_(
        window_starts.c.first_seq == made.excluded.first_seq, window_starts.c.version < made.excluded.version
    )
    connection.execute(
        made.on_conflict_do_update(
            index_elements=["session", "size"],
            set_={"first_seq": made.excluded.first_seq, "version": made.excluded.version},
            where=or_(further, newer),
        ),
        {"session": session, "size": size, "first_seq": start.first, "version": start.version},
    )


def unmark(connection: Connection, session: int) -> None:
    """Delete the window starts of a session, since more messages fit than when they were stored."""
    _UNMARK.run(connection, {"of": session})
