"""A chat model that answers "context length exceeded" is called once more, with less, and never in a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware, with_memory
from memlayer_core import Memory
from memlayer_core.events import ContextOverflowed

QUESTION = "What did I say first?"
CONFIG: Any = {"configurable": {"thread_id": "s", "session_id": "s"}}


class Small(BaseChatModel):
    """A model that refuses more characters than it can read, as OpenAI does."""

    most: int
    seen: list[list[str]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "small"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _check(self, messages: list[BaseMessage]) -> None:
        self.seen.append([message.text for message in messages])
        if sum(len(message.text) for message in messages) > self.most:
            raise ContextOverflowError("This model's maximum context length is exceeded.")

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self._check(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("This."))])

    def _stream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self._check(messages)
        for word in ("Th", "is."):
            yield ChatGenerationChunk(message=AIMessageChunk(word))


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        chat = opened.chat(user_id="ada", session_id="s")
        for number in range(30):
            chat.add(
                "user", f"{number}: pears and apples and plums and quinces, and pears again, and again plums"
            )
            chat.add("assistant", "I see.")
        yield opened


@pytest.fixture
def events(memory: Memory) -> list[ContextOverflowed]:
    seen: list[Any] = []
    memory.listen(lambda event: seen.append(event) if isinstance(event, ContextOverflowed) else None)
    return seen


def agent(memory: Memory, model: Small) -> Any:
    middleware = MemlayerMiddleware(memory, user_id="ada", mode="STATIC", token_limit=1000)
    return create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())


def ask_agent(memory: Memory, model: Small, way: str) -> str:
    runnable, given = agent(memory, model), {"messages": [("user", QUESTION)]}
    if way == "ainvoke":
        return asyncio.run(runnable.ainvoke(given, CONFIG))["messages"][-1].text
    return runnable.invoke(given, CONFIG)["messages"][-1].text


def ask_runnable(memory: Memory, model: Small, way: str) -> str:
    runnable = with_memory(model, memory, user_id="ada", token_limit=1000)

    async def astream() -> str:
        return "".join([chunk.text async for chunk in runnable.astream(QUESTION, CONFIG)])

    match way:
        case "invoke":
            return runnable.invoke(QUESTION, CONFIG).text
        case "ainvoke":
            return asyncio.run(runnable.ainvoke(QUESTION, CONFIG)).text
        case "stream":
            return "".join(chunk.text for chunk in runnable.stream(QUESTION, CONFIG))
        case _:
            return asyncio.run(astream())


WAYS = [
    *((ask_agent, way) for way in ("invoke", "ainvoke")),
    *((ask_runnable, way) for way in ("invoke", "ainvoke", "stream", "astream")),
]


@pytest.mark.requirement("A23")
@pytest.mark.parametrize(("ask", "way"), WAYS)
def test_the_model_is_called_once_more_with_less_and_the_turn_is_stored_once(
    memory, events, ask, way
) -> None:
    model = Small(most=1700)
    assert ask(memory, model, way) == "This."
    first, second = model.seen
    assert sum(map(len, first)) > 1700 >= sum(map(len, second))
    assert second[-1].endswith(QUESTION)
    [event] = events
    assert event.token_limit == int(0.6 * min(1000, event.tokens))
    history = [one.text for one in memory.chat(user_id="ada", session_id="s").history()]
    assert history[-2:] == [QUESTION, "This."]
    assert history.count(QUESTION) == 1
    assert len(history) == 62


@pytest.mark.requirement("A23")
@pytest.mark.parametrize(("ask", "way"), WAYS)
def test_a_second_refusal_is_raised(memory, events, ask, way) -> None:
    model = Small(most=10)
    with pytest.raises(ContextOverflowError):
        ask(memory, model, way)
    assert len(model.seen) == 2
    assert len(events) == 1


@pytest.mark.parametrize(("ask", "way"), WAYS)
def test_no_other_error_is_tried_again(memory, events, ask, way, monkeypatch) -> None:
    def fails(self: Any, messages: Any) -> None:
        self.seen.append([])
        raise RuntimeError("no route")

    monkeypatch.setattr(Small, "_check", fails)
    model = Small(most=10)
    with pytest.raises(RuntimeError, match="no route"):
        ask(memory, model, way)
    assert (len(model.seen), events) == (1, [])


def test_an_answer_that_has_begun_is_not_begun_again(memory, events, monkeypatch) -> None:
    def breaks(self: Any, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self.seen.append([])
        yield ChatGenerationChunk(message=AIMessageChunk("Th"))
        raise ContextOverflowError("context length exceeded")

    monkeypatch.setattr(Small, "_stream", breaks)
    model = Small(most=10)
    with pytest.raises(ContextOverflowError):
        ask_runnable(memory, model, "stream")
    assert (len(model.seen), events) == (1, [])


def test_what_cannot_be_left_out_raises_the_models_own_error(memory) -> None:
    model = Small(most=10)
    middleware = MemlayerMiddleware(memory, user_id="eve", mode="STATIC", token_limit=1000)
    large = create_agent(model, system_prompt="Be terse. " * 150, middleware=[middleware])
    with pytest.raises(ContextOverflowError):
        large.invoke({"messages": [("user", QUESTION)]}, {"configurable": {"thread_id": "eve"}})
    assert len(model.seen) == 1
