"""Numbered collections of vectors in Chroma. What is in them is believed only as far as the journal confirms it.

A record is the vector of a text, or of a passage of a long one, with the buckets by which it is found. A collection says in its
metadata for which embedder it was made, and the name of the last batch that was written to it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import HttpUrl, TypeAdapter, ValidationError

from memlayer_core.errors import ConfigurationError, IndexCorruptError, IndexUnavailableError, MemlayerError
from memlayer_core.seams import FloatVector, Neighbour
from memlayer_core.storage.terms import MOST_PASSAGES

if TYPE_CHECKING:
    from types import ModuleType

    import chromadb
    from chromadb.api import ClientAPI

    from memlayer_core.storage.outbox import VectorBatch

_LAYOUT = 2
_SPACE = "cosine"
_HNSW = {"space": _SPACE, "ef_construction": 100, "max_neighbors": 16, "ef_search": 100}
_BUCKETS = "uas"  # the first letters of the buckets
_PASSAGE = "."  # between the key and the number of a passage behind the first
_MANY = 1000
_PATIENCE = 30.0  # seconds that a search waits for a write of this process
_CREDENTIALS = "CHROMA_CLIENT_AUTH_PROVIDER and CHROMA_CLIENT_AUTH_CREDENTIALS have the credentials, as for any client of Chroma."

_LIVING: weakref.WeakSet[ChromaIndex] = weakref.WeakSet()


class ChromaIndex(ABC):
    """What a directory and a server have in common.

    Attributes:
        exclusive: Whether one process at a time has it, whose files it is in.
        batch: Texts that it is given at once.
        capacity: Collections that it may have.
        is_held: Whether this process may use it.
    """

    exclusive: bool
    batch: int
    slice: int  # vectors of one call
    sync_threshold: int  # vectors after which Chroma writes a collection's graph to the disk

    def __init__(self, store_id: str) -> None:
        self._prefix = f"memlayer-{UUID(store_id).hex[:12]}"
        self.is_held = False
        self.capacity = 1 << 20
        self._client: ClientAPI | None = None
        self._damaged: set[int] = set()  # not touched again before they are erased, for Chroma may crash
        self._lock = threading.RLock()
        _LIVING.add(self)

    # What differs: a server manages its files itself.

    def acquire(self) -> bool:
        """Acquire it. Returns False while another process, or another memory in this one, has it.

        Raises:
            IndexUnavailableError: It cannot be reached or used.
        """
        self.is_held = True
        return True

    def still_there(self) -> bool:
        """Return whether its files are those that were opened."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Release it. It can be acquired again."""

    @abstractmethod
    def _open(self) -> ClientAPI:
        """Return a new client."""

    def _clear(self, shards: Collection[int]) -> None:
        """Delete collections, and erase all deleted data from the disk."""
        self._delete(shards)

    def _written(self) -> None:  # noqa: B027  (a directory has something to do)
        """Do what is to be done after each write."""

    # What is the same.

    def batches(self, shards: Collection[int], made_for: tuple[str, int]) -> dict[int, str]:
        """Return the last batch of each collection that exists, is whole, and was made for an embedder.

        Args:
            shards: Their numbers.
            made_for: The embedder's identity and dimension.
        """
        found = {}
        for shard in sorted(set(shards) - self._damaged):
            with self._using(shard):
                target = self._find(shard)
                if target is not None and _fits(target, made_for):
                    found[shard] = str((target.metadata or {}).get("batch"))
        return found

    def sizes(self, shards: Collection[int]) -> dict[int, int]:
        """Return how many vectors some collections have."""
        found = {}
        for shard in sorted(shards):
            with self._using(shard):
                target = self._find(shard)
                found[shard] = target.count() if target is not None else 0
        return found

    def write(self, batch: VectorBatch) -> None:
        """Give a collection a batch, in slices; again is the same as once.

        Raises:
            IndexCorruptError: The collection must be erased and filled again.
            IndexUnavailableError: It cannot be reached; a part may be in already.
        """
        with self._using(batch.shard):
            target = self._prepared(batch)
        every = [(one, number) for one in batch.entries for number in range(len(one.vectors))]
        ids = [_name(one.key, number) for one, number in every]
        vectors: Any = [one.vectors[number] for one, number in every]
        buckets: Any = [dict(zip(_BUCKETS, one.buckets, strict=True)) for one, _ in every]
        for start in range(0, len(ids), self.slice):
            some = slice(start, start + self.slice)
            began = time.perf_counter()
            with self._using(batch.shard):
                target.upsert(ids=ids[some], embeddings=vectors[some], metadatas=buckets[some])
            if self.exclusive:
                time.sleep(time.perf_counter() - began)  # it blocked the interpreter: others get it as long
        with self._using(batch.shard):
            target.modify(metadata=_made_for(batch))
            self._written()

    def nearest(
        self, shard: int, bucket: str | None, vector: FloatVector, limit: int, names: Sequence[str]
    ) -> list[Neighbour] | None:
        """Return the nearest texts of a bucket, or of a whole collection; a text is as near as its nearest passage.

        None if the collection's last batch is none of these: it is older, or was written to meanwhile.

        Args:
            shard: Number of the collection.
            bucket: The bucket; None: all are searched.
            vector: Unit length, shape (dimension,).
            limit: Maximum number of texts.
            names: Batches.

        Raises:
            IndexCorruptError: The collection is damaged.
            IndexUnavailableError: It cannot be reached.
        """
        where: Any = None if bucket is None else {bucket[0]: bucket}
        vectors: Any = [vector]
        with self._using(shard):
            target = self._find(shard)
            if target is None or (target.metadata or {}).get("batch") not in names:
                return None
            for wide in (limit, limit * MOST_PASSAGES):  # where too many are passages of the same texts
                most = wide if wide <= _MANY else max(1, min(wide, target.count()))
                found = target.query(
                    query_embeddings=vectors, n_results=most, where=where, include=["distances"]
                )
                keys, distances = map(_key, found["ids"][0]), (found["distances"] or [[]])[0]
                parts = [*zip(keys, distances, strict=True)]
                near = dict(reversed(parts))
                if len(near) >= limit or len(parts) < most:
                    break
        best = sorted(near.items(), key=lambda one: one[1])[:limit]
        return [Neighbour(key, max(-1.0, min(1.0, 1.0 - distance))) for key, distance in best]

    def erase(self, shards: Collection[int]) -> None:
        """Delete collections in any state, and erase all deleted data from the disk.

        Raises:
            IndexUnavailableError: It cannot be reached, or the disk is full: they may be empty already.
            IndexCorruptError: A server cannot delete one.
        """
        with self._locked():
            self._clear(shards)
            self._damaged.clear()

    # How.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_PATIENCE):
            raise IndexUnavailableError(
                f"the index has been busy for {_PATIENCE:g} seconds",
                hint="Until then, vectors are compared exactly.",
            )
        try:
            if not self.is_held:
                raise IndexUnavailableError(
                    "the index is not held by this process",
                    hint="Another process may have it: acquire it first.",
                )
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _using(self, shard: int) -> Iterator[None]:
        """Use a collection: alone if it is in this process, and never again after it was found damaged."""
        if shard in self._damaged:
            raise IndexCorruptError(
                f"{self._name(shard)} is damaged", hint="memlayer drops the collection and fills it again."
            )
        try:
            with translate_errors(f"use {self._name(shard)}"), ExitStack() as held:
                held.enter_context(self._locked())
                if self._client is None:
                    self._client = self._open()
                if not self.exclusive:
                    held.close()
                yield
        except IndexCorruptError:
            if self.exclusive:
                self._damaged.add(shard)
            raise

    def _name(self, shard: int) -> str:
        return f"{self._prefix}-{shard:03d}"

    def _delete(self, shards: Collection[int]) -> None:
        for shard in shards:
            with self._using(shard):
                if self._find(shard) is not None:
                    cast("ClientAPI", self._client).delete_collection(self._name(shard))

    def _find(self, shard: int) -> chromadb.Collection | None:
        from chromadb.errors import NotFoundError

        try:
            return cast("ClientAPI", self._client).get_collection(self._name(shard), embedding_function=None)
        except NotFoundError:
            return None

    def _prepared(self, batch: VectorBatch) -> chromadb.Collection:
        """Return the collection of a batch, without what the batch changes."""
        target = self._find(batch.shard)
        if target is None and "" in batch.before:
            hnsw: Any = {**_HNSW, "sync_threshold": self.sync_threshold}
            return cast("ClientAPI", self._client).create_collection(
                self._name(batch.shard),
                embedding_function=None,
                configuration={"hnsw": hnsw},
                metadata=_made_for(batch),
            )
        named = (target.metadata or {}).get("batch") if target is not None else None
        if target is None or named not in batch.before or not _fits(target, batch.made_for):
            raise IndexCorruptError(
                f"the collection {self._name(batch.shard)} is not the one that the journal knows: it is missing, or of another "
                "time or embedder",
                hint="memlayer drops the collection and fills it again.",
            )
        if stale := batch.stale:
            long = target.get(ids=[_name(key, 1) for key in stale], include=[])["ids"]
            passages = [_name(_key(name), number) for name in long for number in range(1, MOST_PASSAGES)]
            target.delete(ids=[*passages, *map(str, stale)])
        return target

    def _forget_parent(self) -> None:
        """Begin again in a forked child, where the lock may be held by threads that are not there."""
        self._lock, self._client, self._damaged, self.is_held = threading.RLock(), None, set(), False


def _name(key: int, number: int) -> str:
    return f"{key}{_PASSAGE}{number}" if number else str(key)


def _key(name: str) -> int:
    return int(name.partition(_PASSAGE)[0])


def _made_for(batch: VectorBatch) -> dict[str, Any]:
    embedder, dimension = batch.made_for
    return {"memlayer": _LAYOUT, "embedder": embedder, "dimension": dimension, "batch": batch.name}


def _fits(target: chromadb.Collection, made_for: tuple[str, int]) -> bool:
    configuration = target.configuration_json  # `configuration` warns of what has no embedding function
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
    metadata = target.metadata or {}
    made = metadata.get("embedder"), metadata.get("dimension")
    return space == _SPACE and metadata.get("memlayer") == _LAYOUT and made == made_for


class ChromaServer(ChromaIndex):
    """A Chroma server.

    It manages its own disk: deleted vectors are no longer found, but stay in its files until it rebuilds them.

    Args:
        url: `http://host:port` or `https://host:port`.
        store_id: The journal's id, a UUID.
        timeout: Seconds that a request may take; connecting gets five of them at most.

    Attributes:
        url: As it is used.

    Raises:
        ConfigurationError: `url` is not such a URL.
    """

    exclusive = False
    batch = 1000
    slice = 250
    sync_threshold = 1000

    def __init__(self, url: str, *, store_id: str, timeout: float = 10.0) -> None:
        super().__init__(store_id)
        self._timeout = timeout
        self.url = server_url(url)

    def close(self) -> None:
        """Close the connections, also those that Chroma's own client leaves open."""
        client, self._client, self.is_held = cast("Any", self._client), None, False
        if client is not None:
            logging.getLogger("httpx").removeFilter(self._is_not_ours)
            servers = [
                getattr(one, "_server", None) for one in (client, getattr(client, "_admin_client", None))
            ]
            client.close()
            for server in filter(None, servers):
                server._session.close()  # noqa: SLF001 - there is no public way

    def _open(self) -> ClientAPI:
        """Open a client, after a quick check that the server answers."""
        import httpx

        chromadb = load_chromadb()
        patience = httpx.Timeout(self._timeout, connect=min(5.0, self._timeout))
        logging.getLogger("httpx").addFilter(self._is_not_ours)
        try:
            answer = httpx.get(f"{self.url}/api/v2/heartbeat", timeout=patience)
            if answer.status_code not in {401, 403}:  # Chroma's own client has the credentials
                answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise IndexUnavailableError(
                f"no Chroma server answers at {self.url}: {type(problem).__name__}: {problem}",
                hint="Start it with `chroma run`, or correct the URL and its port.",
            ) from problem
        with translate_errors(f"connect to {self.url}"):
            settings = chroma_settings(
                chroma_api_impl="chromadb.api.fastapi.FastAPI",
                chroma_server_host=self.url,
                chroma_server_http_port=None,
            )
            parts = urlsplit(self.url)
            client: ClientAPI = chromadb.HttpClient(
                host=self.url,
                port=parts.port or (443 if parts.scheme == "https" else 80),
                ssl=parts.scheme == "https",
                settings=settings,
            )
            cast("Any", client)._server._session.timeout = patience  # noqa: SLF001 - Chroma waits forever
        return client

    def _is_not_ours(self, record: logging.LogRecord) -> bool:
        """Keep httpx from logging each of our requests, as it does at level INFO; other requests are not touched."""
        return record.levelno > logging.INFO or self.url not in record.getMessage()


def server_url(url: str) -> str:
    """Return the URL of a Chroma server as it is used.

    Raises:
        ConfigurationError: It is not such a URL.
    """
    try:
        parts = TypeAdapter(HttpUrl).validate_python(url)
    except ValidationError:
        parts = None
    if parts is None or parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(
            "the Chroma server's URL cannot be used",
            hint=f"Write http://host:port or https://host:port, a path at most behind it. {_CREDENTIALS}",
        )
    return str(parts).rstrip("/")


# Loads Chroma, and translates its errors into memlayer's.

_PASSING = re.compile(
    "database (table )?is locked|disk is full|disk i/o error|no space left|permission denied|readonly database"
    "|too many open files|unable to open database",
    re.IGNORECASE,
)


def load_chromadb() -> ModuleType:
    """Import chromadb, which costs a second and reads foreign settings on the way.

    Raises:
        IndexUnavailableError: The environment or `./.env` holds a variable that Chroma cannot take.
    """
    try:
        import chromadb  # takes a second, so only if it is needed
    except Exception as problem:
        raise IndexUnavailableError(
            f"chromadb cannot be imported: {problem}",
            hint="Chroma reads unprefixed environment variables and the file .env of the working directory: check those that "
            "the error names, or start the process in another directory.",
        ) from problem
    return chromadb


def chroma_settings(**values: Any) -> Any:
    """Return Chroma's settings. The environment cannot set those that would break the index."""
    return _from_environment().model_copy(update=values)


@cache
def _from_environment() -> Any:
    """Read the environment once in a process: this takes as long as all else that opens a directory."""
    return load_chromadb().config.Settings(
        _env_file=None,
        anonymized_telemetry=False,
        migrations="apply",
        migrations_hash_algorithm="md5",
        allow_reset=False,
    )


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Raise what Chroma raises as one of memlayer's errors.

    Args:
        action: What was tried, for the error's text: `"Chroma could not <action>"`.

    Raises:
        IndexCorruptError: The collection must be dropped and filled again.
        IndexUnavailableError: It may work later.
    """
    try:
        yield
    except MemlayerError:
        raise
    except BaseException as problem:
        is_panic = type(problem).__name__ == "PanicException"  # how Rust's panics reach Python
        if not is_panic and not isinstance(problem, Exception):
            raise
        raise _translation(problem, action) from problem


def _translation(problem: BaseException, action: str) -> MemlayerError:
    from chromadb import errors

    kind: type[MemlayerError] = IndexUnavailableError
    if _PASSING.search(str(problem)):
        hint = "Free the disk, the file or the descriptors that it names; memlayer tries again."
    elif isinstance(problem, errors.ChromaAuthError | errors.AuthorizationError):
        hint = _CREDENTIALS
    elif isinstance(problem, errors.NotFoundError):
        hint = "Another process drops the collection to fill it again."
    elif isinstance(problem, errors.ChromaError) or not isinstance(problem, Exception):
        kind = IndexCorruptError
        hint = "The index is a copy: memlayer drops the collection and fills it again."
    else:
        hint = "Check that Chroma is running and reachable; recall goes on without it."
    return kind(f"Chroma could not {action}: {type(problem).__name__}: {problem}", hint=hint)


def _forget_parents() -> None:
    for index in list(_LIVING):
        index._forget_parent()  # noqa: SLF001 - the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
