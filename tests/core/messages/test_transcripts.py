"""Conversations as plain lists: whatever is done to them, they say what a list says, and lose nothing silently."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, Message
from memlayer_core.errors import (
    InvalidLimitError,
    InvalidMessageError,
    InvalidScopeError,
    MessageTypeError,
)
from memlayer_core.messages import reads as messages_reads
from memlayer_core.messages.align import find_in_order
from memlayer_core.messages.model import STEP, WindowStart
from memlayer_core.session_files import Transcripts
from tests.conftest import taken_out

pytestmark = pytest.mark.each_database


@pytest.fixture
def lists(store: Memory) -> Transcripts:
    return Transcripts(store, user_id="ada")


def talk(words: str) -> list[Message]:
    return [Message(("user", "assistant")[at % 2], word) for at, word in enumerate(words.split())]


def said(messages: list[Message]) -> str:
    return " ".join(message.text for message in messages)


def kept_apart(store: Memory, user_id: str = "ada") -> list[str]:
    """Return what each change took out of a user's sessions."""
    every = (store.chat_of(one.scope) for one in store.sessions(user_id=user_id))
    return [" ".join(some) for chat in every for some in taken_out(chat)]


# What a list becomes


@examples(60)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=8))
def test_the_beginning_of_a_list_that_is_found_in_order_is_known_from_then_on(past, told) -> None:
    places = find_in_order(past, told)
    assert [past[at] for at in places] == told[: len(places)]
    assert len(places) == len(told) or told[len(places)] not in past[places[-1] + 1 if places else 0 :]
    after = [*past, *told[len(places) :]]
    assert all(len(find_in_order(after, told[first:])) == len(told) - first for first in range(len(told) + 1))
    assert len(find_in_order([*after, 5], [*told, 5, 6])) == len(told) + 1


class Lists(RuleBasedStateMachine):
    """The same operations on Python's own lists and on a memory."""

    @initialize()
    def open(self) -> None:
        self.memory = Memory.in_memory(settings=Tuned(index_delay=3600))
        self.lists = Transcripts(self.memory, user_id="ada")
        self.archived: list[str] = []
        self.active: list[str] = []
        self.ever: set[str] = set()
        self.deleted: set[str] = set()
        self.number = 0

    def fresh(self, count: int) -> list[str]:
        self.number += count
        made = [f"w{number}" for number in range(self.number - count, self.number)]
        self.ever |= {*made}
        return made

    @rule(count=st.integers(0, 3), part=st.sampled_from(["active", "archived"]))
    def add(self, count: int, part: Any) -> None:
        words = self.fresh(count)
        self.lists.add("k", talk(" ".join(words)), part=part)
        getattr(self, part).extend(words)

    @rule(place=st.integers(-8, 8))
    def insert(self, place: int) -> None:
        (word,) = self.fresh(1)
        self.lists.insert("k", place, talk(word))
        whole = [*self.archived, *self.active]
        whole.insert(place, word)
        at = whole.index(word)
        if at < len(self.archived):
            self.archived = whole[: len(self.archived) + 1]
        else:
            self.active = whole[len(self.archived) :]

    @rule(count=st.integers(0, 5))
    def archive(self, count: int) -> None:
        done = self.lists.archive("k", count)
        assert [message.text for message in done] == self.active[:count]
        self.archived += self.active[:count]
        self.active = self.active[count:]

    @rule(
        first=st.integers(-8, 8),
        count=st.none() | st.integers(0, 3),
        part=st.sampled_from([None, "active", "archived"]),
    )
    def take(self, first: int, count: int | None, part: Any) -> None:
        gone = [message.text for message in self.lists.take("k", first, count, part=part)]
        whole = {None: [*self.archived, *self.active], "active": self.active, "archived": self.archived}[part]
        start = first if first >= 0 else first + len(whole)
        expected = whole[start:][:count] if start >= 0 else []
        assert gone == expected
        self.deleted |= {*gone}
        self.archived = [word for word in self.archived if word not in gone]
        self.active = [word for word in self.active if word not in gone]

    @rule(
        keep=st.lists(st.booleans(), min_size=12, max_size=12),
        more=st.integers(0, 2),
        part=st.sampled_from(["active", "archived"]),
        backwards=st.booleans(),
    )
    def set(self, keep: list[bool], more: int, part: Any, backwards: bool) -> None:
        whole = [*self.archived, *self.active]
        words = [word for word, kept in zip(whole, keep, strict=False) if kept]
        words = [*(reversed(words) if backwards else words), *self.fresh(more)]
        self.lists.set("k", [Message("user", word) for word in words], part=part)
        self.archived, self.active = (words, []) if part == "archived" else ([], words)

    @invariant()
    def the_list_says_what_it_should(self) -> None:
        if not hasattr(self, "lists"):
            return
        texts = [message.text for message in self.lists.messages("k")]
        assert texts == [*self.archived, *self.active]
        for part, words in (("active", self.active), ("archived", self.archived)):
            assert [message.text for message in self.lists.messages("k", part=part)] == words
            assert self.lists.count("k", part=part) == len(words)
        assert self.lists.count("k") == len(texts)
        assert self.lists.keys() == (["k"] if texts else [])
        sessions = self.memory.sessions(user_id="ada", limit=1000)
        (tokens,) = [one.tokens for one in sessions if one.scope.session_id == "k"] or [0]
        assert (tokens > 0) == bool(texts)
        every = (self.memory.chat_of(one.scope).history(all_versions=True) for one in sessions)
        kept = {message.text for some in every for message in some}
        assert kept >= self.ever - self.deleted

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()


TestLists = Lists.TestCase
TestLists.settings = settings(
    max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_each_verb_does_it_on_both_databases_and_in_both_colours(lists, store) -> None:
    lists.add("k", talk("a b c d"))
    lists.insert("k", 1, talk("x"))
    lists.add("k", talk("old"), part="archived")
    assert said(lists.messages("k")) == "old a x b c d"
    assert said(lists.archive("k", 2)) == "a x"
    assert said(lists.messages("k", part="archived")) == "old a x"
    assert said(lists.messages("k", part="active", limit=2, offset=1)) == "c d"
    assert (lists.count("k", part="archived"), lists.count("k")) == (3, 6)
    assert said(lists.take("k", -1, 1)) == "d"
    assert said(lists.take("k", 0, 1, part="active")) == "b"
    lists.set("k", talk("a c e"))
    assert said(lists.messages("k", part="active")) == "a c e"
    assert lists.keys() == ["k"]
    assert said(lists.take("k")) == "a c e"
    assert lists.messages("k") == lists.keys() == []


# Nothing is lost silently


def test_a_message_of_a_known_id_is_not_put_a_second_time_and_a_set_is_whole_or_not_at_all(
    store, lists
) -> None:
    lists.add("k", [Message("user", "a", id="m1"), Message("user", "b", id="m2")])
    known = [Message("user", "else", id="m2")]
    for put in (lambda: lists.insert("k", 0, known), lambda: lists.add("k", known, part="archived")):
        with pytest.raises(InvalidMessageError, match="already"):
            put()
    with pytest.raises(MessageTypeError):
        lists.set("k", [Message("user", "fine"), "no message"])
    assert said(lists.messages("k")) == "a b"
    assert kept_apart(store) == []
    lists.set("k", [Message("user", "b", id="m2"), Message("user", "a", id="m1")])

    assert said(lists.messages("k")) == "b a"


def test_what_is_archived_is_recalled_and_no_longer_in_the_window(store, lists) -> None:
    """A session that ended is archived as a whole."""
    chat = store.chat(user_id="ada", session_id="k")
    for text, answer in (("My parrot is called Coco.", "Nice."), ("I like tea.", "Noted.")):
        lists.add("k", [Message("user", text), Message("assistant", answer)])
    lists.archive("k", 2)
    store.flush()

    context = chat.context("What is my parrot called?")
    assert [message.text for message in context.window] == ["I like tea.", "Noted."]
    assert "My parrot is called Coco." in context.recall
    chat.end()
    every = lists.messages("k", part="archived")
    assert len(every) == 4
    lists.set("k", every)
    assert lists.messages("k", part="active") == every
    assert not store.sessions(user_id="ada")[0].ended


def test_a_long_archived_part_is_remembered_as_an_episode_once_and_a_short_one_is_not(open_with) -> None:
    def model(_: str, prompt: str) -> str:
        towns = ", ".join(re.findall(r"number \d", prompt))
        return json.dumps({"summary": f"The user visited towns in Latvia: {towns}."})

    store = open_with(Tuned(index_delay=3600, durability="normal"), model=model)
    lists = Transcripts(store, user_id="ada")
    for key, archived in (("k", 5), ("short", 3)):
        lists.add(key, [Message("user", f"I visited the town number {n} in Latvia") for n in range(6)])
        lists.archive(key, archived)
    store.flush()
    (first,) = store.records(user_id="ada", type="episodic")
    store.chat(user_id="ada", session_id="k").end()
    store.flush()

    assert "number 4" in first.text
    assert "number 5" not in first.text
    assert len(store.records(user_id="ada", type="episodic")) == 1


def test_a_window_begins_anew_when_working_memory_does(store, lists) -> None:
    db, scope = store.runtime.db, lists.scope_of("k")

    def begin_late(connection: Any) -> None:
        row = messages_reads.lock_session(connection, scope)
        messages_reads.move_window_start(connection, row, 30, WindowStart(row.next_position - STEP))

    lists.add("k", talk("a b c d"))
    for change, left in (
        (lambda: lists.archive("k", 1), "b c d"),
        (lambda: lists.set("k", talk("a b")), "a b"),
    ):
        db.write(begin_late)
        assert db.read(messages_reads.find, scope).windows
        change()
        assert not db.read(messages_reads.find, scope).windows
        assert said(list(store.chat_of(scope).context().window)) == left


# What is heard again and again


def test_what_is_shown_again_is_stored_once_wherever_it_stands(store) -> None:
    chat = store.chat(user_id="ada", session_id="k")
    with ThreadPoolExecutor(8) as threads:
        shown = list(threads.map(lambda _: chat.resync(talk("a b c d"), replace="nothing"), range(8)))
    assert sum(receipt.stored for receipt in shown) == 4
    every = talk("a b c d e f")
    for some in (every[:4], every[:2], every[2:4], every[1:4], []):
        assert chat.resync(some, replace="nothing").stored == 0
    assert chat.resync(every[2:], replace="nothing").stored == 2
    words = " ".join(f"w{number}" for number in range(200))
    chat.add_messages(talk(f"between {words}"))

    assert chat.resync(every[:3], replace="nothing").stored == 0, "of long ago"
    for told in ("a b x y", "a b", "a b z", "a b z w"):  # what begins like a list of long ago comes behind it
        chat.resync(talk(told), replace="nothing")
    assert said(chat.history()) == f"a b c d e f between {words} x y z w"
    assert kept_apart(store) == []
    with pytest.raises(MessageTypeError):
        chat.resync(["text"], replace="nothing")


# Whose it is


@pytest.mark.parametrize("user_id", ["ada", None])
def test_keys_are_those_of_one_tenant_user_and_agent(store, user_id) -> None:
    mine = Transcripts(store, user_id=user_id)
    others = [
        Transcripts(store, user_id="bob"),
        Transcripts(store, user_id=user_id, tenant_id="other"),
        Transcripts(store, user_id=user_id, agent_id="clerk"),
        Transcripts(store, user_id=None if user_id else "ada"),
    ]
    for number, lists in enumerate([mine, *others]):
        lists.add("k", talk(f"word{number}"))
        lists.add(f"k{number}", talk("more"))
    mine.set("k0", talk("else"))

    assert mine.keys() == ["k", "k0"]
    for number, lists in enumerate([mine, *others]):
        assert said(lists.messages("k")) == f"word{number}"
        assert lists.keys() == ["k", f"k{number}"]
    mine.take("k")
    assert [said(lists.messages("k")) for lists in others] == ["word1", "word2", "word3", "word4"]


def test_bad_keys_and_places_are_refused_before_anything_is_written(store, lists) -> None:
    for key in ("", "a\0b", "\ud800", 5, None):
        with pytest.raises(InvalidScopeError):
            lists.add(key, talk("a"))
    for place in (True, "0", 1.0, 2**40, -(2**40)):
        for refused in (lambda at: lists.insert("k", at, talk("a")), lambda at: lists.take("k", at)):
            with pytest.raises(InvalidLimitError):
                refused(place)
    for count in (-1, True, "1"):
        for refused in (lambda most: lists.archive("k", most), lambda most: lists.messages("k", limit=most)):
            with pytest.raises(InvalidLimitError):
                refused(count)
    for name in ("user_id", "tenant_id", "agent_id"):
        with pytest.raises(InvalidScopeError):
            Transcripts(store, **{name: ""})

    assert lists.keys() == []


# At once


async def test_archives_deletions_and_inserts_at_once_keep_every_message_once(open_at) -> None:
    memory = await asyncio.to_thread(open_at)
    lists = Transcripts(memory, user_id="ada")
    added, inserted = [f"w{n}" for n in range(12)], [f"i{n}" for n in range(3)]
    await asyncio.gather(*(lists.aadd("k", talk(word)) for word in added))

    done = await asyncio.gather(
        *(lists.aarchive("k", 2) for _ in range(3)),
        *(lists.atake("k", 0, 1, part="active") for _ in range(3)),
        *(lists.ainsert("k", 0, talk(word)) for word in inserted),
    )

    moved = [message.text for part in done[:6] for message in part]
    assert len(moved) == len({*moved}) == 9
    left = said(await lists.amessages("k")).split()
    taken = [message.text for part in done[3:6] for message in part]
    assert sorted([*left, *taken]) == sorted([*added, *inserted])
