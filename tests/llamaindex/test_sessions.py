"""What engines and agents do to a session: they pass their own history each time, and may change the memory."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from scripted import speaking

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, StoreClosedError
from tests.conftest import taken_out
from tests.llamaindex.conftest import talk, texts


def model():
    """Return a model that says how many messages it was told."""
    return speaking(lambda messages: ChatMessage(f"answer to {messages[-1].content}", role="assistant"))


def turns(first, last):
    words = [(f"question {n}", f"answer to question {n}") for n in range(first, last + 1)]
    return talk(*(word for pair in words for word in pair))


def superseded(memory):
    every = (memory.chat_of(one.scope) for one in memory.sessions(user_id="ada"))
    return [some for chat in every for some in taken_out(chat)]


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.requirement("L09", "L02")
def test_a_trimmed_history_that_is_set_again_loses_and_repeats_nothing(session, memory, do):
    do(session, "set", turns(1, 5))
    do(session, "set", turns(4, 5))
    do(session, "set", [*turns(4, 5), *turns(6, 6)])

    assert texts(do(session, "get_all")) == texts(turns(1, 6))
    assert superseded(memory) == []


def test_a_history_of_something_else_takes_the_sessions_place_and_so_does_none(session, memory, do):
    do(session, "set", turns(1, 2))
    do(session, "set", turns(8, 9))
    assert texts(do(session, "get_all")) == texts(turns(8, 9))

    do(session, "set", [])
    assert do(session, "get_all") == []
    assert superseded(memory) == [texts(turns(8, 9)), texts(turns(1, 2))]


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.requirement("L09")
async def test_an_agent_that_is_given_its_trimmed_history_each_time_loses_and_repeats_nothing(
    session, memory
):
    agent = FunctionAgent(llm=model(), tools=[])
    history = []
    for n in range(1, 7):
        await agent.run(f"question {n}", chat_history=history[-4:], memory=session)
        history += turns(n, n)

    assert texts(await session.aget_all()) == texts(turns(1, 6))
    assert await asyncio.to_thread(superseded, memory) == []


@pytest.mark.trap("llamaindex", 26, 32)
def test_a_history_that_is_set_is_where_the_session_ends_and_keeps_other_words_apart(session, memory, do):
    do(session, "set", turns(1, 3))
    do(session, "set", turns(1, 2))
    assert do(session, "get_all") == turns(1, 2)
    do(session, "set", [*turns(1, 1), ChatMessage("something else")])
    assert texts(do(session, "get_all")) == [*texts(turns(1, 1)), "something else"]
    assert superseded(memory) == [texts(turns(2, 2)), texts(turns(3, 3))]

    do(session, "put_messages", [ChatMessage("again"), ChatMessage("again")])
    do(session, "set", [ChatMessage("again")])
    assert texts(do(session, "get_all"))[-2:] == ["again", "again"]


async def test_a_question_that_is_asked_again_after_a_failure_is_kept_once(session):
    """The caller's history has no trace of the run that failed."""

    def fails(messages):
        raise ConnectionError("away")

    history = turns(1, 1)
    with pytest.raises(ConnectionError):
        await FunctionAgent(llm=speaking(fails)).run("question 2", chat_history=history, memory=session)
    await FunctionAgent(llm=model()).run("question 2", chat_history=history, memory=session)

    assert texts(await session.aget_all()) == texts(turns(1, 2))


@pytest.mark.parametrize("given", [[ChatMessage("else")], [], turns(1, 1)])
def test_a_session_without_a_user_takes_another_history_too(given, do):
    with Memory.in_memory() as memory:
        session = MemlayerMemory.from_defaults(memory, chat_history=turns(1, 2))
        do(session, "set", given)

        assert texts(do(session, "get_all")) == texts(given)


@pytest.mark.requirement("F19")
def test_a_running_engine_goes_on_in_another_memory(session, memory):
    engine = SimpleChatEngine.from_defaults(llm=model(), memory=session)
    engine.chat("question 1")
    with Memory.in_memory() as other:
        session.set_memory(other)
        engine.chat("question 2")

        there = MemlayerMemory.from_defaults(other, user_id="ada", session_id="monday")
        here = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday")
        assert texts(session.get_all()) == texts(there.get_all()) == texts(turns(2, 2))
        assert texts(here.get_all()) == texts(turns(1, 1))
        assert session.to_dict()["store_id"] == other.store_id
    with pytest.raises(StoreClosedError):
        here.set_memory(other)
    with pytest.raises(ConfigurationError, match="Memory"):
        here.set_memory(session)
    assert texts(here.get_all()) == texts(turns(1, 1))


@pytest.mark.requirement("F19")
def test_a_dump_names_the_memory_that_it_goes_on_in(tmp_path, memory):
    session = MemlayerMemory.from_defaults(path=tmp_path / "old", user_id="ada", session_id="monday")
    first = session.memory
    session.put(ChatMessage("old"))
    session.set_memory(memory)
    session.put(ChatMessage("new"))

    assert texts(MemlayerMemory.from_dict(session.to_dict()).get_all()) == ["new"]
    first.close()
