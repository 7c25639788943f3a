"""Messages as JSON that reads back equal: for files, for other programs and for other stores.

What a message does not have is left out. What UTF-8 cannot hold (a lone surrogate) stands as
`{"$memlayer": "json", "value": …}`, so that every writer of JSON keeps it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from memlayer_core.errors import InvalidMessageError, MessageTypeError
from memlayer_core.records.message import Message, Raw, ToolCall
from memlayer_core.rules.check import checked
from memlayer_core.rules.json_text import parsed, shown

__all__ = [
    "message_from_json",
    "message_to_json",
    "messages_from_json",
    "messages_to_json",
    "moment_from_json",
    "moment_to_json",
    "plain",
    "restored",
]

_TAG = "$memlayer"
_FIELDS = (
    *("role", "content", "id", "name", "tool_calls", "tool_call_id", "created_at", "metadata"),
    *("model_visible", "raw"),
)


def message_to_json(message: Message) -> dict[str, Any]:
    """Return a message as a dict that `json.dumps` can write.

    Raises:
        InvalidMessageError: It could not be stored either.
    """
    checked(message)
    content = message.content if isinstance(message.content, str) else [dict(b) for b in message.content]
    form: dict[str, Any] = {"role": message.role, "content": plain(content)}
    for name in ("id", "name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            form[name] = value
    if message.tool_calls:
        calls = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
        form["tool_calls"] = plain(calls)
    if message.created_at is not None:
        form["created_at"] = moment_to_json(message.created_at)
    if message.metadata:
        form["metadata"] = plain(dict(message.metadata))
    if not message.model_visible:
        form["model_visible"] = False
    if message.raw is not None:
        raw = message.raw
        form["raw"] = plain({"framework": raw.framework, "version": raw.version, "dump": dict(raw.dump)})
    return form


def message_from_json(source: str | bytes | Mapping[str, Any]) -> Message:
    """Return the message that `message_to_json` wrote, equal to it.

    Args:
        source: The dict, or it as JSON text. The role may be in upper case.

    Raises:
        InvalidMessageError: It is no JSON, was cut off, or could not be stored as a message.
    """
    form = parsed(source, "the message", InvalidMessageError) if isinstance(source, str | bytes) else source
    if not isinstance(form, Mapping):
        raise InvalidMessageError(
            f"a message must be a JSON object, got {shown(form)}",
            hint='Such as `{"role": "user", "content": "…"}`; `messages_from_json` reads a list of them.',
        )
    for name in form:
        if name not in _FIELDS:
            raise InvalidMessageError(
                f"a message has no field {name!r}",
                hint=f"It has {', '.join(_FIELDS)}; what is your own goes into `metadata`.",
            )
    content = restored("content", form.get("content"))
    raw = restored("raw", form.get("raw"))
    message = Message(
        _role(form.get("role")),
        tuple(content) if isinstance(content, list | tuple) else content,
        id=form.get("id"),
        name=form.get("name"),
        tool_calls=_calls(restored("tool_calls", form.get("tool_calls"))),
        tool_call_id=form.get("tool_call_id"),
        created_at=moment_from_json("created_at", form.get("created_at")),
        metadata=_given(restored("metadata", form.get("metadata")), {}),
        model_visible=_given(form.get("model_visible"), True),
        raw=None if raw is None else _raw(raw),
    )
    checked(message)
    return message


def messages_to_json(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages as a list that `json.dumps` can write.

    Raises:
        InvalidMessageError: One of them could not be stored either.
    """
    return [message_to_json(message) for message in messages]


def messages_from_json(source: str | bytes | Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the messages that `messages_to_json` wrote, equal to them.

    Args:
        source: The list, or it as JSON text.

    Raises:
        InvalidMessageError: It is no JSON, was cut off, or one of them is no message; its place is told.
    """
    forms: object = source
    if isinstance(source, str | bytes):
        forms = parsed(source, "the list of messages", InvalidMessageError)
    if isinstance(forms, str | bytes | Mapping) or not isinstance(forms, Iterable):
        raise MessageTypeError(
            f"messages must be a JSON list, got {shown(forms)}",
            hint="Such as `[{…}, {…}]`; a single message is read by `message_from_json`.",
        )
    found: list[Message] = []
    for place, form in enumerate(forms):
        try:
            found.append(message_from_json(form))
        except InvalidMessageError as problem:
            raise InvalidMessageError(f"message {place}: {problem}", hint=problem.hint) from None
    return found


def moment_to_json(moment: datetime) -> str:
    """Return a time as ISO 8601, UTC as Z."""
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def moment_from_json(name: str, text: object) -> datetime | None:
    """Return the time of an ISO 8601 text, None for None.

    Raises:
        InvalidMessageError: It is something else.
    """
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidMessageError(
            f"`{name}` must be a time in ISO 8601, got {shown(text)}",
            hint="Such as `2026-05-04T09:30:00Z`.",
        ) from None


def plain(value: Any) -> Any:
    """Return a copy of a value as JSON, encoded where UTF-8 cannot hold it or where it looks encoded.

    Raises:
        InvalidMessageError: It is no JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidMessageError(
            f"a message cannot be written as JSON: {problem}",
            hint="Content blocks and dumps hold JSON values only: encode bytes, dates and objects first.",
        ) from problem
    try:
        text.encode()
    except UnicodeEncodeError:
        return {_TAG: "json", "value": b64encode(text.encode("utf-8", "surrogatepass")).decode()}
    if isinstance(value, Mapping) and _TAG in value:
        return {_TAG: "json", "value": b64encode(text.encode()).decode()}
    return json.loads(text)


def restored(name: str, value: Any) -> Any:
    """Return the value that `plain` was given.

    Raises:
        InvalidMessageError: It was changed since.
    """
    match value:
        case {"$memlayer": "json", "value": str(inner), **rest} if not rest:
            try:
                return json.loads(b64decode(inner, validate=True).decode("utf-8", "surrogatepass"))
            except (ValueError, RecursionError):
                pass
        case {"$memlayer": _}:
            pass
        case _:
            return value
    raise InvalidMessageError(
        f"`{name}` is encoded in a way that is not known here: {shown(value)}",
        hint="Its text was changed, or a newer memlayer wrote it.",
    )


def _role(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _calls(forms: object) -> tuple[ToolCall, ...]:
    match forms:
        case None:
            return ()
        case [*calls]:
            return tuple(map(_call, calls))
        case _:
            raise InvalidMessageError(
                f"`tool_calls` must be a list, got {shown(forms)}",
                hint='Such as `[{"id": "call-1", "name": "look", "arguments": "{}"}]`.',
            )


def _call(form: object) -> ToolCall:
    match form:
        case {"id": str(named), "name": str(name), **rest} if set(rest) <= {"arguments"}:
            arguments = rest.get("arguments", "{}")
            if isinstance(arguments, str):
                return ToolCall(named, name, arguments)
    raise InvalidMessageError(
        f"`tool_calls` holds {shown(form)}",
        hint='A call is `{"id": "call-1", "name": "look", "arguments": "{}"}`, its arguments as JSON text.',
    )


def _raw(form: object) -> Raw:
    match form:
        case {"framework": str(framework), "version": str(version), "dump": Mapping() as dump, **rest} if (
            not rest
        ):
            return Raw(framework, version, dump)
    raise InvalidMessageError(
        f"`raw` is {shown(form)}", hint='It is `{"framework": …, "version": …, "dump": {…}}`.'
    )
