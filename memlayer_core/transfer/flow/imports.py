"""Imports an export, page by page. To import it twice has the same result as once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, assert_never

from memlayer_core.errors import ImportStoppedError, errors_as
from memlayer_core.items.flow import put_of
from memlayer_core.items.sql import writes as item_writing
from memlayer_core.items.sql.users import folders_of
from memlayer_core.message import Message
from memlayer_core.messages.flow.remember import announce, draft_of
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.records.flow import prepare_record
from memlayer_core.records.sql import facts
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import Report
from memlayer_core.transfer import sql
from memlayer_core.transfer.flow.export import AT_ONCE, Progress
from memlayer_core.transfer.rules import export_lines
from memlayer_core.transfer.rules.export_lines import (
    EndLine,
    HeaderLine,
    ItemLine,
    Line,
    MessageLine,
    RecordLine,
    SessionLine,
)

__all__ = ["ImportReport", "import_from"]


class Source(Protocol):
    """Where an import comes from."""

    def read(self, limit: int) -> Sequence[tuple[int, Any]]:
        """Return the next lines with their numbers, none at the end."""
        ...

    def rewind(self) -> bool:
        """Go back to the first line. Returns whether that can be done."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(slots=True)
class ImportReport(Report):
    """What an import did.

    Attributes:
        sessions: Sessions that it names.
        messages: Messages in it.
        stored: Messages that are new.
        unchanged: Messages that were stored before, equal and under the same id.
        replaced: Messages that replaced another one of the same id.
        records: Records in it.
        remembered: Records that were stored: new ones, and ones with newer versions.
        archived: Those of them that are kept out of every context: `memory.records(every=True)` finds them, with the reason.
        items: Items in it.
        placed: Items that were stored: new ones, and ones with a newer value.
    """

    sessions: int = 0
    messages: int = 0
    stored: int = 0
    unchanged: int = 0
    replaced: int = 0
    records: int = 0
    remembered: int = 0
    archived: int = 0
    items: int = 0
    placed: int = 0

    def __str__(self) -> str:
        said = f"{self.messages:,} message(s) of {self.sessions:,} session(s), {self.stored:,} of them new"
        if self.records:
            said += f", {self.records:,} record(s), {self.remembered:,} of them new"
        if self.archived:
            said += f" ({self.archived:,} of these archived)"
        return f"{said}, {self.items:,} item(s), {self.placed:,} of them new" if self.items else said


async def import_from(
    rt: Runtime,
    run: Runner,
    source: Source,
    *,
    user_id: str | None = None,
    tenant_id: str | None,
    progress: Progress | None = None,
) -> ImportReport:
    """Import an export, page by page. To import it twice has the same result as once.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        source: The export.
        user_id: The user to whom all of it must belong; None: anybody.
        tenant_id: The tenant to import into; None: the one that each line names.
        progress: Called with the number of messages that are done.

    Raises:
        ImportStoppedError: A line cannot be read; the message says which, and how much was imported.
    """
    owner = Scope(
        "anybody" if user_id is None else user_id, tenant_id="default" if tenant_id is None else tenant_id
    )
    importing = await run(_Import, rt, tenant_id, owner if user_id is not None else None)
    try:
        if user_id is not None and await run(source.rewind):
            while await run(importing.look, source):
                pass
            await run(source.rewind)
        while await run(importing.take, source):
            if progress is not None:
                progress(importing.done.messages, importing.expected)
    finally:
        await run(source.close)
    return importing.done


class _ForeignError(ImportStoppedError):
    """A line belongs to another user than the one that is required."""


class _Import:
    """Reads an export's lines in order, and stores its messages page by page."""

    def __init__(self, rt: Runtime, tenant_id: str | None, owner: Scope | None) -> None:
        self.done = ImportReport()
        self.expected = 0
        self._rt = rt
        self._tenant_id = tenant_id
        self._owner = owner
        self._folders = [] if owner is None else rt.db.read(folders_of, owner.tenant_id, owner.user_id)
        self._line = 0
        self._has_header = self._is_complete = False
        self._session: SessionLine | None = None
        self._drafts: dict[str, PreparedMessage] = {}

    def look(self, source: Source) -> bool:
        """Check to whom the next page belongs, and store nothing. Returns whether more is to be checked.

        A line that cannot be read ends the check: it will stop the import, too.
        """
        page = source.read(AT_ONCE)
        for number, text in page:
            try:
                self._read(text)
            except _ForeignError as problem:
                raise ImportStoppedError(
                    f"nothing was imported: line {number}: {problem}", hint=problem.hint
                ) from None
            except ImportStoppedError:
                return False
        return bool(page)

    def take(self, source: Source) -> bool:
        """Import the next page. Returns whether there was one."""
        try:
            page = source.read(AT_ONCE)
            for self._line, text in page:
                line = self._read(text)
                if line is not None:
                    self._take(line)
            if not page and not self._is_complete:
                raise _stop("it is cut off: its last line is missing" if self._has_header else "it is empty")
        except ImportStoppedError as problem:
            self._store()
            raise ImportStoppedError(
                f"the import stopped at line {self._line}: {problem}; {self.done} were imported and stay",
                hint=f"{problem.hint} Importing it again goes on where this stopped.",
            ) from None
        self._store()
        return bool(page)

    def _read(self, text: Any) -> Line | None:
        """Return a line, if it belongs to the required user."""
        line = export_lines.line_of(text, self._tenant_id, self._rt.settings.import_line_bytes)
        if line is None or self._owner is None:
            return line
        problem = export_lines.foreign(line, self._owner.user_id, self._owner.tenant_id, self._folders)
        if problem is not None:
            raise _ForeignError(
                problem,
                hint=f"Pass a file that `memory.export(user_id={self._owner.user_id!r})` wrote, and the right `tenant_id`; or "
                "leave `user_id` out if you trust the file.",
            )
        return line

    def _take(self, line: Line) -> None:
        if self._is_complete:
            raise _stop("something follows the line that ends the export")
        if isinstance(line, HeaderLine) is self._has_header:
            raise _stop(
                "a second export begins" if self._has_header else "it does not begin as an export does"
            )
        match line:
            case HeaderLine(messages=expected):
                self._has_header, self.expected = True, expected
            case SessionLine():
                self._store()
                self._session = line
                self.done.sessions += 1
            case MessageLine(session=number, message=message):
                if self._session is None or self._session.number != number:
                    raise _stop(f"the message is of session {number}, whose line does not precede it")
                self._wait(message)
            case RecordLine() | ItemLine():
                self._store()
                self._keep(line)
            case EndLine():
                self._store()
                done = self.done
                if line != EndLine(done.sessions, done.messages, done.records, done.items):
                    raise _stop(f"lines are missing: it had {line}")
                self._is_complete = True
            case _:
                assert_never(line)

    def _wait(self, message: Message) -> None:
        with errors_as(ImportStoppedError):
            draft = draft_of(self._rt, message)
        named = draft.message.id or ""
        if named in self._drafts:
            self._store()
        self._drafts[named] = draft

    def _keep(self, line: RecordLine | ItemLine) -> None:
        with errors_as(ImportStoppedError):
            kept = self._remember(line) if isinstance(line, RecordLine) else self._place(line)
        if kept:
            self._rt.wake()

    def _remember(self, line: RecordLine) -> bool:
        """Store a record; archived, if an earlier memlayer learned it by patterns, or kept it from being told."""
        reason = export_lines.archived_because(line)
        versions = [replace(version, archived_because=reason) for version in line.versions]
        ready = [prepare_record(self._rt, version) for version in versions]
        self.done.records += 1
        quotes = line.evidence if reason is None else ()
        kept = self._rt.db.write(facts.restore, ready, quotes, self._rt.now(), self._rt.shards)
        self.done.remembered += kept
        self.done.archived += kept and reason is not None
        return kept

    def _place(self, line: ItemLine) -> bool:
        put = put_of(self._rt, line.tenant_id, line.put)
        self.done.items += 1
        dated = replace(put, created_at=line.created_at, updated_at=line.updated_at)
        kept = self._rt.db.write(item_writing.restore, dated, self._rt.now(), self._rt.shards)
        self.done.placed += kept
        return kept

    def _store(self) -> None:
        drafts, self._drafts = list(self._drafts.values()), {}
        if not drafts or self._session is None:
            return
        rt, session = self._rt, self._session
        receipt = rt.db.write(
            sql.merge,
            session.scope,
            drafts,
            session.details,
            rt.now(),
            rt.shards,
            rt.new_id(),
        )
        announce(rt, session.scope, receipt)
        self.done.messages += len(drafts)
        self.done.stored += receipt.stored
        self.done.unchanged += receipt.unchanged
        self.done.replaced += receipt.replaced


def _stop(problem: str) -> ImportStoppedError:
    return ImportStoppedError(problem, hint="Get the file from its source again.")
