"""What Chroma leaves on the disk: whether it is whole, and how it is thrown away.

A process killed while Chroma persists an index leaves files of different ages. Opened again they may
kill the process, hang it, or grow until the disk is full; so they are looked at before Chroma does.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

from memlayer_core.errors import IndexCorruptError, IndexUnavailableError

__all__ = ["blank", "compact", "find_damage", "identity", "sweep", "try_out", "wipe"]

_DATABASE = "chroma.sqlite3"
_PARTS = ("header.bin", "data_level0.bin", "length.bin", "link_lists.bin")
_LAST = "index_metadata.pickle"
_PICKLE_END = b"."
# hnswlib's header: version, offset of level 0, room, elements, bytes of an element, two offsets,
# highest level, entry point, links a level (three forms), a factor, ef_construction
_HEADER = struct.Struct("=i6QiI3QdQ")
_LENGTH = struct.Struct("=I")
_VERSION = struct.pack("=i", 1)
_SPARE = 256 * 2**20


def find_damage(directory: Path, *, unclean: bool) -> str | None:
    """Return what is wrong with the files of `directory`, or None.

    Reads headers and lengths only; the sizes of an index's four files follow from its header.

    Args:
        directory: Chroma's directory, which nobody has open.
        unclean: Whether its last owner vanished: then ages count too, as each persist ends with the
            pickle.
    """
    for segment in _segments(directory):
        try:
            said = _fault(segment, is_unclean=unclean)
        except (OSError, struct.error) as problem:
            said = f"{type(problem).__name__}: {problem}"
        if said:
            return f"the vector index {segment.name} is torn: {said}"
    return None


def _fault(segment: Path, *, is_unclean: bool) -> str | None:
    if not (segment / _LAST).exists():
        return None  # never persisted: Chroma begins the index again from its log
    said = _misfit(segment)
    if said is None and is_unclean:
        written = (segment / _LAST).stat().st_mtime_ns
        if any((segment / name).stat().st_mtime_ns > written for name in _PARTS):
            return "the last persist was not finished"
    return said


def _misfit(segment: Path) -> str | None:
    """Compare the lengths of the files with what the header says."""
    sizes = {name: (segment / name).stat().st_size for name in (*_PARTS, _LAST)}
    header = (segment / "header.bin").read_bytes()
    if len(header) > _HEADER.size or header[:4] not in (b"", _VERSION):
        return None  # not the layout of this hnswlib; trying it out tells more
    _, _, room, elements, width, _, _, top, _, links, *_ = _HEADER.unpack(header)
    step = links * 4 + 4
    if sizes["link_lists.bin"] > elements * (_LENGTH.size + step * (max(top, 0) + 1)):
        return f"link_lists.bin has grown to {sizes['link_lists.bin']} bytes"
    checks = {
        "data_level0.bin": elements * width <= sizes["data_level0.bin"] <= room * width,
        "length.bin": elements <= sizes["length.bin"] / _LENGTH.size <= room,
        "link_lists.bin": _links_fit((segment / "link_lists.bin").read_bytes(), elements, step),
        _LAST: (segment / _LAST).read_bytes()[-1:] == _PICKLE_END,
    }
    return next((f"{name} is not as long as it should be" for name, fits in checks.items() if not fits), None)


def _links_fit(lists: bytes, elements: int, step: int) -> bool:
    place = 0
    for _ in range(elements):
        if place + _LENGTH.size > len(lists):
            return False
        (length,) = _LENGTH.unpack_from(lists, place)
        if length % step:
            return False
        place += _LENGTH.size + length
    return place == len(lists)


def _segments(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_dir() and _is_uuid(path.name):
            yield path


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def sweep(directory: Path) -> str | None:
    """Remove the index files of collections that were deleted: Chroma leaves them.

    Returns:
        What is wrong with the database, if it cannot be read.
    """
    database = directory / _DATABASE
    known: set[str] = set()
    if database.exists():
        try:
            with closing(sqlite3.connect(database, timeout=1)) as connection:
                if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'segments'").fetchone():
                    known = {row[0] for row in connection.execute("SELECT id FROM segments")}
        except sqlite3.OperationalError:
            return None  # locked or out of reach: opening it will say so
        except sqlite3.DatabaseError as problem:
            return f"{_DATABASE}: {problem}"
    for segment in _segments(directory):
        if segment.name not in known:
            shutil.rmtree(segment, ignore_errors=True)
    return None


def blank(directory: Path, seen_names: set[str]) -> None:
    """Blank the files of indexes with nothing in them yet: Chroma fills those with whatever its memory held before.

    That may be a vector or a text that was deleted long ago. Nobody may write to the index meanwhile.

    Args:
        directory: Chroma's directory.
        seen_names: Names of the segments that were checked since the client was opened. New ones are added.
    """
    for segment in _segments(directory) if directory.is_dir() else ():
        if segment.name in seen_names:
            continue
        with suppress(
            OSError, struct.error
        ):  # it is being made, or gone: what is torn is found by `find_damage`
            if not _HEADER.unpack((segment / "header.bin").read_bytes())[3]:
                for name in ("data_level0.bin", "length.bin"):
                    size = (segment / name).stat().st_size
                    os.truncate(segment / name, 0)
                    os.truncate(segment / name, size)
            seen_names.add(segment.name)


def identity(directory: Path) -> tuple[int, int] | None:
    """Return what tells Chroma's database from another one at the same place, or None where there is none."""
    try:
        found = (directory / _DATABASE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def compact(directory: Path) -> None:
    """Leave nothing in the files of what was deleted: Chroma leaves deleted vectors in its database's free space.

    Args:
        directory: Chroma's directory, which nobody has open: closing a database gives up every lock that
            this process has on its file, those of Chroma's own SQLite included.

    Raises:
        IndexUnavailableError: The disk is full, or the database is locked.
        IndexCorruptError: The database cannot be read.
    """
    damage = sweep(directory)
    if damage is not None:
        raise IndexCorruptError(damage, hint="Throw the index away and file the journal's vectors again.")
    try:
        with closing(sqlite3.connect(directory / _DATABASE, timeout=1, isolation_level=None)) as connection:
            connection.execute(
                "PRAGMA secure_delete = ON"
            )  # no page is written with what was in memory before
            connection.execute("VACUUM")
    except sqlite3.OperationalError as problem:
        raise IndexUnavailableError(
            f"what was deleted stays in {directory / _DATABASE}: {problem}",
            hint="Free as much room on the disk as that file has; memlayer tries again.",
        ) from problem
    except sqlite3.DatabaseError as problem:
        raise IndexCorruptError(
            f"{_DATABASE}: {problem}", hint="Throw the index away and file the journal's vectors again."
        ) from problem


def try_out(directory: Path, seconds: float) -> str | None:
    """Open and touch every collection in another process, which may crash in this one's place.

    Args:
        directory: Chroma's directory, which nobody has open.
        seconds: How long it may take.

    Returns:
        What went wrong, or None when all is well.
    """
    if not (directory / _DATABASE).exists():
        return None
    if not sys.executable or getattr(sys, "frozen", False):
        return "no Python is at hand to try it out in"
    largest = max((path.stat().st_size for path in directory.rglob("*") if path.is_file()), default=0)
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("probe.py")),
        str(directory),
        str(2 * largest + _SPARE),
    ]
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
    try:
        done = subprocess.run(  # noqa: S603 - this Python, this package's file
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"trying it out took more than {seconds:g} seconds"
    except OSError as problem:
        return f"it could not be tried out: {problem}"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"trying it out ended with {done.returncode}" + (f": {said[-1]}" if said else "")


def wipe(directory: Path) -> None:
    """Delete what Chroma made in `directory`, and no other file.

    Raises:
        IndexUnavailableError: The files cannot be deleted.
    """
    try:
        for path in directory.glob(_DATABASE + "*"):
            path.unlink(missing_ok=True)
        for segment in _segments(directory):
            shutil.rmtree(segment)
    except OSError as problem:
        raise IndexUnavailableError(
            f"the damaged index in {directory} cannot be deleted: {problem}",
            hint=f"Delete {directory} by hand; it is rebuilt from the journal.",
        ) from problem
