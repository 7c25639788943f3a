"""Text files that are written completely or not at all, and read page by page."""

import errno
import io
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from tempfile import mkstemp
from typing import IO, Any, TypeAlias

from memlayer_core.errors import ImportStoppedError, InputError, StoreUnavailableError, os_errors_as

Page: TypeAlias = list[tuple[int, Any]]
"""Lines, each with its number."""
_PREFIX = ".memlayer-"


def private_directory(directory: Path) -> None:
    """Create a directory, and missing ones above it, that only this user can read.

    Raises:
        OSError: It cannot be made.
    """
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Create a file if it is missing, and make it readable for this user only.

    An existing file is not opened, since closing it would end the locks that SQLite has on it in this process.

    Raises:
        OSError: It cannot be made or written to.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        tighten(path)
        if path.is_dir() or not os.access(path, os.W_OK):
            reason = errno.EISDIR if path.is_dir() else errno.EACCES
            raise OSError(reason, os.strerror(reason), str(path)) from None


def tighten(path: Path) -> None:
    """Remove other users' permissions from a file or directory, if it exists and belongs to this user."""
    with suppress(FileNotFoundError):
        known = path.stat()
        ours = not hasattr(os, "getuid") or known.st_uid == os.getuid()
        if ours and known.st_mode & 0o077:
            path.chmod(known.st_mode & 0o700)


def identity_of(file: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another one at the same path; None if there is none.

    Raises:
        OSError: It is out of reach for now.
    """
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # NUL is in no path
        return None
    return found.st_dev, found.st_ino


def reading(what: object) -> AbstractContextManager[None]:
    """Raise an `OSError` of the block as a StoreUnavailableError."""
    hint = "Run this as a user who may read it, or name another place."
    return os_errors_as(StoreUnavailableError, f"{str(what)!r} cannot be read", hint)


def write_whole(path: Path, text: str) -> None:
    """Write a file completely: a reader finds the old text or the new one, even after a power cut.

    Raises:
        StoreUnavailableError: The file cannot be written. The old one is unchanged.
    """
    with writing(path) as file:
        file.write(text)


@contextmanager
def writing(target: str | os.PathLike[str] | IO[str]) -> Iterator[IO[str]]:
    """Yield a text file that appears when its context ends without an error; else an existing file is unchanged.

    A process that is killed meanwhile leaves a private file next to it, whose name begins with `.memlayer-`.

    Args:
        target: A path, or an open text file. An open file is written directly, and stays open.

    Raises:
        InputError: `target` is neither.
        StoreUnavailableError: It cannot be written.
    """
    opened: AbstractContextManager[IO[str]]
    if isinstance(target, str | os.PathLike):
        path = Path(target).expanduser()
        where, opened = repr(str(path)), _opened(path)
    elif hasattr(target, "write") and not isinstance(target, io.RawIOBase | io.BufferedIOBase):
        where, opened = "the file", nullcontext(target)
    else:
        raise InputError(
            f"an export goes to a path or an open text file, got {type(target).__name__}",
            hint='`open(path, "w", encoding="utf-8")`, or give the path itself.',
        )
    hint = "Choose a place that this process may write to, on a disk with room."
    with os_errors_as(StoreUnavailableError, f"{where} cannot be written", hint), opened as file:
        yield file
        file.flush()


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Yield a temporary file that becomes the one at a path."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe, or a terminal
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    private_directory(path.parent)
    number, name = mkstemp(dir=path.parent, prefix=_PREFIX)  # mode 0600: it is private
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
            yield file
            os.fsync(number)
        Path(name).replace(path)
        flush_directory(path.parent)
    finally:
        Path(name).unlink(missing_ok=True)


def is_ascii_only(file: IO[str]) -> bool:
    """Return whether a text file may not hold every character."""
    encoding = getattr(file, "encoding", None)
    return isinstance(encoding, str) and encoding.lower().replace("-", "").replace("_", "") != "utf8"


class LineReader:
    """Reads numbered lines, page by page.

    Args:
        source: A path, an open file, which stays open, or any iterable of lines.
        line_limit: Bytes (or characters) of a line. Of a longer line, one more is returned, then the rest.

    Raises:
        InputError: `source` is none of these.
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[str | bytes], line_limit: int) -> None:
        self._path = Path(source).expanduser() if isinstance(source, str | os.PathLike) else None
        self._source: Any = source
        self._most = line_limit
        if isinstance(source, bytes) or not isinstance(source, str | os.PathLike | Iterable):
            raise InputError(
                f"an import comes from a path or an open file, got {type(source).__name__}",
                hint="Give the path of an export, or the file opened.",
            )
        is_file = self._path is None and self.is_repeatable
        self._start = source.tell() if is_file else None  # type: ignore[union-attr]

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be read again from its first line: a pipe cannot."""
        if self._path is not None:
            return self._path.is_file()
        return hasattr(self._source, "seekable") and self._source.seekable()

    def pages(self, limit: int) -> Generator[Page, None, None]:
        """Yield the lines from the first one on: at most `limit` at once, fewer if they are large.

        Raises:
            InputError: The file is not there.
            ImportStoppedError: It was opened with another encoding than it is written in.
            StoreUnavailableError: It cannot be read.
        """
        name = str(self._path or "the file")
        with reading(name):
            try:
                if self._start is not None:
                    self._source.seek(self._start)
                with nullcontext(self._source) if self._path is None else self._path.open("rb") as file:
                    yield from self._pages(file, limit)
            except FileNotFoundError:
                raise InputError(f"there is no file {name!r}", hint="Give the path of an export.") from None
            except UnicodeDecodeError as problem:
                raise ImportStoppedError(
                    f"what follows is in another encoding than the file was opened with: {problem}",
                    hint='`open(path, encoding="utf-8")`, or give the path itself.',
                ) from None

    def _pages(self, file: Any, limit: int) -> Iterator[Page]:
        readline = getattr(file, "readline", None)
        pieces = file if readline is None else takewhile(len, iter(lambda: readline(self._most + 1), None))
        page, size = Page(), 0
        for number, line in enumerate(pieces, start=1):
            page.append((number, line))
            size += len(line) if isinstance(line, str | bytes) else 0
            if size >= self._most or len(page) >= limit:
                yield page
                page, size = [], 0
        if page:
            yield page


def flush_directory(directory: Path) -> None:
    """Have the disk remember a new name in a directory, where the system can."""
    with suppress(OSError):
        opened = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
