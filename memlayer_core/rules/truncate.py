"""Decides how a message that is too long is truncated, always on a copy.

A character is a Python character, one code point, and the mark of omission counts as one. A cut never
parts what a reader sees as one character: an emoji, a flag, a letter and its accents, a Hangul or Indic
cluster, or two surrogates that stand for one character.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import regex

from memlayer_core.errors import ConfigurationError
from memlayer_core.records.message import Block, Message, ToolCall

__all__ = ["ELLIPSIS", "truncate_arguments", "truncate_message", "truncate_text"]

ELLIPSIS = "…"
"""Ends a text that was truncated."""

_NEAR = 10_000
"""Characters before the cut that are searched for the end of a sentence or a word: no prose has longer ones."""
_AHEAD = 16
"""Characters behind the cut that tell whether a word or a sentence ends there: "don" does not in "don't"."""
_LEGIBLE = 32
"""Characters of each string in JSON, quotes included, that stay as long as there are lists to shorten."""

# A full stop needs white space after it, "3.14" and "example.com" are no ends; Chinese and Japanese ones do not.
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
    """JSON that is written as it stands: a number, or the note of what a list has lost."""

    __slots__ = ()


def truncate_text(text: str, characters: int) -> str:
    """Return a text of at most `characters` characters, the ellipsis at its end included.

    It is cut at the last end of a sentence or a line; where that would keep less than half of the room, at
    the last word boundary; where that would, too, between two grapheme clusters. Ends of sentences and words
    are looked for in the last 10,000 characters before the limit; what lies far behind it is not read.

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
    """Return the arguments of a tool call in at most `characters` characters, if any JSON of them is as short.

    White space between values goes first. Then long strings are truncated, the longest first, all to the
    same length; then long lists keep their beginning and end in a string such as `"… 7 more"`; then strings
    are truncated to nothing. Objects keep all their keys, so the result may be longer than the limit.
    Numbers stay as they were written; NaN and infinity, which JSON does not have, become null.

    Args:
        arguments: JSON text. What is no JSON, or too deeply nested for Python to read, is truncated as a text
            and returned as a JSON string, quotes included.
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
        return _truncated_json(value, characters)
    except (ValueError, RecursionError):
        return _string(arguments, characters)


def truncate_message(
    message: Message, characters: int, process: Callable[[str, int], str] = truncate_text
) -> Message:
    """Return a message in which no text and no tool call's arguments have more than `characters` characters.

    The message given is not modified. The copy has no framework's dump, which would bring the long text
    back. Content blocks other than text, such as images and files, stay as they are.

    Args:
        message: Any message.
        characters: Code points, for each text block and each tool call on its own.
        process: Called with a text and the limit, for longer texts only, to summarise it or extract its
            keywords; what it returns is truncated if it is still too long. Arguments of tool calls have
            to stay JSON and do not go through it.

    Returns:
        The same object if nothing is too long.

    Raises:
        ConfigurationError: `process` returned something that is no text.
    """
    calls = tuple(_truncated_call(call, characters) for call in message.tool_calls)
    content: str | tuple[Block, ...]
    if isinstance(message.content, str):
        content = _processed(message.content, characters, process)
    else:
        # A truncated call must not stand whole in a block beside it.
        blocks = message.content if calls == message.tool_calls else message.blocks
        content = tuple(_truncated_block(block, characters, process) for block in blocks)
    if content == message.content and calls == message.tool_calls:
        return message
    return replace(message, content=content, tool_calls=calls, raw=None)


def _truncated_block(block: Block, characters: int, process: Callable[[str, int], str]) -> Block:
    match block:
        case {"type": "text", "text": str(text)} if len(text) > characters:
            return {**block, "text": _processed(text, characters, process)}
        case _:
            return block


def _truncated_call(call: ToolCall, characters: int) -> ToolCall:
    arguments = truncate_arguments(call.arguments, characters)
    return call if arguments is call.arguments else replace(call, arguments=arguments)


def _processed(text: str, characters: int, process: Callable[[str, int], object]) -> str:
    if len(text) <= characters:
        return text
    answer = process(text, characters)
    if isinstance(answer, str):
        return truncate_text(answer, characters)
    if inspect.iscoroutine(answer):
        answer.close()  # else Python warns that nobody awaited it
    name = getattr(process, "__qualname__", None) or repr(process)
    raise ConfigurationError(
        f"the truncation processor `{name}` returned {type(answer).__name__} {answer!r:.80}, expected a str",
        hint="Give a plain function, not an async one, that takes a text and a limit and returns a shorter text.",
    )


# Graphemes


def _grapheme_boundary(text: str, at: int) -> int:
    """Return the last place up to `at`, which lies in the text, that parts no grapheme cluster."""
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
    """Return the last grapheme cluster; a search from any place finds the right ends, so it begins near."""
    length = 16
    while True:
        clusters: list[str] = _GRAPHEME.findall(text, max(0, len(text) - length))
        if len(clusters) > 1 or length >= len(text):
            return clusters[-1]
        length *= 16


def _in_pair(text: str, at: int) -> bool:
    return 0 < at < len(text) and bool(_SURROGATE_PAIR.match(text, at - 1))


# JSON


def _truncated_json(value: Any, characters: int) -> str:
    def too_long(elements: int) -> bool:
        return len(_shared(value, characters, elements, _LEGIBLE)) > characters

    if not too_long(sys.maxsize):
        return _shared(value, characters, sys.maxsize, _LEGIBLE)
    if too_long(0):
        return _shared(value, characters, 0, 0)
    elements = bisect_left(range(1, characters), True, key=too_long)
    return _shared(value, characters, elements, _LEGIBLE)


def _shared(value: Any, characters: int, elements: int, least: int) -> str:
    """Write JSON with lists of at most so many elements; its strings share the rest of the room fairly."""
    value = _shorter_lists(value, elements, least)
    whole = _written(value)
    widths = sorted(len(_string(text)) for text in _strings(value))
    room = characters - len(whole) + sum(widths)
    for place, width in enumerate(widths):
        share = room // (len(widths) - place)
        if width > share:
            return _written(value, max(share, least))
        room -= width
    return whole


def _shorter_lists(value: Any, elements: int, least: int) -> Any:
    """Keep so many elements of each list, and a note of how many more there were, where that is shorter.

    Lists that were shortened before end in such a note, and its count goes on.
    """
    if isinstance(value, dict):
        return {key: _shorter_lists(inner, elements, least) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    noted = _LEFT_OUT.fullmatch(value[-1]) if value and isinstance(value[-1], str) else None
    items, left_out = (value[:-1], int(noted[1])) if noted else (value, 0)
    kept = [_shorter_lists(item, elements, least) for item in items[:elements]]
    rest = items[elements:]
    note = _Verbatim(f'"{ELLIPSIS} {left_out + len(rest)} more"')
    lengths = accumulate(len(_written(item, least)) + 1 for item in rest)
    if noted or any(length > len(note) + 1 for length in lengths):
        return [*kept, note]
    return [*kept, *rest]


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in JSON that can be truncated: no keys."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
    elif isinstance(value, str) and not isinstance(value, _Verbatim):
        yield value


def _written(value: Any, longest: int = sys.maxsize) -> str:
    """Write JSON without white space, no string longer than `longest` with its quotes."""
    match value:
        case dict():
            fields = [f"{_string(key)}:{_written(inner, longest)}" for key, inner in value.items()]
            return f"{{{','.join(fields)}}}"
        case list():
            return f"[{','.join([_written(item, longest) for item in value])}]"
        case _Verbatim():
            return str(value)
        case str():
            return _string(value, longest)
        case _:
            return json.dumps(value)


def _string(text: str, longest: int = sys.maxsize) -> str:
    """Write a text as JSON of at most `longest` characters, quotes and escapes included, and at least two."""
    if len(text) <= longest - 2:
        literal = _literal(text)
        if len(literal) <= longest:
            return literal
    lengths = range(min(len(text) - 1, longest))  # never the whole text, which may be too long by its escapes
    fitting = bisect_right(lengths, longest, key=lambda length: len(_literal(text[:length] + ELLIPSIS)))
    return _literal(truncate_text(text, fitting))


def _literal(text: str) -> str:
    # A lone surrogate outside of an escape could not be encoded by whoever sends the JSON on.
    written = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
