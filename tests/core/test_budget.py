"""What a turn costs the core: statements and transactions exactly, processor time with room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from budget import at_speed
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.storage import statements

QUIET = Tuned(index_delay=3600, durability="normal")
FACTS = ("My parrot is called Solo.", "The violin is a Stainer.", "I sold the kayak to Whitaker.")
TOPICS = ("garden", "tax office", "oven", "passport", "bicycle")


class Counter:
    """Counts what a turn asks of a memory's database. What the worker looks for meanwhile is no part of it."""

    def __init__(self) -> None:
        self.statements = self.reads = self.writes = 0


@contextmanager
def counted(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    counter, db, caller = Counter(), memory.runtime.db, threading.get_ident()
    run, read, write = statements.Statement._execute, db.read, db.write

    def execute(self: statements.Statement, *args: Any) -> Any:
        counter.statements += threading.current_thread().name != "memlayer-worker"
        return run(self, *args)

    def counts(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == caller:
                setattr(counter, name, getattr(counter, name) + 1)
            return work(*args, **kwargs)

        return counting

    with monkeypatch.context() as patch:
        patch.setattr(statements.Statement, "_execute", execute)
        patch.setattr(db, "read", counts("reads", read))
        patch.setattr(db, "write", counts("writes", write))
        yield counter


def turns(count: int) -> list[Message]:
    """Return three facts, and so many remarks that are like each other."""
    remarks = [
        Message(
            ("user", "assistant")[place % 2],
            f"Remark {place} about the {TOPICS[place % len(TOPICS)]} and what happened on day {place // 7}.",
        )
        for place in range(count)
    ]
    return [*(Message("user", fact) for fact in FACTS), *remarks]


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    folder = tmp_path_factory.mktemp("store")
    with Memory.open(folder, embedder="hashing", settings=QUIET) as memory:
        for session in range(4):
            memory.chat(user_id="ada", session_id=f"s{session}").add_messages(turns(250))
        greeting = [Message("user", "Good morning!"), Message("assistant", "Good morning! How can I help?")]
        memory.chat(user_id="ada", session_id="today").add_messages(greeting)
        memory.flush()
        yield memory


def test_a_context_with_recall_reads_two_snapshots_in_21_statements(memory, monkeypatch) -> None:
    """Ten of them look up a word each: of the question, and of the round before it."""
    chat = memory.chat(user_id="ada", session_id="s0")
    chat.context("Who has the kayak?", token_limit=1000)
    for query in ("How is my parrot called?", "What violin is it?", "Who has the kayak?"):
        with counted(memory, monkeypatch) as counter:
            assert chat.context(query, token_limit=1000).recall
        assert (counter.reads, counter.writes) == (2, 0)
        assert counter.statements <= 10


def test_a_context_that_recalls_nothing_reads_no_candidates_but_eight_statements(memory, monkeypatch) -> None:
    """And one for its words."""
    chat = memory.chat(user_id="ada", session_id="today")
    for remark, words in (("Thanks, that was all.", 0), ("Is a kettle warm?", 1), ("Is a volcano hot?", 1)):
        chat.context(remark, token_limit=1000)
        with counted(memory, monkeypatch) as counter:
            assert not chat.context(remark, token_limit=1000).recall
        assert (counter.reads, counter.writes) == (2, 0)
        assert counter.statements <= 8 + words


def test_a_context_costs_the_same_two_snapshots_when_the_question_is_pending(memory, monkeypatch) -> None:
    chat = memory.chat(user_id="ada", session_id="s1")
    asked = Message("user", "What violin is it?")
    chat.context(pending=[asked], token_limit=1000)
    with counted(memory, monkeypatch) as counter:
        assert chat.context(pending=[asked], token_limit=1000).recall
    assert (counter.reads, counter.writes) == (2, 0)
    assert counter.statements <= 10


def test_a_context_of_a_user_with_facts_takes_ten_statements(memory, monkeypatch) -> None:
    chat = memory.chat(user_id="bob", session_id="s0")
    chat.add_messages(turns(100))
    chat.remember("My diet is vegan.", key="diet", value="vegan")
    chat.remember("The kayak of Whitaker is blue.")
    memory.flush()
    chat.context("Who has the kayak?", token_limit=500)
    for query in ("Who has the kayak?", "What violin is it?"):
        with counted(memory, monkeypatch) as counter:
            told = chat.context(query, token_limit=500)
        assert told.profile is not None
        assert told.recall
        assert (counter.reads, counter.writes) == (2, 0)
        assert counter.statements <= 10


def test_a_turn_is_stored_in_one_transaction_of_seven_statements(memory, monkeypatch) -> None:
    chat = memory.chat(user_id="ada", session_id="s2")
    with counted(memory, monkeypatch) as counter:
        chat.add_messages([Message("user", "The kayak is blue."), Message("assistant", "Noted.")])
    assert (counter.reads, counter.writes) == (0, 1)
    assert counter.statements <= 7


def test_an_embedder_elsewhere_is_asked_between_two_snapshots(monkeypatch) -> None:
    inside: list[bool] = []

    def embed(texts: list[str]) -> list[list[float]]:
        inside.append(reading)
        return [[1.0, float(len(text))] for text in texts]

    reading = False
    with Memory.in_memory(embedder=embed, settings=QUIET) as memory:
        memory.chat(user_id="ada", session_id="past").add_messages(turns(20))
        memory.flush()
        read = memory.runtime.db.read

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal reading
            reading = True
            try:
                return read(*args, **kwargs)
            finally:
                reading = False

        inside.clear()
        monkeypatch.setattr(memory.runtime.db, "read", watched)
        memory.chat(user_id="ada", session_id="now").context("What about the kayak?")
    assert inside == [False]


@pytest.mark.parametrize("query", ["Which oven was it on day 20?", "and what happened about the remark?"])
def test_a_context_takes_few_milliseconds_of_processor(memory, query) -> None:
    """The goal is 4 ms; there is room for four times that, and 11 ms were measured."""
    chat = memory.chat(user_id="ada", session_id="s3")
    chat.context(query)
    shares = []
    for _ in range(10):
        start = time.thread_time()
        chat.context(query)
        spent = time.thread_time() - start
        shares.append(spent / at_speed(0.016))  # measured at once: a machine's speed changes
    assert min(shares) <= 1
