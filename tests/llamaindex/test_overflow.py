"""A model that answers "context length exceeded" is called once more with less, by a helper around the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from scripted import Scripted, speaking
from tuned import Tuned

from llamaindex_memlayer import MemlayerMemory, acall_with_retry, call_with_retry
from memlayer_core import Memory
from memlayer_core.events import ContextOverflowed
from tests.llamaindex.conftest import talk

QUESTION = "What did I say first?"


def small(most: int) -> Scripted:
    """Return a model that refuses more characters than it can read, as OpenAI does."""

    def reply(messages: Sequence[ChatMessage]) -> ChatMessage:
        if sum(len(message.content or "") for message in messages) > most:
            raise ValueError("This model's maximum context length is exceeded.")
        return ChatMessage("This.", role="assistant")

    return speaking(reply)


@pytest.fixture
def session() -> Any:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as memory:
        made = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="s", token_limit=1000)
        for number in range(30):
            made.put_messages(talk(f"{number}: pears and apples and plums and quinces, " * 2, "I see."))
        yield made


def chat(session: MemlayerMemory, llm: Scripted, way: str) -> str:
    """Do a turn with an engine or an agent."""

    def engine(memory: MemlayerMemory) -> SimpleChatEngine:
        return SimpleChatEngine.from_defaults(llm=llm, memory=memory)

    async def agent(memory: MemlayerMemory) -> Any:
        return await FunctionAgent(tools=[], llm=llm, streaming=False).run(user_msg=QUESTION, memory=memory)

    match way:
        case "engine":
            return str(call_with_retry(session, lambda memory: engine(memory).chat(QUESTION)))
        case "async engine":
            return str(asyncio.run(acall_with_retry(session, lambda memory: engine(memory).achat(QUESTION))))
        case _:
            return str(asyncio.run(acall_with_retry(session, agent)))


WAYS = ["engine", "async engine", "agent"]


@pytest.mark.requirement("A23")
@pytest.mark.parametrize("way", WAYS)
def test_a_turn_is_done_once_more_with_less_and_stored_once(session, way) -> None:
    events: list[Any] = []
    session.memory.listen(
        lambda event: events.append(event) if isinstance(event, ContextOverflowed) else None
    )
    llm = small(1700)
    assert chat(session, llm, way) == "This."
    assert len(llm.told) == 2
    assert len(events) == 1
    history = [one.content for one in session.get_all()]
    assert history[-2:] == [QUESTION, "This."]
    assert history.count(QUESTION) == 1
    assert len(history) == 62


@pytest.mark.requirement("A23")
@pytest.mark.parametrize("way", WAYS)
def test_a_second_refusal_is_raised(session, way) -> None:
    llm = small(10)
    with pytest.raises(Exception, match="maximum context length"):
        chat(session, llm, way)
    assert len(llm.told) == 2


def test_no_other_error_is_tried_again_and_nothing_is_withdrawn(session) -> None:
    def fails(messages: Any) -> ChatMessage:
        raise ValueError("no route")

    llm = speaking(fails)
    with pytest.raises(ValueError, match="no route"):
        chat(session, llm, "engine")
    assert len(llm.told) == 1
    assert session.get_all()[-1].content == QUESTION
