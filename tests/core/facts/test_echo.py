"""What memory told is not learned again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import InvalidRecordError

NOW = Tuned(index_delay=0, durability="normal")


@pytest.fixture
def memory(open_at: Callable[..., Memory]) -> Memory:
    memory = open_at(settings=NOW, extractor=reads())
    memory.chat(user_id="louis", session_id="past").add(
        "user", "My cousin sells red bicycles. I live in Graz."
    )
    memory.chat(user_id="louis", session_id="past").remember("The red bicycles are cheap in May")
    memory.flush()
    return memory


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


def known(memory: Memory) -> dict[str, int]:
    return {one.text: one.mentions for one in memory.records(user_id="louis")}


@pytest.mark.parametrize("part", ["recall", "profile"])
def test_a_block_that_memory_told_is_no_record(memory: Memory, part: str) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    context = chat.context("Are red bicycles cheap?")
    assert context.profile is not None
    before = known(memory)
    with pytest.raises(InvalidRecordError, match="memory itself told"):
        chat.remember(context.recall if part == "recall" else context.profile.text)
    assert known(memory) == before


def test_what_a_caller_adds_to_a_block_is_remembered_alone(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    recall = chat.context("Are red bicycles cheap?").recall
    assert chat.remember(f"{recall}\nThe user wants a green one.").text == "The user wants a green one."


def test_a_look_alike_is_the_users_own(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    line = "- [2020-01-01 user] I never sold bicycles."
    assert chat.remember(line).text == line


def test_a_block_that_another_user_was_told_is_just_text(memory: Memory) -> None:
    recall = memory.chat(user_id="louis", session_id="now").context("Who sells red bicycles?").recall
    record = memory.chat(user_id="eve", session_id="s").remember(recall)
    assert (record.user_id, record.text) == ("eve", recall)


def test_nothing_is_learned_from_a_told_line_in_a_message(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    context = chat.context("Who sells red bicycles?")
    before = known(memory)
    assert context.profile is not None
    chat.add("user", f"Look what I found:\n{context.recall}\nand\n{context.profile.text}")
    memory.flush()
    assert known(memory) == before


def test_nothing_is_learned_from_an_answer_that_repeats_a_fact(memory: Memory) -> None:
    before = known(memory)
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add_messages(
        [Message("user", "Where do I live?"), Message("assistant", "I live in Graz. You do, too.")]
    )
    memory.flush()
    assert known(memory) == before
