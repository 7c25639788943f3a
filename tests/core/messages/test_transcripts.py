"""Conversations as plain lists: whatever is done to them, they say what a list says, and lose nothing silently."""

import asyncio
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, strategies as st
from refusals import refused
from sql import LOUIS, texts
from tuned import Tuned

from examples import examples
from memlayer_core import Chat, MaxRounds, Memory, Message, Scope, errors
from memlayer_core.messages import flow, reads, writes
from memlayer_core.messages.model import Batch
from memlayer_core.testing import NOON
from tests.conftest import PROMPT, taken_out
from tests.drafts import drafts

pytestmark = pytest.mark.each_database


class Lists:
    """A user's conversations as lists under keys, as the chat stores of the adapters keep them."""

    def __init__(self, memory: Memory, **ids: str | None) -> None:
        self.memory, self.ids = memory, ids

    def __getattr__(self, name: str) -> Any:
        verb = getattr(flow, name)
        return lambda key, *args, **options: verb(
            self.memory.runtime, Scope.of_session(key, **self.ids), *args, **options
        )

    def keys(self) -> list[str]:
        owner = Scope.of_session("k", **self.ids)
        return flow.keys_of_lists(self.memory.runtime, owner.tenant_id, self.ids["user_id"], owner.agent_id)


@pytest.fixture
def lists(store: Memory) -> Lists:
    return Lists(store, user_id="ada")


def talk(words: str) -> list[Message]:
    return [Message(("user", "assistant")[at % 2], word) for at, word in enumerate(words.split())]


def said(messages: list[Message]) -> str:
    return " ".join(message.text for message in messages)


def kept_apart(store: Memory, user_id: str = "ada") -> list[str]:
    """Return what each change took out of a user's sessions."""
    every = (store.chat_of(one.scope) for one in store.sessions(user_id=user_id))
    return [" ".join(some) for chat in every for some in taken_out(chat)]


DONE = st.sampled_from(["add", "insert", "archive", "take", "set"])
PARTS = st.sampled_from(["active", "archived", None])
STEPS = st.lists(st.tuples(DONE, st.integers(-8, 8), st.none() | st.integers(0, 3), PARTS), max_size=15)


@examples(100, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_whatever_is_done_to_a_list_it_says_what_a_list_of_python_says(steps, chance) -> None:
    numbers = itertools.count()
    archived, active = list[str](), list[str]()
    with Memory.in_memory(settings=Tuned(index_delay=3600)) as memory:
        lists = Lists(memory, user_id="ada")
        for verb, place, count, part in steps:
            whole, some = [*archived, *active], count or 0
            words = [f"w{next(numbers)}" for _ in range(1 if verb == "insert" else some)]
            if verb == "add":
                lists.add_to_list("k", talk(" ".join(words)), part=part or "active")
                (archived if part == "archived" else active).extend(words)
            elif verb == "insert":
                lists.insert_into_list("k", talk(*words), place)
                whole.insert(place, *words)
                border = len(archived) + (whole.index(*words) < len(archived))
                archived, active = whole[:border], whole[border:]
            elif verb == "archive":
                assert [message.text for message in lists.archive_list("k", some)] == active[:some]
                archived, active = [*archived, *active[:some]], active[some:]
            elif verb == "take":
                there = {None: whole, "active": active, "archived": archived}[part]
                start = place if place >= 0 else place + len(there)
                gone = there[start:][:count] if start >= 0 else []
                assert [one.text for one in lists.take_from_list("k", place, count, part=part)] == gone
                archived, active = ([one for one in old if one not in gone] for old in (archived, active))
            else:
                kept = [*(one for one in whole if chance.random() < 0.7), *words][:: chance.choice([1, -1])]
                lists.replace_list("k", [Message("user", word) for word in kept], part=part or "active")
                archived, active = (kept, []) if part == "archived" else ([], kept)
            for name, there in ((None, [*archived, *active]), ("active", active), ("archived", archived)):
                assert [message.text for message in lists.list_messages("k", part=name)] == there
                assert lists.count_list("k", part=name) == len(there)
            assert lists.keys() == (["k"] if archived or active else [])


# Nothing is lost silently


def test_a_message_of_a_known_id_is_not_put_twice_and_a_set_is_whole_or_not_at_all(store, lists) -> None:
    lists.add_to_list("k", [Message("user", "a", id="m1"), Message("user", "b", id="m2")])
    known = [Message("user", "else", id="m2")]
    refused(errors.InvalidMessageError, "already", lists.insert_into_list, "k", known, 0)
    refused(errors.InvalidMessageError, "already", lists.add_to_list, "k", known, part="archived")
    refused(errors.MessageTypeError, None, lists.replace_list, "k", [Message("user", "fine"), "no message"])
    assert said(lists.list_messages("k")) == "a b"
    assert kept_apart(store) == []
    lists.replace_list("k", [Message("user", "b", id="m2"), Message("user", "a", id="m1")])

    assert said(lists.list_messages("k")) == "b a"


def test_what_is_archived_is_recalled_and_no_longer_in_the_window(store, lists) -> None:
    """A session that ended is archived as a whole."""
    chat = store.chat(user_id="ada", session_id="k")
    for text, answer in (("My parrot is called Coco.", "Nice."), ("I like tea.", "Noted.")):
        lists.add_to_list("k", [Message("user", text), Message("assistant", answer)])
    assert len(lists.archive_list("k", 2)) == lists.count_list("k", part="archived") == 2
    assert said(lists.list_messages("k", limit=1, offset=2)) == "I like tea."
    store.flush()

    context = chat.context("What is my parrot called?")
    assert [message.text for message in context.window] == ["I like tea.", "Noted."]
    assert "My parrot is called Coco." in context.recall
    chat.end()
    every = lists.list_messages("k", part="archived")
    assert len(every) == 4
    lists.replace_list("k", every)
    assert lists.list_messages("k", part="active") == every
    assert not store.sessions(user_id="ada")[0].ended


def test_a_long_archived_part_is_remembered_as_an_episode_once_and_a_short_one_is_not(open_with) -> None:
    def model(_: str, prompt: str) -> str:
        towns = ", ".join(re.findall(r"number \d", prompt))
        return json.dumps({"summary": f"The user visited towns in Latvia: {towns}."})

    store = open_with(Tuned(index_delay=3600, durability="normal"), model=model)
    lists = Lists(store, user_id="ada")
    for key, archived in (("k", 5), ("short", 3)):
        towns = [f"I visited the town number {n} in Latvia" for n in range(6)]
        lists.add_to_list(key, [Message("user", text) for text in towns])
        lists.archive_list(key, archived)
    store.flush()
    (first,) = store.records(user_id="ada", type="episodic")
    store.chat(user_id="ada", session_id="k").end()
    store.flush()

    assert "number 4" in first.text
    assert "number 5" not in first.text
    assert len(store.records(user_id="ada", type="episodic")) == 1


# What is heard again and again


def test_what_is_shown_again_is_stored_once_wherever_it_stands(store) -> None:
    chat = store.chat(user_id="ada", session_id="k")
    with ThreadPoolExecutor(8) as threads:
        shown = list(threads.map(lambda _: chat.resync(talk("a b c d"), replace="nothing"), range(8)))
    assert sum(receipt.stored for receipt in shown) == 4
    assert {receipt.ids for receipt in shown} == {tuple(one.id for one in chat.history())}
    every = talk("a b c d e f")
    for some in (every[:4], every[:2], every[2:4], every[1:4], []):
        assert chat.resync(some, replace="nothing").stored == 0
    assert chat.resync(every[2:], replace="nothing").stored == 2
    words = " ".join(f"w{number}" for number in range(200))
    chat.add_messages(talk(f"between {words}"))

    assert chat.resync(every[:3], replace="nothing").stored == 0, "of long ago"
    for told in ("a b x y", "a b", "x y z", "a b z", "a y z w"):  # what begins like a list of long ago is new
        chat.resync(talk(told), replace="nothing")
    assert said(chat.history()) == f"a b c d e f between {words} a b x y z w"
    assert kept_apart(store) == []
    refused(errors.MessageTypeError, None, chat.resync, ["text"], replace="nothing")


# What is no key and no place


def test_bad_keys_and_places_are_refused_before_anything_is_written(store, lists) -> None:
    a = talk("a")
    for key in ("a\0b", None):
        refused(errors.InvalidScopeError, None, lists.add_to_list, key, a)
    for wrong in (True, "0", -(2**40)):
        for verb in (lists.archive_list, lists.take_from_list):
            refused(errors.InvalidLimitError, None, verb, "k", wrong)
        refused(errors.InvalidLimitError, None, lists.insert_into_list, "k", a, wrong)
        refused(errors.InvalidLimitError, None, lists.list_messages, "k", limit=wrong)
    refused(errors.InvalidScopeError, None, Lists(store, user_id=None, agent_id="").add_to_list, "k", a)
    assert lists.keys() == []


# At once


async def test_archives_deletions_and_inserts_at_once_keep_every_message_once(open_at) -> None:
    memory = await asyncio.to_thread(open_at)
    lists = Lists(memory, user_id="ada")
    added, inserted = [f"w{n}" for n in range(12)], [f"i{n}" for n in range(3)]
    await asyncio.gather(*(asyncio.to_thread(lists.add_to_list, "k", talk(word)) for word in added))

    done = await asyncio.gather(
        *(asyncio.to_thread(lists.archive_list, "k", 2) for _ in range(3)),
        *(asyncio.to_thread(lists.take_from_list, "k", 0, 1, part="active") for _ in range(3)),
        *(asyncio.to_thread(lists.insert_into_list, "k", talk(word), 0) for word in inserted),
    )

    moved = [message.text for part in done[:6] for message in part]
    assert len(moved) == len({*moved}) == 9
    left = said(await asyncio.to_thread(lists.list_messages, "k")).split()
    taken = [message.text for part in done[3:6] for message in part]
    assert sorted([*left, *taken]) == sorted([*added, *inserted])


# Positions have room between them: what comes in between moves nothing, until no room is left

WHO = ("user", "assistant")
BETWEEN = 50  # a gap has room for twenty, when each new message halves it


def words(lists: Lists, part: str | None = None) -> list[str]:
    return [message.text for message in lists.list_messages("k", part=part)]


def insert(lists: Lists, place: int) -> None:
    """Put more messages in front of one place than a gap has room for."""
    for number in range(BETWEEN):
        lists.insert_into_list("k", [Message("user", f"between {number}")], place)


def chat_of(lists: Lists) -> Chat:
    return lists.memory.chat(session_id="k", **lists.ids)


@pytest.mark.requirement("L02")
def test_a_gap_is_filled_more_often_than_it_has_room_and_all_else_stays_what_it_was(store, lists) -> None:
    lists.replace_list("k", [Message(WHO[at % 2], f"old {at}", id=f"o{at}") for at in range(9)])
    chat = chat_of(lists)
    chat.edit("o1", "edited")
    chat.withdraw(["o4"])
    lists.archive_list("k", 3)
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
    lists.insert_into_list("k", [Message("user", "late")], 1)
    assert chat.context().window == ()
    assert store.admin.verify() == []


def test_at_one_place_at_the_same_time_everybody_comes_in_once(store, lists) -> None:
    lists.replace_list("k", [Message("user", "first"), Message("user", "last")])

    def insert_pairs(writer: int) -> None:
        for number in range(12):
            pair = [Message("user", f"{writer} {number}"), Message("user", f"{writer} {number}!")]
            lists.insert_into_list("k", pair, 1)

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
    lists = Lists(memory, user_id="ada")
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
    lists = Lists(memory, user_id="ada")
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
    lists = Lists(memory, user_id="ada")
    lists.replace_list("k", [Message(WHO[at % 2], f"turn {at}", id=f"m{at}") for at in range(8)])
    chat, ran = chat_of(lists), set[str]()

    def watch(connection: Any, on: bool) -> None:
        driver = connection.connection.driver_connection
        driver.set_trace_callback(ran.add if on else None)

    memory.runtime.db.write(watch, True)
    lists.insert_into_list("k", [Message("user", "between")], 3)
    lists.archive_list("k", 2)
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

    def move(position: int) -> None:
        db.write(lambda on: reads.move_window_start(on, reads.lock_session(on, chat.scope), 30, position))

    for change, left in (
        (lambda: lists.archive_list("k", 1), ["b", "c", "d"]),
        (lambda: lists.replace_list("k", [Message("user", "a")]), ["a"]),
        (lambda: chat.withdraw([chat.history()[3].id]), ["a", "b", "c"]),
    ):
        lists.replace_list("k", [Message("user", word) for word in "abcd"])
        session = db.read(reads.find, chat.scope)
        *_, before, last = [one.position for one in db.read(reads.history, session, 0, None)]
        for position in (last, before, last):
            move(position)
        assert db.read(reads.find, chat.scope).windows == {30: last}
        change()
        move(last + 1)
        assert db.read(reads.find, chat.scope).windows == {}, "no message has that position"
        assert [one.text for one in chat.context().window] == left


@pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_snapshot_does_not_move(db):
    """Work that reads twice sees the same, whatever is committed meanwhile; in memory nothing is."""

    def append(word):
        db.write(writes.append, Batch(LOUIS, drafts(word), NOON))

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
