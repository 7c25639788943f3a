"""Opens the files that other programs wrote, as streams of JSON values."""

import codecs
import io
import json
import os
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias

import ijson

from memlayer_core.errors import ConfigurationError, ImportStoppedError, InputError, repr_of
from memlayer_core.message import with_offset
from memlayer_core.storage.files import reading
from memlayer_core.transfer.formats import chats, frameworks, lists
from memlayer_core.transfer.lines import is_export
from memlayer_core.transfer.model import Conversation

_PAGE = "docs/migration.md shows how conversations of other programs are moved."


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        signs: Sets of fields; a file that has all of one of these sets is of this format. If there is a `parse`, the field in
            front of `.item.` holds the values.
        parse: Makes conversations of one JSON value; None: the values are messages.
        message: Makes a message of one value.
    """

    signs: Sequence[set[str]]
    parse: Callable[[Any], Iterable[Conversation]] | None = None
    message: Callable[[Any], Any] = lists.message_of


FORMATS: Mapping[str, Format] = {
    "chatgpt": Format([{"mapping"}, {"conversations.item.mapping"}], chats.chatgpt),
    "claude": Format([{"chat_messages"}, {"conversations.item.chat_messages"}], chats.claude),
    "llamaindex": Format([{"store"}, {"chat_store_key"}], frameworks.chat_store),
    "mem0": Format([{"memory", "id"}, {"results.item.memory"}], chats.mem0),
    "langchain": Format(
        [{"type", "data.content"}, {"lc", "kwargs.content"}], message=frameworks.langchain_message
    ),
    "openai": Format(
        [{"role", "content"}, {"messages.item.role"}, {"call_id"}, {"input.item"}, {"output.item"}]
    ),
    "sharegpt": Format([{"conversations.item.from"}, {"from", "value"}]),
    "table": Format([{name} for name in lists.NAMES["content"]]),
}
"""The formats of files, by their names, in the order in which they are tried."""

Conversations: TypeAlias = Generator[Conversation, None, None]
_MAGIC = {
    b"SQLite format 3\0": "a database: read it with the class that wrote it",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "a gzip archive: unpack it first",
}
_HEAD = 2**18
"""Bytes that are read at a time. Those at the beginning show the format. With fewer, a long text takes time by its square."""
_RATIO = 100  # maximum size of an archive's file, divided by its packed size
_BLANK = codecs.BOM_UTF8 + b" \t\r\n"  # what may come before JSON
_DEEPEST = 200  # levels of JSON
_START = datetime.min.replace(tzinfo=UTC)
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)
_DAMAGED = (ijson.JSONError, ValueError, RecursionError, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class ImportSource:
    """Something that another program wrote.

    Attributes:
        name: Name of its format, or of several.
        open: Reads it from the beginning.
        is_repeatable: Whether it can be read again.
    """

    name: str
    open: Callable[[], Conversations]
    is_repeatable: bool = True


def source_of(source: Any, name: str | None) -> Any:
    """Return an `ImportSource` that reads what another program wrote. If it may be an export of memlayer, return it as it is.

    Args:
        source: A path of a file, an archive or a folder, an open file, or conversations.
        name: Name of the format; None: it is recognized.

    Raises:
        ConfigurationError: There is no such format.
        ImportStoppedError: The format is not recognized, or the source is damaged.
        InputError: There is no such file.
        StoreUnavailableError: It cannot be read.
    """
    if name not in (None, "memlayer", *FORMATS):
        raise ConfigurationError(
            f"there is no format {repr_of(name)}", hint=f"One of: memlayer, {', '.join(FORMATS)}."
        )
    path = Path(source).expanduser() if isinstance(source, str | os.PathLike) else None
    if isinstance(source, str) and "://" in source:  # it may have a password
        raise InputError("a URL cannot be imported", hint=f"Give a file, or conversations: {_PAGE}")
    found = None
    if path is not None:
        with reading(path):
            if not path.exists():
                hint = "Give the path of what is to be imported."
                raise InputError(f"there is no file {str(path)!r}", hint=hint)
            found = None if name == "memlayer" else _of_path(path, name)
    elif name == "memlayer":
        return source
    elif hasattr(source, "read"):
        if not isinstance(source, io.TextIOBase) and getattr(source, "seekable", bool)():
            start = source.tell()
            found = _of_files([("", lambda: _Loan(source, start))], name)
            source.seek(start)
    elif isinstance(source, Iterable) and not isinstance(source, bytes):
        return _given(source)
    return found or source


def _given(source: Iterable[Any]) -> Any:
    """Return a caller's conversations as a `ImportSource`, also if there are none; return lines as they are."""
    rest = iter(source)
    head = list(islice(rest, 1))
    again = source if isinstance(source, Collection) else chain(head, rest)
    if head and not isinstance(head[0], Conversation):
        return again
    return ImportSource("conversations", lambda: (one for one in again), is_repeatable=again is source)


# Files.

_Files = Sequence[tuple[str, Callable[[], Any]]]
"""Files, each with its name without an ending, and a function that opens it as a context."""


class _Loan(io.RawIOBase):
    """A caller's open file, from a place on. If this is closed, the caller's file stays open."""

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file = file
        file.seek(start)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _of_path(path: Path, name: str | None) -> ImportSource | None:
    if path.is_dir():
        chosen = _chosen(one.name for one in path.iterdir() if one.is_file())
        return _of_files([(Path(one).stem, partial((path / one).open, "rb", 0)) for one in chosen], name)
    if not path.is_file():
        return None  # a pipe, such as `<(zcat ada.jsonl.gz)`: an export, since it is read only once
    with path.open("rb") as file:
        begin = file.read(16)
    magic = next((kind for sign, kind in _MAGIC.items() if begin.startswith(sign)), "")
    if magic == "zip":
        return _of_archive(path, name)
    if magic:
        raise ImportStoppedError(f"it looks like {magic}", hint=_PAGE)
    return _of_files([(path.stem, partial(path.open, "rb", 0))], name)


def _chosen(names: Iterable[str]) -> list[str]:
    """Return the files of a folder or an archive that hold conversations. Exports of chats have other files, too."""
    files = sorted(one for one in names if PurePosixPath(one).suffix in (".json", ".jsonl"))
    chosen = [one for one in files if PurePosixPath(one).name.startswith("conversations")] or files
    if not chosen:
        raise InputError("it holds no file that ends with .json or .jsonl", hint=_PAGE)
    return chosen


def _of_archive(path: Path, name: str | None) -> ImportSource | None:
    """Read an archive without unpacking it: nothing is ever written to a path that it names."""
    with _explained(path.name), zipfile.ZipFile(path) as archive:
        sizes = {one.filename: one for one in archive.infolist() if not one.is_dir()}
    chosen = _chosen(sizes)
    for one in chosen:
        if sizes[one].flag_bits & 1:
            raise ImportStoppedError(
                f"{one!r:.80} is encrypted", hint="Unpack the archive yourself, and import the file."
            )
        if sizes[one].file_size > _RATIO * max(sizes[one].compress_size, 1):
            raise ImportStoppedError(
                f"{one!r:.80} is packed to less than a hundredth of its size, unlike any conversation",
                hint="If you trust the archive, unpack it yourself, and import the file.",
            )

    @contextmanager
    def opened(one: str) -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(path) as archive, archive.open(one) as file:
            yield file

    return _of_files([(PurePosixPath(one).stem, partial(opened, one)) for one in chosen], name)


def _of_files(files: _Files, name: str | None) -> ImportSource | None:
    """Return a source of files of one format; None for an export of memlayer."""
    with _explained(files[0][0]), _opened(files[0][1]) as file:
        head = file.peek(_HEAD)
    if len(files) == 1 and (not head.strip() or is_export(head)):
        return None
    found = name or _recognized(head)
    return ImportSource(found, partial(_read_files, files, found))


@contextmanager
def _opened(opener: Callable[[], Any]) -> Iterator[io.BufferedReader]:
    """Open a file. If it is a JSON text inside a JSON text, as LlamaIndex writes it, it is unwrapped."""
    with opener() as raw, io.BufferedReader(raw, _HEAD) as file:
        if file.peek(_HEAD).lstrip(_BLANK).startswith(b'"{'):
            yield io.BufferedReader(io.BytesIO(json.loads(file.read()).encode()), _HEAD)
        else:
            yield file


def _recognized(head: bytes) -> str:
    """Return the name of a file's format by its beginning.

    Raises:
        ImportStoppedError: It has none of the formats. The error says what it looks like.
    """
    names = _names_in(head)
    found = [name for name, one in FORMATS.items() if any(signs <= names for signs in one.signs)]
    if found:
        return found[0]
    is_json = head.lstrip(_BLANK)[:1] in (b"[", b"{")
    if is_json and len(head) < _HEAD:  # the whole file: is it damaged?
        with _explained(""):
            list(_events(io.BytesIO(head.lstrip(_BLANK))))
    fields = f"the fields {', '.join(sorted(names)[:8])}" if names else "no messages in it"
    kind = f"JSON with {fields}" if is_json else "text"
    kind = "HTML" if b"<html" in head.lower() else kind
    if {"sessionId", "components"} <= names:
        kind = "a session file of memlayer, which `SessionManager` loads"
    raise ImportStoppedError(
        f"it looks like {kind}", hint=f"{_PAGE} A format is named with `source_format`: {', '.join(FORMATS)}."
    )


def _names_in(head: bytes) -> set[str]:
    """Return the fields at the beginning of a file, and those inside them with dots between the names."""
    names = set[str]()
    with suppress(ijson.JSONError, ValueError):  # the beginning of a file may end anywhere
        for prefix, _, _ in ijson.parse(_events(io.BytesIO(head.lstrip(_BLANK)))):
            names.add(prefix[:100].removeprefix("item."))  # the names of formats are shorter
    return names - {"", "item"}


def _events(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of JSON that is not too deep: ijson's paths take memory by the square of its depth.

    Without `use_float`, a number of 5,000 digits ends the process.
    """
    depth = 0
    for event, value in ijson.basic_parse(file, buf_size=_HEAD, multiple_values=True, use_float=True):
        depth += event.startswith("start_") - event.startswith("end_")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        yield event, value


def _read_files(files: _Files, name: str) -> Conversations:
    form = FORMATS[name]
    for stem, opened in files:
        with _explained(stem), _opened(opened) as file:
            values = _values(file, form)
            made = _of_rows(values, form.message) if form.parse is None else _of_values(values, form.parse)
            yield from (_in_text(one).placed(stem) for one in made)


def _of_values(values: Iterable[Any], parse: Callable[[Any], Iterable[Any]]) -> Iterator[Conversation]:
    """Yield the conversations of each value."""
    for value in values:
        try:
            some = list(parse(value))
        except _UNREADABLE as problem:
            some = [Conversation(left_out={f"not of this format ({type(problem).__name__})": 1})]
        yield from some


def _in_text(one: Conversation) -> Conversation:
    """Return a conversation whose ids are texts: some programs have numbers."""
    named = (one.session_id, one.user_id, one.title)
    session, user, title = (None if value in (None, "") else str(value) for value in named)
    return replace(one, session_id=session, user_id=user, title=title)


@contextmanager
def _explained(stem: str) -> Iterator[None]:
    try:
        with reading(stem or "the file"):
            yield
    except (*_DAMAGED, EOFError, zipfile.BadZipFile) as problem:
        what = str(problem).partition("\n")[0]
        is_cut = "premature EOF" in what or isinstance(problem, EOFError | zipfile.BadZipFile)
        raise ImportStoppedError(
            f"{stem or 'the file'!r} is {'cut off' if is_cut else 'damaged'}: {what}",
            hint="Get the file from its source again.",
        ) from None


def _values(file: io.BufferedReader, form: Format) -> Iterator[Any]:
    """Yield the values of a file: of an array, of lines, or of an array inside a single object."""
    head = file.peek(_HEAD)
    blank = len(head) - len(head.lstrip(_BLANK))
    file.read(blank)
    begin = head[blank : blank + 1]
    signs = chain(*form.signs) if begin == b"{" and form.parse else ()
    inside = [one.partition(".item.")[0] for one in signs if ".item." in one and one in _names_in(head)]
    prefix = "item" if begin == b"[" else f"{inside[0]}.item" if inside else ""
    yield from ijson.items(ijson.parse(_events(file)), prefix)


def _of_rows(values: Iterable[Any], message: Callable[[Any], Any]) -> Iterator[Conversation]:
    """Yield conversations: of each value that holds messages, of each session, and of the messages without a session."""
    message = partial(_message, message)
    with closing(sqlite3.connect("")) as kept:  # a private file, which is deleted when the process ends
        kept.execute("create table kept (session integer, form text)")
        sessions: dict[tuple[str, str] | None, int] = {}
        for value in values:
            about = value if isinstance(value, Mapping) else {}
            if (rows := lists.rows_in(about)) is not None:
                yield _conversation(about, map(message, rows))
                continue
            session = lists.field_of(about, "session")
            whose = None if session is None else (str(lists.field_of(about, "user")), str(session))
            number = sessions.setdefault(whose, len(sessions))
            kept.execute("insert into kept values (?, ?)", (number, json.dumps(value)))
        every = kept.execute("select session, form from kept order by session, rowid")
        for _, some in groupby(every, key=itemgetter(0)):
            rows = [json.loads(form) for _, form in some]
            about = rows[0] if isinstance(rows[0], Mapping) else {}
            yield _conversation(about, _in_order(map(message, rows)))


def _message(parse: Callable[[Any], Any], row: Any) -> Any:
    """Return the message of a row, or the reason why it is left out."""
    try:
        return parse(row)
    except _UNREADABLE:
        return "not a message"


def _conversation(about: Mapping[str, Any], messages: Iterable[Any]) -> Conversation:
    session, user, title = (lists.field_of(about, what) for what in ("session", "user", "title"))
    if session is None and lists.rows_in(about) is not None:
        session = about.get("id")
    return Conversation.of(messages, session_id=session, user_id=user, title=title)


def _in_order(messages: Iterable[Any]) -> list[Any]:
    """Return messages in the order of their times, if each has a time: some programs write the newest one first."""
    every = list(messages)
    times = [_START if isinstance(one, str) else with_offset(one.created_at) for one in every]
    dated = [(at, one) for at, one in zip(times, every, strict=True) if at is not None]
    return every if len(dated) < len(every) else [one for _, one in sorted(dated, key=itemgetter(0))]
