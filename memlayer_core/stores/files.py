"""Text files that are written whole or not at all, and read a piece at a time."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import IO, Any

from memlayer_core.errors import ImportStoppedError, InputError, StoreUnavailableError

__all__ = ["Incoming", "Outgoing", "whole"]


def whole(path: Path, text: str) -> None:
    """Write a file whole: whoever reads it finds the old text or the new one, even after a power cut.

    Raises:
        StoreUnavailableError: It cannot be written; the old one is as it was.
    """
    out = Outgoing(path)
    try:
        out.write(text)
        out.keep()
    except BaseException:
        out.discard()
        raise


class Outgoing:
    """A text file that is there when it is complete.

    Args:
        target: A path, or an open text file, which is written to directly and stays open.

    Raises:
        InputError: It is neither.
    """

    def __init__(self, target: str | os.PathLike[str] | IO[str]) -> None:
        self._path: Path | None = None
        self._file: IO[str] | None = None
        self._temporary: Path | None = None
        self._discarded = False
        self._lock = threading.Lock()
        if isinstance(target, str | os.PathLike):
            self._path = Path(target).expanduser()
        elif hasattr(target, "write") and not isinstance(target, io.RawIOBase | io.BufferedIOBase):
            self._file = target
        else:
            raise InputError(
                f"an export goes to a path or an open text file, got {type(target).__name__}",
                hint='`open(path, "w", encoding="utf-8")`, or give the path itself.',
            )

    @property
    def ascii_only(self) -> bool:
        """Whether it cannot hold every character."""
        encoding = getattr(self._file, "encoding", None) if self._path is None else None
        return isinstance(encoding, str) and encoding.lower().replace("-", "").replace("_", "") != "utf8"

    def write(self, text: str) -> None:
        """Write the next piece; nothing once it was discarded.

        Raises:
            StoreUnavailableError: It cannot be written.
        """
        with self._writing():
            if self._discarded:
                return
            if self._file is None:
                self._file = self._begun()
            self._file.write(text)

    def keep(self) -> None:
        """Put the complete file in its place.

        Raises:
            StoreUnavailableError: It cannot be written.
        """
        with self._writing():
            if self._file is None:
                return
            self._file.flush()
            if self._temporary is not None and self._path is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                self._temporary.replace(self._path)
                _settle(self._path.parent)
            elif self._path is not None:
                self._file.close()

    def discard(self) -> None:
        """Leave everything as it was before, also where a caller that was cancelled is still writing."""
        with self._lock:
            self._discarded = True
            if self._file is not None and self._path is not None:
                with suppress(OSError):
                    self._file.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    def _begun(self) -> IO[str]:
        assert self._path is not None  # noqa: S101
        self._path = self._path.resolve()
        if self._path.exists() and not self._path.is_file():  # a pipe, or a terminal
            return self._path.open("w", encoding="utf-8")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = mkstemp(dir=self._path.parent, prefix=".memlayer-")  # mode 0600: it is private
        self._temporary = Path(name)
        return os.fdopen(number, "w", encoding="utf-8", newline="\n")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except OSError as problem:
            where = repr(str(self._path)) if self._path is not None else "the file"
            raise StoreUnavailableError(
                f"{where} cannot be written: {problem.strerror or problem}",
                hint="Choose a place that this process may write to, on a disk with room.",
            ) from problem


class Incoming:
    """Numbered lines, a piece at a time.

    Args:
        source: A path, an open file, which stays open, or any iterable of lines.

    Raises:
        InputError: It is none of these.
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[str | bytes]) -> None:
        self._path = Path(source).expanduser() if isinstance(source, str | os.PathLike) else None
        self._file: IO[bytes] | None = None
        self._lines: Iterator[tuple[int, Any]] | None = None
        if self._path is None:
            if isinstance(source, bytes) or not isinstance(source, Iterable):
                raise InputError(
                    f"an import comes from a path or an open file, got {type(source).__name__}",
                    hint="Give the path of an export, or the file opened.",
                )
            self._lines = enumerate(source, start=1)

    def read(self, limit: int) -> list[tuple[int, Any]]:
        """Return the next lines, none at the end.

        Raises:
            InputError: The file is not there.
            ImportStoppedError: It was opened with another encoding than it is written in.
            StoreUnavailableError: It cannot be read.
        """
        try:
            if self._lines is None:
                assert self._path is not None  # noqa: S101
                self._file = self._path.open("rb")
                self._lines = enumerate(self._file, start=1)
            return list(islice(self._lines, limit))
        except FileNotFoundError:
            raise InputError(
                f"there is no file {str(self._path)!r}", hint="Give the path of an export."
            ) from None
        except UnicodeDecodeError as problem:
            raise ImportStoppedError(
                f"what follows is in another encoding than the file was opened with: {problem}",
                hint='`open(path, encoding="utf-8")`, or give the path itself.',
            ) from None
        except OSError as problem:
            raise StoreUnavailableError(
                f"{str(self._path or 'the file')!r} cannot be read: {problem.strerror or problem}",
                hint="Give a file that this process may read.",
            ) from problem

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._file is not None:
            self._file.close()


def _settle(directory: Path) -> None:
    """Have the disk remember a new name in a directory, where the system can."""
    with suppress(OSError):
        opened = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
