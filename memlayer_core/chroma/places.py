"""Where Chroma's collections live, and the directory of one owner as such a place."""

from __future__ import annotations

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from memlayer_core.chroma import files
from memlayer_core.chroma.errors import chroma_settings, load_chromadb, translate_errors
from memlayer_core.chroma.limits import make_room
from memlayer_core.errors import IndexUnavailableError, StoreError
from memlayer_core.storage.files import private_directory, private_file, tighten

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from filelock import BaseFileLock

__all__ = ["DirectoryPlace", "Place"]

_ENTERED: dict[Path, int] = {}  # directories that this process owns, and their collections
_STARTED_IN: set[int] = set()  # processes, up the line of forks, that started Chroma's native threads


class Place(ABC):
    """Where the collections live, and the client that reaches them.

    Attributes:
        held: Whether this process has the right to use it.
        client: The open client; None until it is needed.
        damage: Why everything in it was thrown away on entering, or None.
        suspect: Whether something was found wrong since, which the next owner should look into.
        fragile: Whether touching damaged collections may crash this process: they are in it.
        chunk: Vectors to write at once. Embedded Chroma holds the interpreter lock for a write: sixteen
            vectors of 1,024 dimensions take about 14 ms, a hundred take 85.
    """

    fragile: bool
    chunk: int

    def __init__(self) -> None:
        self.held = False
        self.client: ClientAPI | None = None
        self.damage: str | None = None
        self.suspect = False

    @abstractmethod
    def enter(self) -> bool:
        """Take the right to use it; False while another process has it."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell, without a client, whether nothing was ever put in."""

    @abstractmethod
    def open(self) -> ClientAPI:
        """Return a new client."""

    @abstractmethod
    def wipe(self) -> bool:
        """Throw everything away; False where that is not ours to do."""

    @abstractmethod
    def compact(self) -> None:
        """Leave nothing of what was deleted on the disk, while no client is open; a server keeps what it keeps."""

    @abstractmethod
    def blank(self) -> None:
        """Blank the unused memory that Chroma wrote into the files of new indexes. No thread may write to them meanwhile."""

    @abstractmethod
    def still_there(self) -> bool:
        """Tell whether the files that the client was opened on are still at their place."""

    @abstractmethod
    def leave(self) -> None:
        """Give the right back."""

    def connect(self) -> ClientAPI:
        """Open a client and keep it."""
        self.client = self.open()
        return self.client

    def disconnect(self) -> None:
        """Close the client; what it says to that makes the place suspect."""
        client, self.client = self.client, None
        try:
            with translate_errors("close"):
                if client is not None:
                    cast("Any", client).close()
        except StoreError:
            self.suspect = True

    def let_go(self) -> None:
        """Close the client and give the right back."""
        if self.held:
            self.held = False
            self.disconnect()
            self.leave()

    def disown(self) -> None:
        """Drop, in a forked child, the parent's client without ending it.

        Chroma's native part waits for its threads when it is destroyed, and a child has none of them: so
        the client gets a reference that nobody ever gives back.
        """
        client, self.client, self.held = self.client, None, False
        if client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


class DirectoryPlace(Place):
    """A directory. Its files belong to the process that holds its lock.

    Beside the directory lie `<name>.lock`, and `<name>.open` while it is in use: a marker that outlives
    a killed process.

    Args:
        directory: Made on entering if it is missing; its spelling does not matter.
        shards: Collections that will be in it.
        probe_seconds: How long trying out the files of a vanished owner may take.
    """

    fragile = True
    chunk = 16

    def __init__(self, directory: Path, shards: int, probe_seconds: float) -> None:
        super().__init__()
        self.directory = Path(directory).expanduser().resolve()
        self._shards = shards
        self._probe_seconds = probe_seconds
        self._marker = self.directory.with_name(self.directory.name + ".open")
        self._lock: BaseFileLock | None = None
        self._identity: tuple[int, int] | None = None
        self._blanked: set[str] = set()

    def __str__(self) -> str:
        return str(self.directory)

    def enter(self) -> bool:
        """Make room, take the lock, and see to it that the files can be opened without harm."""
        try:
            private_directory(self.directory)
            tighten(self.directory)  # Chroma's own files are as open as it makes them
            if not self._take_lock():
                return False
            try:
                self._refuse_fork()
                make_room(self._shards, sum(_ENTERED.values()))
                self._examine()
                self._mark()
            except BaseException:
                self._drop_lock()
                raise
        except OSError as problem:
            raise IndexUnavailableError(
                f"the directory {self.directory} cannot be used: {problem}",
                hint="Give this process a directory on a local disk that it may write to.",
            ) from problem
        _ENTERED[self.directory] = self._shards
        self.held = True
        return True

    def _take_lock(self) -> bool:
        from filelock import FileLock, Timeout  # only the index needs it

        if self.directory in _ENTERED:
            return False
        path = self.directory.with_name(self.directory.name + ".lock")
        private_file(path)
        lock = FileLock(path, mode=0o600, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        self._lock = lock
        return True

    def _refuse_fork(self) -> None:
        """Refuse where Chroma would wait for ever for threads that stayed in the parent."""
        if _STARTED_IN - {os.getpid()}:
            raise IndexUnavailableError(
                f"this process was forked from one that had used embedded Chroma, so {self.directory} "
                "cannot be opened in it",
                hint="Open the memory after forking, start workers with `spawn`, or use a Chroma server.",
            )

    def _drop_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _examine(self) -> None:
        unclean = self._marker.exists()
        self.suspect = False
        self.damage = files.sweep(self.directory)
        if self.damage is None:
            self.damage = files.find_damage(self.directory, unclean=unclean)
        if self.damage is None and unclean:
            self.damage = files.try_out(self.directory, self._probe_seconds)
        if self.damage is not None:
            files.wipe(self.directory)

    def _mark(self) -> None:
        private_file(self._marker)
        with self._marker.open("w", encoding="utf-8") as file:
            file.write(f"in use by process {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())

    def is_empty(self) -> bool:
        """Look for Chroma's database."""
        return files.identity(self.directory) is None

    def open(self) -> ClientAPI:
        """Open an embedded client."""
        chromadb = load_chromadb()
        path = str(self.directory)
        with translate_errors(f"open {path}"):
            settings = chroma_settings(
                chroma_api_impl="chromadb.api.rust.RustBindingsAPI",
                is_persistent=True,
                persist_directory=path,
            )
            _STARTED_IN.add(os.getpid())
            client: ClientAPI = chromadb.PersistentClient(path, settings=settings)
        self._identity = files.identity(self.directory)
        self._blanked = set()
        return client

    def wipe(self) -> bool:
        """Delete Chroma's files."""
        files.wipe(self.directory)
        return True

    def compact(self) -> None:
        """Remove what Chroma left of deleted collections."""
        files.compact(self.directory)

    def blank(self) -> None:
        """Blank the files of indexes with nothing in them yet."""
        files.blank(self.directory, self._blanked)

    def disconnect(self) -> None:
        """Close the client, and blank what it wrote into the files of new indexes until its end."""
        super().disconnect()
        self._blanked = set()
        self.blank()

    def still_there(self) -> bool:
        """Compare the database at that path with the one that was opened."""
        return self.client is None or files.identity(self.directory) == self._identity

    def leave(self) -> None:
        """Release the lock; the marker stays when something may be wrong with the files."""
        if self._lock is None:
            return
        if not self.suspect:
            with suppress(OSError):
                self._marker.unlink(missing_ok=True)
        _ENTERED.pop(self.directory, None)
        self._drop_lock()

    def disown(self) -> None:
        """Forget the parent's client and lock: filelock closed the child's copy of it already."""
        super().disown()
        self._lock = None
        _ENTERED.pop(self.directory, None)
        shared = sys.modules.get("chromadb.api.shared_system_client")
        if shared is not None:  # its table of open directories would hand the parent's client to the child
            for table in ("_identifier_to_system", "_identifier_to_refcount"):
                getattr(shared.SharedSystemClient, table, {}).pop(str(self.directory), None)
