"""The index in Chroma: in a directory of this process, or on a server.

Users are spread over a fixed number of collections; a filter has one key, the lane. No text is stored
here, and nothing that the journal does not have: whatever is damaged is emptied and filed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from memlayer_core.chroma.index import ChromaIndex, Identity
from memlayer_core.chroma.places import DirectoryPlace
from memlayer_core.chroma.server import ServerPlace

__all__ = ["ChromaServer", "EmbeddedChroma"]


class EmbeddedChroma(ChromaIndex):
    """Chroma inside this process, in a directory that one process owns at a time.

    A write holds the interpreter lock: about 5 ms, and 0.4 ms a vector. What is deleted leaves the files when `erase`
    empties its shard: Chroma itself keeps deleted vectors in its graph, its log and its database's free pages, and the
    graphs of deleted collections.

    Args:
        directory: Chroma's own directory; `<directory>.lock` and `<directory>.open` lie beside it.
        store_id: The journal's id, a UUID.
        shards: Collections that the users are spread over.
        embedder: Returns the embedder's identity and dimension, or None before the first vector.
        sync_threshold: Vectors after which Chroma persists a collection's index: each persist is a
            moment at which a kill tears files, and until then each write reads the waiting ones again.
        probe_seconds: How long trying out the files of a vanished owner may take.

    Attributes:
        directory: The resolved directory.
        repaired: Why the whole index was thrown away and begun anew, or None. Set to None once told.
    """

    exclusive = True

    def __init__(
        self,
        directory: Path,
        *,
        store_id: str,
        shards: int,
        embedder: Callable[[], Identity] | None = None,
        sync_threshold: int = 250,
        probe_seconds: float = 60.0,
    ) -> None:
        place = DirectoryPlace(directory, shards, probe_seconds)
        super().__init__(
            place, store_id=store_id, shards=shards, embedder=embedder, sync_threshold=sync_threshold
        )
        self.directory = place.directory


class ChromaServer(ChromaIndex):
    """A Chroma server, shared by any number of processes and stores.

    Its disk is its own: what is deleted is found no more, but the vectors stay in the collection's graph until that is
    rebuilt (`memory.admin.reindex`), the graphs of deleted collections stay in the server's directory, and its log and free
    pages keep both until `chroma vacuum` is run on the stopped server. No text is ever stored there.

    Args:
        url: `http://host:port` or `https://host:port`.
        store_id: The journal's id, a UUID.
        shards: Collections that the users are spread over.
        embedder: Returns the embedder's identity and dimension, or None before the first vector.
        headers: Sent with each request, for example a token.
        timeout: Seconds that a request may take; connecting gets five of them at most.
        sync_threshold: Vectors after which the server persists a collection's index.

    Attributes:
        url: As it is used.
        repaired: Always None: a server's directory is never thrown away.

    Raises:
        ConfigurationError: `url` is no such URL.
    """

    def __init__(
        self,
        url: str,
        *,
        store_id: str,
        shards: int,
        embedder: Callable[[], Identity] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        sync_threshold: int = 1000,
    ) -> None:
        place = ServerPlace(url, headers, timeout)
        super().__init__(
            place, store_id=store_id, shards=shards, embedder=embedder, sync_threshold=sync_threshold
        )
        self.url = str(place)
