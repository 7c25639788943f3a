"""A chat that stores what the memory showed it, and an answer that repeats it, teach the memory nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llama_index.core.base.llms.types import ChatMessage
from scripted_reader import reads
from tuned import Tuned

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=Tuned(index_delay=0.0, durability="normal"), extractor=reads()) as opened:
        chat = opened.chat(user_id="ada", session_id="in-may")
        chat.add("user", "My cousin sells red bicycles. I live in Graz.")
        opened.flush()
        yield opened


def test_neither_an_answer_nor_the_prompt_that_comes_back_is_learned(memory, do) -> None:
    session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday")
    do(session, "put", ChatMessage("Who sells red bicycles?"))
    shown = do(session, "get")
    assert "home: Graz" in str(shown)
    assert "My cousin sells" in str(shown)
    do(session, "put", ChatMessage("I live in Graz, and your cousin sells them.", role="assistant"))
    other = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="tuesday")
    do(other, "put_messages", shown)
    do(other, "put", ChatMessage(f"Look:\n{shown[-1].content}\nand so on"))
    memory.flush()
    assert [(one.value, one.mentions) for one in memory.records(user_id="ada")] == [("Graz", 1)]
