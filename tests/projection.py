"""What Chroma has, and what it should have."""

from __future__ import annotations

from collections import Counter

from sql import stored_vectors

from memlayer_core import Memory
from memlayer_core.storage import outbox


def in_chroma(memory: Memory) -> dict[int, int]:
    """Return how many vectors of each text Chroma has."""
    index, held = memory.runtime.index, Counter[int]()
    for shard in memory.runtime.db.read(outbox.batches):
        with index._using(shard):
            target = index._find(shard)
            names = target.get(include=[])["ids"] if target is not None else []
        held.update(int(name.partition(".")[0]) for name in names)
    return dict(held)


def in_journal(memory: Memory) -> dict[int, int]:
    """Return how many vectors of each text the journal has."""
    return {entry.key: len(entry.vectors) for entry in memory.runtime.db.read(stored_vectors)}


def collections(memory: Memory) -> dict[str, str]:
    """Return the ids of a store's collections: one that is dropped and made again has another."""
    index = memory.runtime.index
    found = index._client.list_collections()
    return {one.name: str(one.id) for one in found if one.name.startswith(index._prefix)}
