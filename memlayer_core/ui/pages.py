"""What each page shows: it asks the memory for values, and returns them ready for a template. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlencode

from memlayer_core.errors import InputError
from memlayer_core.memory import Memory
from memlayer_core.messages.model import Session
from memlayer_core.messages.sql import transcript
from memlayer_core.messages.sql.users import list_users
from memlayer_core.records import flow as record_flow
from memlayer_core.records.model import TYPES, Record, RecordFilter
from memlayer_core.records.rules.profile import place_in_profile
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import SYNC, step
from memlayer_core.scope import ALONE, Scope
from memlayer_core.show import Cell, Mark, View, ViewList
from memlayer_core.storage import lexical
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.scores import is_message
from memlayer_core.storage.terms import WISH
from memlayer_core.storage.wishes import is_instruction
from memlayer_core.ui.record_views import details, relations, standing
from memlayer_core.ui.tables import Link, Table, tables_of

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Anchor", "MissingPageError", "Page", "Pages", "SessionPart", "State", "UserPart", "address"]

UserPart = Literal["profile", "records", "episodes", "wishes", "ledger", "sessions"]
SessionPart = Literal["messages", "summaries"]
State = Literal["in force", "archived too", "past too"]
_SIZE = 50  # rows of one page
_PROFILE = 500  # records that a profile shows at the most
_FACTS, _PREFERENCES = 100, 20  # of these, those that a context tells, and preferences among them


class MissingPageError(Exception):
    """There is no such user or session."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A link.

    Attributes:
        text: What it is called.
        href: Where it leads to.
        current: Whether it leads to the page that shows it.
    """

    text: str
    href: str
    current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows.

    Attributes:
        title: Its heading.
        subtitle: A line below that.
        trail: The pages above it.
        tabs: The parts of what it is about.
        filters: Groups of choices.
        tables: Its tables.
        before: The page before it; None: it is the first.
        after: The page after it; None: it is the last.
        names: What its forms send, by name: whose page it is.
        find: The text that users are searched by; None: nobody is searched here.
        record: The record that it is about; None: it is about none.
        exports: Whether what it is about can be exported.
    """

    title: str
    subtitle: str = ""
    trail: tuple[Anchor, ...] = ()
    tabs: tuple[Anchor, ...] = ()
    filters: tuple[tuple[Anchor, ...], ...] = ()
    tables: tuple[Table, ...] = ()
    before: str | None = None
    after: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    find: str | None = None
    record: Record | None = None
    exports: bool = False


def address(path: str, **query: str | int | None) -> str:
    """Return the address of a page; what is None, 0 or empty is left out."""
    named = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(named)}" if named else path


class Pages:
    """Makes the pages of a memory.

    Args:
        memory: The memory. It is only read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def users(self, text: str, offset: int) -> Page:
        """Return the users of the store, the last used first."""
        rows = self._memory.runtime.db.read(list_users, _SIZE + 1, offset, text=text)
        more = _cut(rows)
        view = View(
            columns=("user", "tenant", "sessions", "messages", "records", "last used"),
            rows=tuple((_name(row.user_id), row.tenant_id, *_counts(row)) for row in rows),
            notes=() if rows else (Mark("No user has such an id." if text else "Nothing is kept yet."),),
        )
        reaches = [Scope.of_user(row.user_id, tenant_id=row.tenant_id) for row in rows]
        return Page(
            title="Users",
            subtitle=str(self._memory.path or "a journal in PostgreSQL"),
            tables=tuple(tables_of(view, hrefs=[address("/user", **_names(one)) for one in reaches])),
            find=text,
            **_pager("/", offset, {"find": text}, more=more),
        )

    def user(self, reach: Scope, part: UserPart, offset: int, kind: str, state: State) -> Page:
        """Return a part of what is known of a user.

        Raises:
            MissingPageError: There is no such user.
            InputError: There is no such type of records.
        """
        found = self._memory.runtime.db.read(list_users, 1, scope=reach)
        if not found:
            raise MissingPageError(f"Nothing is kept of {_name(reach.user_id)}.")
        query: dict[str, str | None] = {**_names(reach), "part": part}
        filters: tuple[tuple[Anchor, ...], ...] = ()
        match part:
            case "profile":
                tables, more = self._profile(reach), False
            case "records" | "episodes":
                query |= {"kind": kind if part == "records" else None, "state": state}
                filters = _filters(query)
                tables, more = self._records(reach, kind if part == "records" else "episodic", state, offset)
            case "wishes":
                tables, more = self._wishes(reach, offset)
            case "ledger":
                entries = self._memory.ledger(**_whose(reach), limit=_SIZE + 1, offset=offset)
                more = _cut(entries)
                tables = tables_of(entries, _record_link(reach))
            case "sessions":
                sessions = self._memory.runtime.db.read(transcript.list_sessions, reach, _SIZE + 1, offset)
                more = _cut(sessions)
                tables = tables_of(
                    ViewList("Sessions", sessions), hrefs=[_session_address(one.scope) for one in sessions]
                )
        return Page(
            title=_name(reach.user_id),
            subtitle=_census(found[0]),
            trail=(Anchor("Users", "/"),),
            tabs=_tabs("/user", _names(reach), part, get_args(UserPart)),
            filters=filters,
            tables=tuple(tables),
            names=tuple(_names(reach).items()),
            exports=not _is_alone(reach),
            **_pager("/user", offset, query, more=more),
        )

    def record(self, reach: Scope, record_id: str) -> Page:
        """Return what is known of a record: what it rests on, and whether it is told.

        Raises:
            UnknownRecordError: The user has no such record.
        """
        basis = self._memory.why(record_id, **_whose(reach))
        record, link = basis.record, _record_link(reach)
        tables = tables_of(basis, link)
        tables += self._memory.runtime.db.read(_places, reach, record_id)
        tables += tables_of(standing(record, self._memory.settings))
        tables += tables_of(relations(record), link)
        tables += tables_of(details(record), self._session_link(record))
        return Page(
            title=record.text,
            subtitle=f"{record.memory_id}, version {record.version}",
            trail=(*_above(reach), Anchor("records", address("/user", **_names(reach), part="records"))),
            tables=tuple(tables),
            names=(*_names(reach).items(), ("record", record_id), ("version", str(record.version))),
            record=record,
        )

    def session(self, scope: Scope, part: SessionPart, offset: int) -> Page:
        """Return a part of a session: its messages from the first one on, or its summaries.

        Raises:
            MissingPageError: There is no such session.
        """
        session = self._session(scope)
        chat, more = self._memory.chat_of(scope), False
        if part == "messages":
            messages = chat.history(offset, _SIZE + 1)
            more = _cut(messages)
            tables = tables_of(messages)
        else:
            tables = tables_of(chat.summary(all_versions=True))
        return Page(
            title=session.label,
            subtitle=f"{session.messages:,} messages, {session.tokens:,} tokens, "
            f"last used {session.updated_at:%Y-%m-%d %H:%M}",
            trail=_above(scope.reach(), sessions=True),
            tabs=_tabs("/session", _names(scope), part, get_args(SessionPart)),
            tables=tuple(tables),
            names=tuple(_names(scope).items()),
            **_pager("/session", offset, {**_names(scope), "part": part}, more=more),
        )

    def _session(self, scope: Scope) -> Session:
        found = self._memory.runtime.db.read(transcript.find, scope)
        if found is None:
            raise MissingPageError(f"{_name(scope.user_id)} has no session {scope.session_id!r}.")
        return found

    def _profile(self, reach: Scope) -> list[Table]:
        """Return what is told in every context, and what was told before."""
        rt, link = self._memory.runtime, _record_link(reach)
        reader = record_flow.reader_of(rt, reach, ())
        current, count = rt.db.read(record_reads.profile, reader, _FACTS, _PREFERENCES)
        wanted = RecordFilter(always=True, all_versions=True, limit=_PROFILE)
        every = step(record_flow.records(rt, SYNC, reach, wanted, ()))
        told = {one.memory_id for one in current.values()}
        past = {one.memory_id: one for one in reversed(every) if one.memory_id not in told}
        left = count - len(current)
        notes = [Mark(f"{left:,} more are told only where they bear on a question.")] if left else []
        tables = [
            ViewList("Told in every context", sorted(current.values(), key=place_in_profile), lambda _: notes)
        ]
        if past:
            tables.append(ViewList("Held before", sorted(past.values(), key=place_in_profile)))
        return [table for one in tables for table in tables_of(one, link)]

    def _records(self, reach: Scope, kind: str, state: State, offset: int) -> tuple[list[Table], bool]:
        if kind and kind not in TYPES:
            raise InputError(f"there is no type {kind!r:.40}", hint=f"There are {', '.join(TYPES)}.")
        found = self._memory.records(
            **_whose(reach),
            type=kind or None,
            every=state != "in force",
            all_versions=state == "past too",
            limit=_SIZE + 1,
            offset=offset,
        )
        more = _cut(found)
        return tables_of(found, hrefs=[_record_address(reach, one.memory_id) for one in found]), more

    def _wishes(self, reach: Scope, offset: int) -> tuple[list[Table], bool]:
        """Return what a user wishes: of every answer, or of answers of a kind."""

        def read(connection: Connection) -> tuple[list[tuple[Cell, ...]], list[str], bool]:
            keys = lexical.newest(connection, reach, WISH, _SIZE + 1, offset)
            more = _cut(keys)
            reader = record_flow.reader_of(self._memory.runtime, reach, (), for_recall=False)
            spoken = transcript.find_messages(connection, reach, [key for key in keys if is_message(key)])
            noted = record_reads.find_records(connection, reader, [key for key in keys if key < 0])
            found = [
                (one.message.created_at, one.message.speaker, one.message.text, _session_address(one.scope))
                for one in sorted(spoken, key=lambda one: -one.key)
            ]
            found += [
                (one.date, one.type, one.text, _record_address(reach, one.memory_id))
                for one in noted.values()
            ]
            rows: list[tuple[Cell, ...]] = [(when, who, text, _holds(text)) for when, who, text, _ in found]
            return rows, [href for *_, href in found], more

        rows, hrefs, more = self._memory.runtime.db.read(read)
        view = View(
            f"Wishes: {len(rows):,}" if rows else "Wishes: none",
            columns=("when", "who", "what", "it holds") if rows else (),
            rows=tuple(rows),
        )
        return tables_of(view, hrefs=hrefs), more

    def _session_link(self, record: Record) -> Link:
        """Return a link from the id of the session that a record comes from."""
        if record.session_id is None:
            return lambda _: None
        scope = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
        known = self._memory.runtime.db.read(transcript.find, scope) is not None
        return lambda text: _session_address(scope) if known and text == record.session_id else None


def _places(connection: Connection, reach: Scope, record_id: str) -> list[Table]:
    """Return the messages that say what a record says, each with the way to its place in its session."""
    entries = ledger_sql.of_records(connection, reach.namespace, [ordinal_of(record_id)[1]])
    keys = [entry.message for entry in entries if entry.message is not None]
    found = transcript.find_messages(connection, reach, keys)
    before = [transcript.count_before(connection, one.key) for one in found]
    note = Mark("Nobody's words are entered for it: the application stored it, or an agent did.")
    view = View(
        "Where it was said",
        columns=("when", "who", "what") if found else (),
        rows=tuple((one.message.created_at, one.message.speaker, one.message.text) for one in found),
        notes=() if found else (note,),
    )
    hrefs = [
        _session_address(one.scope, offset - offset % _SIZE)
        for one, offset in zip(found, before, strict=True)
    ]
    return tables_of(view, hrefs=hrefs)


def _cut(rows: list[Any]) -> bool:
    """Remove the row behind the page. Returns whether there was one."""
    more = len(rows) > _SIZE
    del rows[_SIZE:]
    return more


def _pager(path: str, offset: int, query: dict[str, Any], *, more: bool) -> dict[str, Any]:
    back = address(path, **query, offset=max(0, offset - _SIZE)) if offset else None
    return {"before": back, "after": address(path, **query, offset=offset + _SIZE) if more else None}


def _tabs(path: str, names: dict[str, str], current: str, parts: Sequence[str]) -> tuple[Anchor, ...]:
    return tuple(Anchor(one, address(path, **names, part=one), one == current) for one in parts)


def _filters(query: dict[str, Any]) -> tuple[tuple[Anchor, ...], ...]:
    """Return the choices of a list of records."""

    def choices(name: str, values: Sequence[str], first: str) -> tuple[Anchor, ...]:
        chosen = query[name] or ""
        return tuple(
            Anchor(one or first, address("/user", **{**query, name: one}), one == chosen) for one in values
        )

    states = choices("state", get_args(State), "")
    return (states,) if query["kind"] is None else (choices("kind", ("", *TYPES), "any type"), states)


def _names(scope: Scope) -> dict[str, str]:
    """Return what the address of a page says of a scope."""
    named = {
        "tenant": scope.tenant_id,
        "user": scope.user_id,
        "agent": scope.agent_id,
        "session": None if scope.session_id is None or _is_alone(scope) else scope.session_id,
    }
    return {name: value for name, value in named.items() if value is not None}


def _is_alone(scope: Scope) -> bool:
    return scope.user_id.startswith(ALONE)


def _whose(reach: Scope) -> dict[str, Any]:
    return {"user_id": reach.user_id, "tenant_id": reach.tenant_id, "agent_id": reach.agent_id}


def _session_address(scope: Scope, offset: int = 0) -> str:
    return address("/session", **{**_names(scope), "session": scope.session_id}, offset=offset)


def _record_address(reach: Scope, record_id: str) -> str:
    return address("/record", **_names(reach), record=record_id)


def _record_link(reach: Scope) -> Callable[[str], str | None]:
    """Return a link from the id of a record of the user, with a version or without."""
    begin = f"{reach.user_id}_mem_"

    def link(text: str) -> str | None:
        record_id, _, version = text.partition(", version ")
        is_id = record_id.startswith(begin) and record_id.removeprefix(begin).isdecimal()
        return _record_address(reach, record_id) if is_id and (not version or version.isdecimal()) else None

    return link


def _above(reach: Scope, *, sessions: bool = False) -> tuple[Anchor, ...]:
    user = Anchor(_name(reach.user_id), address("/user", **_names(reach)))
    more = (Anchor("sessions", address("/user", **_names(reach), part="sessions")),) if sessions else ()
    return (Anchor("Users", "/"), user, *more)


def _name(user_id: str) -> str:
    """Return a user for people; a session without a user is called by its id."""
    return f"session {user_id.removeprefix(ALONE)}" if user_id.startswith(ALONE) else user_id


def _counts(row: Any) -> tuple[Cell, ...]:
    used = None if row.used is None else from_micros(row.used)
    return row.sessions, int(row.messages), row.records, used


def _census(row: Any) -> str:
    tenant = f"tenant {row.tenant_id}, {row.sessions:,} session(s), {int(row.messages):,} message(s)"
    return f"{tenant}, {row.records:,} record(s)"


def _holds(text: str) -> Mark:
    return Mark("for every answer", "blue") if is_instruction(text) else Mark("where it bears on a request")
