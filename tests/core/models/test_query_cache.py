"""An embedder is asked a question once, as long as it works."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
from flaky import FlakyEmbedder
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import EmbedderError
from memlayer_core.events import IndexDegraded, IndexRecovered
from memlayer_core.models.embed import QueryCache
from memlayer_core.models.hashing import HashingEmbedder

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both


class Both(QueryCache):
    """A cache with the names that the colours go by."""

    ask, aask = QueryCache.embed_query, QueryCache.aembed_query


@pytest.fixture
def embedder():
    return FlakyEmbedder(HashingEmbedder())


def test_a_question_that_comes_again_is_not_asked_again_as_long_as_it_works(do, embedder):
    asked = Both(embedder)
    first, again = (do(asked, "ask", "where?") for _ in range(2))
    assert embedder.queries == ["where?"]
    assert np.array_equal(first, again)
    assert np.array_equal(first, HashingEmbedder().embed_query("where?"))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    embedder.failing = lambda _: True
    for question in ("when?", "where?"):  # a failure is not kept, and ends what was
        with pytest.raises(EmbedderError):
            do(asked, "ask", question)
    embedder.failing = lambda _: False
    do(asked, "ask", "where?")
    assert embedder.queries == ["where?", "when?", "where?", "where?"]
    embedder.failing = lambda _: True
    with pytest.raises(EmbedderError):
        asked.embed(["a text"])  # as the background does
    embedder.failing = lambda _: False
    do(asked, "ask", "where?")
    assert embedder.queries[4:] == ["where?"]


def test_an_embedder_that_is_away_is_not_told_to_be_back_by_a_question_that_was_known(embedder):
    heard = []
    with Memory.in_memory(embedder=embedder, settings=Tuned(index_delay=0.0)) as memory:
        memory.chat(user_id="ada").add("user", "my pet is a parrot")
        memory.flush()
        memory.listen(heard.append)
        memory.search("my parrot", user_id="ada")
        embedder.failing = lambda _: True
        memory.search("my pet", user_id="ada")
        memory.search("my parrot", user_id="ada")
    kinds = [type(event) for event in heard if isinstance(event, IndexDegraded | IndexRecovered)]
    assert kinds == [IndexDegraded]


async def test_the_last_questions_are_kept_without_their_texts_for_every_loop(embedder):
    asked, question = QueryCache(embedder), "a very long question \ud800" * 20_000
    before = await asked.aembed_query(question)
    assert await asked.aembed_query(question) is before
    assert len(pickle.dumps(asked._known)) < 10_000
    for number in range(300):
        asked.embed_query(str(number))
    embedder.queries.clear()
    for kept in ("299", "44", "43"):
        await asyncio.to_thread(lambda kept=kept: asyncio.run(asked.aembed_query(kept)))
    assert embedder.queries == ["43"]
