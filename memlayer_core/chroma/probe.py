"""Opens a Chroma directory and touches all of it: run as a process of its own, which damage may kill.

    python -P probe.py DIRECTORY BYTES

BYTES is what a single file may grow to: a torn index can make Chroma write until the disk is full.
Exits with 0 when every collection could be counted, read, searched and written to. Imports nothing of
memlayer, so that it runs wherever chromadb is found.
"""

from __future__ import annotations

import sys
import time
from typing import Any, cast

_PAGE = 500
_SECONDS = 10.0  # that a collection is searched for


def probe(directory: str, largest: int) -> None:
    """Count, read, search and write to every collection of `directory`.

    Args:
        directory: Chroma's directory.
        largest: Bytes that a file may grow to.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import chromadb
    from chromadb.config import Settings

    settings = Settings(_env_file=None, anonymized_telemetry=False, migrations="apply")
    client = chromadb.PersistentClient(directory, settings=settings)
    for named in client.list_collections():
        collection = client.get_collection(named.name, embedding_function=None)
        held = collection.count()
        first = collection.get(limit=1, include=["embeddings"])
        vectors: Any = first["embeddings"]
        if not first["ids"] or vectors is None:
            continue
        found = collection.query(query_embeddings=[vectors[0]], n_results=min(held, 100))["ids"][0]
        if len(found) < 0.9 * min(held, 100):  # a sound graph may lose sight of a few
            raise RuntimeError(f"{named.name} finds {len(found)} of {held}")
        collection.upsert(ids=first["ids"], embeddings=vectors)
        until = time.monotonic() + _SECONDS
        for offset in range(0, held, _PAGE):  # each vector leads through its own part of the graph
            page: Any = collection.get(limit=_PAGE, offset=offset, include=["embeddings"])["embeddings"]
            if time.monotonic() > until or not len(page):
                break
            collection.query(query_embeddings=list(page), n_results=1)
    cast("Any", client).close()


if __name__ == "__main__":
    probe(sys.argv[1], int(sys.argv[2]))
