"""What each page shows: it asks the memory for values, and returns them ready for a template. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from memlayer_core.errors import InputError
from memlayer_core.memory import Memory
from memlayer_core.messages.model import Session, beginning
from memlayer_core.messages.sql import transcript
from memlayer_core.messages.sql.users import list_users
from memlayer_core.records import flow as record_flow
from memlayer_core.records.model import TYPES, Record, RecordFilter
from memlayer_core.records.rules.profile import place_in_profile
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.records.sql import ledger as ledger_sql
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import SYNC, step
from memlayer_core.scope import Scope
from memlayer_core.show import Cell, Mark, View, ViewList
from memlayer_core.storage import lexical
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.scores import is_message
from memlayer_core.storage.terms import WISH
from memlayer_core.storage.wishes import is_instruction
from memlayer_core.ui.addresses import (
    address,
    is_alone,
    name_of,
    names_of,
    record_address,
    record_link,
    session_address,
)
from memlayer_core.ui.page import SIZE, Anchor, MissingPageError, Page, anchors_above, cut, pager, tabs
from memlayer_core.ui.record_views import details, relations, standing
from memlayer_core.ui.tables import Link, Table, no_link, tables_of

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["Pages", "SessionPart", "State", "UserPart"]

UserPart = Literal["profile", "records", "episodes", "wishes", "ledger", "sessions"]
SessionPart = Literal["messages", "summaries"]
State = Literal["in force", "archived too", "past too"]
_ID = 12  # characters of an id that leads nowhere
_TITLE = 300  # characters of a record in the heading of its page
_PROFILE = 500  # records that a profile shows at the most
_FACTS, _PREFERENCES = 100, 20  # of these, those that a context tells, and preferences among them


class Pages:
    """Makes the pages of a memory.

    Args:
        memory: The memory. It is only read.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def users(self, text: str, offset: int) -> Page:
        """Return the users of the store, the last used first."""
        rows = self._memory.runtime.db.read(list_users, SIZE + 1, offset, text=text)
        more = cut(rows)
        view = View(
            columns=("user", "tenant", "sessions", "messages", "records", "last used"),
            rows=tuple((name_of(row.user_id), row.tenant_id, *_counts(row)) for row in rows),
            notes=() if rows else (Mark("No user has such an id." if text else "Nothing is kept yet."),),
        )
        reaches = [Scope.of_user(row.user_id, tenant_id=row.tenant_id) for row in rows]
        return Page(
            title="Users",
            subtitle=str(self._memory.path or "a journal in PostgreSQL"),
            tables=tuple(tables_of(view, hrefs=[address("/user", **names_of(one)) for one in reaches])),
            find=text,
            **pager("/", offset, {"find": text}, more=more),
        )

    def user(self, reach: Scope, part: UserPart, offset: int, kind: str, state: State) -> Page:
        """Return a part of what is known of a user.

        Raises:
            MissingPageError: There is no such user.
            InputError: There is no such type of records.
        """
        found = self._memory.runtime.db.read(list_users, 1, scope=reach)
        if not found:
            raise MissingPageError(f"Nothing is kept of {name_of(reach.user_id)}.")
        query: dict[str, str | None] = {**names_of(reach), "part": part}
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
                entries = self._memory.ledger(**_whose(reach), limit=SIZE + 1, offset=offset)
                more = cut(entries)
                tables = tables_of(entries, record_link(reach))
            case "sessions":
                sessions = self._memory.runtime.db.read(transcript.list_sessions, reach, SIZE + 1, offset)
                more = cut(sessions)
                tables = tables_of(
                    ViewList("Sessions", sessions), hrefs=[session_address(one.scope) for one in sessions]
                )
        return Page(
            title=name_of(reach.user_id),
            subtitle=_census(found[0]) if reach.agent_id is None else f"with agent {reach.agent_id} alone",
            trail=(Anchor("Users", "/"),),
            tabs=tabs("/user", names_of(reach), part, get_args(UserPart)),
            filters=filters,
            tables=tuple(tables),
            names=tuple(names_of(reach).items()),
            exports=reach.agent_id is None and not is_alone(reach),
            **pager("/user", offset, query, more=more),
        )

    def record(self, reach: Scope, record_id: str) -> Page:
        """Return what is known of a record: what it rests on, and whether it is told.

        Raises:
            UnknownRecordError: The user has no such record.
        """
        basis = self._memory.why(record_id, **_whose(reach))
        record, link = basis.record, record_link(reach)
        tables = tables_of(basis, link)
        tables += self._memory.runtime.db.read(_places, reach, record_id)
        tables += tables_of(standing(record, self._memory.settings))
        tables += tables_of(relations(record), link)
        tables += tables_of(details(record), self._session_link(record))
        return Page(
            title=beginning(record.text, _TITLE),
            subtitle=f"{record.memory_id}, version {record.version}",
            trail=anchors_above(reach, "records"),
            tables=tuple(tables),
            names=(*names_of(reach).items(), ("record", record_id), ("version", str(record.version))),
            record=record,
        )

    def session(self, scope: Scope, part: SessionPart, offset: int) -> Page:
        """Return a part of a session: its messages from the first one on, or its summaries.

        Raises:
            MissingPageError: There is no such session.
        """
        session = self._session(scope)
        chat, more = self._memory.chat_of(scope), False
        match part:
            case "messages":
                messages = chat.history(offset, SIZE + 1)
                more = cut(messages)
                tables = tables_of(messages)
            case "summaries":
                tables = tables_of(chat.summary(all_versions=True))
        return Page(
            title=session.label,
            subtitle=f"{session.messages:,} messages, {session.tokens:,} tokens, "
            f"last used {session.updated_at:%Y-%m-%d %H:%M}",
            trail=anchors_above(scope.reach(), "sessions"),
            tabs=tabs("/session", names_of(scope), part, get_args(SessionPart)),
            tables=tuple(tables),
            names=tuple(names_of(scope).items()),
            **pager("/session", offset, {**names_of(scope), "part": part}, more=more),
        )

    def _session(self, scope: Scope) -> Session:
        found = self._memory.runtime.db.read(transcript.find, scope)
        if found is None:
            raise MissingPageError(f"{name_of(scope.user_id)} has no session {scope.session_id!r}.")
        return found

    def _profile(self, reach: Scope) -> list[Table]:
        """Return what is told in every context, and what was told before."""
        rt, link = self._memory.runtime, record_link(reach)
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
            limit=SIZE + 1,
            offset=offset,
        )
        more = cut(found)
        return tables_of(found, hrefs=[record_address(reach, one.memory_id) for one in found]), more

    def _wishes(self, reach: Scope, offset: int) -> tuple[list[Table], bool]:
        """Return what a user wishes: of every answer, or of answers of a kind."""

        def read(connection: Connection) -> tuple[list[tuple[Cell, ...]], list[str], bool]:
            keys = lexical.newest(connection, reach, WISH, SIZE + 1, offset)
            more = cut(keys)
            reader = record_flow.reader_of(self._memory.runtime, reach, (), for_recall=False)
            spoken = transcript.find_messages(connection, reach, [key for key in keys if is_message(key)])
            noted = record_reads.find_records(connection, reader, [key for key in keys if key < 0])
            found = [
                (one.message.created_at, one.message.speaker, one.message.text, session_address(one.scope))
                for one in sorted(spoken, key=lambda one: -one.key)
            ]
            found += [
                (one.date, one.type, one.text, record_address(reach, one.memory_id)) for one in noted.values()
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
            return no_link
        scope = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
        known = self._memory.runtime.db.read(transcript.find, scope) is not None
        place = (record.session_id, session_address(scope))
        return lambda text: place if known and text == record.session_id else None


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
        session_address(one.scope, offset - offset % SIZE) for one, offset in zip(found, before, strict=True)
    ]
    return tables_of(view, hrefs=hrefs)


def _filters(query: dict[str, Any]) -> tuple[tuple[Anchor, ...], ...]:
    """Return the choices of a list of records."""

    def choices(name: str, values: Sequence[str], first: str) -> tuple[Anchor, ...]:
        chosen = query[name] or ""
        return tuple(
            Anchor(one or first, address("/user", **{**query, name: one}), one == chosen) for one in values
        )

    states = choices("state", get_args(State), "")
    return (states,) if query["kind"] is None else (choices("kind", ("", *TYPES), "any type"), states)


def _whose(reach: Scope) -> dict[str, Any]:
    return {"user_id": reach.user_id, "tenant_id": reach.tenant_id, "agent_id": reach.agent_id}


def _short(id: str) -> str:
    return id if len(id) <= _ID else f"{id[:_ID]}…"


def _counts(row: Any) -> tuple[Cell, ...]:
    used = None if row.used is None else from_micros(row.used)
    return row.sessions, int(row.messages), row.records, used


def _census(row: Any) -> str:
    tenant = f"tenant {row.tenant_id}, {row.sessions:,} session(s), {int(row.messages):,} message(s)"
    return f"{tenant}, {row.records:,} record(s)"


def _holds(text: str) -> Mark:
    return Mark("for every answer", "blue") if is_instruction(text) else Mark("where it bears on a request")
