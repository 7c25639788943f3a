"""Shortens messages: copies that are too long, and previews of large ones with the parts in which a model reads the whole."""

from __future__ import annotations

import inspect
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from os.path import commonprefix
from typing import Any

import regex

from memlayer_core.errors import ConfigurationError, InvalidMessageError
from memlayer_core.message import RELOAD_TOOL, Block, Message, ToolCall
from memlayer_core.messages.render import escape, reword, texts_of
from memlayer_core.models.tokens import is_document, parts_of

# Truncates copies of messages that are too long.
#
# A character is a Python character, one code point; the ellipsis counts as one. A cut never splits what a reader sees
# as one character: an emoji, a flag, a letter and its accents, a Hangul or Indic cluster, or a pair of surrogates.

ELLIPSIS = "…"
"""Ends a text that was truncated."""

_NEAR = 10_000
"""Characters before the cut that are searched for the end of a sentence or a word: no prose has longer ones."""
_AHEAD = 16
"""Characters behind the cut that decide whether a word or sentence ends there: "don" does not in "don't"."""
_LEGIBLE = 32
"""Characters of each string in JSON, quotes included, that stay as long as there are lists to shorten."""

# A full stop ends a sentence only before white space, so not in "3.14" and "example.com"; a Chinese or Japanese one
# always does.
_SENTENCE_END = regex.compile(
    r"(?rs)[\p{SB=STerm}\p{SB=ATerm}]\p{SB=Close}{0,3}(?=\s)"
    r"|[\u3002\uff01\uff1f\uff1b\u2026]\p{SB=Close}{0,3}(?=.)"
    r"|\S(?=\s*\n)"
)
_WORD_END = regex.compile(r"(?rsw)\b(?=.)")  # of Unicode's default boundaries, so that Chinese has some
_CONTENT = regex.compile(r"(?r)[^\s\u2026]")
_GRAPHEME = regex.compile(r"\X")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_LEFT_OUT = re.compile(rf"{ELLIPSIS} ([0-9]{{1,15}}) more")


class _Verbatim(str):
    """JSON that is written unchanged: a number, or the note of what a list has lost."""

    __slots__ = ()


def truncate_text(text: str, characters: int) -> str:
    """Return a text of at most `characters` characters, the ellipsis at its end included.

    It is cut at the last end of a sentence or a line. If that keeps less than half of the limit, it is cut at the
    last word boundary; if that does, too, between two grapheme clusters. Only the last 10,000 characters before the
    limit are searched for ends of sentences and words.

    Args:
        text: Any text, also one with lone surrogates.
        characters: Code points. A room too small for one grapheme cluster and the ellipsis gives the
            ellipsis alone, and none at all an empty text.

    Returns:
        The same object if it fits, else the beginning of it, without white space at its end, and "…".
    """
    if len(text) <= characters:
        return text
    if characters <= 1:
        return ELLIPSIS[: max(0, characters)]
    room = characters - 1
    start = max(room // 2 - 4, room - _NEAR, 0)  # an end of a sentence has at most four characters
    for boundary in (_SENTENCE_END, _WORD_END):
        ends = (found.end() for found in boundary.finditer(text, start, room + _AHEAD))
        cut = _grapheme_boundary(text, next((end for end in ends if end <= room), 0))
        if 2 * cut >= room:
            break
    else:
        cut = _grapheme_boundary(text, room)
    content = _CONTENT.search(text, 0, cut)
    end = content.end() if content else 0
    return text[: end if end == cut else _grapheme_boundary(text, end)] + ELLIPSIS


def truncate_arguments(arguments: str, characters: int) -> str:
    """Return the arguments of a tool call in at most `characters` characters, if JSON of them can be so short.

    Other white space than one between values goes first. Then long strings are truncated, the longest first, all to the
    same length; then long lists keep their beginning and end in a string such as `"… 7 more"`; then strings
    are truncated to nothing. Objects keep all their keys, so the result may be longer than the limit.
    Numbers stay as they were written; NaN and infinity, which JSON does not have, become null.

    Args:
        arguments: JSON text. What is not JSON, or is too deeply nested for Python to read, is truncated as a text and
            returned as a JSON string, quotes included.
        characters: Code points of the result.

    Returns:
        The same object if it fits, else JSON whose outermost type is that of the arguments.
    """
    if len(arguments) <= characters:
        return arguments
    try:
        value = json.loads(
            arguments, parse_int=_Verbatim, parse_float=_Verbatim, parse_constant=lambda _: None
        )
        return _truncate_json(value, characters)
    except (ValueError, RecursionError):
        return _string(arguments, characters)


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
    noted = _CUT.sub(f'\\1{note}"', arguments, count=1)
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
        f"the truncation processor `{name}` returned {type(answer).__name__} {answer!r:.80}, expected a str",
        hint="Pass a plain function, not an async one, that takes a text and a limit and returns a shorter text.",
    )


# Graphemes


def _grapheme_boundary(text: str, at: int) -> int:
    """Return the last place up to `at`, a place in the text, that splits no grapheme cluster."""
    at -= _in_pair(text, at)
    end = at + 1 + _in_pair(text, at + 1)
    before = text[:end]
    if before.isascii() or not _SURROGATE_PAIR.search(before):
        return end - len(_last_grapheme(before))
    # As one character each, pairs form emoji and flags like others; the last cluster is counted back in pairs.
    merged = before.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    for _ in _last_grapheme(merged):
        end -= 1 + _in_pair(text, end - 1)
    return end


def _last_grapheme(text: str) -> str:
    """Return the last grapheme cluster. The search begins near the end, and further in front if need be."""
    length = 16
    while True:
        clusters: list[str] = _GRAPHEME.findall(text, max(0, len(text) - length))
        if len(clusters) > 1 or length >= len(text):
            return clusters[-1]
        length *= 16


def _in_pair(text: str, at: int) -> bool:
    return 0 < at < len(text) and bool(_SURROGATE_PAIR.match(text, at - 1))


# JSON


def _truncate_json(value: Any, characters: int) -> str:
    """Write JSON with one limit for all lists and one for all strings, each as large as fits, the lists first."""

    def largest(write: Callable[[int], str], minimum: int) -> int:
        sizes = range(minimum + 1, characters)
        return minimum + bisect_right(sizes, characters, key=lambda size: len(write(size)))

    limit = _LEGIBLE
    elements = largest(lambda size: _to_json(_shorter_lists(value, size, limit), limit), 0)
    shorter = _shorter_lists(value, elements, limit)
    if len(_to_json(shorter, limit)) > characters:
        shorter, limit = _shorter_lists(value, 0, 0), 0
    return _to_json(shorter, largest(partial(_to_json, shorter), limit))


def _shorter_lists(value: Any, elements: int, minimum: int) -> Any:
    """Keep `elements` elements of each list, and a note with the number of the others, if that is shorter.

    A list that was shortened before ends in such a note; its number is added.
    """
    if isinstance(value, dict):
        return {key: _shorter_lists(inner, elements, minimum) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    noted = _LEFT_OUT.fullmatch(value[-1]) if value and isinstance(value[-1], str) else None
    items, left_out = (value[:-1], int(noted[1])) if noted else (value, 0)
    kept = [_shorter_lists(item, elements, minimum) for item in items[:elements]]
    rest = items[elements:]
    note = _Verbatim(f'"{ELLIPSIS} {left_out + len(rest)} more"')
    lengths = accumulate(len(_to_json(item, minimum)) + 2 for item in rest)
    if noted or any(length > len(note) + 2 for length in lengths):
        return [*kept, note]
    return [*kept, *rest]


def _to_json(value: Any, limit: int = sys.maxsize) -> str:
    """Write JSON as frameworks send it, with a space between values, no string longer than `limit` with its quotes."""
    match value:
        case dict():
            fields = [f"{_string(key)}: {_to_json(inner, limit)}" for key, inner in value.items()]
            return f"{{{', '.join(fields)}}}"
        case list():
            return f"[{', '.join([_to_json(item, limit) for item in value])}]"
        case _Verbatim():
            return str(value)
        case str():
            return _string(value, limit)
        case _:
            return json.dumps(value)


def _string(text: str, limit: int = sys.maxsize) -> str:
    """Write a text as JSON of at most `limit` characters, quotes and escapes included, and at least two."""
    if len(text) <= limit - 2:
        literal = _literal(text)
        if len(literal) <= limit:
            return literal
    lengths = range(min(len(text) - 1, limit))  # never the whole text, which may be too long by its escapes
    fitting = bisect_right(lengths, limit, key=lambda length: len(_literal(text[:length] + ELLIPSIS)))
    return _literal(truncate_text(text, fitting))


def _literal(text: str) -> str:
    # UTF-8 cannot encode a lone surrogate, so it is escaped.
    written = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


# Writes previews of large messages, and the parts in which a model reads the whole.

_CUT = re.compile(rf'({ELLIPSIS}(?: [0-9]+ more)?)"')
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
            f"{preview_id!r:.80} is not an id of an offloaded message",
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
            f"`offset` must be a whole number from 0 to {max(0, len(text) - 1)}, got {offset!r:.80}",
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


def shown_characters(text: str, previews: Sequence[str]) -> int:
    """Return how many characters of a text's beginning are in previews."""
    return max((len(commonprefix([text, one])) for one in previews), default=0)  # noqa: RUF071  (of characters)


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
