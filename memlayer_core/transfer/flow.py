"""Exports and imports, page by page, and deletes what is known of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memlayer_core import errors
from memlayer_core.codec import json_text
from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.check import fold
from memlayer_core.facts.flow import forget_record, prepare_record, remember_once
from memlayer_core.facts.model import ordinal_of
from memlayer_core.items import sql as items_sql
from memlayer_core.items.check import is_within
from memlayer_core.items.flow import put_of
from memlayer_core.items.sql import folders_of
from memlayer_core.message import Message, Receipt, StoredMessage, check_message, identifier
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import check_messages, times_of
from memlayer_core.messages.flow import announce, draft_of, drafts_of
from memlayer_core.messages.model import ForgetReport, PreparedMessage, Session, SessionDetails
from memlayer_core.runtime import Asking, Journal, Runtime, ask
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.files import LineReader, Page
from memlayer_core.storage.statements import LAST
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.transfer import lines, sql
from memlayer_core.transfer.model import Conversation, ImportReport, StoredItem
from memlayer_core.transfer.sources import Source, source_of

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection, Database
    from memlayer_core.storage.files import FileWriter


# Saves and loads a session as a state, and exports sessions, records and items as lines.

Progress = Callable[[int, int], object]
"""Called after each page with the number of messages that are done, and the expected number."""

AT_ONCE = 200
"""Number of messages, sessions or lines of a page: never more of them are held in memory."""


def save(rt: Runtime, scope: Scope) -> dict[str, Any]:
    """Return a session's state."""

    def read(connection: Connection) -> tuple[list[Message], SessionDetails]:
        session = messages_reads.find(connection, scope)
        if session is None:
            return [], SessionDetails()
        messages = [item.message for item in messages_reads.history(connection, session, 0, None)]
        return messages, _details(connection, session)

    return lines.state_of(*rt.db.read(read))


def load(rt: Runtime, scope: Scope, state: object) -> Receipt:
    """Replace a session by a state, in one transaction."""

    def write() -> Receipt:
        messages, particulars = lines.conversation_of(state)
        drafts = drafts_of(rt, scope, check_messages(messages))
        return rt.db.write(sql.restore, scope, drafts, particulars, rt.now(), rt.shards)

    receipt = write()
    rt.temporaries.clear(scope)
    announce(rt, scope, receipt)
    rt.wake()  # the old messages must be removed from the index
    return receipt


def export(
    db: Database,
    target: FileWriter,
    *,
    tenant_id: str,
    user_id: str | None,
    now: datetime,
    progress: Progress | None = None,
) -> Asking[int]:
    """Write the sessions and records of a user, or all data of a tenant, line by line.

    Each page begins where the last one ended, so writes in between hide nothing and repeat nothing.

    Returns:
        How many messages were written.
    """
    Scope("anybody" if user_id is None else user_id, tenant_id=tenant_id)  # checks the ids
    done = 0
    with target:
        expected = db.read(messages_reads.count_all, tenant_id, user_id)
        pages = _pages(db, tenant_id, user_id, lines.HeaderLine(tenant_id, user_id, now, expected))
        while page := next(pages, None):
            done, some = page
            forms = map(lines.form_of, some)
            target.write("".join(json_text(form, ascii_only=target.ascii_only) + "\n" for form in forms))
            yield from _report(progress, done, expected)
    return done


def _report(progress: Progress | None, count: int, expected: int) -> Asking[None]:
    """Report the progress to the caller, in the event loop if there is one. A flow can be cancelled there, between two pages."""
    told = progress or (lambda *_: None)

    async def tell() -> None:
        told(count, expected)

    yield ask(partial(told, count, expected), tell)


def _details(connection: Connection, session: Session) -> SessionDetails:
    """Return the details that an export has of a session."""
    begins = session.memory_start
    ended = messages_reads.tail_messages(connection, session, begins, 1) if begins else []
    return SessionDetails(
        title=session.title,
        last_ended_id=ended[0][1].message.id if ended else None,
        created_at=session.created_at,
        updated_at=session.updated_at,
        forked_from=session.forked_from,
        ended=session.ended,
    )


def _sessions(db: Database, tenant_id: str, user_id: str | None) -> Iterator[Session]:
    last = 0
    while page := db.read(messages_reads.inventory, tenant_id, user_id, last, AT_ONCE):
        yield from page
        last = page[-1].number


def _messages(db: Database, session: Session) -> Iterator[list[StoredMessage]]:
    """Yield a session's messages and versions in pages. Each version comes before the message that follows it."""
    after = 0
    while after < LAST:
        page = db.read(messages_reads.history, session, after, AT_ONCE)
        end = page[-1].position if len(page) == AT_ONCE else LAST
        every = [*db.read(messages_reads.versions, session, after, end), *page]
        if every:
            yield sorted(every, key=lambda one: one.position)
        after = end


def _pages(
    db: Database, tenant_id: str, user_id: str | None, header: lines.HeaderLine
) -> Iterator[tuple[int, list[lines.Line]]]:
    """Yield pages of lines, each with the number of messages up to its end."""
    yield 0, [header]
    behind = ""
    while counted := db.read(records_reads.counts, tenant_id, user_id, behind, AT_ONCE):
        yield 0, [lines.UserLine(tenant_id, *user) for user in counted.values()]
        behind = max(counted)
    known, sessions, messages = None, 0, 0
    for session in _sessions(db, tenant_id, user_id):
        for page in _messages(db, session):
            some: list[lines.Line] = []
            if known is not session:  # a session without messages has no line
                known, sessions = session, sessions + 1
                some.append(lines.SessionLine(sessions, session.scope, db.read(_details, session)))
            every = (one.message for one in page)
            some.extend(
                lines.MessageLine(sessions, replace(one, withdrawn_at=None), one.withdrawn_at)
                for one in every
            )
            messages += len(page)
            yield messages, some
    records, place = 0, ("", 0)
    while kept := db.read(records_reads.pages, tenant_id, user_id, place, AT_ONCE):
        quotes = db.read(records_reads.evidence_of, [place for place, _ in kept])
        yield messages, [lines.RecordLine(tuple(versions), quotes.get(place, ())) for place, versions in kept]
        records, place = records + len(kept), kept[-1][0]
    items = 0
    own = [Folder(tenant_id)] if user_id is None else db.read(items_sql.folders_of, tenant_id, user_id)
    for folder in own:
        last = 0
        while held := db.read(items_sql.pages, folder, last, AT_ONCE):
            yield messages, [lines.item_line(tenant_id, item, texts) for item, texts in held]
            items, last = items + len(held), held[-1][0].number
    yield messages, [lines.EndLine(sessions, messages, records, items)]


# Imports an export, page by page. Importing it twice has the same result as once.


class Ownership(NamedTuple):
    """Who gets what is imported: see `Memory.import_from`."""

    user_id: str | None = None
    tenant_id: str | None = None
    me: str | None = None


def import_from(
    rt: Runtime, source: Any, name: str | None, owner: Ownership, progress: Progress | None, dry_run: bool
) -> Asking[ImportReport]:
    """Import an export, or what another program wrote. Importing it twice has the same result as once.

    Raises:
        ImportStoppedError: It cannot be read. For an export, the error names the line, and how much was imported.
    """
    user_id, tenant_id, me = owner
    found = source_of(source, name)
    if isinstance(found, Source):
        report = ImportReport(source_format=found.name, dry_run=dry_run)
        return (yield from _bring(_Arrival(rt, owner, report), found, progress))
    if me is not None:
        raise errors.InputError("an export already says who speaks", hint="Leave `me` out.")
    reader = LineReader(found, rt.settings.import_line_bytes)
    reach = Scope(
        "anybody" if user_id is None else user_id, tenant_id="default" if tenant_id is None else tenant_id
    )
    importing = _Import(rt, tenant_id, reach if user_id is not None else None, dry_run=dry_run)
    if user_id is not None and reader.is_repeatable:
        with closing(reader.pages(AT_ONCE)) as pages:
            while importing.look(pages):
                pass
    with closing(reader.pages(AT_ONCE)) as pages:
        while importing.take(pages):
            yield from _report(progress, importing.done.messages, importing.expected)
    return importing.done


class _ForeignError(errors.ImportStoppedError):
    """A line does not belong to the required user."""


class _Import:
    """Reads an export's lines in order, and stores its messages page by page."""

    def __init__(self, rt: Runtime, tenant_id: str | None, owner: Scope | None, *, dry_run: bool) -> None:
        self.done = ImportReport(dry_run=dry_run)
        self.expected = 0
        self._rt = rt
        self._tenant_id = tenant_id
        self._owner = owner
        self._folders = [] if owner is None else rt.db.read(folders_of, owner.tenant_id, owner.user_id)
        self._line = 0
        self._has_header = self._is_complete = False
        self._session: lines.SessionLine | None = None
        self._learned: set[str] = set()
        self._drafts: dict[str, PreparedMessage] = {}
        self._versions: list[tuple[PreparedMessage, datetime, str | None]] = []
        self._kept_in: dict[Scope, Scope] = {}

    def look(self, pages: Iterator[Page]) -> bool:
        """Check who owns the lines of the next page, and store nothing. Returns whether the check goes on.

        A line that cannot be read ends the check, since it will stop the import, too.
        """
        page = next(pages, [])
        for number, text in page:
            try:
                self._read(text)
            except _ForeignError as problem:
                raise errors.ImportStoppedError(
                    f"nothing was imported: line {number}: {problem}", hint=problem.hint
                ) from None
            except errors.ImportStoppedError:
                return False
        return bool(page)

    def take(self, pages: Iterator[Page]) -> bool:
        """Import the next page. Returns whether there was one."""
        try:
            page = next(pages, [])
            for self._line, text in page:
                line = self._read(text)
                if line is not None:
                    self._take(line)
            if not page and not self._is_complete:
                raise _stop("it is cut off: its last line is missing" if self._has_header else "it is empty")
        except errors.ImportStoppedError as problem:
            self._store(is_over=True)
            more = "" if self._has_header else f" {_NO_EXPORT}"
            raise errors.ImportStoppedError(
                f"the import stopped at line {self._line}: {problem}; {self.done} were imported and stay",
                hint=f"{problem.hint} Importing it again goes on where this stopped.{more}",
            ) from None
        self._store()
        return bool(page)

    def _read(self, text: Any) -> lines.Line | None:
        """Return a line, if it belongs to the required user."""
        line = lines.line_of(text, self._tenant_id, self._rt.settings.import_line_bytes)
        if line is None or self._owner is None:
            return line
        problem = lines.foreign(line, self._owner.user_id, self._owner.tenant_id, self._folders)
        if problem is not None:
            raise _ForeignError(
                problem,
                hint=f"Pass a file that `memory.export(user_id={self._owner.user_id!r})` wrote, and the right `tenant_id`; or "
                "leave `user_id` out if you trust the file.",
            )
        return line

    def _take(self, line: lines.Line) -> None:
        if self._is_complete:
            raise _stop("something follows the line that ends the export")
        if isinstance(line, lines.HeaderLine) is self._has_header:
            raise _stop(
                "a second export begins" if self._has_header else "it does not begin as an export does"
            )
        match line:
            case lines.HeaderLine(messages=expected):
                self._has_header, self.expected = True, expected
            case lines.SessionLine():
                self._store(is_over=True)
                self._session = self._origin_of(line)
                self.done.sessions += 1
            case lines.MessageLine(session=number, message=message, withdrawn_at=left):
                if self._session is None or self._session.number != number:
                    raise _stop(f"the message is of session {number}, whose line does not precede it")
                self._wait(self._session, message, left)
            case lines.UserLine() | lines.RecordLine() | lines.ItemLine():
                self._store(is_over=True)
                self._keep(line)
            case lines.EndLine():
                self._store(is_over=True)
                done = self.done
                if line != lines.EndLine(done.sessions, done.messages, done.records, done.items):
                    raise _stop(f"lines are missing: it had {line}")
                self._is_complete = True

    def _origin_of(self, line: lines.SessionLine) -> lines.SessionLine:
        """Return the line of a session. If an earlier memlayer kept versions in it, return their own session's line."""
        if not line.holds_versions:
            return line
        origin = line.scope.other_session(line.details.forked_from or "")
        self._kept_in[line.scope] = origin = self._kept_in.get(origin, origin)
        return replace(line, scope=origin)

    def _wait(self, line: lines.SessionLine, message: Message, withdrawn_at: datetime | None) -> None:
        with errors.errors_as(errors.ImportStoppedError):
            draft = draft_of(self._rt, line.scope, message)
        left = line.details.created_at if line.holds_versions else withdrawn_at
        if left is not None:
            self._versions.append((draft, left, None))
            return
        named = draft.message.id or ""
        if named in self._drafts:
            self._store()
        self._drafts[named] = draft
        self._versions = [(one, at, before or named) for one, at, before in self._versions]

    def _keep(self, line: lines.UserLine | lines.RecordLine | lines.ItemLine) -> None:
        """Count what is not a message, and store it."""
        rt, done = self._rt, self.done
        done.records += isinstance(line, lines.RecordLine)
        done.items += isinstance(line, lines.ItemLine)
        if done.dry_run:
            return
        with errors.errors_as(errors.ImportStoppedError):
            match line:
                case lines.UserLine():
                    kept = bool(self._expect(line))
                case lines.RecordLine():
                    kept = self._remember(line)
                case lines.ItemLine(tenant_id=tenant_id, stored=item):
                    kept = _place(rt, tenant_id, item)
                    done.placed += kept
        if kept:
            rt.wake()

    def _expect(self, line: lines.UserLine) -> int:
        """Reserve the ids of the records that follow, and delete records that were deleted there. Returns how many."""
        write, owner = self._rt.db.write, line.owner
        self._learned.add(owner.namespace)
        write(records_writes.note_numbers, owner, self._rt.shards, line.records)
        again, now = records_writes.forget_again, self._rt.now()
        return sum(write(again, owner, *gone, now) for gone in line.forgotten.items())

    def _remember(self, line: lines.RecordLine) -> bool:
        """Store a record. It is archived if an earlier memlayer learned it by patterns, or kept it out of contexts."""
        reason = lines.archived_because(line)
        versions = [replace(version, archived_because=reason) for version in line.versions]
        ready = [prepare_record(self._rt, version) for version in versions]
        evidence = line.evidence if reason is None else ()
        quotes = [replace(one, quote=self._rt.redact(one.quote)) for one in evidence]
        kept = self._rt.db.write(records_writes.restore, ready, quotes, self._rt.now(), self._rt.shards)
        self.done.remembered += kept
        self.done.archived += kept and reason is not None
        return kept

    def _store(self, *, is_over: bool = False) -> None:
        """Store what waits. A version waits for the message that follows it, or for the end of its session."""
        drafts, self._drafts = list(self._drafts.values()), {}
        ready = [one for one in self._versions if is_over or one[2] is not None]
        self._versions = [one for one in self._versions if not is_over and one[2] is None]
        rt, session = self._rt, self._session
        if session is None:
            return
        self.done.messages += len(drafts) + len(ready)
        if self.done.dry_run:
            return
        if drafts:
            is_learned, more = session.scope.namespace in self._learned, (rt.now(), rt.shards)
            receipt = rt.db.write(
                sql.merge, session.scope, drafts, session.details, *more, is_learned=is_learned
            )
            announce(rt, session.scope, receipt)
            self.done.count(receipt)
        if ready:
            new = rt.db.write(sql.add_versions, session.scope, ready, rt.now(), rt.shards)
            self.done.stored += new
            self.done.unchanged += len(ready) - new


def _stop(problem: str) -> errors.ImportStoppedError:
    return errors.ImportStoppedError(problem, hint="Get the file from its source again.")


_NO_EXPORT = (
    "`memory.export` writes one. Of another program's file give the path, or open it with `open(path, 'rb')`."
)


def _place(rt: Runtime, tenant_id: str, item: StoredItem, *, is_real: bool = True) -> bool:
    """Store an item of another store if it is new here, unless it is only to be checked. Returns whether it was stored."""
    put = put_of(rt, tenant_id, item.put)
    if not is_real:
        return False
    now = rt.now()
    dated = replace(put, created_at=item.created_at or now, updated_at=item.updated_at or now)
    return rt.db.write(items_sql.restore, dated, now, rt.shards)


# Imports what other programs wrote, conversation by conversation. Importing it twice has the same result as once.

_WITH_VECTORS = 1000  # if a conversation has more messages, not all of its vectors are held in memory


def _bring(arrival: _Arrival, source: Source, progress: Progress | None) -> Asking[ImportReport]:
    """Import conversations. A source that can be read twice is checked as a whole first: if it is refused, nothing is written.

    Raises:
        ImportStoppedError: It is not known whose they are, or which speaker is the user; or they are damaged.
    """
    if source.is_repeatable:
        with closing(source.open()) as conversations:
            for conversation in conversations:
                arrival.note(conversation)
        arrival.check()
    with closing(source.open()) as conversations:
        for conversation in conversations:
            arrival.take(conversation)
            yield from _report(progress, arrival.report.messages, arrival.expected)
    return arrival.report


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (" and others" if len(names) > 10 else "")  # noqa: PLR2004


class _Arrival:
    """Decides who gets the imported conversations and which of their speakers is the user, takes them in, and counts them.

    Attributes:
        report: What was done.
        expected: How many messages there are, if that is known.
    """

    def __init__(self, rt: Runtime, owner: Ownership, report: ImportReport) -> None:
        self.report, self.expected = report, 0
        self._rt, self._user_id, self._me = rt, owner.user_id, owner.me
        self._tenant_id = "default" if owner.tenant_id is None else owner.tenant_id
        Scope(
            "anybody" if self._user_id is None else self._user_id, tenant_id=self._tenant_id
        )  # checks the ids
        own = () if self._user_id is None else rt.db.read(folders_of, self._tenant_id, self._user_id)
        self._folders: Sequence[Folder] = own
        self._users = set[str | None]()
        self._speakers = dict[str, str]()
        self._has_unnamed = False

    def note(self, one: Conversation) -> None:
        """Note who owns a conversation, and who speaks in it."""
        self.expected += len(one.messages)
        if one.messages or one.records:
            self._users.add(one.user_id)
        for name in (message.name for message in one.messages if message.role == "user"):
            if name is not None:
                self._speakers.setdefault(fold(name), name)
            self._has_unnamed |= name is None

    def check(self) -> None:
        """Refuse conversations without a clear user, before anything is written.

        Raises:
            ImportStoppedError: It is not known whose they are, or which speaker is the user.
        """
        named, people = sorted(one for one in self._users if one is not None), list(self._speakers.values())
        if self._user_id is not None and len(named) > 1 and self._user_id not in named:
            raise errors.ImportStoppedError(
                f"it is of the users {_some(named)}, and not of {self._user_id!r}",
                hint="Leave `user_id` out: each user gets their own. Or name one of them.",
            )
        if self._me is not None and fold(self._me) not in self._speakers:
            raise errors.ImportStoppedError(
                f"nobody in it is called {self._me!r:.80}",
                hint=f"The speakers are: {_some(people) or 'without names'}.",
            )
        if self._me is None and len(people) > 1 and not self._has_unnamed:
            raise errors.ImportStoppedError(
                f"several people speak in it: {_some(people)}",
                hint="Name the one who is the user: `me=…`, or on the command line `--me NAME`. The others keep their names.",
            )
        if None in self._users:
            self._owner_of(None)

    def _owner_of(self, user_id: str | None) -> str | None:
        """Return the user who gets a conversation; None if it belongs to another one. `user_id` is the user that it names.

        If all conversations name the same user, that user may have had another id there.

        Raises:
            ImportStoppedError: It is not known whose it is.
        """
        mine = self._user_id
        if mine is None and user_id is None:
            raise errors.ImportStoppedError(
                "it does not say whose it is", hint="Pass `user_id=…`, or on the command line `--user ID`."
            )
        if mine is None:
            return user_id
        return mine if user_id in (None, mine) or self._users - {None} == {user_id} else None

    def _spoken(self, message: Message) -> Message:
        """Return a message with its speaker's name; the user has none."""
        is_user = (
            self._me is not None and message.role == "user" and fold(message.name or "") == fold(self._me)
        )
        return replace(message, name=None) if is_user else message

    def take(self, one: Conversation) -> None:
        """Count a conversation, and store it, unless this is a dry run: all of its messages, or none."""
        for why, count in one.left_out.items():
            self.report.leave_out(why, count)
        for item in one.items:
            self._keep(item)
        if not one.messages and not one.records:
            return
        user_id = self._owner_of(one.user_id)
        if user_id is None:
            why = f"of another user than {self._user_id}"
            self.report.leave_out(why, len(one.messages) + len(one.records))
            return
        scope = Scope.of_user(user_id, tenant_id=self._tenant_id)
        for text, fields in one.records:
            self._remember(scope, text, fields)
        if one.messages:
            self._store(scope, one.placed().named())

    def _store(self, owner: Scope, one: Conversation) -> None:
        rt, report = self._rt, self.report
        try:
            scope = owner.other_session(one.session_id or "")
            if one.title is not None:
                identifier("title", one.title)
        except errors.InputError as problem:
            report.leave_out(
                f"of a session whose name cannot be stored: {type(problem).__name__}", len(one.messages)
            )
            return
        messages = list[Message]()
        for message in one.messages:
            try:
                messages.append(check_message(self._spoken(message)))
            except errors.InputError as problem:
                report.leave_out(f"cannot be stored: {type(problem).__name__}")
        told = [message.created_at for message in messages if message.created_at is not None]
        report.sessions += bool(messages)
        report.messages += len(messages)
        report.without_time += len(messages) - len(told)
        report.date(*told)
        if report.dry_run or not messages:
            return
        moments = times_of(messages, max(told, default=rt.now()))
        drafts = [draft_of(rt, scope, *pair) for pair in zip(messages, moments, strict=True)]
        if len(drafts) > _WITH_VECTORS:
            drafts = [replace(draft, embedding=None) for draft in drafts]
        details = SessionDetails(one.title, created_at=min(moments), updated_at=max(moments))
        receipt = rt.db.write(sql.merge, scope, drafts, details, rt.now(), rt.shards, is_learned=False)
        announce(rt, scope, receipt)
        report.count(receipt)

    def _remember(self, scope: Scope, text: str, fields: Mapping[str, Any]) -> None:
        report = self.report
        try:
            is_new = remember_once(self._rt, scope, text, fields, is_real=not report.dry_run)
        except errors.InvalidRecordError as problem:
            report.leave_out(f"a record that cannot be stored: {type(problem).__name__}")
            return
        report.records += 1
        report.remembered += is_new and not report.dry_run
        report.date(fields.get("occurred_at"))

    def _keep(self, one: StoredItem) -> None:
        rt, report = self._rt, self.report
        if self._user_id is not None and not is_within(one.put.labels, self._folders):
            report.leave_out("an item of nobody, or of another user")
            return
        try:
            is_new = _place(rt, self._tenant_id, one, is_real=not report.dry_run)
        except errors.InvalidItemError as problem:
            report.leave_out(f"an item that cannot be stored: {type(problem).__name__}")
            return
        report.items += 1
        report.placed += is_new
        report.date(one.updated_at)
        if is_new:
            rt.wake()


# Deletes what is known of a user: a record, a session, or everything.


def _forgotten(report: ForgetReport, what: Erasure) -> Outcome:
    counts = {"memlayer.sessions": report.sessions}
    gone = report.messages + report.records + report.items
    return Outcome(gone, counts, session_id=what.session_id, record_id=what.record_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What is deleted: see `Memory.forget`."""

    user_id: str | None = None
    session_id: str | None = None
    record_id: str | None = None
    speaker: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None

    @property
    def reach(self) -> Scope:
        """The scope of the data.

        Raises:
            InvalidScopeError: No user, session or record is named.
        """
        if self.user_id is not None:
            return Scope(self.user_id, self.session_id, self.agent_id, self.tenant_id)
        if self.session_id is not None:
            return Scope.alone(self.session_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        raise errors.InvalidScopeError(
            "no user, session or record is given to delete",
            hint="Pass `user_id=…`, with `session_id=…` for one session of that user, or `record_id=…`; "
            "`session_id=…` alone for a session without a user.",
        )


@traced("delete_memory", "forget", _forgotten)
def forget(rt: Runtime, what: Erasure) -> ForgetReport:
    """Delete a record, a session, everything of a user or of a user with one agent, or what one speaker said there."""
    if what.record_id is None:
        rt.temporaries.forget(what.reach)
    gone = forget_in_journal(rt, what)
    if gone.sessions or gone.records or gone.items:
        rt.wake()
    return gone


def forget_in_journal(journal: Journal, what: Erasure) -> ForgetReport:
    """Do `forget` in the journal alone. Jobs are queued for the index and the files."""
    if what.record_id is not None and what.speaker is not None:
        raise errors.InvalidScopeError("a record and a speaker are named", hint="Delete them in two calls.")
    if what.record_id is not None:
        owner = what.user_id if what.user_id is not None else ordinal_of(what.record_id)[0]
        reach = Scope.of_user(owner, tenant_id=what.tenant_id, agent_id=what.agent_id)
        return forget_record(journal, reach, what.record_id)
    if what.speaker is not None:
        return journal.db.write(sql.forget_speaker, what.reach, what.speaker, journal.now())
    return journal.db.write(_forget, what.reach, journal.now(), what.user_id)


def _forget(connection: Connection, reach: Scope, now: datetime, user_id: str | None) -> ForgetReport:
    """Delete everything of a scope in one transaction; of a whole user, the items in their namespaces, too."""
    gone = sql.forget(connection, reach, now)
    if user_id is None or reach.agent_id is not None or reach.session_id is not None:
        return gone
    own = items_sql.folders_of(connection, reach.tenant_id, user_id)
    return replace(
        gone,
        items=sum(items_sql.forget(connection, folder, now) for folder in own),
        undeclared_folders=tuple(items_sql.undeclared_folders(connection, reach.tenant_id, user_id)),
    )
