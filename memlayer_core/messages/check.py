"""Checks lists of messages and arguments before anything is written; makes messages of arguments."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from memlayer_core import errors
from memlayer_core.codec import message_text
from memlayer_core.message import BLOCK_HINT, JSON, Block, Message, Role, check_message
from memlayer_core.messages.model import PreparedMessage


def check_messages(messages: object) -> list[Message]:
    """Check a batch of messages and return it as a list.

    Args:
        messages: An iterable of `Message`.

    Raises:
        MessageTypeError: It is a string, is not iterable, or contains something that is not a `Message`.
        InvalidMessageError: One of them cannot be stored.
    """
    if isinstance(messages, str | bytes | Message | Mapping) or not isinstance(messages, Iterable):
        raise errors.MessageTypeError(
            f"expected a list of messages, got {type(messages).__name__}",
            hint="Wrap a single message in a list, or use `chat.add(role, text)`.",
        )
    batch = [check_message(message) for message in messages]
    for id, times in Counter(message.id for message in batch).items():
        if id is not None and times > 1:
            raise errors.InvalidMessageError(
                f"two messages of one batch have the id {id!r}",
                hint="An id names one message of a session: leave `id` out, or make it unique.",
            )
    return batch


def times_of(messages: Sequence[Message], now: datetime) -> list[datetime]:
    """Return when each message of a list was said: one without a time between its neighbours, at the list's end now."""
    ahead = [(0, now)]  # of each message from the end on: how far the next one with a time is, and that time
    for one in reversed(messages):
        by, following = ahead[-1]
        ahead.append((by + 1 if by else 0, following) if one.created_at is None else (1, one.created_at))
    times: list[datetime] = []
    for one, (by, following) in zip(messages, ahead[:0:-1], strict=True):
        at = one.created_at or (times[-1] + (following - times[-1]) / by if times and by else following)
        times.append(at)
    return times


When: TypeAlias = datetime | str | float
"""A time: a `datetime`, a text in ISO 8601, or seconds since 1970."""
Times: TypeAlias = When | Sequence[When | None] | None
"""A time of all messages of a list, or one of each; None where it is not known."""


def dated(messages: Any, created_at: Times) -> Any:
    """Return messages with the times that they were said at, to be checked with all else.

    Raises:
        InvalidMessageError: `created_at` is not a time, or is a list of more or fewer times than there are messages.
    """
    if created_at is None:
        return messages
    batch = [check_message(one) for one in messages]
    is_one = isinstance(created_at, str) or not isinstance(created_at, Sequence)
    given: Any = [created_at] * len(batch) if is_one else created_at
    times = [moment_of(one) for one in given]
    if len(times) != len(batch) or any(at is None is not one for at, one in zip(times, given, strict=True)):
        raise errors.InvalidMessageError(
            f"`created_at` has no time for each of {len(batch):,} message(s): {errors.repr_of(created_at)}",
            hint="Pass one time for all, or a list with one for each, None where it is not known: a `datetime`, a text in "
            "ISO 8601, or seconds since 1970.",
        )
    return [replace(one, created_at=at or one.created_at) for one, at in zip(batch, times, strict=True)]


# Seconds since 1970: less than the first is not a time; from the second on they are milliseconds or smaller.
_FIRST, _MILLIS, _LAST = 1e8, 1e11, 1e20
_YEAR = 1970  # an earlier year means that a program did not know the time
_NAMES = ("created_at", "timestamp", "created", "create_time")


def moment_of(value: Any) -> datetime | None:
    """Return a time of a `datetime`, ISO 8601 text, or seconds, milliseconds or less since 1970; None if it is none."""
    with suppress(TypeError, ValueError, OverflowError):
        if _FIRST <= (seconds := float(value)) < _LAST:
            while seconds >= _MILLIS:
                seconds /= 1000
            return datetime.fromtimestamp(seconds, UTC)
    with suppress(TypeError, ValueError):
        return datetime.fromisoformat(value)
    return value if isinstance(value, datetime) else None


def said_at(*fields: Mapping[str, Any]) -> datetime | None:
    """Return the time in a framework's fields of a message; None if they have none."""
    known = (moment_of(some.get(name)) for some in fields for name in _NAMES)
    return next((moment for moment in known if moment is not None and moment.year >= _YEAR), None)


def fields_of(message: Message) -> dict[str, Any]:
    """Return the fields of a message that say something, but its id and its time, as JSON."""
    raw = message.raw
    fields: dict[str, Any] = {
        "role": message.role,
        "content": message.content
        if isinstance(message.content, str)
        else [dict(b) for b in message.content],
        "name": message.name,
        "tool_calls": [[call.id, call.name, call.arguments] for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "metadata": dict(message.metadata) or None,
        "model_visible": None if message.model_visible else False,
        "raw": raw and [raw.framework, raw.version, dict(raw.dump)],
    }
    return {name: value for name, value in fields.items() if value is not None}


def digest(message: Message, *, bytes_limit: float = math.inf) -> bytes:
    """Return 16 bytes that are equal for messages of equal content, whatever their id and time.

    Args:
        message: A checked message.
        bytes_limit: UTF-8 bytes that its JSON may have, all fields together.

    Raises:
        InvalidMessageError: A field is not JSON, or the message is larger than the limit.
    """
    fields = fields_of(message)
    if "raw" in fields:
        del fields["raw"][1]  # whatever its version
    written = message_text(fields).encode("utf-8", "surrogatepass")
    if len(written) > bytes_limit:
        raise errors.InvalidMessageError(
            f"a message of {len(written):,} bytes is larger than the limit of {bytes_limit:,}",
            hint="Store large files elsewhere and keep a reference.",
        )
    return hashlib.blake2b(written, digest_size=16).digest()


def prepare(message: Message, now: datetime, new_id: Callable[[], str], *, limit: int) -> PreparedMessage:
    """Return a checked message with an id, and with the present as its time, if it has none. It is not counted yet.

    Raises:
        InvalidMessageError: A field is not JSON, or the message is larger than the limit.
    """
    return PreparedMessage(
        replace(message, id=message.id or new_id(), created_at=message.created_at or now),
        has_own_id=message.id is not None,
        has_own_time=message.created_at is not None,
        digest=digest(message, bytes_limit=limit),
    )


def text_of(name: str, value: object) -> str:
    """Return an argument that must be text.

    Raises:
        InvalidMessageError: It is not.
    """
    hint = f"Pass `{name}` as text."
    errors.require(isinstance(value, str), name, "a string", value, hint, errors.InvalidMessageError)
    return str(value)


def at_least_one(name: str, value: object) -> None:
    """Check a limit of one call.

    Raises:
        InvalidLimitError: It is not a whole number, is below one, or is too large to count to.
    """
    check_whole_number(name, value, minimum=1)


def check_page(limit: object, offset: object) -> None:
    """Check the limit of a list, where None is none, and how much of it is skipped.

    Raises:
        InvalidLimitError: One of them is not a whole number, is too small, or is too large to count to.
    """
    if limit is not None:
        at_least_one("limit", limit)
    check_whole_number("offset", offset)


_MOST = 2**31 - 1  # what every database and driver can count


def check_whole_number(name: str, value: object, *, minimum: int = 0) -> None:
    """Check a number of one call.

    Raises:
        InvalidLimitError: It is not a whole number, is below `minimum`, or is above two thousand million.
    """
    is_right = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= _MOST
    what = f"a whole number of at least {minimum} and at most {_MOST:,}"
    hint = f"Leave `{name}` out for its default, or pass such a number."
    errors.require(is_right, name, what, value, hint, errors.InvalidLimitError)


def seconds(name: str, value: Any) -> float:
    """Return the seconds to wait of one call.

    Raises:
        InvalidLimitError: It is not a number, is NaN, or is below 0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    hint = f"Leave `{name}` out for its default, or pass a number such as 2.5."
    errors.require(is_number, name, "a number of seconds, at least 0", value, hint, errors.InvalidLimitError)
    return float(value)


def index(name: str, value: object) -> None:
    """Check a place in a list, counted from 0, or from -1 backwards.

    Raises:
        InvalidLimitError: It is not a whole number, or is too large to count to.
    """
    check_whole_number(name, -1 - value if isinstance(value, int) and value < 0 else value)


# Makes a message of a caller's arguments.


def new_message(
    role: Role,
    content: object,
    name: str | None = None,
    id: str | None = None,
    created_at: datetime | None = None,
    metadata: Mapping[str, JSON] | None = None,
    tool_calls: Any = (),
    tool_call_id: str | None = None,
    model_visible: bool = True,
) -> Message:
    """Return a new message.

    Raises:
        InvalidMessageError: A tool message names no call, which no model accepts; or the content or the calls are not a
            list.
    """
    if role == "tool" and tool_call_id is None:
        raise errors.InvalidMessageError(
            "a tool message must name the call that it answers",
            hint="Pass `tool_call_id=…`, the id of one of the `tool_calls` of the assistant's message.",
        )
    hint = "Leave `tool_calls` out, or give a list of `ToolCall(id, name, arguments)`."
    what = "a list of tool calls"
    if not isinstance(tool_calls, tuple):
        tool_calls = errors.require_list("tool_calls", tool_calls, what, hint, errors.InvalidMessageError)
    return Message(
        role,
        content_of(content),
        id=id,
        name=name,
        tool_calls=tuple(tool_calls),
        tool_call_id=tool_call_id,
        created_at=created_at,
        metadata=metadata if metadata is not None else {},
        model_visible=model_visible,
    )


def content_of(content: object) -> str | tuple[Block, ...]:
    """Return a text unchanged, and content blocks as a tuple.

    Raises:
        InvalidMessageError: It is neither.
    """
    if isinstance(content, str):
        return content
    what = "a string or a list of content blocks"
    return tuple(errors.require_list("content", content, what, BLOCK_HINT, errors.InvalidMessageError))
