"""Checks messages and arguments before anything is written; makes messages of arguments and of JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timezone
from typing import Any, TypeAlias

from memlayer_core.errors import InvalidLimitError, InvalidMessageError, MessageTypeError, errors_as
from memlayer_core.message import JSON, ROLES, Block, Message, Role, ToolCall
from memlayer_core.storage.codec import Codec, Form, parse_json, plain, restore, short_repr

# Checks messages and arguments before anything is written.

_DEEPEST = 100
"""Levels of nesting in JSON; Python's own reader and writer give up near 1,000."""


def check_messages(messages: object) -> list[Message]:
    """Check a batch of messages and return it as a list.

    Args:
        messages: An iterable of `Message`.

    Raises:
        MessageTypeError: It is a string, no iterable, or contains something that is no `Message`.
        InvalidMessageError: One of them cannot be stored.
    """
    if isinstance(messages, str | bytes | Message | Mapping) or not isinstance(messages, Iterable):
        raise MessageTypeError(
            f"expected a list of messages, got {type(messages).__name__}",
            hint="Wrap a single message in a list, or use `chat.add(role, text)`.",
        )
    batch = [check_message(message) for message in messages]
    seen: set[str] = set()
    for message in batch:
        if message.id is not None and message.id in seen:
            raise InvalidMessageError(
                f"two messages of one batch have the id {message.id!r}",
                hint="An id names one message of a session: leave `id` out, or make it unique.",
            )
        if message.id is not None:
            seen.add(message.id)
    return batch


def check_message(message: object) -> Message:
    """Check one message and return it with a fixed distance of its time from UTC.

    Raises:
        MessageTypeError: It is no `Message`.
        InvalidMessageError: A field of it cannot be stored.
    """
    if not isinstance(message, Message):
        raise MessageTypeError(
            f"expected a memlayer `Message`, got {type(message).__name__}: {message!r:.80}",
            hint='Build one with `Message("user", "…")`, or use `chat.add("user", "…")`.',
        )
    if message.role not in ROLES:
        raise InvalidMessageError(
            f"unknown role {message.role!r}", hint=f"Use one of {', '.join(map(repr, ROLES))}."
        )
    _check_content(message.content)
    for name in ("id", "name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            identifier(name, value)
    for call in message.tool_calls:
        if not isinstance(call, ToolCall) or not isinstance(call.arguments, str):
            raise InvalidMessageError(
                f"`tool_calls` holds {call!r:.80}",
                hint="Give `ToolCall(id, name, arguments)` with the arguments as JSON text.",
            )
        identifier("tool call id", call.id)
    if not isinstance(message.metadata, Mapping):
        raise InvalidMessageError(
            f"`metadata` must be a mapping, got {type(message.metadata).__name__}",
            hint="Pass a dict of JSON values.",
        )
    json_value("metadata", message.metadata)
    if not isinstance(message.model_visible, bool):
        raise InvalidMessageError(
            f"`model_visible` must be True or False, got {message.model_visible!r}",
            hint="False keeps a message in the history and from every model.",
        )
    return replace(message, created_at=with_offset(message.created_at))


def times_of(messages: Sequence[Message], now: datetime) -> list[datetime]:
    """Return when each message of a list was said: one without a time between its neighbours, at the list's end now."""
    times: list[datetime] = []
    for at, one in enumerate(messages):
        said = one.created_at
        if said is None:
            ahead = ((by, other.created_at) for by, other in enumerate(messages[at:]) if other.created_at)
            by, following = next(ahead, (0, now))
            said = times[-1] + (following - times[-1]) / (by + 1) if times and by else following
        times.append(said)
    return times


When: TypeAlias = datetime | str | float
"""A time: a `datetime`, a text in ISO 8601, or seconds since 1970."""
Times: TypeAlias = When | Sequence[When | None] | None
"""A time of all messages of a list, or one of each; None where it is not known."""


def dated(messages: Any, created_at: Times) -> Any:
    """Return messages with the times that they were said at, to be checked with all else.

    Raises:
        InvalidMessageError: `created_at` is no time, or has more or fewer of them than there are messages.
    """
    if created_at is None:
        return messages
    batch = [check_message(one) for one in messages]
    is_one = isinstance(created_at, str) or not isinstance(created_at, Sequence)
    told: Any = [created_at] * len(batch) if is_one else created_at
    times = [one if one is None else moment_of(one) for one in told]
    if len(times) != len(batch) or any(at is None is not one for at, one in zip(times, told, strict=True)):
        raise InvalidMessageError(
            f"`created_at` has no time for each of {len(batch):,} message(s): {created_at!r:.80}",
            hint="Pass one time for all, or a list with one for each, None where it is not known: a `datetime`, a text in "
            "ISO 8601, or seconds since 1970.",
        )
    return [replace(one, created_at=at or one.created_at) for one, at in zip(batch, times, strict=True)]


# Seconds since 1970: less than the first is no time; from the second on they are milliseconds or smaller.
_FIRST, _MILLIS, _LAST = 1e8, 1e11, 1e20
_YEAR = 1970  # before it, a program wrote that it knows no time
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
    """Return the time that a framework's fields of a message tell; None if they tell none."""
    told = (moment_of(some.get(name)) for some in fields for name in _NAMES)
    return next((moment for moment in told if moment is not None and moment.year >= _YEAR), None)


def digest(message: Message, *, bytes_limit: float = math.inf) -> bytes:
    """Return 16 bytes that are equal for messages of equal content, whatever their id and time.

    Args:
        message: A checked message.
        bytes_limit: UTF-8 bytes that its JSON may have, all fields together.

    Raises:
        InvalidMessageError: A field is no JSON, or the message is larger than the limit.
    """
    written = _json_of(message).encode("utf-8", "surrogatepass")
    if len(written) > bytes_limit:
        raise InvalidMessageError(
            f"a message of {len(written):,} bytes is larger than the limit of {bytes_limit:,}",
            hint="Store large files elsewhere and keep a reference, or raise `Settings.message_bytes_limit`.",
        )
    return hashlib.blake2b(written, digest_size=16).digest()


def _json_of(message: Message) -> str:
    content = message.content if isinstance(message.content, str) else [dict(b) for b in message.content]
    fields: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_calls:
        fields["tool_calls"] = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.metadata:
        fields["metadata"] = dict(message.metadata)
    if not message.model_visible:
        fields["model_visible"] = False
    if message.raw is not None:
        fields["raw"] = [message.raw.framework, dict(message.raw.dump)]  # the version does not matter
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidMessageError(
            f"a message cannot be written as JSON: {problem}",
            hint="Content blocks and dumps hold JSON values only: encode bytes, dates and objects first.",
        ) from problem


def text_of(name: str, value: object) -> str:
    """Return an argument that must be text.

    Raises:
        InvalidMessageError: It is not.
    """
    if not isinstance(value, str):
        raise InvalidMessageError(
            f"`{name}` must be a string, got {type(value).__name__}", hint=f"Pass `{name}` as text."
        )
    return value


def at_least_one(name: str, value: object) -> None:
    """Check a limit of one call.

    Raises:
        InvalidLimitError: It is no whole number, below one, or too large to count to.
    """
    check_whole_number(name, value, minimum=1)


def check_page(limit: object, offset: object) -> None:
    """Check the limit of a list, where None is none, and how much of it is skipped.

    Raises:
        InvalidLimitError: One of them is no whole number, too small, or too large to count to.
    """
    if limit is not None:
        at_least_one("limit", limit)
    check_whole_number("offset", offset)


_MOST = 2**31 - 1  # what every database and driver can count


def check_whole_number(name: str, value: object, *, minimum: int = 0) -> None:
    """Check a number of one call.

    Raises:
        InvalidLimitError: It is no whole number, below `minimum`, or above two thousand million.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidLimitError(
            f"`{name}` must be a whole number of at least {minimum}, got {value!r}",
            hint=f"Leave `{name}` out for its default, or pass a larger number.",
        )
    if value > _MOST:
        raise InvalidLimitError(
            f"`{name}` must be at most {_MOST:,}", hint=f"Leave `{name}` out for its default."
        )


def seconds(name: str, value: object) -> float:
    """Return the seconds to wait of one call.

    Raises:
        InvalidLimitError: It is no number, or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidLimitError(
            f"`{name}` must be a number of seconds, got {value!r:.80}",
            hint=f"Leave `{name}` out for its default, or pass a number such as 2.5.",
        )
    return value


def index(name: str, value: object) -> None:
    """Check a place in a list, counted from 0, or from -1 backwards.

    Raises:
        InvalidLimitError: It is no whole number, or too large to count to.
    """
    check_whole_number(name, -1 - value if isinstance(value, int) and value < 0 else value)


def _check_content(content: object) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, tuple) or not all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    ):
        raise InvalidMessageError(
            f"`content` must be a string or a tuple of content blocks, got {content!r:.80}",
            hint='A block is a dict with a `type`, such as `{"type": "text", "text": "…"}`.',
        )
    json_value("content", content)


def identifier(name: str, value: object) -> None:
    """Check an id, a name or a title.

    Raises:
        InvalidMessageError: It is no text, is empty, or cannot be stored in a database.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidMessageError(
            f"`{name}` must be a non-empty string without NUL characters, got {value!r:.80}",
            hint=f"Leave `{name}` out, or pass a plain string.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(
            f"`{name}` holds a lone surrogate, which no database can store: {value!r:.80}",
            hint=f"Replace the broken characters of `{name}`.",
        ) from None


def json_value(name: str, value: object, depth: int = 0) -> None:
    """Check that a value is JSON: no NaN, no objects, only string keys, at most 100 levels.

    Raises:
        InvalidMessageError: It is not.
    """
    if depth > _DEEPEST:
        raise InvalidMessageError(
            f"`{name[:80]}` is nested more than {_DEEPEST} levels deep, or holds itself",
            hint="Flatten it, or store it as a JSON text.",
        )
    match value:
        case None | bool() | int() | str():
            return
        case float():
            if not math.isfinite(value):
                raise InvalidMessageError(
                    f"`{name}` holds {value!r}, which JSON does not have",
                    hint="Use None or a string for a number that is missing or infinite.",
                )
        case Mapping():
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise InvalidMessageError(
                        f"`{name}` has the key {key!r}, which JSON would turn into a string",
                        hint="Use string keys.",
                    )
                json_value(f"{name}.{key}", inner, depth + 1)
        case list() | tuple():
            for inner in value:
                json_value(name, inner, depth + 1)
        case _:
            raise InvalidMessageError(
                f"`{name}` holds {type(value).__name__} {value!r:.80}, which is no JSON",
                hint="Keep strings, numbers, booleans, None, lists and dicts; encode anything else first.",
            )


def with_offset(moment: datetime | None, name: str = "created_at") -> datetime | None:
    """Return a time with a fixed distance from UTC; a time without a time zone counts as UTC.

    Args:
        moment: The time.
        name: The argument's name, for the error.

    Raises:
        InvalidMessageError: It is no time, or outside of the range of UTC.
    """
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidMessageError(
            f"`{name}` must be a datetime, got {moment!r:.80}",
            hint="Parse it first, for example with `datetime.fromisoformat(…)`.",
        )
    offset = moment.utcoffset()
    if offset is None:
        return moment.replace(tzinfo=UTC)
    try:
        in_utc = moment.astimezone(UTC)
        return in_utc.astimezone(timezone(offset)) if offset else in_utc
    except OverflowError:
        raise InvalidMessageError(
            f"`{name}` {moment!r} lies outside of what a UTC time can be",
            hint="Use a date between the years 1 and 9999.",
        ) from None


# Makes a message of a caller's arguments.


def new_message(
    role: Role,
    content: object,
    name: str | None = None,
    id: str | None = None,
    created_at: datetime | None = None,
    metadata: Mapping[str, JSON] | None = None,
    tool_calls: object = (),
    tool_call_id: str | None = None,
    model_visible: bool = True,
) -> Message:
    """Return a new message.

    Raises:
        InvalidMessageError: A tool message names no call, which no model accepts; or the content or the calls are no
            list.
    """
    if role == "tool" and tool_call_id is None:
        raise InvalidMessageError(
            "a tool message must name the call that it answers",
            hint="Pass `tool_call_id=…`, the id of one of the `tool_calls` of the assistant's message.",
        )
    return Message(
        role,
        content_of(content),
        id=id,
        name=name,
        tool_calls=_calls(tool_calls),
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
    if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
        raise InvalidMessageError(
            f"`content` must be a string or a list of content blocks, got {type(content).__name__}",
            hint='A block is a dict with a `type`, such as `{"type": "text", "text": "…"}`.',
        )
    return tuple(content)


def _calls(tool_calls: object) -> tuple[ToolCall, ...]:
    if isinstance(tool_calls, str | bytes | Mapping) or not isinstance(tool_calls, Iterable):
        raise InvalidMessageError(
            f"`tool_calls` must be a list of tool calls, got {tool_calls!r:.80}",
            hint="Leave `tool_calls` out, or give a list of `ToolCall(id, name, arguments)`.",
        )
    return tuple(tool_calls)


# Messages as JSON that reads back equal: for files, for other programs and for other stores.


def _content(form: Any) -> Any:
    content = restore("content", form)
    return tuple(content) if isinstance(content, list | tuple) else content


_FORM = Form(
    Message,
    "message",
    InvalidMessageError,
    hint="What is your own goes into `metadata`; `messages_from_json` reads a list, `Message.from_openai` OpenAI's form.",
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
