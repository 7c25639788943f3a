"""An episode stands for the turns of its session: where these are told, it is not."""

from __future__ import annotations

from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.models.hashing import HashingEmbedder


def lines(memory: Memory, asked: str) -> list[str]:
    context = memory.chat(user_id="u", session_id="now").context(asked)
    return [piece.speaker for piece in context.pieces if piece.kind == "recall"]


def tell(_: str) -> str:
    return '{"summary": "The user saw the zebra, the lion and the parrot in the zoo of Lisbon."}'


def test_an_episode_is_not_told_beside_its_own_turns() -> None:
    settings = Tuned(index_delay=0)
    with Memory.in_memory(embedder=HashingEmbedder(), settings=settings, model=tell) as memory:
        chat = memory.chat(user_id="u", session_id="past")
        for thing in ("zebra", "lion", "parrot"):
            chat.add("user", f"I saw the {thing} in the zoo of Lisbon.")
            chat.add("assistant", f"The {thing} of Lisbon is famous.")
        chat.end()
        memory.flush()
        assert [one.type for one in memory.records(user_id="u")] == ["episodic"]
        told = lines(memory, "Where did I see the zebra in the zoo?")
        assert "user" in told
        assert "episodic" not in told
