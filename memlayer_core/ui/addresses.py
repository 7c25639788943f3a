"""The addresses of pages: made of what a page is about, and read from what a browser sends.

Ids may have any characters, so they are in the query and not in the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, get_args
from urllib.parse import urlencode

from memlayer_core.errors import InputError, InvalidRecordError, UnknownRecordError
from memlayer_core.records.rules.records import ordinal_of
from memlayer_core.scope import ALONE, Scope
from memlayer_core.ui.tables import Link

__all__ = [
    "Query",
    "address",
    "choice",
    "is_alone",
    "name_of",
    "names_of",
    "offset_in",
    "reach_in",
    "record_address",
    "record_in",
    "record_link",
    "session_address",
    "session_in",
]

Query: TypeAlias = Mapping[str, str]
"""What an address or a form says, by name."""

_DIGITS = 9  # of an offset at the most


def address(path: str, **query: str | int | None) -> str:
    """Return the address of a page; what is None, 0 or empty is left out."""
    named = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(named)}" if named else path


def names_of(scope: Scope) -> dict[str, str]:
    """Return what an address says of a scope."""
    session_id = None if is_alone(scope) else scope.session_id
    named = {
        "tenant": scope.tenant_id,
        "user": scope.user_id,
        "agent": scope.agent_id,
        "session": session_id,
    }
    return {name: value for name, value in named.items() if value is not None}


def is_alone(scope: Scope) -> bool:
    """Tell whether a scope is that of a session without a user."""
    return scope.user_id.startswith(ALONE)


def name_of(user_id: str) -> str:
    """Return a user for people; a session without a user is called by its id."""
    return f"session {user_id.removeprefix(ALONE)}" if user_id.startswith(ALONE) else user_id


def session_address(scope: Scope, offset: int = 0, **more: str) -> str:
    """Return the address of a session."""
    return address("/session", **names_of(scope), **more, offset=offset)


def record_address(reach: Scope, record_id: str) -> str:
    """Return the address of a record."""
    return address("/record", **names_of(reach), record=record_id)


def record_link(reach: Scope) -> Link:
    """Return a link from the id of a record of the user, with a version or without."""
    begin = f"{reach.user_id}_mem_"

    def link(text: str) -> tuple[str, str | None] | None:
        record_id, _, version = text.partition(", version ")
        is_id = record_id.startswith(begin) and record_id.removeprefix(begin).isdecimal()
        if not is_id or (version and not version.isdecimal()):
            return None
        return text, record_address(reach, record_id)

    return link


def reach_in(query: Query) -> Scope:
    """Return the user that an address names.

    Raises:
        InvalidScopeError: It names none.
    """
    return Scope.of_user(
        query.get("user", ""), tenant_id=query.get("tenant") or "default", agent_id=query.get("agent") or None
    )


def session_in(query: Query) -> Scope:
    """Return the session that an address names.

    Raises:
        InputError: It names none.
    """
    reach = reach_in(query)
    session_id = query.get("session") or reach.session_id
    if session_id is None:
        raise InputError("no session was named", hint="A user's page lists the sessions.")
    return Scope(reach.user_id, session_id, reach.agent_id, reach.tenant_id)


def record_in(query: Query) -> str:
    """Return the id of the record that an address names.

    Raises:
        UnknownRecordError: It is no id of a record.
    """
    record_id = query.get("record", "")
    try:
        ordinal_of(record_id)
    except InvalidRecordError as problem:
        raise UnknownRecordError(str(problem), hint=problem.hint) from None
    return record_id


def offset_in(query: Query) -> int:
    """Return how many rows are in front of the page.

    Raises:
        InputError: It is no number.
    """
    text = query.get("offset") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InputError(
            f"`offset` must be a whole number, got {text!r:.40}", hint="Begin at the first page."
        )
    return int(text)


def choice(query: Query, name: str, choices: Any) -> str:
    """Return one of the values of a `Literal`: the first if none is named.

    Raises:
        InputError: There is no such value.
    """
    values: tuple[str, ...] = get_args(choices)
    value = query.get(name) or values[0]
    if value not in values:
        raise InputError(f"there is no {name} {value!r:.40}", hint=f"There are {', '.join(values)}.")
    return value
