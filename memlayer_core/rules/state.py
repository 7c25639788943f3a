"""The state of a conversation, and the session file that holds the states of several components.

::

    {"sessionId": "user123",
     "components": {"Chat": {"messages": [{"role": "USER", "content": [{"type": "text", "text": "Hi"}]}]}},
     "timestamp": "2026-05-04T12:00:00Z",
     "version": 1}

A message may have the other fields of `message_to_json` beside these two, so that it comes back equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from memlayer_core.errors import InvalidMessageError, InvalidStateError, MemlayerError
from memlayer_core.records.message import Message
from memlayer_core.records.session import Particulars
from memlayer_core.rules.check import checked_all, identifier
from memlayer_core.rules.json_text import parsed, shown, written
from memlayer_core.rules.message_json import message_from_json, message_to_json, moment_to_json

__all__ = [
    "check_version",
    "components_of",
    "conversation_of",
    "particulars_of",
    "session_text",
    "state_of",
]

_VERSION = 1


def state_of(messages: Iterable[Message], known: Particulars) -> dict[str, Any]:
    """Return a conversation's state: JSON that `conversation_of` reads back equal."""
    state: dict[str, Any] = {"messages": [_form(message) for message in messages]}
    if known.title is not None:
        state["title"] = known.title
    if known.ended_with is not None:
        state["ended_with"] = known.ended_with
    return {**state, "version": _VERSION}


def conversation_of(state: object) -> tuple[list[Message], Particulars]:
    """Return the messages of a state, each of them checked, and what goes with them.

    Args:
        state: One without a `version` is of version 1.

    Raises:
        InvalidStateError: It is no state, of another version, or one of its messages could not be stored;
            its place is told.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("messages"), list | tuple):
        raise InvalidStateError(
            f"a state must be a dict with a list of `messages`, got {shown(state)}",
            hint="Give what `save_state` returned.",
        )
    check_version(state.get("version", _VERSION), _VERSION, "the state", InvalidStateError)
    found: list[Message] = []
    for place, form in enumerate(state["messages"]):
        try:
            found.append(_message(form))
        except InvalidMessageError as problem:
            raise InvalidStateError(f"message {place} of the state: {problem}", hint=problem.hint) from None
    try:
        messages = checked_all(found)
    except InvalidMessageError as problem:
        raise InvalidStateError(f"the state's messages: {problem}", hint=problem.hint) from None
    return messages, particulars_of(state, InvalidStateError)


def particulars_of(named: Mapping[str, Any], error: type[MemlayerError]) -> Particulars:
    """Return what a state and an export know of a session under the same names.

    Raises:
        MemlayerError: Of the type `error`: one of them is no text.
    """
    for name in ("title", "ended_with", "forked_from"):
        if named.get(name) is None:
            continue
        try:
            identifier(name, named[name])
        except InvalidMessageError as problem:
            raise error(str(problem), hint=f"Correct it, or leave `{name}` out.") from None
    return Particulars(named.get("title"), named.get("ended_with"), forked_from=named.get("forked_from"))


def session_text(session_id: str, components: Mapping[str, Any], now: datetime) -> str:
    """Return the text of a session file.

    Raises:
        InvalidStateError: A component's state is no JSON.
    """
    document = {
        "sessionId": session_id,
        "components": components,
        "timestamp": moment_to_json(now),
        "version": _VERSION,
    }
    try:
        return written(document, indent=2) + "\n"
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidStateError(
            f"a component's state cannot be written as JSON: {problem}",
            hint="`save_state` returns strings, numbers, booleans, None, lists and dicts only.",
        ) from problem


def components_of(text: str | bytes, what: str, session_id: str) -> dict[str, Any]:
    """Return the states in the text of a session file, by their component's name.

    Args:
        text: A file without a `version` is one of version 1.
        what: What it is called in an error.
        session_id: Whose it must be.

    Raises:
        InvalidStateError: It is cut off, no session file, of another version or of another session.
    """
    document = parsed(text, what, InvalidStateError)
    if not isinstance(document, dict) or not isinstance(document.get("components"), dict):
        raise InvalidStateError(
            f"{what} is no session file: it has no object `components`",
            hint="A session file is written by `save_session`.",
        )
    check_version(document.get("version", _VERSION), _VERSION, what, InvalidStateError)
    if document.get("sessionId") != session_id:
        raise InvalidStateError(
            f"{what} is of the session {document.get('sessionId')!r:.80}, and {session_id!r:.80} is asked for",
            hint="Each session has a file of its own: this one was copied or renamed, or the path is shared.",
        )
    return dict(document["components"])


def check_version(found: object, known: int, what: str, error: type[MemlayerError]) -> None:
    """Refuse another version.

    Raises:
        MemlayerError: Of the type `error`; it names both versions.
    """
    if isinstance(found, bool) or found != known:
        raise error(
            f"{what} has version {found!r:.40}, and this memlayer reads version {known}",
            hint="Use the version of memlayer-core that wrote it; nothing was changed.",
        )


def _form(message: Message) -> dict[str, Any]:
    form = message_to_json(message)
    form["role"] = form["role"].upper()
    if isinstance(message.content, str):
        form["content"] = [{"type": "text", "text": form["content"]}]
    elif _lone_text(form["content"]):
        form["blocks"] = True
    return form


def _message(form: Any) -> Message:
    """Return the message of a form; a lone block of text is plain text unless it says otherwise."""
    if not isinstance(form, Mapping):
        return message_from_json(form)
    fields = dict(form)
    if fields.pop("blocks", False) is not True and _lone_text(fields.get("content")):
        fields["content"] = fields["content"][0]["text"]
    return message_from_json(fields)


def _lone_text(content: object) -> bool:
    match content:
        case [{"type": "text", "text": _, **rest}]:
            return not rest
        case _:
            return False
