"""Shortens messages: copies that are too long, and previews of large ones with the parts in which a model reads the whole."""

import inspect
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace

from memlayer_core.errors import ConfigurationError, InvalidMessageError, repr_of, short_repr
from memlayer_core.message import JSON, RELOAD_TOOL, Block, Message, ToolCall
from memlayer_core.messages.render import escape, reword, texts_of, value_of
from memlayer_core.models.tokens import is_document, parts_of

# Truncates copies of messages that are too long.

ELLIPSIS = "…"
"""Ends a text that was truncated."""

_SENTENCES = re.compile(r""".*(?:[.!?]["')]*(?=\s)|[\u3002\uff01\uff1f\uff1b]|\S(?=\s*\n))""", re.DOTALL)
_WORDS = re.compile(r".*\S(?=\s)", re.DOTALL)


def truncate_text(text: str, characters: int) -> str:
    """Return a text of at most `characters` characters, the ellipsis at its end included.

    It ends behind a sentence or a line, else behind a word, if that keeps half of the limit. The same object is returned
    if it fits.
    """
    if len(text) <= characters:
        return text
    if characters < 1:
        return ""
    room = characters - 1
    ends = (found.end() for whole in (_SENTENCES, _WORDS) if (found := whole.match(text, 0, characters)))
    end = next((end for end in ends if room / 2 <= end <= room), room)
    return text[:end].rstrip() + ELLIPSIS


def truncate_arguments(arguments: str, characters: int) -> str:
    """Return the arguments of a tool call in at most `characters` characters, if JSON of them can be so short.

    One limit holds for the length of each text and of each list in them; what is longer ends in "…". Objects keep all
    their keys, so the result may be longer. What is not JSON becomes a JSON string. The same object is returned if it
    fits.
    """
    if len(arguments) <= characters:
        return arguments
    value = value_of(arguments)

    def cost(limit: int) -> int:
        return len(_json_within(value, limit))

    try:
        return _json_within(value, bisect_right(range(1, characters), characters, key=cost))
    except RecursionError:
        return truncate_arguments(json.dumps(arguments), characters)


def _json_within(value: JSON, limit: int) -> str:
    """Write JSON without a text or a list that is longer than a limit."""

    def shorter(inner: JSON) -> JSON:
        match inner:
            case str():
                return truncate_text(inner, limit)
            case dict():
                return {key: shorter(one) for key, one in inner.items()}
            case list() if len(inner) > limit:
                return [*map(shorter, inner[: limit - 1]), ELLIPSIS] if limit else []
            case list():
                return [*map(shorter, inner)]
        return inner

    return json.dumps(shorter(value), ensure_ascii=False)


def truncate_message(
    message: Message, characters: int, process: Callable[[str, int], str] = truncate_text
) -> Message:
    """Return a message in which no text and no tool call's arguments have more than `characters` characters.

    The message is not modified. The copy has no id; its framework's dump has the same texts and arguments. Content blocks
    other than text, such as images, files and reasoning, stay as they are.

    Args:
        message: Any message.
        characters: Code points, for each text block and each tool call on its own.
        process: Called with each text that is too long, and the limit, to shorten it in its own way. Its result is
            truncated if it is still too long. It is not called for arguments of tool calls.

    Returns:
        The same object if nothing is too long.

    Raises:
        ConfigurationError: `process` returned something that is not text.
    """
    message = unpack(message, characters)
    calls = tuple(_truncate_call(call, characters) for call in message.tool_calls)
    whole = texts_of(message)
    texts = [_process(text, characters, process) for text in whole]
    return message if (texts, calls) == (whole, message.tool_calls) else reword(message, texts, calls)


def _truncate_call(call: ToolCall, characters: int, note: str = "") -> ToolCall:
    arguments = truncate_arguments(call.arguments, characters)
    noted = arguments.replace(f'{ELLIPSIS}"', f'{ELLIPSIS}{note}"', 1)
    return call if arguments is call.arguments else replace(call, arguments=noted)


def _process(text: str, characters: int, process: Callable[[str, int], object]) -> str:
    if len(text) <= characters:
        return text
    answer = process(text, characters)
    if isinstance(answer, str):
        return truncate_text(answer, characters)
    if inspect.iscoroutine(answer):
        answer.close()  # else Python warns that it was never awaited
    name = getattr(process, "__qualname__", None) or repr(process)
    raise ConfigurationError(
        f"the truncation processor `{name}` returned {short_repr(answer)}, expected a str",
        hint="Pass a plain function, not an async one, that takes a text and a limit and returns a shorter text.",
    )


# Writes previews of large messages, and the parts in which a model reads the whole.

_ID = re.compile(r"msg-([0-9]{1,18})")
_WIDEST = 16  # characters of a token: what is longer is not counted, and comes in parts


def key_of(preview_id: object) -> int:
    """Return the key of the message that an offload id names.

    Raises:
        InvalidMessageError: It is not such an id.
    """
    found = _ID.fullmatch(preview_id) if isinstance(preview_id, str) else None
    if found is None:
        raise InvalidMessageError(
            f"{repr_of(preview_id)} is not an id of an offloaded message",
            hint='Use an id as a preview shows it, such as "msg-17".',
        )
    return int(found[1])


def full_text(message: Message) -> str:
    """Return all text of a message, and its tool calls."""
    calls = (f"{call.name}({call.arguments})" for call in message.tool_calls)
    return "\n".join(filter(None, (message.text, *calls)))


def unpack(message: Message, characters: int = 0) -> Message:
    """Return a message whose documents are texts like others; the same object if it has none.

    Args:
        message: Any message.
        characters: Documents with so few stay as they are, and those that are more than text: a PDF, or a reference.
    """
    if isinstance(message.content, str) or not any(map(is_document, message.content)):
        return message
    content = tuple(part for block in message.content for part in _unpack(block, characters))
    return message if content == message.content else replace(message, content=content, raw=None)


def _unpack(block: Block, characters: int) -> list[Block]:
    parts = [*parts_of(block)] if is_document(block) else []
    text = "\n".join(part for part in parts if isinstance(part, str))
    if len(text) <= characters or any(isinstance(part, int) for part in parts):
        return [block]
    return [{"type": "text", "text": escape(text)}, *(part for part in parts if isinstance(part, Mapping))]


def excerpt(text: str, preview_id: str, offset: int, *, tokens: int, count: Callable[[str], int]) -> str:
    """Return the part of a text from an offset on, with a note where the next part begins.

    Args:
        text: All of an offloaded message.
        preview_id: Its id.
        offset: Characters to pass over.
        tokens: Tokens that the part may cost, the note included; it has at least one character.
        count: Counts a text's tokens.

    Raises:
        InvalidMessageError: There is nothing at that offset.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < max(1, len(text)):
        raise InvalidMessageError(
            f"`offset` must be a whole number from 0 to {max(0, len(text) - 1)}, got {repr_of(offset)}",
            hint="Begin with offset 0; each part names the offset of the next one.",
        )
    end = min(len(text), offset + _WIDEST * tokens)
    while True:
        part = text[offset:end]
        if end < len(text):
            said = f"call {RELOAD_TOOL} with id {preview_id!r} and offset {end} to read on"
            part += f"\n[characters {offset:,} to {end:,} of {len(text):,}; {said}]"
        cost = count(part)
        if cost <= tokens or end <= offset + 1:
            return part
        end = offset + max(1, min(end - offset - 1, (end - offset) * tokens // cost))


def preview(
    message: Message, key: int, *, characters: int, tokens: int, count: Callable[[Message], int], reload: bool
) -> Message:
    """Return a copy with a message's beginning; all else that is in it stays, but texts of documents.

    The words of a user or a tool end with a note of how long they are, and the id to load them. An assistant's words get
    no note; the arguments of its calls do, if the model has the tool.

    Args:
        message: The large message.
        key: Its key.
        characters: Of its beginning, to show.
        tokens: Tokens that the copy may cost; the beginning is shortened to fit.
        count: Counts a message's tokens.
        reload: Whether the model has the tool that loads it.
    """
    message = unpack(message)
    how = f": call {RELOAD_TOOL} with id 'msg-{key}' to read them" if reload else f" of 'msg-{key}'"
    note = f"[{len(full_text(message)):,} characters in all{how}]"
    while True:
        small = _preview(message, characters, note, reload=reload)
        cost = count(small)
        if cost <= tokens or not characters:
            return small
        characters = min(characters * 7 // 8, characters * tokens // cost)


def merge_messages(one: Message, other: Message) -> Message | None:
    """Return two neighbours as one message; None if they differ in more than their words, or are not plain text."""
    plain = all(
        message.role in {"user", "assistant"} and isinstance(message.content, str) and not message.tool_calls
        for message in (one, other)
    )
    if not plain or (one.role, one.name) != (other.role, other.name):
        return None
    said = [f"{one.content}\n\n{other.content}"]
    merged = reword(one, said, ())
    return merged if merged.raw == reword(other, said, ()).raw else None


def _preview(message: Message, characters: int, note: str, *, reload: bool) -> Message:
    in_call = f" {note}" if reload else ""
    calls = tuple(_truncate_call(call, max(2, characters), in_call) for call in message.tool_calls)
    texts = texts_of(message)
    if len(message.text) > characters:
        left = characters
        for at, text in enumerate(texts):
            texts[at] = truncate_text(text, max(1, left))
            left -= len(text)
        if message.role != "assistant":
            texts[-1] += f"\n{note}"
    return reword(message, texts, calls)
