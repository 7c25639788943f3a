"""In one run of an agent, each call of its model is told the same recall; what a tool takes back is not told again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware
from memlayer_core import Memory

CONFIG: Any = {"configurable": {"thread_id": "s"}}
CAT = "My cat is called Solomon."


class Scripted(GenericFakeChatModel):
    seen: list[list[str]] = []  # noqa: RUF012  (a field of pydantic)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.seen.append([str(message.content) for message in messages])
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def memory(open_at) -> Memory:
    memory = open_at("store", settings=Tuned(index_delay=3600, durability="normal"))
    memory.chat(user_id="ada", session_id="past").add("user", CAT, id="cat")
    memory.flush()
    return memory


@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("takes_back", [False, True], ids=["adds", "takes back"])
def test_a_run_is_told_the_same_for_its_question_from_call_to_call(memory, awaits, takes_back) -> None:
    past = memory.chat(user_id="ada", session_id="past")

    @tool
    def weigh(animal: str) -> str:
        """Weigh an animal."""
        if takes_back:
            past.delete_message("cat")
        else:
            past.add("user", "My cat is heavy.")
        return f"{animal}: four kilograms"

    calls = [[{"name": "weigh", "args": {"animal": "Solomon"}, "id": f"c{number}"}] for number in range(2)]
    said = [AIMessage("", tool_calls=calls[0]), AIMessage("", tool_calls=calls[1]), AIMessage("Four.")]
    if takes_back:
        said.pop(1)
    model = Scripted(messages=iter(said), seen=[])
    agent = create_agent(model, [weigh], middleware=[MemlayerMiddleware(memory, user_id="ada")])
    asked = {"messages": [HumanMessage("How heavy is my cat?")]}
    asyncio.run(agent.ainvoke(asked, CONFIG)) if awaits else agent.invoke(asked, CONFIG)

    first, *others = [sent[0] for sent in model.seen]
    assert CAT in first
    if takes_back:
        assert not any(CAT in one for one in others)
    else:
        assert others == [first, first]
