"""An agent whose model repeats what it was told, and whose messages come back with it, teaches the memory nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field
from scripted_reader import reads
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware
from memlayer_core import Memory


class Parrot(BaseChatModel):
    """A model that repeats what it is shown, and remembers it."""

    seen: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any):
        self.seen.append(list(messages))
        said = AIMessage(f"You told me: {messages[-1].text}\nI live in Graz, too.")
        return ChatResult(generations=[ChatGeneration(message=said)])


@pytest.fixture(params=["user", "system"])
def memory(request) -> Iterator[Memory]:
    settings = Tuned(index_delay=0.0, durability="normal", recall_placement=request.param)
    with Memory.in_memory(settings=settings, extractor=reads()) as opened:
        chat = opened.chat(user_id="ada", session_id="in-may")
        chat.add("user", "My cousin sells red bicycles. I live in Graz.")
        opened.flush()
        yield opened


def known(memory: Memory) -> list[tuple[str | None, str | None, int]]:
    return [(one.key, one.value, one.mentions) for one in memory.records(user_id="ada")]


def test_neither_an_answer_nor_the_prompt_that_comes_back_is_learned(memory) -> None:
    model = Parrot()
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    asked = {"messages": [HumanMessage("Who sells red bicycles?")]}
    agent.invoke(asked, {"configurable": {"thread_id": "one"}})
    shown = model.seen[-1]
    assert "home: Graz" in str(shown)
    assert "My cousin sells" in str(shown)
    before = known(memory)
    agent.invoke({"messages": shown}, {"configurable": {"thread_id": "two"}})
    echo = HumanMessage(f"A colleague sent me this:\n{shown[-1].text}\n{shown[0].text}")
    agent.invoke({"messages": [echo]}, {"configurable": {"thread_id": "three"}})
    memory.flush()
    assert known(memory) == before == [("home", "Graz", 1)]


def test_what_the_user_says_again_is_the_users(memory) -> None:
    agent = create_agent(Parrot(), middleware=[MemlayerMiddleware(memory, user_id="ada")])
    for thread in ("one", "two"):
        asked = {"messages": [HumanMessage("Yes, I live in Graz.")]}
        agent.invoke(asked, {"configurable": {"thread_id": thread}})
    memory.flush()
    assert known(memory) == [("home", "Graz", 3)]
