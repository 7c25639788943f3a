"""What a turn costs through LangChain's doors stays within its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from budget import CALLER_MS, Meter, at_speed, memory_with_history, meter
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerMiddleware, MemlayerStore, with_memory
from memlayer_core import Memory

__all__ = ["meter"]

CONFIG: Any = {"configurable": {"session_id": "s", "thread_id": "s"}}


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def model() -> Model:
    return Model(messages=iter(lambda: AIMessage("You like them."), None))


@pytest.fixture
def memory(meter: Meter, tmp_path: Path) -> Iterator[Memory]:
    with memory_with_history(tmp_path) as opened:
        yield opened


@pytest.fixture
def agent(memory: Memory) -> Any:
    middleware, store = MemlayerMiddleware(memory, user_id="ada"), MemlayerStore(memory)
    return create_agent(model(), middleware=[middleware], store=store, checkpointer=InMemorySaver())


def asked(question: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(question)]}


def test_a_turn_of_an_agent_writes_twice(meter, agent) -> None:
    costs = meter.turns(lambda question: agent.invoke(asked(question), CONFIG))

    assert costs.writes == 2  # the question, and the answer
    assert costs.statements <= 46
    assert costs.caller_ms <= at_speed(CALLER_MS)


async def test_an_async_turn_of_an_agent_takes_two_hops(meter, agent) -> None:
    costs = await meter.aturns(lambda question: agent.ainvoke(asked(question), CONFIG))

    assert costs.writes == 2
    assert costs.hops == 2  # the question with its context, and the answer
    assert costs.caller_ms <= at_speed(CALLER_MS)


def test_a_turn_with_memory_writes_once(meter, memory) -> None:
    chain = with_memory(model(), memory, user_id="ada")
    costs = meter.turns(lambda question: chain.invoke(question, CONFIG))

    assert costs.writes == 1
    assert costs.statements <= 40
    assert costs.caller_ms <= at_speed(CALLER_MS)


async def test_an_async_turn_with_memory_takes_two_hops(meter, memory) -> None:
    chain = with_memory(model(), memory, user_id="ada")
    costs = await meter.aturns(lambda question: chain.ainvoke(question, CONFIG))

    assert costs.writes == 1
    assert costs.hops == 2  # the context, and the question with its answer
    assert costs.caller_ms <= at_speed(CALLER_MS)


def history_of(memory: Memory) -> Any:
    return lambda session_id: MemlayerChatMessageHistory(memory, user_id="ada", session_id=session_id)


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory")
def test_a_turn_of_langchains_own_wrapper_writes_once(meter, memory) -> None:
    chain = RunnableWithMessageHistory(model(), history_of(memory))
    costs = meter.turns(lambda question: chain.invoke([HumanMessage(question)], CONFIG))

    assert costs.writes == 1
    assert costs.statements <= 16
    assert costs.caller_ms <= at_speed(CALLER_MS)


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory")
async def test_an_async_turn_of_langchains_own_wrapper_takes_one_hop_for_each_call_of_it(
    meter, memory
) -> None:
    chain = RunnableWithMessageHistory(model(), history_of(memory))
    costs = await meter.aturns(lambda question: chain.ainvoke([HumanMessage(question)], CONFIG))

    assert costs.writes == 1
    assert costs.hops == 3  # it reads twice and writes once
    assert costs.caller_ms <= at_speed(CALLER_MS)


async def test_turns_at_the_same_time_use_no_thread_of_the_application(meter, memory) -> None:
    class Refusing(ThreadPoolExecutor):
        def submit(self, work: Any, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{work} is handed to the application's threads")

    asyncio.get_running_loop().set_default_executor(Refusing(1))
    history = history_of(memory)("s")
    await asyncio.gather(*(history.aadd_messages([HumanMessage(f"{n}")]) for n in range(20)))
    assert len(await history.aget_messages()) == 20
    assert await history.acontext("What do I think of pears?")
