"""An embedder is asked a question once, as long as it works."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial

import numpy as np
import pytest
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import EmbedderError
from memlayer_core.events import IndexDegraded, IndexRecovered
from memlayer_core.models.embed import QueryCache
from memlayer_core.models.hashing import HashingEmbedder

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both


class Counting(HashingEmbedder):
    """An embedder that can be away, and keeps the questions that it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.away = False

    def check(self):
        if self.away:
            raise EmbedderError("it is away", hint="Wait.")

    def embed(self, texts):
        self.check()
        return super().embed(texts)

    def embed_query(self, text):
        self.asked.append(text)
        self.check()
        return super().embed_query(text)

    async def aembed(self, texts):
        return self.embed(texts)

    async def aembed_query(self, text):
        return self.embed_query(text)


@pytest.fixture
def embedder():
    return Counting()


@pytest.fixture
def ask(do, embedder):
    """Return a function that asks in the test's colour."""

    class Both(QueryCache):  # with the names that the colours go by
        ask, aask = QueryCache.embed_query, QueryCache.aembed_query

    return partial(do, Both(embedder), "ask")


def test_a_question_that_comes_again_is_not_asked_again_and_nobody_can_change_its_vector(ask, embedder):
    first, again = ask("where?"), ask("where?")
    assert embedder.asked == ["where?"]
    assert np.array_equal(first, again)
    assert np.array_equal(first, HashingEmbedder().embed_query("where?"))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_only_the_last_questions_are_kept(ask, embedder):
    for number in range(300):
        ask(str(number))
    embedder.asked.clear()
    ask("299")
    ask("44")
    assert embedder.asked == []

    ask("43")
    assert embedder.asked == ["43"]


def test_a_failure_is_not_kept_and_ends_what_was(ask, embedder):
    ask("where?")
    embedder.away = True
    for question in ("when?", "where?"):
        with pytest.raises(EmbedderError):
            ask(question)
    embedder.away = False
    ask("where?")
    assert embedder.asked == ["where?", "when?", "where?", "where?"]


def test_a_failure_in_the_background_ends_what_was_too(do, embedder):
    asked = QueryCache(embedder)
    asked.embed_query("where?")
    embedder.away = True
    with pytest.raises(EmbedderError):
        do(asked, "embed", ["a text"])
    embedder.away = False
    asked.embed_query("where?")
    assert embedder.asked == ["where?", "where?"]


def test_an_embedder_that_is_away_is_not_told_to_be_back_by_a_question_that_was_known(embedder):
    heard = []
    with Memory.in_memory(embedder=embedder, settings=Tuned(index_delay=0.0)) as memory:
        memory.chat(user_id="ada").add("user", "my pet is a parrot")
        memory.flush()
        memory.listen(heard.append)
        memory.search("my parrot", user_id="ada")
        embedder.away = True
        memory.search("my pet", user_id="ada")
        memory.search("my parrot", user_id="ada")
    kinds = [type(event) for event in heard if isinstance(event, IndexDegraded | IndexRecovered)]
    assert kinds == [IndexDegraded]


async def test_questions_of_one_loop_are_kept_for_the_next(embedder):
    asked = QueryCache(embedder)
    await asyncio.gather(*(asked.aembed_query(str(number % 5)) for number in range(20)))
    embedder.asked.clear()
    await asyncio.to_thread(lambda: asyncio.run(asked.aembed_query("3")))
    assert embedder.asked == []


def test_questions_that_are_megabytes_are_not_kept(embedder):
    asked, question = QueryCache(embedder), "a very long question \ud800" * 20_000
    before = asked.embed_query(question)
    assert asked.embed_query(question) is before
    assert len(pickle.dumps(asked._known)) < 10_000
