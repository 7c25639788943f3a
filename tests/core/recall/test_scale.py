"""A search for a user with 100,000 texts takes no longer than a turn may."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from budget import at_speed
from tuned import Tuned

from memlayer_core import Memory, Message

THINGS = "garden", "tax office", "oven", "passport", "bicycle", "river", "harbour", "violin", "kayak", "attic"
TEXTS = 100_000


def by_words(texts: Sequence[str]) -> list[list[float]]:
    """Embed each text as the sum of its words' random directions, 64 numbers each."""

    def direction(word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.casefold().encode())).standard_normal(64)

    return [sum(map(direction, text.split()), np.zeros(64)).tolist() for text in texts]


@pytest.mark.slow
@pytest.mark.requirement("J32")
def test_of_a_hundred_thousand_texts_nineteen_in_twenty_searches_take_less_than_fifty_milliseconds(
    tmp_path,
) -> None:
    quiet = Tuned(index_delay=3600, durability="normal", episodes=False)
    with Memory.open(tmp_path, embedder=by_words, settings=quiet) as memory:
        first = memory.chat(user_id="ada", session_id="s")
        first.add_messages(
            Message("user", f"Remark {n} about the {THINGS[n % 10]} on day {n // 7}.") for n in range(2000)
        )
        first.add("user", "The violin is a Stainer.")
        memory.flush()
        for number in range(TEXTS // 2000 - 1):  # copies need no new vectors
            first.fork(session_id=f"copy {number}")
        taken = []
        for n in range(41):
            began = time.thread_time()
            hits = memory.search(f"What about the {THINGS[n % 10]} on day {n}?", user_id="ada")
            taken.append(time.thread_time() - began)
            assert any(THINGS[n % 10] in hit.text for hit in hits)
        [best] = memory.search("Is the violin a Stainer?", user_id="ada", limit=1)
        assert best.text == "The violin is a Stainer."
        assert sorted(taken[1:])[37] < at_speed(0.05)  # the first one reads the vectors
