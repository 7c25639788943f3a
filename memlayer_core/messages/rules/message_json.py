"""Messages as JSON that reads back equal: for files, for other programs and for other stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memlayer_core.errors import InvalidMessageError, MessageTypeError, errors_as
from memlayer_core.message import JSON, Message
from memlayer_core.messages.rules.check import check_message
from memlayer_core.storage.codec import parse_json, short_repr
from memlayer_core.storage.forms import Codec, Form, plain, restore

__all__ = ["message_from_json", "message_to_json", "messages_from_json", "messages_to_json"]


def _content(form: Any) -> Any:
    content = restore("content", form)
    return tuple(content) if isinstance(content, list | tuple) else content


_FORM = Form(
    Message,
    "message",
    InvalidMessageError,
    hint="What is your own goes into `metadata`; `messages_from_json` reads a list.",
    codecs={
        "role": Codec(str, lambda role: role.lower() if isinstance(role, str) else role),
        "content": Codec(plain, _content),
    },
    defaults={"role": None, "content": None},  # what they must be is told by the check of a message
)


def message_to_json(message: Message) -> dict[str, JSON]:
    """Return a message as a dict that `json.dumps` can write.

    Raises:
        InvalidMessageError: It could not be stored either.
    """
    check_message(message)
    return _FORM.write(message)


def message_from_json(source: str | bytes | Mapping[str, JSON]) -> Message:
    """Return the message that `message_to_json` wrote, equal to it.

    Args:
        source: The dict, or it as JSON text. The role may be in upper case.

    Raises:
        InvalidMessageError: It is no JSON, was cut off, or could not be stored as a message.
    """
    message = _FORM.read(source)
    check_message(message)
    return message


def messages_to_json(messages: Iterable[Message]) -> list[dict[str, JSON]]:
    """Return messages as a list that `json.dumps` can write.

    Raises:
        InvalidMessageError: One of them could not be stored either.
    """
    return [message_to_json(message) for message in messages]


def messages_from_json(source: str | bytes | Iterable[Mapping[str, JSON]]) -> list[Message]:
    """Return the messages that `messages_to_json` wrote, equal to them.

    Args:
        source: The list, or it as JSON text.

    Raises:
        InvalidMessageError: It is no JSON, was cut off, or one of them is no message; its place is told.
    """
    forms: object = source
    if isinstance(source, str | bytes):
        forms = parse_json(source, "the list of messages", InvalidMessageError)
    if isinstance(forms, str | bytes | Mapping) or not isinstance(forms, Iterable):
        raise MessageTypeError(
            f"messages must be a JSON list, got {short_repr(forms)}",
            hint="Such as `[{…}, {…}]`; a single message is read by `message_from_json`.",
        )
    messages: list[Message] = []
    for place, form in enumerate(forms):
        with errors_as(InvalidMessageError, f"message {place}: "):
            messages.append(message_from_json(form))
    return messages
