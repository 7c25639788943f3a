"""What memory told is not learned again, and to remember it confirms what it quotes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory, Message

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


def by_text(memory: Memory, user_id: str = "louis") -> dict[str, Any]:
    return {one.text: one for one in memory.records(user_id=user_id)}


def test_a_line_of_a_recall_stands_for_the_message_that_it_quotes(memory: Memory, do: Any) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    (line,) = [one for one in lines(chat.context("Who sells red bicycles?").recall) if "cousin" in one]
    record = do(chat, "remember", line, tags=["bikes"])
    assert record.text == "My cousin sells red bicycles. I live in Graz."
    assert record.tags == ("bikes",)
    assert record.occurred_at == memory.chat(user_id="louis", session_id="past").history()[0].created_at


def test_a_line_of_a_record_confirms_the_record(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    (line,) = [one for one in lines(chat.context("Are red bicycles cheap?").recall) if "May" in one]
    before = by_text(memory)["The red bicycles are cheap in May"]
    for text in (line, line.removeprefix("- ")):
        chat.remember(text)
    after = by_text(memory)["The red bicycles are cheap in May"]
    assert (after.memory_id, after.mentions) == (before.memory_id, before.mentions + 2)
    assert len(by_text(memory)) == 2


def test_a_whole_block_confirms_each_thing_that_it_quotes(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    context = chat.context("Are red bicycles cheap?")
    assert context.profile is not None
    home = chat.remember(context.profile.text)
    assert (home.key, home.value, home.mentions) == ("home", "Graz", 2)
    chat.remember(context.recall)
    texts = by_text(memory)
    assert not [text for text in texts if "recalled_memory" in text or text.startswith("- ")]
    assert texts["The red bicycles are cheap in May"].mentions == 2
    assert set(texts) >= {"My cousin sells red bicycles. I live in Graz."}


def test_what_a_caller_adds_to_a_block_is_remembered_alone(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    recall = chat.context("Are red bicycles cheap?").recall
    assert chat.remember(f"{recall}\nThe user wants a green one.").text == "The user wants a green one."


def test_an_inferred_repetition_of_a_line_adds_a_mention_and_no_certainty(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    chat.remember("A guess about red bicycles", source="implicit_inference", confidence=0.6)
    memory.flush()
    (line,) = [one for one in lines(chat.context("A guess about red bicycles?").recall) if "guess" in one]
    record = chat.remember(line, source="implicit_inference")
    assert (record.mentions, record.confidence) == (2, 0.6)


def test_a_look_alike_is_the_users_own(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    line = "- [2020-01-01 user] I never sold bicycles."
    assert chat.remember(line).text == line


def test_a_line_that_another_user_was_told_is_no_key_to_their_memory(memory: Memory) -> None:
    (line, *_) = lines(
        memory.chat(user_id="louis", session_id="now").context("Who sells red bicycles?").recall
    )
    record = memory.chat(user_id="eve", session_id="s").remember(line)
    assert (record.user_id, record.text) == ("eve", line)


def test_a_line_of_what_was_forgotten_is_a_text(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    (line,) = [one for one in lines(chat.context("Who sells red bicycles?").recall) if "cousin" in one]
    memory.forget("louis", session_id="past")
    assert chat.remember(line).text == "My cousin sells red bicycles. I live in Graz."


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
