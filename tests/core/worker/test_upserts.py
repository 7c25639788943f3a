"""Chroma gets the texts of small users later and together: nobody asks it for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from memlayer_core import Memory, Message, Settings
from memlayer_core.events import IndexRebuilt, MessagesIndexed
from memlayer_core.storage import job_queue
from memlayer_core.storage.keys import shard_of
from memlayer_core.worker import worker

SETTINGS = Settings(index_delay=0, durability="normal", learn=False)
TURNS = [Message("user", f"The boat number {number} is in harbor {number * 7}.") for number in range(6)]

Open = Callable[..., Memory]


@pytest.fixture
def open_here(tmp_path: Path) -> Open:
    return lambda settings=SETTINGS: Memory.open(
        tmp_path / "store", embedder="hashing", summarizer="off", settings=settings
    )


def say(memory: Memory, *messages: Message, user: str = "ada") -> None:
    """Store messages, and wait until they are embedded."""
    events: list[MessagesIndexed] = []
    memory.listen(lambda event: events.append(event) if isinstance(event, MessagesIndexed) else None)
    for message in messages:
        memory.chat(user_id=user, session_id="s").add_messages([message])
    wait_for(lambda: sum(event.messages for event in events) == len(messages))


def copies(memory: Memory, user: str = "ada") -> int:
    """Return how many of a user's texts Chroma has."""
    index, namespace = memory.runtime.index, memory.chat(user_id=user, session_id="s").scope.namespace
    assert index is not None
    return len(index.keys(shard_of(namespace, memory.runtime.shards)))


def waiting(memory: Memory) -> dict[str, int]:
    return memory.runtime.db.read(job_queue.count_kinds)


def test_the_texts_of_a_small_user_go_to_chroma_in_one_call_later(open_here: Open, monkeypatch) -> None:
    calls: list[int] = []
    with open_here() as memory:
        index: Any = memory.runtime.index
        upsert = index.upsert
        monkeypatch.setattr(index, "upsert", lambda entries: [calls.append(len(entries)), upsert(entries)])
        for message in TURNS:
            say(memory, message)
        assert (calls, waiting(memory)) == ([], {"upsert": len(TURNS)})
        first, *_ = memory.search("Where is boat number 3?", user_id="ada")
        assert first.text == TURNS[3].text
        memory.flush()
        assert (calls, copies(memory), waiting(memory)) == ([len(TURNS)], len(TURNS), {})


def test_they_go_there_without_a_flush(open_here: Open, monkeypatch) -> None:
    monkeypatch.setattr(worker, "_GATHERING", 0.05)
    with open_here() as memory:
        say(memory, *TURNS)
        wait_for(lambda: copies(memory) == len(TURNS) and not waiting(memory))


def test_the_texts_of_a_user_whom_recall_asks_chroma_for_go_there_at_once(open_here: Open) -> None:
    with open_here(SETTINGS.replace(exact_scan_limit=4)) as memory:
        say(memory, *TURNS[:5])
        say(memory, TURNS[5])
        say(memory, *TURNS[:1], user="bob")
        wait_for(lambda: waiting(memory).keys() == {"upsert"})
        assert copies(memory) >= 3  # all but the first two, at least
        assert (copies(memory, "bob"), waiting(memory)["upsert"]) == (0, 1 + len(TURNS) - copies(memory))


def test_what_is_deleted_or_forgotten_before_never_goes_there(open_here: Open) -> None:
    with open_here() as memory:
        say(memory, *TURNS)
        say(memory, *TURNS[:2], user="bob")
        chat = memory.chat(user_id="ada", session_id="s")
        chat.delete_message(0)
        chat.edit(1, content="The boat is sold.")
        memory.forget(user_id="bob")
        memory.flush()
        assert (copies(memory), copies(memory, "bob")) == (len(TURNS) - 1, 0)
        assert memory.verify() == []


def test_the_next_process_does_what_waits(open_here: Open) -> None:
    with open_here() as memory:
        say(memory, *TURNS)
    with open_here() as memory:
        events: list[Any] = []
        memory.listen(events.append)
        memory.verify()
        assert [event for event in events if isinstance(event, IndexRebuilt)] == []  # what waits is no damage
        memory.flush()
        assert (copies(memory), waiting(memory)) == (len(TURNS), {})
