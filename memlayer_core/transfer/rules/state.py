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

from memlayer_core.errors import InvalidStateError, MemlayerError, errors_as
from memlayer_core.message import Message
from memlayer_core.messages.model import SessionDetails
from memlayer_core.messages.rules.check import check_messages, identifier
from memlayer_core.messages.rules.message_json import message_from_json, message_to_json
from memlayer_core.storage.codec import json_text, parse_json, short_repr
from memlayer_core.storage.forms import Codec, Form, moment_to_json

__all__ = ["DETAILS", "check_version", "components_of", "conversation_of", "session_text", "state_of"]

_VERSION = 1
_IN_STATES = ("title", "ended_with", "forked_from")


def _name(key: str) -> Codec:
    """Return how a title or an id is written and read."""

    def read(name: object) -> object:
        with errors_as(InvalidStateError):
            identifier(key, name)
        return name

    return Codec(str, read)


DETAILS = Form(
    SessionDetails,
    "session",
    InvalidStateError,
    keys={"last_ended_id": "ended_with"},
    codecs={
        "title": _name("title"),
        "last_ended_id": _name("ended_with"),
        "forked_from": _name("forked_from"),
    },
    is_open=True,
)
"""What states and exports say of a session, besides its scope."""


def state_of(messages: Iterable[Message], details: SessionDetails) -> dict[str, Any]:
    """Return a conversation's state: JSON that `conversation_of` reads back equal."""
    named = {key: form for key, form in DETAILS.write(details).items() if key in {"title", "ended_with"}}
    return {"messages": [_form(message) for message in messages], **named, "version": _VERSION}


def conversation_of(state: object) -> tuple[list[Message], SessionDetails]:
    """Return the checked messages of a state, and the session's details.

    Args:
        state: One without a `version` is of version 1.

    Raises:
        InvalidStateError: It is no state, of another version, or one of its messages cannot be stored; the error names
            the message's place.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("messages"), list | tuple):
        raise InvalidStateError(
            f"a state must be a dict with a list of `messages`, got {short_repr(state)}",
            hint="Pass a state that `save_state` returned.",
        )
    check_version(state.get("version", _VERSION), _VERSION, "the state", InvalidStateError)
    found: list[Message] = []
    for place, form in enumerate(state["messages"]):
        with errors_as(InvalidStateError, f"message {place} of the state: "):
            found.append(_message(form))
    with errors_as(InvalidStateError, "the state's messages: "):
        messages = check_messages(found)
    return messages, DETAILS.read({key: state.get(key) for key in _IN_STATES})


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
        return json_text(document, indent=2) + "\n"
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
    document = parse_json(text, what, InvalidStateError)
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


def check_version(version: object, current: int, what: str, error: type[MemlayerError]) -> None:
    """Check a version.

    Raises:
        MemlayerError: Of the type `error`; it names both versions.
    """
    if isinstance(version, bool) or version != current:
        raise error(
            f"{what} has version {version!r:.40}, and this memlayer reads version {current}",
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
