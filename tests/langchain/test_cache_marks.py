"""A provider takes four marks of a prompt cache: a prompt has the newest ones, whatever the history has."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerMiddleware, with_memory
from tests.langchain.scripted_model import Scripted, in_session

MARK = {"cache_control": {"type": "ephemeral"}}
CONFIG = in_session("s", thread_id="s")


@tool(extras=MARK)
def look(for_what: str) -> str:
    """Look for something."""
    return for_what


def question(number: int, *, alone: bool) -> HumanMessage:
    text = {"type": "text", "text": f"question {number}"}
    return HumanMessage([text, {"cachePoint": {"type": "default"}}] if alone else [{**text, **MARK}])


def marks(message: BaseMessage) -> int:
    return sum("cache_control" in one or "cachePoint" in one for one in message.content)  # type: ignore[operator]


@pytest.mark.parametrize("alone", [False, True], ids=["in a block", "as a block"])
@pytest.mark.parametrize("door", ["with_memory", "agent", "history"])
def test_a_prompt_has_four_marks_at_the_most_and_the_newest(memory, door, alone) -> None:
    model, system = Scripted(), SystemMessage([{"type": "text", "text": "Be brief.", **MARK}])
    ours, saver = MemlayerMiddleware(memory, user_id="u", mode="STATIC"), InMemorySaver()
    agent = create_agent(model, [look], system_prompt=system, middleware=[ours], checkpointer=saver)
    chain = with_memory(model, memory, user_id="u")
    history = MemlayerChatMessageHistory(memory, user_id="u", session_id="s")
    history.add_messages([system] if door != "agent" else [])
    for number in range(7):
        asked = question(number, alone=alone)
        if door == "agent":
            agent.invoke({"messages": [asked]}, CONFIG)
        elif door == "with_memory":
            chain.invoke([asked], CONFIG)
        else:
            history.add_messages([asked, AIMessage("Yes.")])
    told = model.seen[-1] if door != "history" else history.context()
    rest = 2 if door == "agent" else 3  # beside the system prompt's, and the tool's
    assert [marks(one) for one in told if one.type != "ai"] == [1, *[0] * (7 - rest), *[1] * rest]
    assert [one.text for one in told if one.type == "human"] == [f"question {number}" for number in range(7)]
    assert all(map(marks, (one for one in history.messages if one.type != "ai"))), "the history is as it was"
