"""Where Chroma's collections live, what it leaves on the disk, and what its errors mean."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from memlayer_core.errors import IndexCorruptError, IndexUnavailableError, MemlayerError, StoreError
from memlayer_core.storage.files import private_directory, private_file, tighten

if TYPE_CHECKING:
    from types import ModuleType

    from chromadb.api import ClientAPI
    from filelock import BaseFileLock


# Translates Chroma's errors into memlayer's.

_PASSING = (
    "database is locked",
    "database table is locked",
    "disk is full",
    "disk i/o error",
    "no space left",
    "permission denied",
    "readonly database",
    "too many open files",
    "unable to open database",
)


class CollectionGoneError(IndexUnavailableError):
    """Another process dropped a collection that this one had open; looking it up again helps."""


def load_chromadb() -> ModuleType:
    """Import chromadb, which costs a second and reads foreign settings on the way.

    Raises:
        IndexUnavailableError: The environment or `./.env` holds a variable that Chroma cannot take.
    """
    try:
        import chromadb  # a second that only who needs it pays
    except Exception as problem:
        named = ", ".join(_rejected(problem)) or "a variable"
        raise IndexUnavailableError(
            f"chromadb cannot be imported: {problem}",
            hint=f"Chroma reads unprefixed environment variables and the file .env of the working "
            f"directory: check {named} there, or start the process in another directory.",
        ) from problem
    return chromadb


def _rejected(problem: Exception) -> list[str]:
    """Return the variables that a pydantic error complains about."""
    from pydantic import ValidationError  # only a failure needs it

    if not isinstance(problem, ValidationError):
        return []
    return ["_".join(map(str, error["loc"])).upper() for error in problem.errors()]


def chroma_settings(**values: Any) -> Any:
    """Return Chroma's settings, with those that would break the index out of the environment's reach."""
    load_chromadb()
    from chromadb.config import Settings

    made: Any = Settings
    return made(
        _env_file=None,
        anonymized_telemetry=False,
        migrations="apply",
        migrations_hash_algorithm="md5",
        allow_reset=False,
        **values,
    )


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Raise what Chroma raises as one of memlayer's errors.

    Args:
        action: What was tried, for the error's text: `"Chroma could not <action>"`.
    """
    try:
        yield
    except MemlayerError:
        raise
    except Exception as problem:
        raise _translation(problem, action) from problem
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":  # how Rust's panics reach Python
            raise
        raise _corrupt(problem, action) from problem


def _translation(problem: Exception, action: str) -> MemlayerError:
    from chromadb import errors

    said = f"Chroma could not {action}: {type(problem).__name__}: {problem}"
    if any(phrase in str(problem).lower() for phrase in _PASSING):
        return IndexUnavailableError(
            said, hint="Free the disk, the file or the descriptors that it names; memlayer tries again."
        )
    if isinstance(problem, errors.NotFoundError):
        return CollectionGoneError(said, hint="Another process rebuilds this shard; try again.")
    if isinstance(problem, errors.ChromaAuthError | errors.AuthorizationError):
        return IndexUnavailableError(said, hint="Check the headers that are sent to the Chroma server.")
    broken = (
        errors.InternalError,
        errors.InvalidArgumentError,
        errors.InvalidDimensionException,
        errors.InvalidUUIDError,
    )
    if isinstance(problem, broken):
        return _corrupt(problem, action)
    return IndexUnavailableError(
        said, hint="Check that Chroma is running and reachable; recall goes on without it."
    )


def _corrupt(problem: BaseException, action: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"Chroma could not {action}: {type(problem).__name__}: {problem}",
        hint="The index is a projection: reset the shard and file the journal's vectors again.",
    )


# Room for Chroma's open files.
#
# Embedded Chroma keeps at most `limit of open files // 5` vector indexes, spread over 64 parts of a cache
# whose size is fixed when the client is made. An index that falls out of it and is read again lacks all
# that was not persisted yet, silently. So the limit is raised first, far enough that all collections of
# a client may meet in one part.

_FILES_AN_INDEX = 5
_CACHE_PARTS = 64
_ASKED = 16384
_OTHERS = 256  # SQLite, sockets and whatever else the process has open


def make_room(shards: int, other_collections: int) -> None:
    """Raise this process's limit of open files until no vector index can fall out of Chroma's cache.

    Args:
        shards: Collections of the client that is about to be made.
        other_collections: Collections of the process's other clients: they have caches of their own, and share
            the descriptors.

    Raises:
        IndexUnavailableError: The limit cannot be raised far enough.
    """
    needed = max(
        shards * _FILES_AN_INDEX * _CACHE_PARTS,
        (shards + other_collections) * _FILES_AN_INDEX + _OTHERS,
    )
    had = _raise_limit(needed)
    if had < needed:
        raise IndexUnavailableError(
            f"Chroma needs a limit of {needed} open files for {shards} collections "
            f"({other_collections} more are open in this process), and {had} is all that can be had",
            hint=f"Raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service), "
            "make the store with fewer collections, or use a Chroma server.",
        )


if sys.platform == "win32":

    def _raise_limit(goal: int) -> int:
        import ctypes

        runtime = ctypes.windll.msvcrt
        if runtime._getmaxstdio() < goal:  # noqa: SLF001 - the C runtime's own name
            runtime._setmaxstdio(min(8192, max(goal, 2048)))  # noqa: SLF001
        return int(runtime._getmaxstdio())  # noqa: SLF001

else:
    import resource

    def _raise_limit(number: int) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (max(_ASKED, number), number):
            goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if soft == resource.RLIM_INFINITY or soft >= goal:
                break
            with suppress(ValueError, OSError):  # macOS caps below what it calls the hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
                soft = goal
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft


# What Chroma leaves on the disk: whether it is whole, and how it is thrown away.
#
# A process killed while Chroma persists an index leaves files of different ages. Opened again they may
# kill the process, hang it, or grow until the disk is full; so they are looked at before Chroma does.

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


def sweep_files(directory: Path) -> str | None:
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


def digest_of_files(directory: Path) -> str:
    """Return a digest of everything in a directory: it is another one after any change, whoever made it."""
    whole = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            whole.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "blake2b").digest())
    return whole.hexdigest()


def identity_of_files(directory: Path) -> tuple[int, int] | None:
    """Return what tells Chroma's database from another one at the same place, or None where there is none."""
    try:
        found = (directory / _DATABASE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def compact_files(directory: Path) -> None:
    """Leave nothing in the files of what was deleted: Chroma leaves deleted vectors in its database's free space.

    Args:
        directory: Chroma's directory, which nobody has open: closing a database gives up every lock that
            this process has on its file, those of Chroma's own SQLite included.

    Raises:
        IndexUnavailableError: The disk is full, or the database is locked.
        IndexCorruptError: The database cannot be read.
    """
    damage = sweep_files(directory)
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


def wipe_files(directory: Path) -> None:
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


# Where Chroma's collections live, and the directory of one owner as such a place.

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

    Beside the directory lie `<name>.lock`, `<name>.open` while it is in use, a marker that outlives a killed process, and
    `<name>.closed` with a digest of the files that the last owner left. Where another process did not close it, or something
    was changed since, a child process opens it first, which damage may kill.

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
        self._seal = self.directory.with_name(self.directory.name + ".closed")
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
        self.damage = sweep_files(self.directory)
        if self.damage is None:
            self.damage = find_damage(self.directory, unclean=unclean)
        if self.damage is None and not self._is_sealed():
            self.damage = try_out(self.directory, self._probe_seconds)
        if self.damage is not None:
            wipe_files(self.directory)

    def _is_sealed(self) -> bool:
        """Tell whether the files are as an owner left them that closed them."""
        with suppress(FileNotFoundError):
            is_closed = not self._marker.exists()
            return is_closed and self._seal.read_text(encoding="ascii") == digest_of_files(self.directory)
        return False

    def _mark(self) -> None:
        private_file(self._marker)
        with self._marker.open("w", encoding="utf-8") as file:
            file.write(f"in use by process {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())
        self._seal.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Look for Chroma's database."""
        return identity_of_files(self.directory) is None

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
        self._identity = identity_of_files(self.directory)
        self._blanked = set()
        return client

    def wipe(self) -> bool:
        """Delete Chroma's files."""
        wipe_files(self.directory)
        return True

    def compact(self) -> None:
        """Remove what Chroma left of deleted collections."""
        compact_files(self.directory)

    def blank(self) -> None:
        """Blank the files of indexes with nothing in them yet."""
        blank(self.directory, self._blanked)

    def disconnect(self) -> None:
        """Close the client, and blank what it wrote into the files of new indexes until its end."""
        super().disconnect()
        self._blanked = set()
        self.blank()

    def still_there(self) -> bool:
        """Compare the database at that path with the one that was opened."""
        return self.client is None or identity_of_files(self.directory) == self._identity

    def leave(self) -> None:
        """Release the lock; the marker stays when something may be wrong with the files."""
        if self._lock is None:
            return
        if not self.suspect:
            with suppress(OSError):
                private_file(self._seal)
                self._seal.write_text(digest_of_files(self.directory), encoding="ascii")
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
