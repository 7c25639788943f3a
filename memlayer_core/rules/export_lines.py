"""The lines of an export: one JSON object each, so that a file of any length is read line by line.

::

    {"memlayer": "export", "version": 1, "tenant_id": "default", "exported_at": "…Z", "messages": 1}
    {"session": 1, "tenant_id": "default", "user_id": "louis", "session_id": "s1", "created_at": "…Z", …}
    {"message": {"role": "user", "content": "Hi", "id": "m1", …}, "session": 1}
    {"record": {"memory_id": "louis_mem_001", "content": {"raw": "…"}, …}, "before": [{…}, …]}
    {"item": {"tenant_id": "default", "labels": ["users"], "key": "k", "value": {…}, …}}
    {"end": {"sessions": 1, "messages": 1, "records": 1}}

A message names its session's line, so that a line that was lost never gives it to somebody else. A record's line
has all its versions. Items belong to no user: only the export of a whole tenant has them. Where there are no records
or no items, the last line does not speak of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from memlayer_core.errors import ImportStoppedError, InputError
from memlayer_core.records.item import Item
from memlayer_core.records.message import Message
from memlayer_core.records.record import Record
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Particulars
from memlayer_core.rules.check import in_utc
from memlayer_core.rules.item_json import Placed, item_from_json, item_to_json
from memlayer_core.rules.json_text import parsed, shown
from memlayer_core.rules.message_json import (
    message_from_json,
    message_to_json,
    moment_from_json,
    moment_to_json,
)
from memlayer_core.rules.record_json import record_from_json, record_to_json
from memlayer_core.rules.state import check_version, particulars_of

__all__ = [
    "Begun",
    "End",
    "Head",
    "Kept",
    "Line",
    "Said",
    "end",
    "head",
    "item",
    "line_of",
    "message",
    "record",
    "session",
]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Head:
    """The first line.

    Attributes:
        messages: How many messages were there when it was written; more or fewer may follow.
    """

    messages: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A session's line: the messages behind it that name it are its own.

    Attributes:
        number: The session's number in this file.
        scope: Whose it is.
        particulars: What is known of it.
    """

    number: int
    scope: Scope
    particulars: Particulars


@dataclass(frozen=True, slots=True)
class Said:
    """A message's line.

    Attributes:
        session: The number of its session.
        message: It has an id.
    """

    session: int
    message: Message


@dataclass(frozen=True, slots=True)
class End:
    """The last line: how much stands before it."""

    sessions: int
    messages: int
    records: int = 0
    items: int = 0

    def __str__(self) -> str:
        said = f"{self.messages:,} message(s) of {self.sessions:,} session(s) and {self.records:,} record(s)"
        return f"{said}, and {self.items:,} item(s)" if self.items else said


@dataclass(frozen=True, slots=True)
class Kept:
    """A record's line: its versions, the oldest first."""

    versions: tuple[Record, ...]


Line = Head | Begun | Said | Kept | Placed | End


def head(tenant_id: str, user_id: str | None, now: datetime, messages: int) -> dict[str, Any]:
    """Return the first line; without a user it is a whole tenant's."""
    return {
        "memlayer": "export",
        "version": _VERSION,
        "tenant_id": tenant_id,
        "user_id": user_id,
        "exported_at": moment_to_json(now),
        "messages": messages,
    }


def session(number: int, scope: Scope, known: Particulars) -> dict[str, Any]:
    """Return a session's line."""
    named = {
        "tenant_id": scope.tenant_id,
        "user_id": scope.user_id,
        "agent_id": scope.agent_id,
        "session_id": scope.session_id,
        "title": known.title,
        "ended_with": known.ended_with,
        "created_at": known.created_at and moment_to_json(known.created_at),
        "updated_at": known.updated_at and moment_to_json(known.updated_at),
        "forked_from": known.forked_from,
        "superseded": known.superseded or None,
    }
    return {"session": number, **{name: value for name, value in named.items() if value is not None}}


def message(number: int, said: Message) -> dict[str, Any]:
    """Return a message's line."""
    return {"message": message_to_json(said), "session": number}


def record(versions: Sequence[Record]) -> dict[str, Any]:
    """Return a record's line, its versions given the oldest first."""
    *before, newest = map(record_to_json, versions)
    return {"record": newest, "before": before} if before else {"record": newest}


def item(tenant_id: str, placed: Item, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return an item's line."""
    return {"item": item_to_json(tenant_id, placed, texts)}


def end(sessions: int, messages: int, records: int, items: int = 0) -> dict[str, Any]:
    """Return the last line, without which an export is not complete."""
    more = {"records": records, "items": items}
    counted = {"sessions": sessions, "messages": messages}
    return {"end": counted | {name: number for name, number in more.items() if number}}


def line_of(text: str | bytes, tenant_id: str | None) -> Line | None:
    """Return what a line says, None for an empty one.

    Args:
        text: The line.
        tenant_id: Put in place of the tenant that it names, if given.

    Raises:
        ImportStoppedError: It is no line of an export that this version reads.
    """
    if not isinstance(text, str | bytes):
        raise ImportStoppedError(f"got {shown(text)}", hint="Lines are text.")
    if not text.strip():
        return None
    try:
        return _line(parsed(text, "it", ImportStoppedError), tenant_id)
    except InputError as problem:
        raise ImportStoppedError(str(problem), hint=problem.hint) from None


def _line(fields: Any, tenant_id: str | None) -> Line:
    match fields:
        case {"memlayer": "export", "version": version, **rest}:
            check_version(version, _VERSION, "the export", ImportStoppedError)
            expected = rest.get("messages")
            return Head(expected if isinstance(expected, int) else 0)
        case {"message": Mapping() as form, "session": int(number)}:
            said = message_from_json(form)
            if said.id is not None:
                return Said(number, said)
        case {"session": int(number)}:
            return _begun(number, fields, tenant_id)
        case {"record": Mapping() as newest, **more} if isinstance(before := more.get("before", []), list):
            return _kept([*before, newest], tenant_id)
        case {"item": Mapping() as form}:
            placed = item_from_json(form)
            return placed if tenant_id is None else replace(placed, tenant_id=tenant_id)
        case {"end": {"sessions": int(sessions), "messages": int(messages), **more}}:
            records, items = (
                number if isinstance(number, int) else 0
                for number in (more.get("records"), more.get("items"))
            )
            return End(sessions, messages, records, items)
    raise ImportStoppedError(
        f"it is no line of an export: {shown(fields)}",
        hint="An export is written by `memory.export`; each message in it has an id.",
    )


def _begun(number: int, named: Mapping[str, Any], tenant_id: str | None) -> Begun:
    user, session_id, agent, tenant = (
        named.get(name) for name in ("user_id", "session_id", "agent_id", "tenant_id")
    )
    scope = Scope(user, session_id, agent, tenant)  # type: ignore[arg-type]
    if scope.session_id is None:
        raise ImportStoppedError(
            "a session's line lacks its `session_id`", hint="An export is written by `memory.export`."
        )
    moved = scope if tenant_id is None else replace(scope, tenant_id=tenant_id)
    known = replace(
        particulars_of(named, ImportStoppedError),
        created_at=_moment("created_at", named.get("created_at")),
        updated_at=_moment("updated_at", named.get("updated_at")),
        superseded=named.get("superseded") is True,
    )
    return Begun(number, moved, known)


def _kept(forms: Sequence[Mapping[str, Any]], tenant_id: str | None) -> Kept:
    read = [record_from_json(form) for form in forms]
    moved = [one if tenant_id is None else replace(one, tenant_id=tenant_id) for one in read]
    numbers = [one.version for one in moved]
    alike = {(one.owner, one.memory_id) for one in moved}
    if (
        len(alike) > 1
        or numbers != sorted(set(numbers))
        or any(one.replaced_by is None for one in moved[:-1])
    ):
        raise ImportStoppedError(
            "a record's line holds what are not the versions of one record, the oldest first",
            hint="An export is written by `memory.export`.",
        )
    return Kept(tuple(moved))


def _moment(name: str, text: object) -> datetime | None:
    return in_utc(moment_from_json(name, text))
