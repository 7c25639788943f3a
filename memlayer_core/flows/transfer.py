"""Carries conversations out of a journal and into one: a session as a state, any number of them as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, assert_never

from memlayer_core.drive import Drive
from memlayer_core.errors import ImportStoppedError, InputError, InvalidMessageError
from memlayer_core.flows.items import put_of
from memlayer_core.flows.records import noted
from memlayer_core.flows.remember import announce, draft_of, drafts_of
from memlayer_core.ports import Draft, Journal, World
from memlayer_core.records.item import Folder
from memlayer_core.records.message import Message, Receipt
from memlayer_core.records.record import Record
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Particulars, Session
from memlayer_core.rules import export_lines
from memlayer_core.rules.export_lines import Begun, End, Head, Kept, Line, Said
from memlayer_core.rules.item_json import Placed
from memlayer_core.rules.json_text import written
from memlayer_core.rules.state import conversation_of, state_of

__all__ = ["Imported", "Progress", "export", "import_from", "load", "save"]

Progress = Callable[[int, int], object]
"""Hears how many messages are done, and how many are expected, after each page."""

_AT_ONCE = 200
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
        """Take it: it is complete."""
        ...

    def discard(self) -> None:
        """Throw it away: it will not be complete."""
        ...


class Source(Protocol):
    """Where an import comes from."""

    def read(self, limit: int) -> Sequence[tuple[int, Any]]:
        """Return the next lines with their numbers, none at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(slots=True)
class Imported:
    """What became of an export's messages.

    Attributes:
        sessions: Sessions that it names.
        messages: Messages in it.
        stored: How many are new.
        unchanged: How many were there before, equal and under the same id.
        replaced: How many took the place of another message of the same id.
        records: Records in it.
        remembered: How many of them were stored: new ones, and ones that had gone on there.
        items: Items in it.
        placed: How many of them were stored: new ones, and ones that were put again later.
    """

    sessions: int = 0
    messages: int = 0
    stored: int = 0
    unchanged: int = 0
    replaced: int = 0
    records: int = 0
    remembered: int = 0
    items: int = 0
    placed: int = 0

    def __str__(self) -> str:
        said = f"{self.messages:,} message(s) of {self.sessions:,} session(s), {self.stored:,} of them new"
        if self.records:
            said += f", {self.records:,} record(s), {self.remembered:,} of them new"
        return f"{said}, {self.items:,} item(s), {self.placed:,} of them new" if self.items else said


async def save(world: World, drive: Drive, scope: Scope) -> dict[str, Any]:
    """Return a session's state."""

    def read(journal: Journal) -> tuple[list[Message], Particulars]:
        session = journal.session(scope)
        if session is None:
            return [], Particulars()
        messages = [item.message for item in journal.history(session, -1, None)]
        return messages, _particulars(journal, session)

    return await drive.call(lambda: state_of(*world.journal.at_once(read)))


async def load(world: World, drive: Drive, scope: Scope, state: object) -> Receipt:
    """Make a session what a state says, in one transaction."""

    def write() -> Receipt:
        messages, particulars = conversation_of(state)
        drafts = drafts_of(world, messages)
        return world.journal.restore(scope, drafts, particulars, world.now(), exactly=True)

    receipt = await drive.call(write)
    world.temporaries.clear(scope)
    announce(world, scope, receipt)
    world.wake()  # what was there before is to leave the index
    return receipt


async def export(
    journal: Journal,
    drive: Drive,
    target: Target,
    *,
    tenant_id: str,
    user_id: str | None,
    now: datetime,
    progress: Progress | None = None,
) -> int:
    """Write the sessions and the records of a user, or all that a tenant has, line by line.

    Sessions and messages are read page by page, each from where the last one ended: what is written
    meanwhile neither hides anything nor shows anything twice.

    Returns:
        How many messages were written.
    """
    Scope("anybody" if user_id is None else user_id, tenant_id=tenant_id)  # checks the ids
    done = 0
    try:
        expected = await drive.call(_expected, journal, tenant_id, user_id)
        pages = _pages(journal, tenant_id, user_id, export_lines.head(tenant_id, user_id, now, expected))
        while page := await drive.call(next, pages, None):
            done, lines = page
            await drive.call(_write, target, lines)
            if progress is not None:
                progress(done, expected)
        await drive.call(target.keep)
    except BaseException:
        await drive.call(target.discard)
        raise
    return done


async def import_from(
    world: World, drive: Drive, source: Source, *, tenant_id: str | None, progress: Progress | None = None
) -> Imported:
    """Store what an export holds, page by page. Ids make it the same to import once or twice.

    Args:
        world: Everything.
        drive: How to get things done.
        source: The export.
        tenant_id: The tenant to import into, if not the one that each session had.
        progress: Hears how many messages are done.

    Raises:
        ImportStoppedError: It cannot be read further; the message says where, and how much was imported.
    """
    if tenant_id is not None:
        Scope("anybody", tenant_id=tenant_id)  # checks the id
    importing = _Importing(world, tenant_id)
    try:
        while await drive.call(importing.take, source):
            if progress is not None:
                progress(importing.done.messages, importing.expected)
    finally:
        await drive.call(source.close)
    return importing.done


def _particulars(journal: Journal, session: Session) -> Particulars:
    """Return what goes with a session's messages to another place."""
    last = journal.tail(session, session.begins, 1) if session.begins else []
    ended = journal.read(session, [entry.seq for entry in last])
    return Particulars(
        title=session.title,
        ended_with=ended[0].message.id if ended else None,
        created_at=session.created_at,
        updated_at=session.updated_at,
        forked_from=session.forked_from,
        superseded=session.superseded,
    )


def _sessions(journal: Journal, tenant_id: str, user_id: str | None) -> Iterator[Session]:
    last = 0
    while page := journal.inventory(tenant_id, user_id, last, _AT_ONCE):
        yield from page
        last = page[-1].number


def _expected(journal: Journal, tenant_id: str, user_id: str | None) -> int:
    return sum(session.messages for session in _sessions(journal, tenant_id, user_id))


def _pages(
    journal: Journal, tenant_id: str, user_id: str | None, head: dict[str, Any]
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Return the lines, a page at a time, each with how many messages stand up to its end."""
    yield 0, [head]
    sessions = messages = 0
    for session in _sessions(journal, tenant_id, user_id):
        after = -1
        while page := journal.history(session, after, _AT_ONCE):
            lines: list[dict[str, Any]] = []
            if after < 0:  # a session without messages leaves no line
                sessions += 1
                known = journal.at_once(lambda pinned, of=session: _particulars(pinned, of))  # type: ignore[misc]
                lines.append(export_lines.session(sessions, session.scope, known))
            lines.extend(export_lines.message(sessions, item.message) for item in page)
            messages += len(page)
            after = page[-1].seq
            yield messages, lines
    records, place = 0, ("", 0)
    while kept := journal.record_pages(tenant_id, user_id, place, _AT_ONCE):
        yield messages, [export_lines.record(versions) for _, versions in kept]
        records, place = records + len(kept), kept[-1][0]
    items = last = 0
    while user_id is None and (held := journal.item_pages(Folder(tenant_id), last, _AT_ONCE)):
        yield messages, [export_lines.item(tenant_id, item, texts) for item, texts in held]
        items, last = items + len(held), held[-1][0].number
    yield messages, [export_lines.end(sessions, messages, records, items)]


def _write(target: Target, lines: Sequence[dict[str, Any]]) -> None:
    target.write("".join(written(line, ascii_only=target.ascii_only) + "\n" for line in lines))


class _Importing:
    """Takes an export's lines one after the other, and stores its messages page by page."""

    def __init__(self, world: World, tenant_id: str | None) -> None:
        self.done = Imported()
        self.expected = 0
        self._world = world
        self._tenant_id = tenant_id
        self._line = 0
        self._headed = self._ended = False
        self._session: Begun | None = None
        self._waiting: dict[str, Draft] = {}

    def take(self, source: Source) -> bool:
        """Import the next page. Returns whether there was one."""
        try:
            page = source.read(_AT_ONCE)
            for self._line, text in page:
                line = export_lines.line_of(text, self._tenant_id)
                if line is not None:
                    self._take(line)
            if not page and not self._ended:
                raise _stop("it is cut off: its last line is missing" if self._headed else "it is empty")
        except ImportStoppedError as problem:
            self._store()
            raise ImportStoppedError(
                f"the import stopped at line {self._line}: {problem}; {self.done} were imported and stay",
                hint=f"{problem.hint} Importing it again goes on where this stopped.",
            ) from None
        self._store()
        return bool(page)

    def _take(self, line: Line) -> None:
        if self._ended:
            raise _stop("something follows the line that ends the export")
        if isinstance(line, Head) is self._headed:
            raise _stop("a second export begins" if self._headed else "it does not begin as an export does")
        match line:
            case Head(messages=expected):
                self._headed, self.expected = True, expected
            case Begun():
                self._store()
                self._session = line
                self.done.sessions += 1
            case Said(session=number, message=message):
                if self._session is None or self._session.number != number:
                    raise _stop(f"the message is of session {number}, whose line does not precede it")
                self._wait(message)
            case Kept() | Placed():
                self._store()
                self._keep(line)
            case End():
                self._store()
                done = self.done
                if line != End(done.sessions, done.messages, done.records, done.items):
                    raise _stop(f"lines are missing: it had {line}")
                self._ended = True
            case _:
                assert_never(line)

    def _wait(self, message: Message) -> None:
        try:
            draft = draft_of(self._world, message)
        except InvalidMessageError as problem:
            raise ImportStoppedError(str(problem), hint=problem.hint) from None
        named = draft.message.id or ""
        if named in self._waiting:
            self._store()
        self._waiting[named] = draft

    def _keep(self, line: Kept | Placed) -> None:
        try:
            kept = self._remember(line.versions) if isinstance(line, Kept) else self._place(line)
        except InputError as problem:
            raise ImportStoppedError(str(problem), hint=problem.hint) from None
        if kept:
            self._world.wake()

    def _remember(self, versions: Sequence[Record]) -> bool:
        ready = [noted(self._world, version) for version in versions]
        self.done.records += 1
        kept = self._world.journal.restore_record(ready, self._world.now())
        self.done.remembered += kept
        return kept

    def _place(self, placed: Placed) -> bool:
        put = put_of(self._world, placed.tenant_id, placed.put)
        self.done.items += 1
        dated = replace(put, created_at=placed.created_at, updated_at=placed.updated_at)
        kept = self._world.journal.restore_item(dated, self._world.now())
        self.done.placed += kept
        return kept

    def _store(self) -> None:
        drafts, self._waiting = list(self._waiting.values()), {}
        if not drafts or self._session is None:
            return
        world, session = self._world, self._session
        receipt = world.journal.restore(
            session.scope, drafts, session.particulars, world.now(), exactly=False
        )
        announce(world, session.scope, receipt)
        self.done.messages += len(drafts)
        self.done.stored += receipt.stored
        self.done.unchanged += receipt.unchanged
        self.done.replaced += receipt.replaced


def _stop(problem: str) -> ImportStoppedError:
    return ImportStoppedError(problem, hint="Take the file from where it came once more.")
