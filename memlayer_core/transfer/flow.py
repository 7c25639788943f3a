"""Exports and imports, page by page, and deletes what is known of a user."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import IO, Any, NamedTuple, TypeVar

from memlayer_core import errors
from memlayer_core.codec import json_text
from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.check import fold
from memlayer_core.facts.flow import forget_record, prepare_record, remember_once
from memlayer_core.facts.model import ordinal_of
from memlayer_core.items import sql as items_sql
from memlayer_core.items.check import is_within
from memlayer_core.items.flow import put_of
from memlayer_core.items.model import PutItem
from memlayer_core.message import Message, Receipt, StoredMessage, check_message, identifier
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.check import times_of
from memlayer_core.messages.flow import announce, draft_of, drafts_of
from memlayer_core.messages.model import ForgetReport, PreparedMessage, Session, SessionDetails
from memlayer_core.runtime import Asking, Journal, Runtime, ask
from memlayer_core.scope import Folder, Scope
from memlayer_core.storage.database import Connection, Database
from memlayer_core.storage.files import LineReader, Page, is_ascii_only, writing
from memlayer_core.storage.statements import LAST
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.telemetry import Outcome, traced
from memlayer_core.transfer import lines, sql
from memlayer_core.transfer.model import Conversation, ImportReport
from memlayer_core.transfer.sources import ImportSource, source_of

# Saves and loads a session as a state, and exports sessions, records and items as lines.

T = TypeVar("T", bound=Collection[Any])

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
    messages, details = lines.conversation_of(state)
    drafts = drafts_of(rt, scope, messages)
    receipt = rt.db.write(sql.restore, scope, drafts, details, rt.now())
    rt.temporaries.clear(scope)
    announce(rt, scope, receipt)
    rt.wake()  # the old messages must be removed from the index
    return receipt


def export(
    journal: Journal,
    target: str | os.PathLike[str] | IO[str],
    user_id: str | None,
    tenant_id: str,
    progress: Progress | None,
) -> Asking[int]:
    """Write the sessions and records of a user, or all data of a tenant, line by line.

    Each page begins where the last one ended, so writes in between hide nothing and repeat nothing.

    Returns:
        How many messages were written.
    """
    _scope_of(user_id, tenant_id)  # checks the ids
    db = journal.db
    done = Counter[type[lines.Line]]()
    with writing(target) as file:
        expected = db.read(messages_reads.count_all, tenant_id, user_id)
        header = lines.HeaderLine(tenant_id, user_id, journal.now(), expected)
        for page in chain([[header]], _pages(db, tenant_id, user_id), _end_of(done)):
            done.update(map(type, page))
            forms = map(lines.form_of, page)
            file.write("".join(json_text(form, ascii_only=is_ascii_only(file)) + "\n" for form in forms))
            yield from _report(progress, done[lines.MessageLine], expected)
    return done[lines.MessageLine]


def _scope_of(user_id: str | None, tenant_id: str | None) -> Scope:
    """Return the scope of a user, or of anybody in a tenant. The ids are checked."""
    tenant = "default" if tenant_id is None else tenant_id
    return Scope("anybody" if user_id is None else user_id, tenant_id=tenant)


def _report(progress: Progress | None, count: int, expected: int) -> Asking[None]:
    """Report the progress to the caller, in the event loop if there is one. A flow can be cancelled there, between two pages."""
    report = progress or (lambda *_: None)

    async def tell(*numbers: int) -> None:
        report(*numbers)

    yield ask(report, tell, count, expected)


def _details(connection: Connection, session: Session) -> SessionDetails:
    """Return the details that an export has of a session."""
    begins = session.memory_start
    ended = messages_reads.tail_messages(connection, session, begins, 1) if begins else []
    last = ended[0][1].message.id if ended else None
    same: Any = {name: getattr(session, name) for name in _SAME}
    return SessionDetails(last_ended_id=last, **same)


_SAME = ("title", "created_at", "updated_at", "forked_from", "ended")


def _paged(
    db: Database, query: Callable[..., T], ids: Sequence[Any], place: Any, place_of: Callable[[T], Any]
) -> Iterator[T]:
    """Yield what a query reads, page by page. `place_of` returns where a page ends."""
    while page := db.read(query, *ids, place, AT_ONCE):
        yield page
        place = place_of(page)


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


def _pages(db: Database, tenant_id: str, user_id: str | None) -> Iterator[Sequence[lines.Line]]:
    """Yield the lines between the first one and the last one in pages."""
    whose = tenant_id, user_id
    for counted in _paged(db, records_reads.counts, whose, "", max):
        yield [lines.UserLine(tenant_id, *user) for user in counted.values()]
    sessions = _paged(db, messages_reads.inventory, whose, 0, lambda page: page[-1].number)
    number = 0
    for session in chain.from_iterable(sessions):
        for place, page in enumerate(_messages(db, session)):
            some: list[lines.Line] = []
            if place == 0:  # a session without messages has no line
                number += 1
                some.append(lines.SessionLine(number, session.scope, db.read(_details, session)))
            some += [lines.MessageLine(number, one.message, one.message.withdrawn_at) for one in page]
            yield some
    for kept in _paged(db, records_reads.pages, whose, ("", 0), lambda page: page[-1][0]):
        quotes = db.read(records_reads.evidence_of, [place for place, _ in kept])
        yield [lines.RecordLine(tuple(versions), quotes.get(place, ())) for place, versions in kept]
    own = [Folder(tenant_id)] if user_id is None else db.read(items_sql.folders_of, tenant_id, user_id)
    for folder in own:
        for held in _paged(db, items_sql.pages, [folder], 0, lambda page: page[-1][0].number):
            yield [lines.item_line(tenant_id, item, texts) for item, texts in held]


def _end_of(counts: Mapping[type[lines.Line], int]) -> Iterator[Sequence[lines.Line]]:
    """Yield the last line, once all others are counted."""
    counted = lines.SessionLine, lines.MessageLine, lines.RecordLine, lines.ItemLine
    yield [lines.EndLine(*(counts[kind] for kind in counted))]


# Imports an export page by page, and what other programs wrote conversation by conversation.


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
        ImportStoppedError: It cannot be read, it is not known whose it is or which speaker is the user, or it belongs to somebody
            else. For an export, the error names the line, and how much was imported.
    """
    found, report = source_of(source, name), ImportReport(dry_run=dry_run)
    importer: _Importer
    if isinstance(found, ImportSource):
        report.source_format = found.name
        importer = _Conversations(rt, owner, report, found)
    elif owner.me is not None:
        raise errors.InputError("an export already says who speaks", hint="Leave `me` out.")
    else:
        importer = _Export(rt, owner, report, LineReader(found, rt.settings.import_line_bytes))
    with closing(importer.parts()) as parts:
        for _ in parts:
            yield from _report(progress, report.messages, importer.expected)
    return report


class _Importer:
    """Takes in what is imported, and counts it.

    Attributes:
        expected: How many messages there are, if that is known.
    """

    def __init__(self, rt: Runtime, owner: Ownership, report: ImportReport) -> None:
        self.expected = 0
        self._rt, self._owner, self._report = rt, owner, report
        self._scope = _scope_of(owner.user_id, owner.tenant_id)
        self._folders: Sequence[Folder] = ()
        if owner.user_id is not None:
            self._folders = rt.db.read(items_sql.folders_of, self._scope.tenant_id, owner.user_id)

    def parts(self) -> Generator[None]:
        """Check whose it is as far as it can be read twice, then import it part by part. It pauses after each part."""
        raise NotImplementedError

    def _merge(
        self, scope: Scope, drafts: Sequence[PreparedMessage], details: SessionDetails, *, is_learned: bool
    ) -> None:
        """Store messages that a session does not have."""
        rt = self._rt
        receipt = rt.db.write(sql.merge, scope, drafts, details, rt.now(), is_learned=is_learned)
        announce(rt, scope, receipt)
        self._report.count(receipt)

    def _place(self, tenant_id: str, item: PutItem) -> None:
        """Check an item of another store, and store it if it is new here, unless nothing is to be written."""
        rt, put = self._rt, put_of(self._rt, tenant_id, item)
        if not self._report.dry_run and rt.db.write(items_sql.restore, put, rt.now()):
            self._report.placed += 1
            rt.wake()


class _Export(_Importer):
    """Reads an export's lines in order, and stores its messages page by page."""

    def __init__(self, rt: Runtime, owner: Ownership, report: ImportReport, reader: LineReader) -> None:
        super().__init__(rt, owner, report)
        self._reader, self._line = reader, 0
        self._has_header = self._is_complete = False
        self._session: lines.SessionLine | None = None
        self._learned: set[str] = set()
        self._drafts: dict[str, PreparedMessage] = {}
        self._versions: list[tuple[PreparedMessage, datetime, str | None]] = []
        self._kept_in: dict[Scope, Scope] = {}

    def parts(self) -> Generator[None]:
        """Do it page by page."""
        if self._owner.user_id is not None and self._reader.is_repeatable:
            self._check()
        with closing(self._reader.pages(AT_ONCE)) as pages:
            while self._take_page(pages):
                yield

    def _check(self) -> None:
        """Check who owns the lines. A line that cannot be read ends the check, since it will stop the import, too."""
        with closing(self._reader.pages(AT_ONCE)) as pages:
            for number, text in chain.from_iterable(pages):
                try:
                    line = self._read(text)
                except errors.ImportStoppedError:
                    return
                self._refuse_foreign(line, f"nothing was imported: line {number}: ")

    def _take_page(self, pages: Iterator[Page]) -> bool:
        """Import the next page. Returns whether there was one."""
        try:
            page = next(pages, [])
            for self._line, text in page:
                line = self._read(text)
                self._refuse_foreign(line)
                if line is not None:
                    self._follow(line)
            if not page and not self._is_complete:
                raise _stop("it is cut off: its last line is missing" if self._has_header else "it is empty")
        except errors.ImportStoppedError as problem:
            self._store(is_over=True)
            more = "" if self._has_header else _NO_EXPORT
            raise errors.ImportStoppedError(
                f"the import stopped at line {self._line}: {problem}; {self._report} were imported and stay",
                hint=f"{problem.hint} Importing it again goes on where this stopped.{more}",
            ) from None
        self._store()
        return bool(page)

    def _read(self, text: Any) -> lines.Line | None:
        return lines.line_of(text, self._owner.tenant_id, self._rt.settings.import_line_bytes)

    def _refuse_foreign(self, line: lines.Line | None, where: str = "") -> None:
        """Refuse a line that does not belong to the required user."""
        if line is None or self._owner.user_id is None:
            return
        problem = lines.foreign(line, self._scope.user_id, self._scope.tenant_id, self._folders)
        if problem is not None:
            raise errors.ImportStoppedError(
                where + problem,
                hint=f"Pass a file that `memory.export(user_id={self._owner.user_id!r})` wrote, and the right `tenant_id`; or "
                "leave `user_id` out if you trust the file.",
            )

    def _follow(self, line: lines.Line) -> None:
        """Import a line, if it may follow what precedes it."""
        if self._is_complete:
            raise _stop("something follows the line that ends the export")
        if isinstance(line, lines.HeaderLine) is self._has_header:
            what = "a second export begins" if self._has_header else "it does not begin as an export does"
            raise _stop(what)
        if not isinstance(line, lines.MessageLine):
            self._store(is_over=True)
        with errors.errors_as(errors.ImportStoppedError):
            self._take(line)

    def _take(self, line: lines.Line) -> None:
        report = self._report
        match line:
            case lines.HeaderLine(messages=expected):
                self._has_header, self.expected = True, expected
            case lines.SessionLine():
                self._session = self._origin_of(line)
                report.sessions += 1
            case lines.MessageLine():
                self._wait(line)
            case lines.UserLine():
                self._expect(line)
            case lines.RecordLine():
                report.records += 1
                self._remember(line)
            case lines.ItemLine():
                report.items += 1
                self._place(line.tenant_id, line)
            case lines.EndLine():
                if line != lines.EndLine(report.sessions, report.messages, report.records, report.items):
                    raise _stop(f"lines are missing: it had {line}")
                self._is_complete = True

    def _origin_of(self, line: lines.SessionLine) -> lines.SessionLine:
        """Return the line of a session. If an earlier memlayer kept versions in it, return their own session's line."""
        if not line.holds_versions:
            return line
        origin = line.scope.other_session(line.details.forked_from or "")
        self._kept_in[line.scope] = origin = self._kept_in.get(origin, origin)
        return replace(line, scope=origin)

    def _wait(self, line: lines.MessageLine) -> None:
        """Check a message, which is stored at the end of its page or of its session."""
        session = self._session
        if session is None or session.number != line.session:
            raise _stop(f"the message is of session {line.session}, whose line does not precede it")
        draft = draft_of(self._rt, session.scope, line.message)
        left = session.details.created_at if session.holds_versions else line.withdrawn_at
        if left is not None:
            self._versions.append((draft, left, None))
            return
        named = draft.message.id or ""
        if named in self._drafts:
            self._store()
        self._drafts[named] = draft
        self._versions = [(one, at, before or named) for one, at, before in self._versions]

    def _expect(self, line: lines.UserLine) -> None:
        """Reserve the ids of the records that follow, and delete records that were deleted there."""
        if self._report.dry_run:
            return
        rt, owner = self._rt, line.owner
        self._learned.add(owner.namespace)
        rt.db.write(records_writes.note_numbers, owner, line.records)
        for gone in line.forgotten.items():
            if rt.db.write(records_writes.forget_again, owner, *gone, rt.now()):
                rt.wake()

    def _remember(self, line: lines.RecordLine) -> None:
        """Store a record. It is archived if an earlier memlayer learned it by patterns, or kept it out of contexts."""
        if self._report.dry_run:
            return
        rt, reason = self._rt, lines.archived_because(line)
        ready = [prepare_record(rt, replace(one, archived_because=reason)) for one in line.versions]
        evidence = line.evidence if reason is None else ()
        quotes = [replace(one, quote=rt.redact(one.quote)) for one in evidence]
        if rt.db.write(summaries_sql.restore, ready, quotes, rt.now()):
            self._report.remembered += 1
            self._report.archived += reason is not None
            rt.wake()

    def _store(self, *, is_over: bool = False) -> None:
        """Store what waits. A version waits for the message that follows it, or for the end of its session."""
        drafts, self._drafts = list(self._drafts.values()), {}
        ready = [one for one in self._versions if is_over or one[2] is not None]
        self._versions = [one for one in self._versions if not is_over and one[2] is None]
        rt, report, session = self._rt, self._report, self._session
        report.messages += len(drafts) + len(ready)
        if session is None or report.dry_run:
            return
        if drafts:
            is_learned = session.scope.namespace in self._learned
            self._merge(session.scope, drafts, session.details, is_learned=is_learned)
        if ready:
            new = rt.db.write(sql.add_versions, session.scope, ready, rt.now())
            report.stored += new
            report.unchanged += len(ready) - new


def _stop(problem: str) -> errors.ImportStoppedError:
    return errors.ImportStoppedError(problem, hint="Get the file from its source again.")


_NO_EXPORT = " `memory.export` writes one. Of another program's file give the path, or open it with `open(path, 'rb')`."

_WITH_VECTORS = 1000  # if a conversation has more messages, not all of its vectors are held in memory


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (" and others" if len(names) > 10 else "")  # noqa: PLR2004


class _Conversations(_Importer):
    """Decides who gets conversations and which of their speakers is the user, and takes them in."""

    def __init__(self, rt: Runtime, owner: Ownership, report: ImportReport, source: ImportSource) -> None:
        super().__init__(rt, owner, report)
        self._source = source
        self._users = set[str | None]()
        self._speakers = dict[str, str]()
        self._has_unnamed = False

    def parts(self) -> Generator[None]:
        """Do it conversation by conversation. A source that can be read twice is checked first: if it is refused, nothing is written."""
        if self._source.is_repeatable:
            with closing(self._source.open()) as conversations:
                for one in conversations:
                    self._note(one)
            self._check()
        with closing(self._source.open()) as conversations:
            for one in conversations:
                self._take(one)
                yield

    def _note(self, one: Conversation) -> None:
        """Note who owns a conversation, and who speaks in it."""
        self.expected += len(one.messages)
        if one.messages or one.records:
            self._users.add(one.user_id)
        for name in (message.name for message in one.messages if message.role == "user"):
            if name is not None:
                self._speakers.setdefault(fold(name), name)
            self._has_unnamed |= name is None

    def _check(self) -> None:
        """Refuse conversations without a clear user, before anything is written."""
        mine, _, me = self._owner
        named, people = sorted(one for one in self._users if one is not None), list(self._speakers.values())
        if mine is not None and len(named) > 1 and mine not in named:
            raise errors.ImportStoppedError(
                f"it is of the users {_some(named)}, and not of {mine!r}",
                hint="Leave `user_id` out: each user gets their own. Or name one of them.",
            )
        if me is not None and fold(me) not in self._speakers:
            raise errors.ImportStoppedError(
                f"nobody in it is called {errors.repr_of(me)}",
                hint=f"The speakers are: {_some(people) or 'without names'}.",
            )
        if me is None and len(people) > 1 and not self._has_unnamed:
            raise errors.ImportStoppedError(
                f"several people speak in it: {_some(people)}",
                hint="Name the one who is the user: `me=…`, or on the command line `--me NAME`. The others keep their names.",
            )
        if None in self._users:
            self._owner_of(None)

    def _owner_of(self, user_id: str | None) -> str | None:
        """Return the user who gets a conversation; None if it belongs to another one. `user_id` is the user that it names.

        If all conversations name the same user, that user may have had another id there.
        """
        mine = self._owner.user_id
        if mine is None and user_id is None:
            raise errors.ImportStoppedError(
                "it does not say whose it is", hint="Pass `user_id=…`, or on the command line `--user ID`."
            )
        if mine is None:
            return user_id
        return mine if user_id in (None, mine) or self._users - {None} == {user_id} else None

    @contextmanager
    def _or_left_out(self, what: str, count: int = 1) -> Iterator[None]:
        """Leave out what cannot be stored."""
        try:
            yield
        except errors.InputError as problem:
            self._report.leave_out(f"{what}: {type(problem).__name__}", count)

    def _take(self, one: Conversation) -> None:
        """Count a conversation, and store it, unless this is a dry run: all of its messages, or none."""
        report = self._report
        for why, count in one.left_out.items():
            report.leave_out(why, count)
        for item in one.items:
            if self._owner.user_id is not None and not is_within(item.labels, self._folders):
                report.leave_out("an item of nobody, or of another user")
                continue
            with self._or_left_out("an item that cannot be stored"):
                self._place(self._scope.tenant_id, item)
                report.items += 1
                report.date(item.updated_at)
        if not one.messages and not one.records:
            return
        user_id = self._owner_of(one.user_id)
        if user_id is None:
            why = f"of another user than {self._owner.user_id}"
            report.leave_out(why, len(one.messages) + len(one.records))
            return
        scope = Scope.of_user(user_id, tenant_id=self._scope.tenant_id)
        for text, fields in one.records:
            with self._or_left_out("a record that cannot be stored"):
                is_new = remember_once(self._rt, scope, text, fields, is_real=not report.dry_run)
                report.records += 1
                report.remembered += is_new and not report.dry_run
                report.date(fields.get("occurred_at"))
        if one.messages:
            self._add(scope, one.placed().named())

    def _add(self, owner: Scope, one: Conversation) -> None:
        """Count the messages of a conversation, and store them."""
        rt, report, scope = self._rt, self._report, None
        with self._or_left_out("of a session whose name cannot be stored", len(one.messages)):
            if one.title is not None:
                identifier("title", one.title)
            scope = owner.other_session(one.session_id or "")
        if scope is None:
            return
        messages = list[Message]()
        for message in one.messages:
            with self._or_left_out("cannot be stored"):
                messages.append(check_message(self._spoken(message)))
        times = [message.created_at for message in messages if message.created_at is not None]
        report.sessions += bool(messages)
        report.messages += len(messages)
        report.without_time += len(messages) - len(times)
        report.date(*times)
        if report.dry_run or not messages:
            return
        moments = times_of(messages, max(times, default=rt.now()))
        drafts = [draft_of(rt, scope, *pair) for pair in zip(messages, moments, strict=True)]
        if len(drafts) > _WITH_VECTORS:
            drafts = [replace(draft, embedding=None) for draft in drafts]
        details = SessionDetails(one.title, created_at=min(moments), updated_at=max(moments))
        self._merge(scope, drafts, details, is_learned=False)

    def _spoken(self, message: Message) -> Message:
        """Return a message with its speaker's name; the user has none."""
        me = self._owner.me
        is_user = me is not None and message.role == "user" and fold(message.name or "") == fold(me)
        return replace(message, name=None) if is_user else message


# Deletes what is known of a user: a record, a session, or everything.


def _forgotten(report: ForgetReport, what: Erasure) -> Outcome:
    counts = {"memlayer.sessions": report.sessions}
    gone = report.messages + report.records + report.items
    return Outcome(gone, counts, session_id=what.session_id, record_id=what.record_id)


@dataclass(frozen=True, slots=True)
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
        rt.health.up("summaries")  # it names a session
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
    return journal.db.write(sql.forget, what.reach, journal.now())
