"""Conversations as plain lists: whatever is done to them, they say what a list says, and lose nothing silently."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, Message
from memlayer_core.errors import (
    InvalidLimitError,
    InvalidMessageError,
    InvalidScopeError,
    MessageTypeError,
)
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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "insert", "archive", "take", "set"]),
        st.integers(-8, 8),
        st.none() | st.integers(0, 3),
        st.sampled_from(["active", "archived", None]),
    ),
    max_size=15,
)


@examples(100, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_whatever_is_done_to_a_list_it_says_what_a_list_of_python_says(steps, chance) -> None:
    numbers = itertools.count()
    archived, active = list[str](), list[str]()
    with Memory.in_memory(settings=Tuned(index_delay=3600)) as memory:
        lists = Transcripts(memory, user_id="ada")
        for verb, place, count, part in steps:
            whole, some = [*archived, *active], count or 0
            words = [f"w{next(numbers)}" for _ in range(1 if verb == "insert" else some)]
            if verb == "add":
                lists.add("k", talk(" ".join(words)), part=part or "active")
                (archived if part == "archived" else active).extend(words)
            elif verb == "insert":
                lists.insert("k", place, talk(*words))
                whole.insert(place, *words)
                border = len(archived) + (whole.index(*words) < len(archived))
                archived, active = whole[:border], whole[border:]
            elif verb == "archive":
                assert [message.text for message in lists.archive("k", some)] == active[:some]
                archived, active = [*archived, *active[:some]], active[some:]
            elif verb == "take":
                there = {None: whole, "active": active, "archived": archived}[part]
                start = place if place >= 0 else place + len(there)
                gone = there[start:][:count] if start >= 0 else []
                assert [one.text for one in lists.take("k", place, count, part=part)] == gone
                archived, active = ([one for one in old if one not in gone] for old in (archived, active))
            else:
                kept = [*(one for one in whole if chance.random() < 0.7), *words][:: chance.choice([1, -1])]
                lists.set("k", [Message("user", word) for word in kept], part=part or "active")
                archived, active = (kept, []) if part == "archived" else ([], kept)
            for name, there in ((None, [*archived, *active]), ("active", active), ("archived", archived)):
                assert [message.text for message in lists.messages("k", part=name)] == there
                assert lists.count("k", part=name) == len(there)
            assert lists.keys() == (["k"] if archived or active else [])


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
    assert len(lists.archive("k", 2)) == lists.count("k", part="archived") == 2
    assert said(lists.messages("k", limit=1, offset=2)) == "I like tea."
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
    for key in ("a\0b", None):
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
    with pytest.raises(InvalidScopeError):
        Transcripts(store, agent_id="")
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
