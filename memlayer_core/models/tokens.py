"""Count the tokens of texts and messages, exactly where a tokenizer is at hand, else by an estimate.

No count uses the network. The constants below say what a message costs beyond its text, for every counter. Providers
publish few of these numbers, so the constants are rather too high than too low.

A model refuses a context that is too long; one that is too short only contains a little less. The estimate was
calibrated on two encodings. Where they differ, it follows the one with more tokens: OpenAI's older cl100k_base needs up to 75 % more tokens than o200k_base for Russian, Chinese,
Japanese and Korean, and twice to three times as many for Greek, Hebrew, Hindi and Thai.

Estimate divided by real count, measured over samples of 70 bytes to 60 kilobytes each:

===========================  ===========  ==========
kind                         cl100k_base  o200k_base
===========================  ===========  ==========
English, Markdown              1.11-1.17   1.10-1.21
German, French, Spanish        0.93-1.08   1.06-1.20
Polish, Czech, Hungarian       0.93-1.04   1.06-1.29
Chinese, simplified            0.96-1.15   1.38-1.59
Chinese, traditional           0.98-1.08   1.47-1.61
Japanese                       1.00-1.03   1.34-1.55
Korean                         0.92-1.09   1.54-1.70
Russian, Ukrainian             0.97-1.12   1.53-1.83
Greek, Hebrew, Arabic, Thai    0.96-1.01   2.0-2.4
Hindi                             0.98        3.1
Python, JavaScript, SQL        1.20-1.39   1.20-1.35
JSON                           1.03-1.34   1.03-1.33
URLs                           1.26-1.37   1.22-1.37
base64, hexadecimal, UUIDs     0.96-1.02   0.95-1.04
numbers                           1.00        1.00
emoji                          0.93-1.10   1.24-1.78
===========================  ===========  ==========

The lowest value was that of Latvian (0.90), the highest that of lines drawn with punctuation (1.9).
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import logging
import operator
import os
import re
import reprlib
import tempfile
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import ConfigurationError, in_short, repr_of
from memlayer_core.events import Health
from memlayer_core.message import Block, Message
from memlayer_core.models.foreign import TokenizerLike, environment, path_of
from memlayer_core.seams import TokenCounter

if TYPE_CHECKING:
    import tiktoken

# Estimate a text's tokens from its script and shape, where no tokenizer's table is at hand.

# Costs are whole numbers of a twentieth of a token: fast to add, and no order of adding changes a sum.
_UNIT = 20

# Tokens of a word by its number of letters. Up to four letters are nearly always one token. In English that is so up
# to ten letters, in German and similar languages it is not. More than twelve letters are mostly no word.
_LONGEST_WORD = 40
_WORD = [0.0, 1, 1, 1.02, 1.08, 1.2, 1.3, 1.45, 1.65, 1.75, 1.85, 2.0, 2.4]
_WORD += [_WORD[-1] + 0.6 * more for more in range(1, _LONGEST_WORD - len(_WORD) + 2)]
# Punctuation by the length of its run: pairs such as `):` are mostly one token.
_PUNCTUATION = [0, 1, 1, 1.25, 1.7, 2.0, 2.3, 2.6, 2.9]
# What letters and digits in disorder (base64) cost beyond the words that are seen in them, a character.
_DISORDER = 0.15
_DISORDER_CHANGES = 10
"""A change between letter and digit at least every so many characters: base64 has one every four."""

# The cost of one character by its code point: first, last + 1, tokens. Later rows win.
_SCRIPTS: tuple[tuple[int, int, float], ...] = (
    (0x80, 0x110000, 3.0),  # what is not named below: rare scripts, rare ideographs and most emoji
    (0x80, 0xC0, 1.0),  # signs
    (0xC0, 0x100, 1.5),  # é ö ñ: an accent also breaks its word in two
    (0x100, 0x250, 2.0),  # ł č ő
    (0x250, 0x370, 1.6),  # phonetics and combining accents
    (0x370, 0x400, 1.08),  # Greek
    (0x400, 0x530, 2.0),  # Cyrillic beyond Russian, such as Ukrainian's own letters
    (0x410, 0x450, 0.53),  # Russian
    (0x530, 0x590, 1.9),  # Armenian
    (0x590, 0x600, 1.1),  # Hebrew
    (0x600, 0x700, 0.88),  # Arabic
    (0x700, 0x900, 2.0),
    (0x900, 0x980, 1.2),  # Devanagari
    (0x980, 0xE00, 1.8),  # Bengali to Sinhala
    (0xE00, 0xE80, 0.95),  # Thai
    (0xE80, 0x1100, 2.0),  # Lao, Tibetan, Burmese, Georgian
    (0x1E00, 0x1F00, 0.7),  # Vietnamese
    (0x2000, 0x2070, 1.05),  # dashes and quotation marks
    (0x200D, 0x200E, 1.9),  # the joiner inside emoji
    (0x2070, 0x2200, 1.6),  # currencies, arrows
    (0x2500, 0x25A0, 1.3),  # boxes
    (0x25A0, 0x27C0, 1.9),  # symbols
    (0x3000, 0x3040, 1.0),  # punctuation of Chinese and Japanese
    (0x3040, 0x3100, 0.93),  # kana
    (0x4E00, 0xA000, 1.27),  # ideographs
    (0xAC00, 0xD7B0, 1.32),  # Hangul
    (0xD800, 0xE000, 1.0),  # lone surrogates become one replacement sign
    (0xFE00, 0xFE10, 1.0),  # variation selectors
    (0xFF00, 0xFFF0, 1.2),  # full width
    (0x1F300, 0x1F3FB, 2.8),  # pictures
    (0x1F400, 0x1F600, 2.8),
    (0x1F600, 0x1F650, 2.0),  # faces
)
# Ideographs that only traditional Chinese has, by far the most frequent ones: two or three tokens each.
_TRADITIONAL = 2.3
_TRADITIONAL_ONES = (
    "個們這來說對會為過還發點學國樣經關當應題現實電車號語讀寫書長門親愛請謝讓誰買賣貴錢飯飲麼嗎給從"
    "進機樓區園邊遠運週義務員業產價總統設錄資訊網線續結構選擇檔據庫處鍵節簡單雙聽視觀覺頭顏類願順須"
    "領風飛體驗麗圖團導將專尋爾較輕轉農違適鄉醫釋針鐘鐵錯養餐馬駕騎魚鳥黃龍萬與東兩嚴並樂習鬆敏離難雜靜"
    "響變壞歲歷戰擔舊藥術衛裝複規試詳認證議護註訪許該論諸謂譯負責費質賽趣遊達邏輯鄰銀鋼鎮閉閱陽陰陳隊階"
    "際隨險隱雖靈頁頂項頻額驚魯麥標輸講刪內換編著驟復詞執確別則誤繼數夠狀啟準備態參幫裡顯創沒幾歡強練滿帶"
)


def _costs() -> bytes:
    """Lay the scripts' costs out by code point, so that a character costs one look-up."""
    costs = bytearray(0x110000)
    for first, end, tokens in _SCRIPTS:
        costs[first:end] = bytes([round(tokens * _UNIT)]) * (end - first)
    for ideograph in _TRADITIONAL_ONES:
        costs[ord(ideograph)] = round(_TRADITIONAL * _UNIT)
    return bytes(costs)


_COSTS = _costs()
_WORD_COSTS = tuple(round(tokens * _UNIT) for tokens in _WORD)
_PUNCTUATION_COSTS = tuple(round(tokens * _UNIT) for tokens in _PUNCTUATION)

# Words are cut as o200k_base cuts them: `getItem` is `get` and `Item`. A space in front is free.
_words = re.compile(r"[A-Z]?[a-z]{1,39}|[A-Z]{1,6}(?![a-z])|[A-Z]").findall
_punctuation = re.compile(r"[!-/:-@\[-`{-~]{1,8}").findall
# One token each: three digits, the space in front of a number, line breaks, an indentation, a control sign.
_singles = re.compile(
    r"[0-9]{1,3}|[\r\n]{1,16}|[ \t]{2,64}|\t| (?=[0-9])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
).findall
_unbroken = re.compile(r"[A-Za-z0-9+/_=-]{24,}").findall
_changes = re.compile(r"[A-Za-z][0-9]|[0-9][A-Za-z]").findall
_beyond_ascii = re.compile(r"[^\x00-\x7f]+").findall


def estimate(text: str) -> int:
    """Estimate the tokens of a text, for a budget that should rather be kept than filled.

    It is a function of the text alone, takes about 20 microseconds for a message of 30 words, and grows with the text's
    length: a long one is estimated piece by piece. The module's docstring gives its error.

    Args:
        text: Any text, lone surrogates included.

    Returns:
        Tokens; 0 for the empty text, and at least 1 for any other.
    """
    if not text:
        return 0
    if len(text) > _PIECE:
        return sum(map(estimate, _pieces(text)))
    cost = sum(map(_WORD_COSTS.__getitem__, map(len, _words(text))))
    cost += sum(map(_PUNCTUATION_COSTS.__getitem__, map(len, _punctuation(text))))
    cost += _UNIT * len(_singles(text))
    cost += sum(round(len(run) * _DISORDER * _UNIT) for run in _unbroken(text) if _is_disordered(run))
    if not text.isascii():
        cost += sum(map(_COSTS.__getitem__, map(ord, "".join(_beyond_ascii(text)))))
    return max(1, -(-cost // _UNIT))


def _is_disordered(run: str) -> bool:
    """Return whether a text is base64, not a path or a long name: it mixes capitals, small letters and digits."""
    mixed = run not in (run.lower(), run.upper())
    return mixed and len(_changes(run)) * _DISORDER_CHANGES > len(run)


# Find and load tiktoken's encodings from tables that are on this machine already.
#
# tiktoken downloads a table that it does not find, and deletes one that is damaged to download it again. A memory must
# neither wait for a network nor fail without one: here a table is looked for where tiktoken and llama-index-core keep
# theirs, its content is checked, and only then may tiktoken read it.

_CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
_SOURCE = "https://openaipublic.blob.core.windows.net/encodings/"
# Each encoding's file and its SHA-256, as tiktoken names them. A published table never changes.
_CL100K = "cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_O200K = "o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_TABLES = {"cl100k_base": _CL100K, "o200k_base": _O200K, "o200k_harmony": _O200K}

_log = logging.getLogger("memlayer")
_lock = threading.Lock()


def find_tables(encoding: str) -> Path | None:
    """Return the folder that holds an encoding's table, whole and undamaged.

    A damaged table is passed over with a warning and left where it is.

    Args:
        encoding: The name of an encoding.

    Returns:
        The folder; None where there is none, also for older encodings and those of tiktoken's plugins.
    """
    if encoding not in _TABLES:
        return None
    return next((folder for folder in _folders() if _is_whole(folder, *_TABLES[encoding])), None)


def load(encoding: str) -> tiktoken.Encoding:
    """Return an encoding, read from the table at hand at its first use in this process.

    The first use takes 0.2 to 0.4 seconds and keeps some 70 MB. tiktoken gets the folder through its environment
    variable, which is restored when the table is read.

    Raises:
        OSError: Its table went away.
        ValueError: tiktoken cannot read the table.
    """
    import tiktoken  # only a process that counts tokens needs it

    folder = find_tables(encoding)
    if folder is None:
        raise FileNotFoundError("it went away")
    with _lock, environment(_CACHE_VARIABLE, str(folder)):
        return tiktoken.get_encoding(encoding)


def how_to_get(encoding: str) -> str:
    """Say in one sentence how an encoding's table gets onto a machine."""
    if encoding not in _TABLES:
        return (
            f"No table is read for {encoding!r}: pass its counting function instead, "
            f"`tiktoken.get_encoding({encoding!r}).encode_ordinary`."
        )
    return (
        f"Set {_CACHE_VARIABLE} to a folder that stays, and run `tiktoken.get_encoding({encoding!r})` once where there "
        "is a network, or install `llama-index-core`, which brings it, or choose the estimate with `tokenizer='estimate'`."
    )


@lru_cache(maxsize=64)
def warn_once(text: str) -> None:
    """Log a warning, the same one no more than once in a process."""
    _log.warning("%s", text)


def _folders() -> Iterator[Path]:
    """Give the folders that may hold tables: tiktoken's own, in its order, then llama-index-core's."""
    for variable in (_CACHE_VARIABLE, "DATA_GYM_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield Path(tempfile.gettempdir()) / "data-gym-cache"
    # The spec of the namespace package says where it is; nothing of LlamaIndex is imported for it.
    spec = importlib.util.find_spec("llama_index")
    for place in (spec and spec.submodule_search_locations) or ():
        yield Path(place) / "core" / "_static" / "tiktoken_cache"


def _is_whole(folder: Path, name: str, digest: str) -> bool:
    file = folder / hashlib.sha1(f"{_SOURCE}{name}".encode(), usedforsecurity=False).hexdigest()
    try:
        status = file.stat()
        whole = _digest(file, status.st_size, status.st_mtime_ns) == digest
    except OSError:
        return False
    if not whole:
        warn_once(f"the token table {str(file)!r} ({name}) is damaged and is not used; delete it")
    return whole


@lru_cache(maxsize=32)
def _digest(file: Path, size: int, mtime: int) -> str:  # a changed file is read again
    return hashlib.sha256(file.read_bytes()).hexdigest()


MESSAGE_TOKENS = 4
"""Of every message: OpenAI's chat format frames one by 3 tokens, its first version by 4."""
NAME_TOKENS = 1
"""Of a speaker's name, in addition to its text: the separator in OpenAI's chat format."""
CALL_TOKENS = 8
"""Of every tool call, in addition to its id, name and arguments: the JSON around them, as a model writes it."""
IMAGE_TOKENS = 1600
"""Of an image, whatever its size: the most that Claude charges for one (1.15 megapixels / 750), and
above GPT-4o's most (85 + 170 for each of 8 tiles = 1445). LangChain assumes 85, LlamaIndex 256."""
AUDIO_TOKENS = 2000
"""Of a recording, whatever its length: a minute at Gemini's 32 tokens a second. LlamaIndex assumes 256."""
VIDEO_TOKENS = 3000
"""Of a video, whatever its length: ten seconds at Gemini's 300 tokens a second. LlamaIndex assumes 256."""
DOCUMENT_TOKENS = 3000
"""Of a page of a file that is not text, and of a file that is only named: Claude charges 1500 to 3000. LlamaIndex assumes 2048
for a whole file."""
PAGE_BYTES = 50_000
"""Of a page of a PDF: scanned ones have more, and plain text has fewer."""

_MEDIA = {"image": IMAGE_TOKENS, "audio": AUDIO_TOKENS, "video": VIDEO_TOKENS}
_QUOTES = frozenset({"search_result", "citable", "citation"})
_DOCUMENTS = _QUOTES | {"document", "file", "input_file", "pdf", "media", "text-plain"}
_LABELS = frozenset(
    {"type", "block_type", "source_type", "mime_type", "media_type", "mimeType", "format", "id", "index"}
    | {"cache_control", "$memlayer"}
)
_DATA = frozenset({"data", "base64", "file_data", "bytes", "value"})
_PLACES = frozenset({"url", "uri", "file_url", "file_uri", "file_id", "path", "source"})
_TEXTS = frozenset({"text", "input_text", "output_text", "thinking", "reasoning"})
# Bytes as text inside JSON: a data URL, or 512 characters and more without anything that base64 lacks.
_BINARY = re.compile(r"data:[\w/+.-]+;base64,[\w+/=-]*|(?:[\w+/=-]|\\[nr]){512,}", re.ASCII)

# Characters that an encoding is given at once. o200k_base panics on a million spaces in a row
# (0.1 million are fine), and the estimate's lists stay small. A cut costs a token or two.
_PIECE = 50_000


def token_counter(tokenizer: TokenizerLike = "auto", health: Health | None = None) -> TokenCounter:
    """Return a counter for a model, an encoding or your own function.

    Which encoding is at hand is decided here; it is loaded at the first count.

    Args:
        tokenizer: `"auto"` for o200k_base, else cl100k_base, else the estimate, the first of them that is
            at hand; a model's name (`"gpt-4o"`) or an encoding's (`"cl100k_base"`), with the estimate in
            its place and one warning where its table is not at hand; `"estimate"`; or a function from a
            text to its count or to its tokens.
        health: Notes when a function fails, and when it works again; the estimate is then used in its place, so that no
            message is lost. None: what it raises is raised.

    Returns:
        A counter. Its `name` is the encoding's, `"estimate"`, or `"callable:module.name#n"` for a function,
        with its count of a fixed sample: two functions of one name that count differently differ in it.

    Raises:
        ConfigurationError: The name is neither a model's nor an encoding's, or it is not a tokenizer at all. A function
            that does not return a count raises it too, here or at a later count.
    """
    if isinstance(tokenizer, str):
        return _counter_named(tokenizer)
    if not callable(tokenizer) or inspect.iscoroutinefunction(tokenizer):
        raise ConfigurationError(
            f"`tokenizer` must be a name or a blocking function, got {repr_of(tokenizer)}",
            hint="Pass a model's name such as 'gpt-4o', or a function that returns a text's number of tokens.",
        )
    sample = _function_count(tokenizer, None)(_SAMPLE)
    return _Counter(f"callable:{path_of(tokenizer)}#{sample}", _function_count(tokenizer, health))


def _counter_named(name: str) -> TokenCounter:
    if name == "auto":
        return _Counter(next(filter(find_tables, ("o200k_base", "cl100k_base")), "estimate"))
    if name == "estimate":
        return _Counter(name)
    import tiktoken  # only a process that counts tokens needs it

    encodings = tiktoken.list_encoding_names()
    try:
        encoding = name if name in encodings else tiktoken.encoding_name_for_model(name)
    except KeyError:
        raise ConfigurationError(
            f"`tokenizer` is {name!r}, which is neither a model that tiktoken knows nor an encoding",
            hint="Pass 'auto', 'estimate', a model of OpenAI's such as 'gpt-4o', one of the encodings "
            f"{', '.join(sorted(encodings))}, or a function that counts a text's tokens.",
        ) from None
    if find_tables(encoding):
        return _Counter(encoding)
    warn_once(
        f"tokens for {name!r} are estimated: the table of {encoding!r} is not on this machine, and it is "
        f"never downloaded. {how_to_get(encoding)}"
    )
    return _Counter("estimate")


class _Counter:
    """Counts with a function from a text to its tokens; without one, by the estimate, or with the encoding of that name.

    An encoding is loaded at the first count.
    """

    def __init__(self, name: str, count: Callable[[str], int] | None = None) -> None:
        self.name = name
        self._count = count or (estimate if name == "estimate" else self._load_and_count)

    def _load_and_count(self, text: str) -> int:
        try:
            # `encode` raises on "<|endoftext|>" in what a user wrote; this one takes it for text.
            encode = load(self.name).encode_ordinary
        except (OSError, ValueError) as problem:
            table = f"the table of {self.name!r} cannot be read: {problem}"
            warn_once(f"tokens are estimated: {table}. {how_to_get(self.name)}")
            self.name, self._count = "estimate", estimate
        else:
            self._count = lambda text: sum([len(encode(piece)) for piece in _pieces(text)])
        return self._count(text)

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
        words = block.get(kind, block.get("text")) if kind in _TEXTS else None
        if isinstance(words, str):
            return self.text(words)
        if (medium := _medium(block)) is not None:
            return _MEDIA[medium]
        try:
            if is_document(block):
                parts = [*parts_of(block)] or [DOCUMENT_TOKENS]
                return sum(map(self._part, parts))
            inner: list[Block] = []
            rest = _without_files(block, inner)
        except RecursionError:  # a circle, or too deep
            return self.text(reprlib.repr(block))
        written, binaries = _BINARY.subn("", _as_json(rest))
        return self.text(written) + binaries * IMAGE_TOKENS + sum(map(self._block, inner))

    def _part(self, one: str | int | Block) -> int:
        return one if isinstance(one, int) else self.text(one) if isinstance(one, str) else self._block(one)


def _medium(block: Block) -> str | None:
    kind = f"{block.get('type')} {block.get('mime_type') or block.get('media_type')}"
    return next((medium for medium in _MEDIA if medium in kind), None)


def is_document(block: Block) -> bool:
    """Return whether a content block is a file, a text in a file's place, or a result of a search."""
    return str(block.get("type")) in _DOCUMENTS


_NOTHING: Block = {}


def parts_of(value: object, name: str = "", holder: Block = _NOTHING) -> Iterator[str | int | Block]:
    """Yield what is in a document's block, in any provider's form: texts, images and the like, and the tokens of the rest.

    Args:
        value: The block, or a part of it.
        name: The part's field.
        holder: What has that field.
    """
    match value:
        case Mapping() if name and _medium(value) is not None:
            yield value
        case Mapping():
            for key, inner in value.items():
                if key not in _LABELS:
                    yield from parts_of(inner, key, value)
        case list() | tuple():
            for inner in value:
                yield from parts_of(inner, name, holder)
        case str() | bytes():
            yield _read(value, name, holder)


def _read(value: str | bytes, name: str, holder: Block) -> str | int:
    data = _decode(value, name, holder) if isinstance(value, str) else value
    if data is not None:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return DOCUMENT_TOKENS * max(1, -(-len(data) // PAGE_BYTES))
    is_named = name in _PLACES and str(holder.get("type")) not in _QUOTES
    return DOCUMENT_TOKENS if is_named else str(value)


def _decode(text: str, name: str, holder: Block) -> bytes | None:
    """Return the bytes that a field has as base64, or as a data URL; None if it has none."""
    _, mark, data = text.partition(";base64,") if text.startswith("data:") else ("", "", text)
    is_text = name not in _DATA | _PLACES or "text" in (holder.get("type"), holder.get("source_type"))
    if not mark and (is_text or not (name == "base64" or _BINARY.fullmatch(text))):
        return None
    try:
        return b64decode(data.translate(_URL_SAFE) + "==")
    except ValueError:
        return None


_URL_SAFE = str.maketrans("-_", "+/")


def _without_files(value: Any, parts: list[Block], name: str = "") -> Any:
    """Return a value without the files and media in it, which are put into `parts`."""
    if isinstance(value, Mapping):
        if "source" in value and name in {*_MEDIA, "document"}:  # as in Bedrock's blocks, which have no type
            value = {"type": name, **value}
        if name and (is_document(value) or _medium(value) is not None):
            parts.append(value)
            return None
        return {key: _without_files(inner, parts, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_files(inner, parts, name or "content") for inner in value]
    return value


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


_SAMPLE = (
    "The quick brown fox jumps over 13 lazy dogs; isn't it? def f(x): return {'a': [1, 2.5]}\n"
    "https://example.org/a_b?c=d&e=%20 我五月份搬到了东京。 東京は雨です 안녕하세요 Привет, мир! 👩‍💻 aGVsbG8="
)
"""A little of everything, to distinguish functions with the same name."""


def _function_count(function: Callable[[str], object], health: Health | None) -> Callable[[str], int]:
    name = f"callable:{path_of(function)}"

    def count(text: str) -> int:
        try:
            answer = function(text)
        except Exception as problem:
            if health is None:
                raise
            health.down("tokenizer", f"{name}: {in_short(problem)}; tokens are estimated")
            return estimate(text)
        tokens = _as_count(answer)
        if tokens is None:
            raise ConfigurationError(
                f"the tokenizer {name!r} answered {reprlib.repr(answer)}, which is not a count",
                hint="Return the number of tokens (0 or more) or a list of the tokens.",
            )
        if health is not None:
            health.up("tokenizer")
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


def _as_json(block: Any) -> str:
    try:
        return json.dumps(block, ensure_ascii=False, default=reprlib.repr)
    except (TypeError, ValueError, RecursionError):  # keys that are not text, circles, too deep
        return reprlib.repr(block)
