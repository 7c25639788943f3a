"""Chroma inside this process, in a directory that one process owns at a time."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sqlite3
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from memlayer_core.chroma.index import ChromaIndex, chroma_settings, load_chromadb, translate_errors
from memlayer_core.errors import IndexCorruptError, IndexUnavailableError, StoreError, os_errors_as
from memlayer_core.storage.files import identity_of, private_directory, private_file, tighten

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from filelock import BaseFileLock

_DATABASE = "chroma.sqlite3"
_GRAPH = ("data_level0.bin", "length.bin")
# hnswlib's header: version, offset of level 0, room, elements, and what follows
_HEADER = struct.Struct("=i3Q")
_FILES_AN_INDEX = 5
_CACHE_PARTS = 64
_STARTED_IN: set[int] = set()  # processes, up the line of forks, that started Chroma's native threads


class EmbeddedChroma(ChromaIndex):
    """Chroma inside this process.

    Next to the directory are `<name>.lock` and, while no process has it open, `<name>.closed`: a digest of the files'
    names, sizes and times, as the last owner left them. If the digest differs, a kill damaged the files, somebody
    changed them, or they are a copy: opening them may end or hang this process. So they are deleted, and filled again
    from the journal.

    Args:
        directory: Chroma's own directory; it is made if it is missing. None: a temporary one, until it is closed.
        store_id: The journal's id, a UUID.

    Attributes:
        directory: The resolved directory.
    """

    exclusive = True
    batch = 100
    slice = 25  # 1,000 block the interpreter for 200 ms
    sync_threshold = 250

    def __init__(self, directory: Path | None, *, store_id: str) -> None:
        super().__init__(store_id)
        self._scratch = TemporaryDirectory(prefix="memlayer-") if directory is None else None
        place = directory or Path(cast("TemporaryDirectory[str]", self._scratch).name, "chroma")
        self.directory = place.expanduser().resolve()
        self._seal = self.directory.with_name(self.directory.name + ".closed")
        self._owned: BaseFileLock | None = None
        self._opened: tuple[int, int] | None = None
        self._blanked: set[str] = set()

    def acquire(self) -> bool:
        """Take the lock, make room for Chroma's open files, and delete its files if they may be damaged."""
        with self._lock:
            hint = "Give this process a directory on a local disk that it may write to."
            problem = f"the directory {self.directory} cannot be used"
            try:
                with os_errors_as(IndexUnavailableError, problem, hint):
                    if not self.is_held and self._take_lock():
                        self._inherit()
                        self.is_held = True
            finally:
                if not self.is_held:
                    self._release()
            return self.is_held

    def _inherit(self) -> None:
        """Take over the files. In a forked child, Chroma would wait forever for threads of the parent process."""
        if _STARTED_IN - {os.getpid()}:
            raise IndexUnavailableError(
                f"this process was forked from one that had used embedded Chroma, so {self.directory} "
                "cannot be opened in it",
                hint="Open the memory after forking, start workers with `spawn`, or use a Chroma server.",
            )
        self.capacity = _room()
        sealed = self._seal.read_text(encoding="ascii") if self._seal.exists() else ""
        if sealed != _digest(self.directory):
            self._wipe()
        self._seal.unlink(missing_ok=True)

    def still_there(self) -> bool:
        """Compare the database at that path with the one that was opened."""
        return self._client is None or identity_of(self.directory / _DATABASE) == self._opened

    def close(self) -> None:
        """Release it. Damaged files, and files that are no longer ours, get no seal: the next owner deletes them."""
        with self._lock:
            if self.is_held:
                is_whole = self.still_there() and not self._damaged
                is_whole = self._shut() and is_whole
                with suppress(OSError):
                    if is_whole:
                        private_file(self._seal)
                        self._seal.write_text(_digest(self.directory), encoding="ascii")
                self.is_held, self._damaged = False, set()
                self._release()
            if self._scratch is not None:
                self._scratch.cleanup()

    def _take_lock(self) -> bool:
        from filelock import FileLock, Timeout  # only the index needs it

        private_directory(self.directory)
        tighten(self.directory)  # Chroma's own files are as open as it makes them
        path = self.directory.with_name(self.directory.name + ".lock")
        private_file(path)
        lock = FileLock(path, mode=0o600, thread_local=False)
        with suppress(Timeout):
            lock.acquire(blocking=False)
            self._owned = lock
        return self._owned is not None

    def _release(self) -> None:
        lock, self._owned = self._owned, None
        if lock is not None:
            lock.release()

    def _open(self) -> ClientAPI:
        chromadb = load_chromadb()
        path = str(self.directory)
        settings = chroma_settings(
            chroma_api_impl="chromadb.api.rust.RustBindingsAPI", is_persistent=True, persist_directory=path
        )
        _STARTED_IN.add(os.getpid())
        with translate_errors(f"open {path}"):
            client: ClientAPI = chromadb.PersistentClient(path, settings=settings)
        self._opened, self._blanked = identity_of(self.directory / _DATABASE), set()
        return client

    def _shut(self) -> bool:
        """Close the client, and blank what it wrote into new files until its end. Returns whether that went well."""
        client, self._client = self._client, None
        try:
            with translate_errors("close"):
                if client is not None:
                    cast("Any", client).close()
        except StoreError:
            return False
        self._blanked = set()
        self._written()
        return True

    def _clear(self, shards: Collection[int]) -> None:
        """Delete collections, and compact the files while they are closed; where that fails, delete all of them."""
        is_whole = not self._damaged and self.still_there()
        try:
            if is_whole and identity_of(self.directory / _DATABASE) is not None:
                self._delete(shards)
            if is_whole := self._shut() and is_whole:
                _compact(self.directory)
        except sqlite3.OperationalError as problem:
            raise IndexUnavailableError(
                f"what was deleted stays in {self.directory / _DATABASE}: {problem}",
                hint="Free as much room on the disk as that file has; memlayer tries again.",
            ) from problem
        except (IndexCorruptError, sqlite3.DatabaseError):
            is_whole = False
            self._shut()
        if not is_whole:
            self._wipe()

    def _wipe(self) -> None:
        """Delete what Chroma made in the directory, and no other file."""
        problem = f"the damaged index in {self.directory} cannot be deleted"
        hint = f"Delete {self.directory} by hand; it is filled again from the journal."
        with os_errors_as(IndexUnavailableError, problem, hint):
            for path in self.directory.glob(_DATABASE + "*"):
                path.unlink(missing_ok=True)
            for segment in _segments(self.directory):
                shutil.rmtree(segment)

    def _written(self) -> None:
        """Blank the files of graphs with nothing in them yet: Chroma fills those with whatever its memory held before.

        That may be a vector or a text that was deleted long ago.
        """
        for segment in _segments(self.directory) if self.directory.is_dir() else ():
            if segment.name not in self._blanked:
                with suppress(OSError, struct.error):  # it is not there yet
                    with (segment / "header.bin").open("rb") as file:
                        elements = _HEADER.unpack(file.read(_HEADER.size))[3]
                    for path in [segment / name for name in _GRAPH if not elements]:
                        size = path.stat().st_size
                        os.truncate(path, 0)
                        os.truncate(path, size)
                    self._blanked.add(segment.name)

    def _forget_parent(self) -> None:
        """Drop the parent's client without ending it, and its lock: filelock has already closed the child's copy.

        Chroma's native part waits for its threads when it is destroyed, and a child has none of them: so the client
        gets a reference that is never released.
        """
        client, self._owned = self._client, None
        super()._forget_parent()
        if client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        shared = sys.modules.get("chromadb.api.shared_system_client")
        if shared is not None:  # its table of open directories would hand the parent's client to the child
            for table in ("_identifier_to_system", "_identifier_to_refcount"):
                getattr(shared.SharedSystemClient, table, {}).pop(str(self.directory), None)


def _segments(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        with suppress(ValueError):
            if path.is_dir() and str(UUID(path.name)) == path.name:
                yield path


def _digest(directory: Path) -> str:
    """Return a digest that differs after any change of a file, no matter who made it."""
    whole = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.rglob("*")):
        name, known = path.relative_to(directory).as_posix(), path.stat()
        if path.is_file():
            whole.update(f"{name}\0{known.st_size}\0{known.st_mtime_ns}\0".encode())
    return whole.hexdigest()


def _compact(directory: Path) -> None:
    """Remove the files of deleted collections, and deleted vectors from the free space of a database that nobody has open.

    Closing a database gives up every lock that this process has on its file, those of Chroma's own SQLite included.
    """
    if identity_of(directory / _DATABASE) is None:
        return
    with closing(sqlite3.connect(directory / _DATABASE, timeout=1, isolation_level=None)) as connection:
        known = {row[0] for row in connection.execute("SELECT id FROM segments")}
        for segment in _segments(directory):
            if segment.name not in known:
                shutil.rmtree(segment, ignore_errors=True)
        connection.execute("PRAGMA secure_delete = ON")  # no page is written with what was in memory before
        connection.execute("VACUUM")


def _room() -> int:
    """Return how many collections this process may have open, after raising its limit of open files.

    Embedded Chroma keeps at most `limit // 5` graphs, spread over 64 parts of a cache. A graph that falls out of the
    cache and is read again silently lacks what was not persisted yet. So all of them must have room in one part.
    """
    if sys.platform == "win32":
        limit = ctypes.windll.msvcrt._setmaxstdio(8192)  # noqa: SLF001 - the C runtime's own name
    else:
        import resource

        limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
        if limit not in (resource.RLIM_INFINITY, wanted):
            with suppress(ValueError, OSError):  # macOS caps below what it calls the hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                limit = wanted
        limit = 1 << 20 if limit == resource.RLIM_INFINITY else limit
    return int(limit) // (_FILES_AN_INDEX * _CACHE_PARTS)
