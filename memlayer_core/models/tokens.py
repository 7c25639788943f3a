"""Count the tokens of texts and messages, exactly where a tokenizer is at hand, else by an estimate.

No count uses the network. The constants below say what a message costs beyond its text, for every counter. Providers
publish few of these numbers, so the constants are rather too high than too low.
"""

from __future__ import annotations

import inspect
import json
import operator
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TypeVar

import tiktoken

from memlayer_core.errors import ConfigurationError, in_short
from memlayer_core.events import Health
from memlayer_core.message import Block, Message
from memlayer_core.models import encodings
from memlayer_core.models.estimate import estimate
from memlayer_core.models.foreign import TokenizerLike
from memlayer_core.seams import TokenCounter

__all__ = [
    "AUDIO_TOKENS",
    "CALL_TOKENS",
    "DOCUMENT_TOKENS",
    "IMAGE_TOKENS",
    "MESSAGE_TOKENS",
    "NAME_TOKENS",
    "VIDEO_TOKENS",
    "FallbackCounter",
    "token_counter",
]

T = TypeVar("T")

MESSAGE_TOKENS = 4
"""Of every message: OpenAI's chat format frames one by 3 tokens, its first version by 4."""
NAME_TOKENS = 1
"""Of a speaker's name, beside its text: the separator in OpenAI's chat format."""
CALL_TOKENS = 8
"""Of every tool call, beside its id, name and arguments: the JSON around them, as a model writes it."""
IMAGE_TOKENS = 1600
"""Of an image, whatever its size: the most that Claude charges for one (1.15 megapixels / 750), and
above GPT-4o's most (85 + 170 for each of 8 tiles = 1445). LangChain assumes 85, LlamaIndex 256."""
AUDIO_TOKENS = 2000
"""Of a recording, whatever its length: a minute at Gemini's 32 tokens a second. LlamaIndex assumes 256."""
VIDEO_TOKENS = 3000
"""Of a video, whatever its length: ten seconds at Gemini's 300 tokens a second. LlamaIndex assumes 256."""
DOCUMENT_TOKENS = 3000
"""Of a file, whatever its length: one full page at Claude's 1500 to 3000. LlamaIndex assumes 2048."""

_MEDIA = (("image", IMAGE_TOKENS), ("audio", AUDIO_TOKENS), ("video", VIDEO_TOKENS))
_FILES = frozenset({"document", "file", "input_file", "pdf"})
_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "text-plain": "text",
    "thinking": "thinking",
    "reasoning": "reasoning",
}
# Bytes as text inside JSON: a data URL, or 512 characters and more without anything that base64 lacks.
_BINARY = re.compile(r"data:[\w/+.-]+;base64,[\w+/=-]*|(?:[\w+/=-]|\\[nr]){512,}", re.ASCII)

# Characters that an encoding is given at once. o200k_base panics on a million spaces in a row
# (0.1 million are fine), and the estimate's lists stay small. A cut costs a token or two.
_PIECE = 50_000


def token_counter(
    tokenizer: TokenizerLike = "auto",
) -> TokenCounter:
    """Return a counter for a model, an encoding or a function of yours.

    Which encoding is at hand is decided here; it is loaded at the first count.

    Args:
        tokenizer: `"auto"` for o200k_base, else cl100k_base, else the estimate, the first of them that is
            at hand; a model's name (`"gpt-4o"`) or an encoding's (`"cl100k_base"`), with the estimate in
            its place and one warning where its table is not at hand; `"estimate"`; a function from a
            text to its count or to its tokens; or a counter, which is returned as it is.

    Returns:
        A counter. Its `name` is the encoding's, `"estimate"`, or `"callable:module.name#n"` for a function,
        with its count of a fixed sample: two functions of one name that count differently differ in it.

    Raises:
        ConfigurationError: The name is neither a model's nor an encoding's, or it is no tokenizer at all.
            A function that answers with no count raises it too, here or at a later count.
    """
    if isinstance(tokenizer, str):
        return _counter_named(tokenizer)
    if all(hasattr(tokenizer, part) for part in ("name", "text", "message")):
        return tokenizer  # type: ignore[return-value]
    if not callable(tokenizer) or inspect.iscoroutinefunction(tokenizer):
        raise ConfigurationError(
            f"`tokenizer` must be a name, a blocking function or a token counter, got {tokenizer!r}",
            hint="Pass a model's name such as 'gpt-4o', or a function that returns a text's number of tokens.",
        )
    count = _function_count(tokenizer)
    return _Counter(f"{_function_name(tokenizer)}#{count(_SAMPLE)}", count)


def _counter_named(name: str) -> TokenCounter:
    if name == "estimate":
        return _Counter(name, _estimate)
    if name == "auto":
        at_hand = (one for one in ("o200k_base", "cl100k_base") if encodings.find_tables(one))
        encoding = next(at_hand, None)
        return _EncodingCounter(encoding) if encoding else _counter_named("estimate")
    encoding = encodings.encoding_named(name)
    if encoding is None:
        raise ConfigurationError(
            f"`tokenizer` is {name!r}, which is neither a model that tiktoken knows nor an encoding",
            hint="Pass 'auto', 'estimate', a model of OpenAI's such as 'gpt-4o', one of the encodings "
            f"{', '.join(sorted(tiktoken.list_encoding_names()))}, or a function that counts a text's tokens.",
        )
    if encodings.find_tables(encoding):
        return _EncodingCounter(encoding)
    encodings.warn_once(
        f"tokens for {name!r} are estimated: the table of {encoding!r} is not on this machine, and it is "
        f"never downloaded. {encodings.how_to_get(encoding)}"
    )
    return _counter_named("estimate")


class _Counter:
    """Counts with a function from a text to its tokens."""

    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self._count = count

    def __repr__(self) -> str:
        return f"<token counter {self.name}>"

    def text(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self._count(text) if text else 0

    def message(self, message: Message) -> int:
        """Return the number of tokens of a message: text, name, tool calls, media and overhead."""
        return MESSAGE_TOKENS + sum(self._parts(message))

    def _parts(self, message: Message) -> Iterator[int]:
        if message.name:
            yield NAME_TOKENS + self.text(message.name)
        if message.tool_call_id:
            yield self.text(message.tool_call_id)
        for call in message.tool_calls:
            yield CALL_TOKENS + self.text(call.id) + self.text(call.name) + self.text(call.arguments)
        if isinstance(message.content, str):
            yield self.text(message.content)
            return
        yield from map(self._block, message.blocks)

    def _block(self, block: Block) -> int:
        kind = str(block.get("type"))
        words = block.get(_TEXT_FIELDS.get(kind, "text"))
        if isinstance(words, str) and (kind in _TEXT_FIELDS or kind in _FILES):
            return self.text(words)
        if kind in _FILES:
            return DOCUMENT_TOKENS
        for medium, tokens in _MEDIA:
            if medium in kind:
                return tokens
        written, binaries = _BINARY.subn("", _as_json(block))
        return self.text(written) + binaries * IMAGE_TOKENS


class FallbackCounter:
    """A counter of yours, with the estimate in its place where it raises: no message is lost for that.

    Args:
        counter: The counter.
        health: Is told when it fails, and when it works again.
    """

    def __init__(self, counter: TokenCounter, health: Health) -> None:
        self._counter, self._health = counter, health
        self._estimate = _Counter("estimate", _estimate)

    @property
    def name(self) -> str:
        """The counter's name."""
        return self._counter.name

    def text(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self._or_estimate(self._counter.text, self._estimate.text, text)

    def message(self, message: Message) -> int:
        """Return the number of tokens of a message."""
        return self._or_estimate(self._counter.message, self._estimate.message, message)

    def _or_estimate(self, count: Callable[[T], int], estimate: Callable[[T], int], what: T) -> int:
        try:
            tokens = count(what)
        except ConfigurationError:  # it answers with no count: that is no tokenizer
            raise
        except Exception as problem:  # noqa: BLE001  (whatever a function of yours raises)
            self._health.down("tokenizer", f"{self.name}: {in_short(problem)}; tokens are estimated")
            return estimate(what)
        self._health.up("tokenizer")
        return tokens


class _EncodingCounter(_Counter):
    """Counts with an encoding of tiktoken that is loaded at the first count."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding, self._load_and_count)

    def _load_and_count(self, text: str) -> int:
        encoding = encodings.load(self.name)
        if encoding is None:
            encodings.warn_once(
                f"tokens are estimated: the table of {self.name!r} went away. {encodings.how_to_get(self.name)}"
            )
            self.name, self._count = "estimate", _estimate
        else:
            # `encode` raises on "<|endoftext|>" in what a user wrote; this one takes it for text.
            encode = encoding.encode_ordinary
            self._count = lambda text: sum([len(encode(piece)) for piece in _pieces(text)])
        return self._count(text)


def _estimate(text: str) -> int:
    return sum(map(estimate, _pieces(text)))


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


_SAMPLE = (
    "The quick brown fox jumps over 13 lazy dogs; isn't it? def f(x): return {'a': [1, 2.5]}\n"
    "https://example.org/a_b?c=d&e=%20 我五月份搬到了东京。 東京は雨です 안녕하세요 Привет, мир! 👩‍💻 aGVsbG8="
)
"""A little of everything, to tell apart functions that have one name."""


def _function_name(function: Callable[[str], object]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    # Methods of built-in types have no module of their own.
    return f"callable:{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def _function_count(function: Callable[[str], object]) -> Callable[[str], int]:
    def count(text: str) -> int:
        answer = function(text)
        tokens = _as_count(answer)
        if tokens is None:
            raise ConfigurationError(
                f"the tokenizer {_function_name(function)!r} answered {reprlib.repr(answer)}, which is no count",
                hint="Return the number of tokens (0 or more) or a list of the tokens.",
            )
        return tokens

    return count


def _as_count(answer: object) -> int | None:
    if isinstance(answer, bool | str | bytes | Mapping):
        return None
    try:
        tokens = len(answer) if isinstance(answer, Sized) else operator.index(answer)  # type: ignore[arg-type]
    except TypeError:
        return None
    return tokens if tokens >= 0 else None


def _as_json(block: Block) -> str:
    try:
        return json.dumps(dict(block), ensure_ascii=False, default=_as_plain)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, circles, an abyss
        return reprlib.repr(block)


def _as_plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else reprlib.repr(value)
