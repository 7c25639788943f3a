"""Messages have positions with room between them: what comes in between moves nothing, until no room is left."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sql import LOUIS, SHARDS, texts

from memlayer_core import Chat, MaxRounds, Memory, Message
from memlayer_core.messages import reads, writes
from memlayer_core.messages.model import WindowStart
from memlayer_core.session_files import Transcripts
from memlayer_core.testing import NOON
from tests.conftest import PROMPT, taken_out
from tests.drafts import drafts

pytestmark = pytest.mark.each_database

WHO = ("user", "assistant")
BETWEEN = 50  # a gap has room for twenty, when each new message halves it


@pytest.fixture
def lists(store: Memory) -> Transcripts:
    return Transcripts(store, user_id="ada")


def words(lists: Transcripts, part: str | None = None) -> list[str]:
    return [message.text for message in lists.messages("k", part=part)]


def insert(lists: Transcripts, place: int) -> None:
    """Put more messages in front of one place than a gap has room for."""
    for number in range(BETWEEN):
        lists.insert("k", place, [Message("user", f"between {number}")])


def chat_of(lists: Transcripts) -> Chat:
    return lists.memory.chat_of(lists.scope_of("k"))


@pytest.mark.requirement("L02")
def test_a_gap_is_filled_more_often_than_it_has_room_and_all_else_stays_what_it_was(store, lists) -> None:
    lists.set("k", [Message(WHO[at % 2], f"old {at}", id=f"o{at}") for at in range(9)])
    chat = chat_of(lists)
    chat.edit("o1", "edited")
    chat.withdraw(["o4"])
    lists.archive("k", 3)
    before = [one.text for one in chat.history(all_versions=True)]
    shown = [one.text for one in chat.context(policy=MaxRounds(1)).window]
    insert(lists, 2)

    new = [f"between {number}" for number in range(BETWEEN)][::-1]
    assert words(lists, "archived") == ["old 0", "edited", *new, "old 2"]
    assert words(lists, "active") == [f"old {at}" for at in (3, 5, 6, 7, 8)]
    every = [one.text for one in chat.history(all_versions=True)]
    assert [text for text in every if text not in new] == before
    assert sorted(taken_out(chat)) == [["old 1"], ["old 4"]]
    assert [one.text for one in chat.context(policy=MaxRounds(1)).window] == shown
    found = {hit.text for hit in store.search("between 7 edited", user_id="ada", limit=200)}
    assert {"between 7", "edited"} <= found
    assert "old 1" not in found
    chat.end()
    lists.insert("k", 1, [Message("user", "late")])
    assert chat.context().window == ()
    assert store.admin.verify() == []


def test_at_one_place_at_the_same_time_everybody_comes_in_once(store, lists) -> None:
    lists.set("k", [Message("user", "first"), Message("user", "last")])

    def insert_pairs(writer: int) -> None:
        for number in range(12):
            pair = [Message("user", f"{writer} {number}"), Message("user", f"{writer} {number}!")]
            lists.insert("k", 1, pair)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(insert_pairs, range(6)))

    first, *between, last = words(lists)
    assert (first, last) == ("first", "last")
    pairs = zip(between[::2], between[1::2], strict=True)
    expected = [f"{writer} {number}" for writer in range(6) for number in range(12)]
    assert sorted(pairs) == sorted((one, f"{one}!") for one in expected)
    assert store.admin.verify() == []


def test_a_summary_covers_the_same_turns_when_they_get_other_positions(open_with) -> None:
    def model(instructions: str, text: str) -> str:
        return "The user spoke of the boats and of the weather in the harbour, day after day. " * 3

    memory = open_with(PROMPT.replace(max_tokens=400, episodes=False), model=model)
    lists = Transcripts(memory, user_id="ada")
    chat = chat_of(lists)
    chat.add_messages([Message("system", f"Rule {at}", id=f"s{at}") for at in range(3)])
    for at in range(40):
        chat.add(WHO[at % 2], f"The boats of day {at} and the weather in the harbour.", id=f"m{at}")
        chat.context()
    memory.flush()
    (before,) = chat.summary()
    for at in range(3):
        chat.delete_message(f"s{at}")  # instructions are in no summary
    insert(lists, 39)

    (after,) = chat.summary()
    assert (after.text, after.rounds) == (before.text, before.rounds)
    told = 2 * before.rounds
    chat.edit(f"m{told}", "It is not summed up.")
    assert chat.summary() == [after]
    chat.edit(f"m{told - 1}", "It is.")
    assert chat.summary() != [after]


def test_an_episode_is_of_the_same_turns_when_they_get_other_positions(open_with) -> None:
    asked: list[str] = []

    def model(instructions: str, text: str) -> str:
        asked.append(text)
        return json.dumps({"summary": "The user spoke of boats and harbours, and of the weather there."})

    memory = open_with(PROMPT, model=model)
    lists = Transcripts(memory, user_id="ada")
    chat = chat_of(lists)
    for part in ("first", "second"):
        for at in range(6):
            chat.add(WHO[at % 2], f"{part} boat {at}", id=f"{part}{at}")
        chat.end()
    memory.flush()
    insert(lists, 3)
    memory.flush()
    asked.clear()
    chat.edit("second3", "another boat")
    memory.flush()
    about = "\n".join(asked)
    assert [at for at in range(6) if f"second boat {at}" in about] == [0, 1, 2, 4, 5]
    assert "another boat" in about
    assert "between" not in about


def test_no_change_of_a_session_reads_the_messages_of_others(open_at) -> None:
    """Each statement on messages is asked how the database finds its rows: in no case by reading all."""
    memory = open_at()
    lists = Transcripts(memory, user_id="ada")
    lists.set("k", [Message(WHO[at % 2], f"turn {at}", id=f"m{at}") for at in range(8)])
    chat, ran = chat_of(lists), set[str]()

    def watch(connection: Any, on: bool) -> None:
        driver = connection.connection.driver_connection
        driver.set_trace_callback(ran.add if on else None)

    memory.runtime.db.write(watch, True)
    lists.insert("k", 3, [Message("user", "between")])
    lists.archive("k", 2)
    chat.edit("m5", "edited")
    chat.withdraw(["m6"])
    chat.delete_message("m7")
    chat.resync([*chat.history()[:3], Message("user", "another")])
    chat.fork(session_id="f").clear()
    chat.end()
    memory.forget("ada", session_id="f")
    memory.forget("ada")
    memory.runtime.db.write(watch, False)

    def plans(connection: Any) -> list[str]:
        asked = [text for text in ran if "memlayer_messages" in text and text.split()[0] in VERBS]
        rows = (connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}") for text in asked)
        return [row[-1] for some in rows for row in some]

    told = memory.runtime.db.read(plans)
    assert len(told) > 30
    assert not [line for line in told if line.startswith("SCAN memlayer_messages")]


VERBS = {"SELECT", "UPDATE", "DELETE", "INSERT"}


# Where windows begin, and what a reader sees meanwhile


def test_a_mark_moves_forward_only_and_goes_with_its_message_and_where_working_memory_begins(store, lists):
    db, chat = store.runtime.db, chat_of(lists)

    def windows() -> dict[int, WindowStart]:
        return db.read(reads.find, chat.scope).windows

    def moved(connection: Any, place: int, version: int) -> None:
        row = reads.lock_session(connection, chat.scope)
        stored = reads.history(connection, reads.session_from(row), 0, None)
        reads.move_window_start(connection, row, 30, WindowStart(stored[place].position, version))

    for change, left in (
        (lambda: lists.archive("k", 1), ["b", "c", "d"]),
        (lambda: lists.set("k", [Message("user", "a")]), ["a"]),
        (lambda: chat.withdraw([chat.history()[3].id]), ["a", "b", "c"]),
    ):
        lists.set("k", [Message("user", word) for word in "abcd"])
        for place, version in ((3, 1), (2, 5), (3, 3), (3, 2)):
            db.write(moved, place, version)
        (start,) = windows().values()
        assert start.version == 3
        change()
        assert windows() == {}
        assert [one.text for one in chat.context().window] == left
    late = partial(reads.move_window_start, size=30, start=start)
    db.write(lambda connection: late(connection, reads.lock_session(connection, chat.scope)))
    assert windows() == {}


@pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_snapshot_does_not_move(db):
    """Work that reads twice sees the same, whatever is committed meanwhile; in memory nothing is."""

    def append(word):
        db.write(writes.append, LOUIS, drafts(word), NOON, SHARDS)

    append("a")

    def read_twice(connection):
        before = reads.find(connection, LOUIS)
        with ThreadPoolExecutor(1) as other:
            other.submit(append, "b").result(30)
        after = reads.find(connection, LOUIS)
        return before, after, reads.history(connection, before, 0, None)

    before, after, history = db.read(read_twice)
    assert before == after
    assert [stored.message.text for stored in history] == ["a"]
    assert texts(db, LOUIS) == ["a", "b"]
