"""An agent whose model repeats what it was told, and whose messages come back with it, teaches the memory nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage, HumanMessage
from scripted_reader import reads

from langchain_memlayer import MemlayerMiddleware
from memlayer_core import Memory
from tests.conftest import PROMPT
from tests.langchain.scripted_model import Scripted, in_thread


def parrots(messages: list[BaseMessage]) -> str:
    return f"You told me: {messages[-1].text}\nI live in Graz, too."


@pytest.fixture(params=["user", "system"])
def memory(request) -> Iterator[Memory]:
    settings = PROMPT.replace(recall_placement=request.param)
    with Memory.in_memory(settings=settings, extractor=reads()) as opened:
        chat = opened.chat(user_id="ada", session_id="in-may")
        chat.add("user", "My cousin sells red bicycles. I live in Graz.")
        opened.flush()
        yield opened


def known(memory: Memory) -> list[tuple[str | None, str | None, int]]:
    memory.flush()
    return [(one.key, one.value, one.mentions) for one in memory.records(user_id="ada")]


def test_no_answer_and_no_prompt_that_comes_back_is_learned_but_what_the_user_says(memory) -> None:
    model = Scripted(script=parrots)
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    agent.invoke({"messages": [HumanMessage("Who sells red bicycles?")]}, in_thread("one"))
    shown = model.seen[-1]
    assert "home: Graz" in str(shown)
    assert "My cousin sells" in str(shown)
    agent.invoke({"messages": shown}, in_thread("two"))
    echo = f"A colleague sent me this:\n{shown[-1].text}\n{shown[0].text}"
    agent.invoke({"messages": [HumanMessage(echo)]}, in_thread("three"))
    assert known(memory) == [("home", "Graz", 1)]

    for thread in ("four", "five"):
        agent.invoke({"messages": [HumanMessage("Yes, I live in Graz.")]}, in_thread(thread))
    assert known(memory) == [("home", "Graz", 3)]
