"""What Chroma has, and what it should have."""

from collections import Counter

from sql import stored_vectors

from memlayer_core import Memory, Message
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


def assert_whole(memory: Memory) -> None:
    """Check that Chroma has what the journal has, by a look and by `verify`, and that nothing is amiss."""
    assert in_chroma(memory) == in_journal(memory)
    assert memory.admin.verify() == []
    assert memory.admin.status().problems == {}


def collections(memory: Memory) -> dict[str, str]:
    """Return the ids of a store's collections: one that is dropped and made again has another."""
    index = memory.runtime.index
    found = index._client.list_collections()
    return {one.name: str(one.id) for one in found if one.name.startswith(index._prefix)}


def boats(first: int, last: int) -> list[str]:
    """Return texts that a question about boats finds."""
    return [f"The boat number {number} is in harbor {number * 7}." for number in range(first, last)]


def say(memory: Memory, *texts: str, user: str = "ada", session: str = "s") -> None:
    """Let a user say texts."""
    memory.chat(user_id=user, session_id=session).add_messages([Message("user", text) for text in texts])


def copied(memory: Memory, *texts: str, **whose: str) -> Memory:
    """Let a user say texts, and Chroma have them. Returns the memory."""
    say(memory, *texts, **whose)
    memory.flush(60)
    return memory


def found(memory: Memory, user: str = "ada") -> int:
    """Return how much of what a user said is found."""
    return len(memory.search("Which boat is in which harbor?", user_id=user, limit=500))
