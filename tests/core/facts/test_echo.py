"""What memory told is not learned again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Chat, Memory
from memlayer_core.errors import InvalidRecordError

NOW = Tuned(index_delay=0, durability="normal")


@pytest.fixture
def memory(open_at: Callable[..., Memory]) -> Memory:
    memory = open_at(settings=NOW, extractor=reads())
    past = memory.chat(user_id="louis", session_id="past")
    past.add("user", "My cousin sells red bicycles. I live in Graz.")
    past.remember("The red bicycles are cheap in May")
    memory.flush()
    return memory


@pytest.fixture
def chat(memory: Memory) -> Chat:
    return memory.chat(user_id="louis", session_id="now")


def known(memory: Memory) -> dict[str, int]:
    return {one.text: one.mentions for one in memory.records(user_id="louis")}


def test_a_block_that_memory_told_is_no_record(memory: Memory, chat: Chat) -> None:
    context, before = chat.context("Are red bicycles cheap?"), known(memory)
    assert context.profile is not None
    for block in (context.recall, context.profile.text):
        with pytest.raises(InvalidRecordError, match="memory itself told"):
            chat.remember(block)
    assert known(memory) == before


def test_what_a_caller_adds_to_a_block_is_remembered_alone(chat: Chat) -> None:
    recall = chat.context("Are red bicycles cheap?").recall
    assert chat.remember(f"{recall}\nThe user wants a green one.").text == "The user wants a green one."


def test_a_look_alike_and_a_block_that_another_user_was_told_are_just_text(memory, chat) -> None:
    recall = chat.context("Who sells red bicycles?").recall
    eve = memory.chat(user_id="eve", session_id="s")
    for who, text in ((chat, "- [2020-01-01 user] I never sold bicycles."), (eve, recall)):
        assert who.remember(text).text == text


def test_nothing_is_learned_from_what_memory_told_in_a_message_or_an_answer(memory, chat) -> None:
    context, before = chat.context("Who sells red bicycles?"), known(memory)
    assert context.profile is not None
    chat.add("user", f"Look what I found:\n{context.recall}\nand\n{context.profile.text}")
    chat.add("user", "Where do I live?")
    chat.add("assistant", "I live in Graz. You do, too.")
    memory.flush()
    assert known(memory) == before
