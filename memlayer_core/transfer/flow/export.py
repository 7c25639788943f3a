"""Saves and loads a session as a state, and exports sessions, records and items as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from memlayer_core.items.sql import reads as item_reading
from memlayer_core.items.sql import users as user_items
from memlayer_core.message import Message, Receipt
from memlayer_core.messages.flow.remember import announce, drafts_of
from memlayer_core.messages.model import Session, SessionDetails
from memlayer_core.messages.sql import transcript
from memlayer_core.records.sql import evidence
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.codec import json_text
from memlayer_core.transfer import sql
from memlayer_core.transfer.rules.export_lines import (
    EndLine,
    HeaderLine,
    Line,
    MessageLine,
    RecordLine,
    SessionLine,
    form_of,
    item_line,
)
from memlayer_core.transfer.rules.state import conversation_of, state_of

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection, Database

__all__ = ["AT_ONCE", "Progress", "export", "load", "save"]

Progress = Callable[[int, int], object]
"""Called after each page with the number of messages that are done, and the number to expect."""

AT_ONCE = 200
"""Messages, sessions or lines of a page: no more of them are held in memory."""


class Target(Protocol):
    """Where an export goes."""

    @property
    def ascii_only(self) -> bool:
        """Whether it cannot hold every character."""
        ...

    def write(self, text: str) -> None:
        """Write the next piece."""
        ...

    def keep(self) -> None:
        """Finish: the export is complete."""
        ...

    def discard(self) -> None:
        """Throw the export away: it will not be complete."""
        ...


async def save(rt: Runtime, run: Runner, scope: Scope) -> dict[str, Any]:
    """Return a session's state."""

    def read(connection: Connection) -> tuple[list[Message], SessionDetails]:
        session = transcript.find(connection, scope)
        if session is None:
            return [], SessionDetails()
        messages = [item.message for item in transcript.history(connection, session, -1, None)]
        return messages, _details(connection, session)

    return await run(lambda: state_of(*rt.db.read(read)))


async def load(rt: Runtime, run: Runner, scope: Scope, state: object) -> Receipt:
    """Replace a session by a state, in one transaction."""

    def write() -> Receipt:
        messages, particulars = conversation_of(state)
        drafts = drafts_of(rt, messages)
        return rt.db.write(sql.restore, scope, drafts, particulars, rt.now(), rt.shards)

    receipt = await run(write)
    rt.temporaries.clear(scope)
    announce(rt, scope, receipt)
    rt.wake()  # the old messages have to leave the index
    return receipt


async def export(
    db: Database,
    run: Runner,
    target: Target,
    *,
    tenant_id: str,
    user_id: str | None,
    now: datetime,
    progress: Progress | None = None,
) -> int:
    """Write the sessions and records of a user, or all data of a tenant, line by line.

    Each page is read from where the last one ended, so writes in between hide nothing and repeat nothing.

    Returns:
        How many messages were written.
    """
    Scope("anybody" if user_id is None else user_id, tenant_id=tenant_id)  # checks the ids
    done = 0
    try:
        expected = await run(_count_messages, db, tenant_id, user_id)
        pages = _pages(db, tenant_id, user_id, HeaderLine(tenant_id, user_id, now, expected))
        while page := await run(next, pages, None):
            done, lines = page
            await run(_write, target, lines)
            if progress is not None:
                progress(done, expected)
        await run(target.keep)
    except BaseException:
        await run(target.discard)
        raise
    return done


def _details(connection: Connection, session: Session) -> SessionDetails:
    """Return the details that an export has of a session."""
    last = transcript.tail(connection, session, session.memory_start, 1) if session.memory_start else []
    ended = transcript.read(connection, session, [entry.seq for entry in last])
    return SessionDetails(
        title=session.title,
        last_ended_id=ended[0].message.id if ended else None,
        created_at=session.created_at,
        updated_at=session.updated_at,
        forked_from=session.forked_from,
        superseded=session.superseded,
        ended=session.ended,
    )


def _sessions(db: Database, tenant_id: str, user_id: str | None) -> Iterator[Session]:
    last = 0
    while page := db.read(transcript.inventory, tenant_id, user_id, last, AT_ONCE):
        yield from page
        last = page[-1].number


def _count_messages(db: Database, tenant_id: str, user_id: str | None) -> int:
    return sum(session.messages for session in _sessions(db, tenant_id, user_id))


def _pages(
    db: Database, tenant_id: str, user_id: str | None, header: HeaderLine
) -> Iterator[tuple[int, list[Line]]]:
    """Yield pages of lines, each with the number of messages up to its end."""
    yield 0, [header]
    sessions = messages = 0
    for session in _sessions(db, tenant_id, user_id):
        after = -1
        while page := db.read(transcript.history, session, after, AT_ONCE):
            lines: list[Line] = []
            if after < 0:  # a session without messages leaves no line
                sessions += 1
                known = db.read(_details, session)
                lines.append(SessionLine(sessions, session.scope, known))
            lines.extend(MessageLine(sessions, item.message) for item in page)
            messages += len(page)
            after = page[-1].seq
            yield messages, lines
    records, place = 0, ("", 0)
    while kept := db.read(record_reads.pages, tenant_id, user_id, place, AT_ONCE):
        quotes = db.read(evidence.of_records, [place for place, _ in kept])
        yield messages, [RecordLine(tuple(versions), quotes.get(place, ())) for place, versions in kept]
        records, place = records + len(kept), kept[-1][0]
    items = 0
    own = [Folder(tenant_id)] if user_id is None else db.read(user_items.folders_of, tenant_id, user_id)
    for folder in own:
        last = 0
        while held := db.read(item_reading.pages, folder, last, AT_ONCE):
            yield messages, [item_line(tenant_id, item, texts) for item, texts in held]
            items, last = items + len(held), held[-1][0].number
    yield messages, [EndLine(sessions, messages, records, items)]


def _write(target: Target, lines: Sequence[Line]) -> None:
    target.write("".join(json_text(form_of(line), ascii_only=target.ascii_only) + "\n" for line in lines))
