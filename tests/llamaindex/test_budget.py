"""What a turn costs through LlamaIndex's doors stays within its budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from budget import CALLER_MS, Meter, at_speed, memory_with_history, meter
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import SimpleChatEngine
from scripted import answers

from llamaindex_memlayer import MemlayerMemory

__all__ = ["meter"]


@pytest.fixture
def session(meter: Meter, tmp_path: Path) -> Iterator[MemlayerMemory]:
    with memory_with_history(tmp_path) as memory:
        yield MemlayerMemory(memory, user_id="ada", session_id="s")


def test_a_turn_of_a_chat_engine_writes_twice(meter, session) -> None:
    engine = SimpleChatEngine.from_defaults(llm=answers("You like them."), memory=session)
    costs = meter.turns(engine.chat)

    assert costs.writes == 2  # the question, and the answer
    assert costs.statements <= 39
    assert costs.caller_ms <= at_speed(CALLER_MS)


async def test_an_async_turn_of_a_chat_engine_takes_a_hop_for_each_call_of_its_memory(meter, session) -> None:
    engine = SimpleChatEngine.from_defaults(llm=answers("You like them."), memory=session)
    costs = await meter.aturns(engine.achat)

    assert costs.writes == 2
    assert costs.hops == 3  # the question, the context, the answer
    assert costs.caller_ms <= at_speed(CALLER_MS)


async def test_a_turn_of_an_agent_writes_twice(meter, session) -> None:
    agent = FunctionAgent(llm=answers("You like them."), streaming=False)
    costs = await meter.aturns(lambda question: agent.run(user_msg=question, memory=session))

    assert costs.writes == 2
    assert costs.hops == 4  # the agent reads its memory once more at the end
    assert costs.statements <= 43
    assert costs.caller_ms <= at_speed(CALLER_MS)
