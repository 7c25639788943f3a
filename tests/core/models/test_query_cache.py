"""An embedder is asked a question once, as long as it works."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial

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


def away(_):
    return True


def here(_):
    return False


@pytest.fixture
def embedder():
    return FlakyEmbedder(HashingEmbedder())


class Both(QueryCache):
    """A cache with the names that the colours go by."""

    ask, aask = QueryCache.embed_query, QueryCache.aembed_query


@pytest.fixture
def ask(do, embedder):
    """Return a function that asks in the test's colour."""
    return partial(do, Both(embedder), "ask")


def test_a_question_that_comes_again_is_not_asked_again_and_nobody_can_change_its_vector(ask, embedder):
    first, again = ask("where?"), ask("where?")
    assert embedder.queries == ["where?"]
    assert np.array_equal(first, again)
    assert np.array_equal(first, HashingEmbedder().embed_query("where?"))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_only_the_last_questions_are_kept(ask, embedder):
    for number in range(300):
        ask(str(number))
    embedder.queries.clear()
    for question in ("299", "44", "43"):
        ask(question)
    assert embedder.queries == ["43"]


def test_a_failure_is_not_kept_and_ends_what_was_also_in_the_background(do, embedder):
    asked = Both(embedder)
    do(asked, "ask", "where?")
    embedder.failing = away
    for question in ("when?", "where?"):
        with pytest.raises(EmbedderError):
            do(asked, "ask", question)
    embedder.failing = here
    do(asked, "ask", "where?")
    assert embedder.queries == ["where?", "when?", "where?", "where?"]
    embedder.failing = away
    with pytest.raises(EmbedderError):
        asked.embed(["a text"])
    embedder.failing = here
    do(asked, "ask", "where?")
    assert embedder.queries[4:] == ["where?"]


def test_an_embedder_that_is_away_is_not_told_to_be_back_by_a_question_that_was_known(embedder):
    heard = []
    with Memory.in_memory(embedder=embedder, settings=Tuned(index_delay=0.0)) as memory:
        memory.chat(user_id="ada").add("user", "my pet is a parrot")
        memory.flush()
        memory.listen(heard.append)
        memory.search("my parrot", user_id="ada")
        embedder.failing = away
        memory.search("my pet", user_id="ada")
        memory.search("my parrot", user_id="ada")
    kinds = [type(event) for event in heard if isinstance(event, IndexDegraded | IndexRecovered)]
    assert kinds == [IndexDegraded]


async def test_questions_of_one_loop_are_kept_for_the_next(embedder):
    asked = QueryCache(embedder)
    await asyncio.gather(*(asked.aembed_query(str(number % 5)) for number in range(20)))
    embedder.queries.clear()
    await asyncio.to_thread(lambda: asyncio.run(asked.aembed_query("3")))
    assert embedder.queries == []


def test_questions_that_are_megabytes_are_not_kept(embedder):
    asked, question = QueryCache(embedder), "a very long question \ud800" * 20_000
    before = asked.embed_query(question)
    assert asked.embed_query(question) is before
    assert len(pickle.dumps(asked._known)) < 10_000
