"""What LangChain's model was sent, asked afterwards: each of its calls has a trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import MemlayerMiddleware, with_memory
from memlayer_core import Memory, Settings

CONFIG: Any = {"configurable": {"session_id": "s", "thread_id": "s"}}
CAT = "My cat is called Solomon."


class Scripted(GenericFakeChatModel):
    seen: list[list[str]] = []  # noqa: RUF012  (a field of pydantic)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.seen.append([str(message.content) for message in messages])
        return super()._generate(messages, *args, **kwargs)


@tool
def weigh(animal: str) -> str:
    """Weigh an animal."""
    return f"{animal}: four kilograms"


@pytest.fixture
def memory(open_at) -> Memory:
    memory = open_at("store", settings=Settings(index_delay=3600, durability="normal"))
    memory.chat(user_id="ada", session_id="past").add("user", CAT, id="cat")
    memory.flush()
    return memory


@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
def test_each_call_of_an_agents_model_has_a_trace(memory, awaits) -> None:
    calls = [{"name": "weigh", "args": {"animal": "Solomon"}, "id": "c1"}]
    said = [AIMessage("", tool_calls=calls), AIMessage("Four kilograms."), AIMessage("Solomon.")]
    model = Scripted(messages=iter(said), seen=[])
    middleware = [MemlayerMiddleware(memory, user_id="ada")]
    agent = create_agent(
        model, [weigh], system_prompt="Be brief.", middleware=middleware, checkpointer=InMemorySaver()
    )
    for question in ("How heavy is my cat?", "What is my cat called?"):
        asked = {"messages": [HumanMessage(question)]}
        asyncio.run(agent.ainvoke(asked, CONFIG)) if awaits else agent.invoke(asked, CONFIG)
    chat = memory.chat(user_id="ada", session_id="s")
    answers = [message for message in chat.history() if message.role == "assistant"]
    found = [chat.trace(one.id) for one in reversed(chat.traces())]
    assert [one.answer_id for one in found] == [message.id for message in answers]
    assert len(model.seen) == len(found) == 3
    questions = [message.id for message in chat.history() if message.role == "user"]
    assert [one.question_id for one in found] == [questions[0], questions[0], questions[1]]
    for sent, told in zip(model.seen, found, strict=True):
        assert CAT in "\n".join(sent)
        recalled = next(piece for piece in told.pieces if piece.kind == "recall")
        assert CAT in (recalled.text or "")
        for piece in told.pieces:
            assert piece.state == "stored"
            assert (piece.text or "") in "\n".join(sent)
    assert [piece.reasons[0].code for piece in found[1].pieces if piece.kind == "recall"] == ["kept"]
    memory.chat(user_id="ada", session_id="past").delete_message("cat")
    assert [piece.text for piece in chat.trace(found[0].id).pieces if piece.kind == "recall"] == [None]


@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
def test_a_runnable_with_memory_leaves_a_trace(memory, awaits) -> None:
    model = Scripted(messages=iter([AIMessage("Solomon."), AIMessage("Yes.")]), seen=[])
    chain = with_memory(model, memory, user_id="ada")
    for question in ("What is my cat called?", "Really?"):
        asyncio.run(chain.ainvoke(question, CONFIG)) if awaits else chain.invoke(question, CONFIG)
    chat = memory.chat(user_id="ada", session_id="s")
    newest, oldest = (chat.trace(one.id) for one in chat.traces())
    assert [one.question_id for one in (oldest, newest)] == [chat.history()[at].id for at in (0, 2)]
    assert [one.answer_id for one in (oldest, newest)] == [chat.history()[at].id for at in (1, 3)]
    assert [piece.text for piece in newest.pieces if piece.kind == "window"] == [
        "What is my cat called?",
        "Solomon.",
        "Really?",
    ]
    assert [piece.message_ids for piece in oldest.pieces if piece.kind == "recall"] == [("cat",)]
    assert chat.traces()[0].tokens == newest.tokens
