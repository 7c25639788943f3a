"""What a turn costs through LangChain's doors stays within its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from budget import CALLER_MS, Meter, at_speed, memory_with_history, meter
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerMiddleware, MemlayerStore, with_memory
from memlayer_core import Memory
from tests.langchain.scripted_model import Scripted, in_session

__all__ = ["meter"]

CONFIG = in_session("s", thread_id="s")


@pytest.fixture
def memory(meter: Meter, tmp_path: Path) -> Iterator[Memory]:
    with memory_with_history(tmp_path) as opened:
        yield opened


def history_of(memory: Memory) -> Callable[[str], MemlayerChatMessageHistory]:
    return lambda session_id: MemlayerChatMessageHistory(memory, user_id="ada", session_id=session_id)


def agent(memory: Memory) -> Any:
    more = {"store": MemlayerStore(memory), "checkpointer": InMemorySaver()}
    return create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada")], **more)


DOORS = [
    # the door, what it is asked, writes and statements of a turn, hops of an async one
    (agent, lambda question: {"messages": [HumanMessage(question)]}, 2, 46, 2),
    (lambda memory: with_memory(Scripted(), memory, user_id="ada"), str, 1, 40, 2),
    # LangChain's own wrapper reads twice and writes once
    (lambda memory: RunnableWithMessageHistory(Scripted(), history_of(memory)), str, 1, 16, 3),
]
of_each_door = pytest.mark.parametrize(
    ("door", "asked", "writes", "statements", "hops"), DOORS, ids=["agent", "with_memory", "LangChain's own"]
)


@of_each_door
def test_a_turn_writes_as_often_as_it_must(meter, memory, door, asked, writes, statements, hops) -> None:
    runnable = door(memory)
    costs = meter.turns(lambda question: runnable.invoke(asked(question), CONFIG))

    assert costs.writes == writes
    assert costs.statements <= statements
    assert costs.caller_ms <= at_speed(CALLER_MS)


@of_each_door
async def test_an_async_turn_takes_few_hops(meter, memory, door, asked, writes, statements, hops) -> None:
    runnable = door(memory)
    costs = await meter.aturns(lambda question: runnable.ainvoke(asked(question), CONFIG))

    assert costs.writes == writes
    assert costs.hops == hops
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
