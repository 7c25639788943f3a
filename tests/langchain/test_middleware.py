"""An agent of LangChain with a memory: its state keeps everything, its model is shown what matters."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from clock import set_ahead
from conftest import OURS
from hypothesis import given, strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelRequest,
    ModelResponse,
    ModelRetryMiddleware,
    SummarizationMiddleware,
)
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field
from scripted_reader import reads
from tuned import Tuned

from examples import examples
from langchain_memlayer import (
    MemlayerChatMessageHistory,
    MemlayerMiddleware,
    create_memory_tools,
    to_core,
    with_memory,
)
from memlayer_core import Memory, Message
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidRecordError,
    InvalidScopeError,
    StoreClosedError,
    StoreError,
)
from memlayer_core.seams import MaxRounds
from tests.conftest import taken_out

OURS_ALONE = [
    "record_to_memory",
    "retrieve_from_memory",
    "correct_memory",
    "forget_memory",
    "context_reload",
]
Script = Callable[[list[BaseMessage]], AIMessage]


class Scripted(BaseChatModel):
    """A model that says what a function says, and remembers what it was shown."""

    script: Script = lambda _: AIMessage("ok")
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    bound: list[str] = Field(default_factory=list)
    tags: list[list[str]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        self.bound[:] = [one["name"] if isinstance(one, dict) else one.name for one in tools]
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any):
        self.seen.append(list(messages))
        self.tags.append(list(run_manager.tags) if run_manager else [])
        return ChatResult(generations=[ChatGeneration(message=self.script(messages).model_copy(deep=True))])

    def _stream(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any):
        said = self._generate(messages, run_manager=run_manager).generations[0].message
        for at, word in enumerate(str(said.content).split(" ")):
            yield ChatGenerationChunk(message=AIMessageChunk(word if not at else f" {word}"))
        if said.tool_calls:
            calls = [
                {"name": c["name"], "args": json.dumps(c["args"]), "id": c["id"], "index": n}
                for n, c in enumerate(said.tool_calls)
            ]
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


class Calls:
    """Runs an agent, blocking or awaiting; nothing may block the loop then."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits

    def __call__(self, agent: Any, given: Any, thread: str = "t", **more: Any) -> Any:
        config = {"configurable": {"thread_id": thread}}
        if isinstance(given, str):
            given = {"messages": [HumanMessage(given)]}
        if not self.awaits:
            return agent.invoke(given, config, **more)
        with blockbuster_ctx(OURS):
            return asyncio.run(agent.ainvoke(given, config, **more))


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request) -> Calls:
    return Calls(awaits=request.param == "ainvoke")


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=0.0, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        yield opened


def calling(*calls: tuple[str, dict[str, Any]], text: str = "", first: int = 0) -> AIMessage:
    return AIMessage(
        text,
        tool_calls=[
            {"name": name, "args": args, "id": f"c{at}"} for at, (name, args) in enumerate(calls, first)
        ],
    )


def then(*answers: AIMessage | str) -> Script:
    """Say one thing after the other."""
    left = iter(answers)

    def script(_: list[BaseMessage]) -> AIMessage:
        said = next(left)
        return AIMessage(said) if isinstance(said, str) else said

    return script


def history(memory: Memory, session: str = "t", user: str = "ada") -> list[str]:
    return [f"{m.role}: {m.text}" for m in memory.chat(user_id=user, session_id=session).history()]


def texts(messages: list[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: rain"


@tool
def report(length: int) -> str:
    """Write a report."""
    return "pears and apples " * length


def said_before(memory: Memory, user: str = "ada") -> None:
    chat = memory.chat(user_id=user, session_id="in-may")
    chat.add("user", f"{user} moved to Tokyo, and is allergic to nuts.")
    chat.add("assistant", "No nuts in Tokyo, noted.")


# What the model is shown, and what the state keeps


@pytest.mark.trap("langchain", 11)
@pytest.mark.requirement("J15")
def test_the_model_is_shown_what_was_said_in_another_session_and_the_state_is_not_touched(
    run, memory
) -> None:
    said_before(memory)
    model = Scripted(script=then("No nuts."))
    middleware = MemlayerMiddleware(memory, user_id="ada")
    agent = create_agent(model, [weather], system_prompt="Be brief.", middleware=[middleware])

    out = run(agent, "What should I not eat in Tokyo?")["messages"]

    [(system, question)] = model.seen
    assert system == SystemMessage("Be brief.")
    assert "allergic to nuts" in question.content
    assert question.content.endswith("\n\nWhat should I not eat in Tokyo?")
    assert texts(out) == ["What should I not eat in Tokyo?", "No nuts."]
    assert history(memory) == ["user: What should I not eat in Tokyo?", "assistant: No nuts."]


@pytest.mark.parametrize("mode", ["STATIC", "BOTH", "AGENT"])
def test_the_model_is_told_the_users_profile_whatever_is_asked_unless_it_looks_by_itself(
    run, memory, mode
) -> None:
    for user, fact in (("ada", "Lives in Tokyo."), ("bob", "Lives in Paris.")):
        memory.chat(user_id=user).remember(fact, type="profile")
    model = Scripted(script=then("Fine.", "Still fine."))
    agent = create_agent(
        model, system_prompt="Be brief.", middleware=[MemlayerMiddleware(memory, user_id="ada", mode=mode)]
    )

    run(agent, "How are you?")
    run(agent, "And now?")

    for seen in model.seen:
        assert seen[0] == SystemMessage("Be brief.")
        assert "Paris" not in str(seen)
        assert str(seen).count("Lives in Tokyo.") == (mode != "AGENT")
        assert ("Lives in Tokyo." in seen[1].text) is (mode != "AGENT")
    assert history(memory)[0] == "user: How are you?"


@pytest.mark.parametrize("placed", ["user", "system"])
def test_what_is_recalled_stands_where_the_settings_say(run, placed) -> None:
    settings = Tuned(index_delay=0.0, durability="normal", recall_placement=placed)
    with Memory.in_memory(settings=settings) as memory:
        said_before(memory)
        model = Scripted()
        middleware = MemlayerMiddleware(memory, user_id="ada")
        agent = create_agent(model, system_prompt="Be brief.", middleware=[middleware])
        run(agent, "What should I not eat in Tokyo?")

    [(system, question)] = model.seen
    assert ("allergic" in system.content) == (placed == "system")
    assert ("allergic" in question.content) == (placed == "user")


@pytest.mark.requirement("F16", "J31")
def test_a_thread_that_is_opened_again_after_a_week_is_shown_its_last_turns(run, open_at) -> None:
    told = json.dumps({"summary": "The user asked which day has which number on it."})
    settings = Tuned(index_delay=0.0, durability="normal")
    memory = open_at(settings=settings, tokenizer="estimate", summarizer=lambda _prompt: told)
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    middleware = MemlayerMiddleware(memory, user_id="ada")
    agent = create_agent(
        model, system_prompt="Be brief.", middleware=[middleware], checkpointer=InMemorySaver()
    )
    for number in range(3):
        run(agent, f"Which day has number {number} on it?")
    set_ahead(memory, 8)
    memory.flush()
    assert len(memory.records(user_id="ada", type="episodic")) == 1

    out = run(agent, "And number 3, on which day is it?")["messages"]

    system, *told = model.seen[-1]
    assert system.text == "Be brief."
    assert texts(told) == texts(out)[:-1]
    assert len(told) == 7


@pytest.mark.trap("langchain", 21)
@pytest.mark.requirement("A11")
def test_a_long_thread_is_shown_in_part_while_state_and_history_keep_all_of_it(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    middleware = MemlayerMiddleware(memory, user_id="ada", policy=MaxRounds(2))
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for number in range(6):
        out = run(agent, f"question {number}")["messages"]

    assert len(out) == 12
    assert history(memory) == [f"{'assistant' if m.type == 'ai' else 'user'}: {m.text}" for m in out]
    assert [m.type for m in model.seen[-1]] == ["human", "ai", "human"]
    assert model.seen[-1][-1].text.endswith("question 5")


@pytest.mark.requirement("A11")
def test_a_prompt_begins_like_the_one_before(run, memory) -> None:
    said_before(memory)
    model = Scripted()
    agent = create_agent(
        model, middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    run(agent, "What should I not eat in Tokyo?")
    run(agent, "And in Kyoto?")

    first, second = model.seen
    assert "allergic" in first[0].text
    # The recall stays with its question only until the next one.
    assert texts(second)[0] == "What should I not eat in Tokyo?"
    assert texts(first)[0].endswith(texts(second)[0])
    assert texts(second)[1 : len(first)] == texts(first)[1:]


@pytest.mark.trap("langchain", 21)
@pytest.mark.parametrize("limit", [1300, 2100])
def test_the_limit_is_kept_with_the_system_prompt_and_the_tools_counted(run, memory, limit) -> None:
    model = Scripted(script=lambda messages: AIMessage("so it is " * 20))
    middleware = MemlayerMiddleware(memory, user_id="ada", token_limit=limit, mode="BOTH")
    agent = create_agent(
        model,
        [weather],
        system_prompt="Be brief. " * 10,
        middleware=[middleware],
        checkpointer=InMemorySaver(),
    )
    for number in range(20):
        run(agent, f"question {number} " + "about pears " * 10)

    tools = sum(memory.tokens.text(str(convert_to_openai_tool(t))) for t in (weather, *middleware.tools))
    shown = [sum(memory.tokens.message(to_core(m)) for m in seen) for seen in model.seen]
    assert tools > 300
    assert max(shown) + tools <= limit
    assert shown[-1] < sum(
        memory.tokens.message(m) for m in memory.chat(user_id="ada", session_id="t").history()
    )


@pytest.mark.trap("langchain", 18)
def test_tools_that_leave_no_room_are_told_with_numbers_and_the_mode_that_has_none(run, memory) -> None:
    limits = {"user_id": "ada", "token_limit": 50}
    agent = create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, **limits, mode="BOTH")])
    with pytest.raises(InvalidLimitError, match=r"need \d+ of 50 tokens") as raised:
        run(agent, "hi")
    assert 'mode="STATIC"' in raised.value.hint

    run(create_agent(Scripted(script=then("ok")), middleware=[MemlayerMiddleware(memory, **limits)]), "hi")


def test_all_tools_together_cost_a_call_at_most_350_tokens() -> None:
    with Memory.in_memory() as memory:
        tools = MemlayerMiddleware(memory, user_id="ada", mode="BOTH").tools
        written = [json.dumps(convert_to_openai_tool(tool), ensure_ascii=False) for tool in tools]

        assert len(tools) == 5
        assert memory.tokens.name == "o200k_base"
        assert sum(map(memory.tokens.text, written)) <= 350


@pytest.mark.parametrize("mode", ["AGENT", "BOTH"])
def test_a_model_that_takes_no_tools_is_told_with_the_mode_that_needs_none(run, memory, mode) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("ok")]))
    with pytest.raises(ConfigurationError, match="GenericFakeChatModel takes none") as raised:
        run(create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada", mode=mode)]), "hi")
    assert 'mode="STATIC"' in raised.value.hint

    out = run(
        create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada", mode="STATIC")]), "hi"
    )
    assert out["messages"][-1].text == "ok"


def test_what_else_a_model_has_not_implemented_is_its_own_error(run, memory) -> None:
    def script(_: list[BaseMessage]) -> AIMessage:
        raise NotImplementedError("no such thing")

    agent = create_agent(Scripted(script=script), middleware=[MemlayerMiddleware(memory, user_id="ada")])
    with pytest.raises(NotImplementedError, match="no such thing"):
        run(agent, "hi")


def test_an_agent_that_blocks_an_event_loop_is_told_to_be_awaited(open_at) -> None:
    memory = open_at()
    agent = create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada")])

    async def block() -> None:
        with blockbuster_ctx(OURS):
            agent.invoke({"messages": [("human", "hi")]}, {"configurable": {"thread_id": "t"}})

    with pytest.raises(StoreError, match=r"called in an event loop: .*Blocking call") as raised:
        asyncio.run(block())
    assert "`ainvoke`" in raised.value.hint
    assert "verify" not in raised.value.hint


def test_a_schema_of_the_answer_is_counted_too(run, memory) -> None:
    class Answer(BaseModel):
        """An answer."""

        text: str = Field(description="Told with many words. " * 100)

    middleware = MemlayerMiddleware(memory, user_id="ada", token_limit=400, mode="STATIC")
    model = Scripted(script=then(calling(("Answer", {"text": "yes"}))))
    with pytest.raises(InvalidLimitError):
        run(create_agent(model, response_format=Answer, middleware=[middleware]), "hi")
    run(create_agent(Scripted(), middleware=[middleware]), "hi")


def test_a_structured_answer_is_stored_with_the_call_that_makes_it(run, memory) -> None:
    class Answer(BaseModel):
        """An answer."""

        text: str

    model = Scripted(script=then(calling(("Answer", {"text": "yes"}))))
    middleware = MemlayerMiddleware(memory, user_id="ada", mode="STATIC")
    out = run(create_agent(model, response_format=Answer, middleware=[middleware]), "hi")

    assert out["structured_response"].text == "yes"
    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [m.id for m in kept] == [m.id for m in out["messages"]]
    assert [m.role for m in kept] == ["user", "assistant", "tool"]


# Storing


def test_messages_are_stored_as_they_come_in_their_order_and_once(run, memory) -> None:
    during: list[list[str]] = []

    @tool
    def look() -> str:
        """Look what is stored."""
        during.append(history(memory))
        return "seen"

    model = Scripted(script=then(calling(("look", {}), text="a moment"), "done", "again"))
    agent = create_agent(
        model, [look], middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    run(agent, "go")
    out = run(agent, "go")["messages"]

    assert during == [["user: go", "assistant: a moment"]]
    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [m.id for m in kept] == [m.id for m in out]
    assert len(out) == 6


@pytest.mark.trap("langchain", 19)
def test_a_question_is_kept_when_the_model_fails_and_is_not_repeated_after_that(run, memory) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        if len(model.seen) == 1:
            raise ConnectionError("away")
        return AIMessage("here")

    model = Scripted(script=script)
    agent = create_agent(
        model, middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    with pytest.raises(ConnectionError):
        run(agent, "hello?")
    assert history(memory) == ["user: hello?"]

    run(agent, "are you there?")

    assert history(memory) == ["user: hello?", "user: are you there?", "assistant: here"]


@pytest.mark.trap("langchain", 7)
def test_a_retried_call_stores_nothing_twice(run, memory) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        if len(model.seen) < 3:
            raise ConnectionError("away")
        return AIMessage("here")

    model = Scripted(script=script)
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    for order in (0, 1):
        model.seen.clear()
        both = [MemlayerMiddleware(memory, user_id="ada"), retry]
        run(create_agent(model, middleware=both[:: 1 - 2 * order]), "hello?", thread=f"t{order}")
        assert history(memory, f"t{order}") == ["user: hello?", "assistant: here"]


@pytest.mark.trap("langchain", 3)
def test_a_store_that_fails_fails_the_run(run) -> None:
    with Memory.in_memory() as memory:

        def script(_: list[BaseMessage]) -> AIMessage:
            memory.close()
            return AIMessage("ok")

        agent = create_agent(Scripted(script=script), middleware=[MemlayerMiddleware(memory, user_id="ada")])
        with pytest.raises(StoreClosedError):
            run(agent, "hello?")


@pytest.mark.trap("langchain", 2)
def test_a_question_that_comes_while_another_is_prepared_is_answered_beside_it(
    run, memory, monkeypatch
) -> None:
    """Runs of one thread without checkpoints overlap: the history alone knows of both."""
    from langchain_memlayer import middleware

    others = [Message("user", "And the plums?")]
    store = middleware.store_new_messages

    def meanwhile(chat: Any, messages: Any) -> Any:
        newest = store(chat, messages)
        chat.add_messages([others.pop()] if others else [])
        return newest

    monkeypatch.setattr(middleware, "store_new_messages", meanwhile)
    model = Scripted(script=then("They are ripe."))
    run(create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")]), "How are the pears?")

    assert texts(model.seen[0]) == ["How are the pears?"]
    assert history(memory) == [
        "user: How are the pears?",
        "user: And the plums?",
        "assistant: They are ripe.",
    ]


@pytest.mark.trap("langchain", 2)
@pytest.mark.parametrize("awaits", [False, True], ids=["batch", "abatch"])
def test_a_batch_on_one_thread_without_checkpoints_loses_nothing(memory, awaits) -> None:
    together = threading.Barrier(4)

    def script(messages: list[BaseMessage]) -> AIMessage:
        together.wait(30)
        return AIMessage(f"to {messages[-1].text}")

    agent = create_agent(Scripted(script=script), middleware=[MemlayerMiddleware(memory, user_id="ada")])
    given = [{"messages": [HumanMessage(f"question {number}")]} for number in range(4)]
    config = {"configurable": {"thread_id": "t"}}
    if awaits:
        asyncio.run(agent.abatch(given, config))
    else:
        agent.batch(given, {**config, "max_concurrency": 4})

    assert sorted(history(memory)) == sorted(
        line for n in range(4) for line in (f"user: question {n}", f"assistant: to question {n}")
    )


class AsksTwice(AgentMiddleware):
    """Throws the first answer away."""

    def wrap_model_call(self, request, handler):
        handler(request)
        return handler(request)

    async def awrap_model_call(self, request, handler):
        await handler(request)
        return await handler(request)


def test_an_answer_that_another_middleware_threw_away_is_no_part_of_the_conversation(run, memory) -> None:
    model = Scripted(script=then("bad", "good", "fine", "better"))
    middleware = [AsksTwice(), MemlayerMiddleware(memory, user_id="ada")]
    agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    run(agent, "hello?")
    run(agent, "and now?")

    assert history(memory) == ["user: hello?", "assistant: good", "user: and now?", "assistant: better"]
    assert [texts(seen) for seen in model.seen] == [
        ["hello?"],
        ["hello?"],
        ["hello?", "good", "and now?"],
        ["hello?", "good", "and now?"],
    ]


def test_a_result_that_ends_the_run_is_stored(run, memory) -> None:
    @tool(return_direct=True)
    def last() -> str:
        """End."""
        return "the end"

    agent = create_agent(
        Scripted(script=then(calling(("last", {})))),
        [last],
        middleware=[MemlayerMiddleware(memory, user_id="ada")],
    )
    run(agent, "go")

    assert history(memory) == ["user: go", "assistant: ", "tool: the end"]


def test_a_thread_that_is_older_than_its_memory_is_stored_in_its_order(run, memory) -> None:
    saver = InMemorySaver()
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    before = create_agent(model, checkpointer=saver)
    run(before, "one")
    run(before, "two")
    after = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=saver)
    out = run(after, "three")["messages"]

    assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]
    assert texts(model.seen[-1]) == ["one", "answer 1", "two", "answer 3", "three"]


def test_turns_without_the_memory_are_stored_in_their_place_when_it_is_back(run, memory) -> None:
    saver, model = InMemorySaver(), Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    memlayer = MemlayerMiddleware(memory, user_id="ada")
    for number, middleware in enumerate(([memlayer], [], [], [memlayer])):
        agent = create_agent(model, middleware=middleware, checkpointer=saver)
        out = run(agent, f"question {number}")["messages"]

    assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]
    assert texts(model.seen[-1]) == texts(out[:-1])


@pytest.mark.requirement("A11")
def test_a_thread_goes_on_though_its_checkpoints_are_lost_even_with_the_same_words(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    run(agent, "Hello, is anybody at home this fine evening?")
    run(agent, "Hello, is anybody at home this fine evening?")

    asked = "Hello, is anybody at home this fine evening?"
    assert texts(model.seen[-1]) == [asked, "answer 1", asked]
    assert history(memory) == [
        f"user: {asked}",
        "assistant: answer 1",
        f"user: {asked}",
        "assistant: answer 3",
    ]


@pytest.mark.trap("langchain", 7)
def test_a_client_that_sends_the_whole_list_again_without_ids_repeats_nothing(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"the answer to {messages[-1].text}"))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    sent: list[Any] = []
    for question in ("Where is the library of Alexandria?", "And who built it?", "And who burnt it down?"):
        sent.append({"role": "user", "content": question})
        out = run(agent, {"messages": sent})["messages"]
        sent.append({"role": "assistant", "content": out[-1].text})

    assert history(memory) == [f"{m['role']}: {m['content']}" for m in sent]


def test_a_list_without_ids_that_lacks_the_last_answer_asks_for_another_one(run, memory) -> None:
    """As "regenerate" of a client that keeps the talk itself, without the calls, and whose instructions name the time."""
    calls = calling(("weather", {"city": "Oslo"}))
    model = Scripted(
        script=lambda shown: calls if shown[-1].type == "human" else AIMessage(f"answer {len(model.seen)}")
    )
    agent = create_agent(
        model, [weather], middleware=[MemlayerMiddleware(memory, user_id="ada", mode="STATIC")]
    )
    said = [("human", "I plan a trip to Oslo in June")]
    said.append(("ai", run(agent, {"messages": said})["messages"][-1].text))
    said.append(("human", "Is it dry?"))
    for hour in range(3):
        answer = run(agent, {"messages": [("system", f"It is {hour}:00"), *said]})["messages"][-1].text
        shown = [m.text for m in model.seen[-1] if m.type in {"human", "ai"} and m.text]
        assert shown == [text for _, text in said]
        talk = [m for m in memory.chat(user_id="ada", session_id="t").history() if m.role != "system"]
        assert [m.text for m in talk if m.role != "tool" and m.text] == [*shown, answer]
        assert len(talk) == 8


@given(
    st.lists(st.sampled_from(["ask", "ask", "again", "edit", "back"]), max_size=7),
    st.lists(st.sampled_from(["ok", "Which museums are there?", "hi"]), min_size=10, max_size=10),
    st.booleans(),
)
@examples(40)
def test_the_history_follows_a_list_without_ids_that_a_client_keeps(steps, questions, same_answers) -> None:
    with Memory.in_memory(settings=Tuned(index_delay=3600.0), tokenizer="estimate") as memory:
        model = Scripted(script=lambda _: AIMessage("ok" if same_answers else f"answer {len(model.seen)}"))
        agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada", mode="STATIC")])
        talk: list[tuple[str, str]] = []
        for number, (step, said) in enumerate(zip(["ask", "ask", *steps], questions, strict=False)):
            question = f"{said} {number}"  # an equal one may be any of them
            if step == "ask":
                talk.append(("human", question))
            elif step == "edit":
                talk[-2:] = [("human", f"{question}, in June")]
            else:
                del talk[-3 if step == "back" and len(talk) > 4 else -1 :]
            answer = agent.invoke({"messages": talk}, {"configurable": {"thread_id": "t"}})["messages"][-1]
            assert texts(model.seen[-1]) == [text for _, text in talk]
            talk.append(("ai", answer.text))
            assert [m.text for m in memory.chat(user_id="ada", session_id="t").history()] == [
                t for _, t in talk
            ]


def test_a_thread_that_goes_back_to_an_earlier_checkpoint_takes_its_history_along(run, memory) -> None:
    model = Scripted(script=then("a red house", "two floors", "three floors", "a garden"))
    agent = create_agent(
        model, middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    at = {"configurable": {"thread_id": "t"}}
    run(agent, "Draw me a house.")
    run(agent, "How many floors has it?")
    asked = next(
        state
        for state in agent.get_state_history(at)
        if state.next == ("model",) and len(state.values["messages"]) == 3
    )
    again = agent.invoke(None, asked.config)["messages"]

    assert texts(model.seen[-1]) == ["Draw me a house.", "a red house", "How many floors has it?"]
    assert texts(again)[-1] == "three floors"
    run(agent, "What is behind it?")
    assert texts(model.seen[-1]) == [*texts(again), "What is behind it?"]
    assert "assistant: two floors" not in history(memory)
    [session] = memory.sessions(user_id="ada")
    assert taken_out(memory.chat_of(session.scope)) == [["two floors"]]


def test_a_thread_that_goes_far_back_is_shown_its_own_turn_and_goes_on_from_there(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(model.seen)}"))
    middleware = MemlayerMiddleware(memory, user_id="ada", policy=MaxRounds(1), mode="STATIC")
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    at = {"configurable": {"thread_id": "t"}}
    for number in range(4):
        run(agent, f"question {number}")
    [first] = [
        state
        for state in agent.get_state_history(at)
        if state.next == ("model",) and len(state.values["messages"]) == 1
    ]
    agent.invoke(None, first.config)

    assert texts(model.seen[-1]) == ["question 0"]
    assert history(memory) == ["user: question 0", "assistant: answer 5"]
    run(agent, "question 1 again")
    assert texts(model.seen[-1])[-1].endswith("question 1 again")
    assert history(memory)[-2:] == ["user: question 1 again", "assistant: answer 6"]


def test_instructions_and_hidden_messages_at_the_end_are_no_question(run, memory) -> None:
    model = Scripted()
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    card = AIMessage("a card", additional_kwargs={"model_visible": False})
    kind = SystemMessage("Be kind.")
    given = [
        SystemMessage("Be good."),
        HumanMessage("hi"),
        AIMessage("hello"),
        HumanMessage("and?"),
        card,
        kind,
    ]
    run(agent, {"messages": given})

    assert texts(model.seen[0]) == ["Be kind.", "hi", "hello", "and?"]
    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [m.text for m in kept] == [*texts(given), "ok"]


def test_a_run_without_any_message_asks_the_model_all_the_same(run, memory) -> None:
    model = Scripted()
    agent = create_agent(
        model, system_prompt="Say hello.", middleware=[MemlayerMiddleware(memory, user_id="ada")]
    )
    run(agent, {"messages": []})

    assert model.seen == [[SystemMessage("Say hello.")]]
    assert history(memory) == ["assistant: ok"]


def test_a_call_translates_only_what_is_new_however_long_the_thread_is(run, memory, monkeypatch) -> None:
    from langchain_memlayer import threads

    translated: list[int] = []
    real = threads.all_to_core

    def counting(messages: Any) -> Any:
        made = real(messages)
        translated.append(len(made))
        return made

    monkeypatch.setattr(threads, "all_to_core", counting)
    agent = create_agent(
        Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    for number in range(12):
        out = run(agent, f"question {number}")["messages"]

    assert len(out) == 24
    assert max(translated) == 4  # from the answer before the last one on: answer, question, answer, question


def test_a_thread_is_kept_in_postgresql_as_well(run, postgres_url) -> None:
    settings = Tuned(index_delay=0.0)
    with Memory.open(database_url=postgres_url, embedder="hashing", settings=settings) as memory:
        said_before(memory)
        record = calling(("record_to_memory", {"thinking": "", "content": ["Ada plays chess."]}))
        model = Scripted(script=then(record, "no nuts", "chess"))
        middleware = [MemlayerMiddleware(memory, user_id="ada", mode="BOTH")]
        agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
        run(agent, "What should I not eat in Tokyo?")
        out = run(agent, "And what do I play?")["messages"]

        assert "allergic to nuts" in model.seen[0][0].text
        assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]
        assert [one.text for one in memory.records(user_id="ada")] == ["Ada plays chess."]


# Tools


@pytest.mark.trap("langchain", 17)
def test_parallel_calls_and_their_results_are_never_parted(run, memory) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            base = 3 * len(model.seen)
            return calling(*(("weather", {"city": f"city {n}"}) for n in range(3)), first=base)
        return AIMessage("rain " * 30)

    model = Scripted(script=script)
    agent = create_agent(
        model,
        [weather],
        middleware=[MemlayerMiddleware(memory, user_id="ada", token_limit=1700)],
        checkpointer=InMemorySaver(),
    )
    for number in range(8):
        out = run(agent, f"weather in three cities, time {number}")["messages"]

    assert len(out) == 8 * 6
    assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]
    assert len(model.seen[-1]) < len(out)
    for seen in model.seen:
        open_calls: list[str] = []
        for message in seen:
            if isinstance(message, ToolMessage):
                open_calls.remove(message.tool_call_id)
                continue
            assert not open_calls, seen
            open_calls += [c["id"] for c in getattr(message, "tool_calls", [])]
        assert not open_calls


@pytest.mark.slow
@pytest.mark.trap("langchain", 17)
@pytest.mark.parametrize("limit", [1200, 1800])
def test_in_a_long_run_of_tools_the_model_is_always_shown_the_question_and_the_newest_result(
    run, memory, limit
) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        steps = len(model.seen)
        if steps > 15:
            return AIMessage("dry")
        return calling(
            ("weather", {"city": f"city {steps} " * 5}), ("weather", {"city": "b"}), first=2 * steps
        )

    model = Scripted(script=script)
    agent = create_agent(
        model, [weather], middleware=[MemlayerMiddleware(memory, user_id="ada", token_limit=limit)]
    )
    out = run(agent, "Which city is dry?")["messages"]

    assert out[-1].text == "dry"
    assert len(memory.chat(user_id="ada", session_id="t").history()) == len(out) == 2 + 15 * 3
    for number, seen in enumerate(model.seen):
        assert texts(seen[:1]) == ["Which city is dry?"]
        assert [m.type for m in seen[1:]] == ["ai", "tool", "tool"] * ((len(seen) - 1) // 3)
        for at in range(1, len(seen), 3):
            asked = [call["id"] for call in seen[at].tool_calls]
            assert [m.tool_call_id for m in seen[at + 1 : at + 3]] == asked
        if number:
            assert seen[-1].tool_call_id == f"c{2 * number + 1}"


@pytest.mark.trap("langchain", 13, 15)
def test_what_a_tool_brings_costs_no_run_whatever_it_is(run, memory) -> None:
    thing = object()

    @tool(response_format="content_and_artifact")
    def fetch() -> tuple[str, Any]:
        """Fetch something."""
        return "a\0b \udc80", {"thing": thing, "pair": (1, b"\xff"), "far": float("inf")}

    model = Scripted(script=then(calling(("fetch", {})), "got it"))
    out = run(create_agent(model, [fetch], middleware=[MemlayerMiddleware(memory, user_id="ada")]), "go")

    kept = MemlayerChatMessageHistory(memory, session_id="t", user_id="ada").messages
    assert kept[2].artifact == {"pair": (1, b"\xff"), "far": float("inf")}
    assert out["messages"][2].artifact["thing"] is thing, "the state keeps the object itself"
    assert texts(kept) == texts(out["messages"]) == ["go", "", "a\0b \udc80", "got it"]
    assert model.seen[1][-1].text == "a\ufffdb \ufffd"  # providers' clients can send that


WORDS, ARGUMENTS = "word " * 3000, {"path": "a.py", "text": "x = 1\n" * 4000}
SMALLER = {"previews": {}, "truncated": {"truncate_messages": True, "truncate_characters": 300}}


@pytest.mark.requirement("A08", "F08")
@pytest.mark.parametrize("door", ["history", "STATIC", "BOTH"])
@pytest.mark.parametrize("smaller", SMALLER.values(), ids=SMALLER)
def test_what_is_made_smaller_keeps_all_but_its_words(smaller, door) -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "w", "name": "write"}
    said = [
        HumanMessage("Write the module.", id="q"),
        AIMessage(
            [
                {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAA" * 90},
                {"type": "text", "text": WORDS, "id": "msg"},
                {**call, "arguments": json.dumps(ARGUMENTS, indent=1)},
            ],
            tool_calls=[{"id": "w", "name": "write", "args": ARGUMENTS}],
            additional_kwargs={"reasoning_content": "I write it.", "signatures": {"w": "U0lH"}},
            response_metadata={"model_provider": "openai"},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            id="a",
        ),
        ToolMessage(
            [{"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}}],
            tool_call_id="w",
            status="error",
            artifact={"text": WORDS},
            additional_kwargs={"type": "computer_call_output"},
            id="r",
        ),
    ]
    settings = Tuned(index_delay=3600, **smaller)
    with Memory.in_memory(settings=settings, tokenizer="estimate") as memory:
        if door == "history":
            history = MemlayerChatMessageHistory(memory, session_id="t", user_id="ada", token_limit=5000)
            history.add_messages(said)
            shown = history.context()
            sent = [*map(to_core, shown), Message("assistant", "Done.")]
            assert smaller or history.chat.resync(sent).stored == 1, "what comes back is known again"
        else:
            model, limits = Scripted(), {"mode": door, "token_limit": 5000}
            agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada", **limits)])
            Calls(awaits=False)(agent, {"messages": said})
            shown = model.seen[0]
        assert sum(memory.tokens.message(to_core(one)) for one in shown) <= 5000
    for whole, small in zip(said, shown, strict=True):
        assert len(small.text) <= len(whole.text)
        words = {"content", "tool_calls", "id"}
        assert small.model_dump(exclude=words) == whole.model_dump(exclude=words)
    reasoning, text, block = shown[1].content
    assert (reasoning, text["id"], {**block, **call}) == (said[1].content[0], "msg", block)
    assert WORDS.startswith(text["text"].rstrip("…")), "no words that it did not say"
    arguments = shown[1].tool_calls[0]["args"]
    assert json.loads(block["arguments"]) == arguments == {**arguments, "path": "a.py"}
    assert len(arguments["text"]) < len(ARGUMENTS["text"]) / 2
    assert shown[2].content[0]["cache_control"] == {"type": "ephemeral"}
    assert ("context_reload" in str(shown)) == (door == "BOTH" and not smaller)


@pytest.mark.requirement("A08", "A10", "A15")
def test_the_agent_reloads_what_it_is_shown_a_preview_of(run, memory) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        if len(model.seen) == 1:
            return calling(("report", {"length": 3000}))
        if len(model.seen) == 2:
            return AIMessage("written")
        if isinstance(messages[-1], HumanMessage):
            place = next(m.text.split("'")[1] for m in messages if "call context_reload" in m.text)
            return calling(("context_reload", {"id": place}), first=9)
        return AIMessage("read")

    model = Scripted(script=script)
    agent = create_agent(
        model,
        [report],
        middleware=[MemlayerMiddleware(memory, user_id="ada", token_limit=3000, mode="BOTH")],
        checkpointer=InMemorySaver(),
    )
    run(agent, "Write the report.")
    out = run(agent, "What does it begin with?")["messages"]

    assert len(out[2].text) == 3000 * len("pears and apples ")
    assert out[-2].text.startswith("pears and apples pears")
    assert "to read on" in out[-2].text
    assert out[-1].text == "read"


@pytest.mark.requirement("A15")
def test_what_the_agent_records_it_retrieves_in_another_thread(run, memory) -> None:
    facts = ["Ada is allergic to nuts.", "Ada lives in Tokyo."]
    model = Scripted(
        script=then(
            calling(("record_to_memory", {"thinking": "it matters for meals", "content": facts})),
            "noted",
            calling(("retrieve_from_memory", {"keywords": ["allergic", "Tokyo"]})),
            "no nuts",
        )
    )
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada", mode="AGENT")])
    recorded = run(agent, "I have an allergy.", "one")["messages"][-2]
    retrieved = run(agent, "What may I eat?", "two")["messages"][-2]

    assert {r.text for r in memory.records(user_id="ada")} == set(facts)
    assert {r.source for r in memory.records(user_id="ada")} == {"implicit_inference"}
    assert all(record.memory_id in recorded.text for record in memory.records(user_id="ada"))
    assert all(fact in retrieved.text for fact in facts)
    assert memory.records(user_id="someone else") == []


@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["stateless", "checkpoints"])
def test_answers_of_one_id_are_kept_in_the_state_and_in_the_memory(run, memory, saver) -> None:
    """Some servers give each answer the same id, and LangGraph's state replaces messages by their ids."""
    answers = iter(AIMessage(f"answer {number}", id="same") for number in range(3))
    agent = create_agent(
        Scripted(script=lambda _: next(answers)),
        middleware=[MemlayerMiddleware(memory, user_id="ada")],
        checkpointer=saver and saver(),
    )
    for number in range(3):
        out = run(agent, f"question {number}")["messages"]

    told = [f"{kind} {number}" for number in range(3) for kind in ("question", "answer")]
    assert [one.text for one in memory.chat(user_id="ada", session_id="t").history()] == told
    assert [one.text for one in out] == (told if saver else told[-2:])


def test_a_model_of_the_middleware_is_the_memorys_and_another_one_is_refused_by_its_name(memory) -> None:
    def small(prompt: str) -> str:
        return prompt

    def large(prompt: str) -> str:
        return prompt

    for _ in range(2):
        MemlayerMiddleware(memory, user_id="ada", model=small)
    status = memory.admin.status()
    assert "small" in status.summarizer
    assert "small" in status.extractor
    with pytest.raises(ConfigurationError, match=r"small'.*large'"):
        MemlayerMiddleware(memory, user_id="ada", model=large)


@pytest.mark.requirement("A13", "A15")
@pytest.mark.parametrize(
    ("mode", "tools", "recalls"),
    [("STATIC", [], True), ("AGENT", OURS_ALONE, False), ("BOTH", OURS_ALONE, True)],
)
def test_the_mode_decides_who_looks_into_the_memory(run, memory, mode, tools, recalls) -> None:
    said_before(memory)
    model = Scripted()
    middleware = MemlayerMiddleware(memory, user_id="ada", mode=mode)
    run(create_agent(model, middleware=[middleware]), "What should I not eat in Tokyo?")

    assert model.bound == tools
    assert ("allergic to nuts" in model.seen[0][-1].text) == recalls


@pytest.mark.parametrize("roles", [["doctor"], lambda runtime: ["doctor"], ()])
def test_what_others_share_with_a_role_is_told_to_that_role_alone(run, memory, roles) -> None:
    ada = memory.chat(user_id="ada", session_id="s")
    ada.remember("Ada is allergic to nuts.", visibility="share", allowed_roles=["doctor"])
    look = calling(("retrieve_from_memory", {"keywords": ["Ada", "allergic"]}))
    middleware = MemlayerMiddleware(memory, user_id="bob", roles=roles, mode="AGENT")
    out = run(create_agent(Scripted(script=then(look, "ok")), middleware=[middleware]), "hi")["messages"]

    assert ("allergic to nuts" in out[-2].text) == bool(roles)


def test_the_model_can_name_nobody_elses_memory(memory) -> None:
    for one in MemlayerMiddleware(memory, user_id="ada").tools:
        assert {*one.tool_call_schema.model_json_schema()["properties"]} <= {
            "thinking",
            "content",
            "keywords",
            "memory_id",
            "memory_ids",
            "text",
            "reason",
            "value",
            "quote",
            "id",
            "offset",
        }


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("record_to_memory", {"thinking": "", "content": "no list"}, "cannot be called like this: `content`"),
        ("record_to_memory", {"thinking": "", "content": []}, "Nothing was recorded"),
        (
            "record_to_memory",
            {"thinking": "", "content": ["fine", "  "]},
            "Recorded before that: ada_mem_001",
        ),
        ("retrieve_from_memory", {"keywords": [" "]}, "Nothing was looked up"),
        ("retrieve_from_memory", {"keywords": ["xylophone"]}, "Nothing was found"),
        ("context_reload", {"id": "msg-99"}, "this session has no message 'msg-99'"),
    ],
)
def test_a_wrong_call_is_answered_and_the_agent_goes_on(run, memory, name, args, says) -> None:
    model = Scripted(script=then(calling((name, args)), "sorry"))
    middleware = MemlayerMiddleware(memory, user_id="ada", mode="BOTH")
    out = run(create_agent(model, middleware=[middleware]), "hi")["messages"]

    assert says in out[-2].text
    assert out[-1].text == "sorry"


@pytest.mark.trap("langchain", 17, 19)
def test_a_call_that_nobody_can_read_is_stored_and_never_shown_without_an_answer(run, memory) -> None:
    """Newer versions of LangChain answer it; before them nobody does, and no provider takes it as it is."""
    broken = AIMessage(
        "",
        invalid_tool_calls=[
            {"name": "weather", "args": "{", "id": "c1", "error": None, "type": "invalid_tool_call"}
        ],
    )
    model = Scripted(script=then(broken, "fine"))
    agent = create_agent(
        model, [weather], middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    run(agent, "go")
    out = run(agent, "on")["messages"]

    answered = any(m.type == "tool" for m in out)
    shown = ["human", "ai", "tool", "human"] if answered else ["human", "human"]
    assert [m.type for m in model.seen[-1]] == shown
    assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]


# Interrupts


@pytest.mark.parametrize("decision", ["approve", "edit", "reject"])
@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_an_interrupted_run_goes_on_and_the_history_follows_what_was_decided(
    run, memory, decision, first
) -> None:
    model = Scripted(script=then(calling(("weather", {"city": "Oslo"})), "take a coat"))
    both = [MemlayerMiddleware(memory, user_id="ada"), HumanInTheLoopMiddleware({"weather": True})]
    agent = create_agent(
        model, [weather], middleware=both if first else both[::-1], checkpointer=InMemorySaver()
    )
    assert "__interrupt__" in run(agent, "How is it outside?")
    assert history(memory) == ["user: How is it outside?", "assistant: "]

    decided = {
        "approve": {"type": "approve"},
        "edit": {"type": "edit", "edited_action": {"name": "weather", "args": {"city": "Rome"}}},
        "reject": {"type": "reject", "message": "not now"},
    }[decision]
    out = run(agent, Command(resume={"decisions": [decided]}))["messages"]

    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [m.id for m in kept] == [m.id for m in out]
    assert [m.text for m in kept] == texts(out)
    assert {"approve": "Oslo: rain", "edit": "Rome: rain", "reject": "not now"}[decision] in kept[2].text


class Censor(AgentMiddleware):
    """Changes what the model said, after it said it."""

    def after_model(self, state, runtime):
        last = state["messages"][-1]
        return {"messages": [last.model_copy(update={"content": last.content.replace("damn", "dear")})]}

    async def aafter_model(self, state, runtime):
        return self.after_model(state, runtime)


@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_an_answer_that_another_middleware_edits_is_kept_as_the_state_has_it(run, memory, first) -> None:
    model = Scripted(script=then(calling(("weather", {"city": "Oslo"}), text="my damn guess"), "damn rain"))
    both = [MemlayerMiddleware(memory, user_id="ada"), Censor()]
    out = run(create_agent(model, [weather], middleware=both if first else both[::-1]), "go")["messages"]

    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [m.id for m in kept] == [m.id for m in out]
    assert [m.text for m in kept] == texts(out) == ["go", "my dear guess", "Oslo: rain", "dear rain"]
    assert model.seen[-1][1].text == "my dear guess"


# Whose conversation


@dataclass
class Visitor:
    user_id: str | None


@dataclass
class Login:
    identity: str


@pytest.mark.trap("langchain", 22)
def test_two_users_on_one_object_at_once_never_meet(memory) -> None:
    for user in ("ada", "bob"):
        said_before(memory, user)
    model = Scripted(script=lambda messages: AIMessage("no nuts"))
    agent = create_agent(
        model, middleware=[MemlayerMiddleware(memory)], context_schema=Visitor, checkpointer=InMemorySaver()
    )

    async def many() -> None:
        await asyncio.gather(
            *(
                agent.ainvoke(
                    {"messages": [HumanMessage(f"I am {user}, what should I not eat in Tokyo?")]},
                    {"configurable": {"thread_id": f"{user}-{number}"}},
                    context=Visitor(user),
                )
                for number in range(4)
                for user in ("ada", "bob")
            )
        )

    asyncio.run(many())

    assert len(model.seen) == 8
    for (question,) in model.seen:
        mine, other = ("ada", "bob") if "I am ada" in question.text else ("bob", "ada")
        assert f"{mine} moved to Tokyo" in question.text
        assert other not in question.text
    assert len(memory.sessions(user_id="ada")) == len(memory.sessions(user_id="bob")) == 5


@pytest.mark.parametrize(
    ("given", "context", "configurable"),
    [
        ("ada", None, {}),
        (lambda runtime: runtime.context.user_id, Visitor("ada"), {}),
        (None, Visitor("ada"), {}),
        (None, {"user_id": "ada"}, {"user_id": "not her"}),
        (None, Visitor(None), {"user_id": "ada"}),
    ],
)
@pytest.mark.parametrize("mode", ["STATIC", "BOTH"])
def test_the_user_is_named_by_an_id_a_function_the_context_or_the_config(
    memory, given, context, configurable, mode
) -> None:
    record = calling(("record_to_memory", {"thinking": "", "content": ["Ada plays chess."]}))
    agent = create_agent(
        Scripted(script=then(record, "ok") if mode == "BOTH" else then("ok")),
        middleware=[MemlayerMiddleware(memory, user_id=given, mode=mode)],
        context_schema=type(context) if context is not None else None,
    )
    config = {"configurable": {"thread_id": "t", **configurable}}
    agent.invoke({"messages": [HumanMessage("hi")]}, config, context=context)

    assert history(memory)[0] == "user: hi"
    assert len(memory.records(user_id="ada")) == (mode == "BOTH")


@pytest.mark.parametrize(
    "login",
    [
        {"langgraph_auth_user": {"identity": "ada"}},
        {"langgraph_auth_user": Login("ada")},
        {"langgraph_auth_user_id": "ada"},
    ],
)
@pytest.mark.parametrize("place", ["context", "configurable"])
@pytest.mark.parametrize("named", [None, "ada", "bob"])
def test_who_logged_in_to_a_server_is_the_user_and_nobody_else(memory, login, place, named) -> None:
    said_before(memory, "bob")
    record = calling(("record_to_memory", {"thinking": "", "content": ["Ada plays chess."]}))
    tools, hi = create_memory_tools(memory), {"messages": [("human", "hi")]}
    with_recall, plain = (
        create_agent(Scripted(script=then(record, "ok")), tools, middleware=more)
        for more in ([MemlayerMiddleware(memory, mode="STATIC")], [])
    )
    names = {} if named is None else {"user_id": named}
    config = {"configurable": {"thread_id": "t", **login, **(names if place == "configurable" else {})}}
    in_chain = {"configurable": {**login, **names, "session_id": "c"}}
    factory = MemlayerChatMessageHistory.factory(memory)
    reads_itself = RunnableLambda(lambda _: factory(named, "c"))  # as LangChain's class does
    for call in (
        lambda: with_recall.invoke(hi, config, context=names if place == "context" else None),
        lambda: plain.invoke(hi, config, context=names if place == "context" else None),
        lambda: [*with_memory(lambda _: "ok", memory).stream("hi", in_chain)],
        lambda: reads_itself.invoke("hi", in_chain).add_user_message("hi"),
    ):
        with pytest.raises(InvalidScopeError, match="logged in") if named == "bob" else nullcontext():
            call()
    assert len(memory.records(user_id="ada")) == (named != "bob")
    sessions = {one.scope.session_id: one.messages for one in memory.sessions(user_id="ada")}
    assert sessions == ({} if named == "bob" else {"t": 4, "c": 3})
    assert len(memory.sessions(user_id="bob")) == 1


@pytest.mark.parametrize("mode", ["STATIC", "BOTH"])
@pytest.mark.parametrize("other", ["bob", None])
def test_a_thread_of_one_user_is_refused_to_another(run, memory, other, mode) -> None:
    def asks(user: str | None, said: Any, thread: str) -> Any:
        memlayer = MemlayerMiddleware(memory, mode=mode, **({"user_id": user} if user else {}))
        agent = create_agent(model, middleware=[memlayer, gate], checkpointer=saver)
        return run(agent, said, thread)

    saver, gate = InMemorySaver(), HumanInTheLoopMiddleware({"record_to_memory": True})
    record = calling(("record_to_memory", {"thinking": "", "content": ["The order is ORD-7."]}))
    model = Scripted(script=then("noted", record, "ok"))
    asks("ada", "My order is ORD-7", "said")
    asks("ada", "Note that my order is ORD-7", "interrupted")
    for thread, said in (
        ("said", "Hello"),
        ("interrupted", Command(resume={"decisions": [{"type": "approve"}]})),
    ):
        with pytest.raises(InvalidScopeError, match=f"'{thread}'"):
            asks(other, said, thread)
    assert {one.user_id for one in memory.users()} == {"ada"}
    assert not memory.records(user_id="ada")
    asks("ada", "Hello", "said")
    assert history(memory, "said")[-1] == "assistant: ok"


def test_a_run_that_names_no_user_stands_alone(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage("ok"))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory)])
    run(agent, "My cat is called Tiger, and he eats fish.", "one")
    run(agent, "What is my cat called, and what does he eat?", "two")

    assert texts(model.seen[-1]) == ["What is my cat called, and what does he eat?"]


def test_a_run_that_names_no_thread_is_refused_with_what_to_do(memory) -> None:
    agent = create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada")])
    with pytest.raises(InvalidScopeError) as refused:
        agent.invoke({"messages": [HumanMessage("hi")]})
    assert "thread_id" in refused.value.hint

    named = MemlayerMiddleware(memory, user_id="ada", session_id=lambda runtime: "mine")
    create_agent(Scripted(), middleware=[named]).invoke({"messages": [HumanMessage("hi")]})
    assert history(memory, "mine") == ["user: hi", "assistant: ok"]


def test_a_user_who_is_nobody_is_refused(memory) -> None:
    middleware = MemlayerMiddleware(memory, user_id=lambda runtime: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidScopeError):
        Calls(awaits=False)(create_agent(Scripted(), middleware=[middleware]), "hi")


def test_agents_that_tools_call_at_once_have_sessions_of_their_own(run, memory) -> None:
    middleware = MemlayerMiddleware(memory, user_id="ada")
    below = Scripted(script=lambda messages: AIMessage(f"looked into {messages[-1].text.split()[-1]}"))
    inner = create_agent(below, middleware=[middleware], name="inner")

    def research(topic: str) -> str:
        given = {"messages": [HumanMessage(f"look into {topic}")]}
        return inner.invoke(given)["messages"][-1].text

    async def aresearch(topic: str) -> str:
        given = {"messages": [HumanMessage(f"look into {topic}")]}
        return (await inner.ainvoke(given))["messages"][-1].text

    looks = StructuredTool.from_function(
        research, aresearch, description="Look into a topic.", name="research"
    )
    above = Scripted(
        script=then(calling(("research", {"topic": "pears"}), ("research", {"topic": "plums"})), "done")
    )
    outer = create_agent(above, [looks], middleware=[middleware], checkpointer=InMemorySaver())
    out = run(outer, "go")["messages"]

    assert texts(out) == ["go", "", "looked into pears", "looked into plums", "done"]
    assert history(memory) == [
        "user: go",
        "assistant: ",
        "tool: looked into pears",
        "tool: looked into plums",
        "assistant: done",
    ]
    others = [s.scope.session_id for s in memory.sessions(user_id="ada") if s.scope.session_id != "t"]
    assert len(others) == 2
    assert all(one.startswith("t/tools:") for one in others)
    assert sorted(history(memory, one)[0] for one in others) == [
        "user: look into pears",
        "user: look into plums",
    ]


ASKED = "I live in Rome and I am allergic to nuts. Which restaurant is good?"


def calls_an_agent(inner: Any, model: Any, middleware: Any, how: str) -> Any:
    """Return an agent that gives a task to another one."""
    if how == "deepagents":
        helper = {"name": "helper", "description": "Finds restaurants.", "runnable": inner}
        deep = pytest.importorskip("deepagents", reason="deepagents is not installed: pip install deepagents")
        return deep.create_deep_agent(model, subagents=[helper], middleware=[middleware])
    own = {"configurable": {"thread_id": "restaurants"}} if how == "a thread of its own" else None

    def find(description: str, subagent_type: str) -> str:
        return inner.invoke({"messages": [("user", description)]}, own)["messages"][-1].text

    async def afind(description: str, subagent_type: str) -> str:
        return (await inner.ainvoke({"messages": [("user", description)]}, own))["messages"][-1].text

    task = StructuredTool.from_function(find, afind, name="task", description="Find restaurants.")
    outer = create_agent(model, [task], middleware=[middleware])
    if how != "inside a graph":
        return outer
    return StateGraph(MessagesState).add_node("desk", outer).add_edge(START, "desk").compile()


@pytest.mark.parametrize("how", ["a tool", "a thread of its own", "inside a graph", "deepagents"])
def test_what_an_agent_asks_another_one_is_nothing_that_the_user_said(run, how) -> None:
    settings = Tuned(index_delay=0.0, extraction_turns=1, episode_messages=1, session_idle_days=1)
    models = {"extractor": reads(), "summarizer": lambda _: "They talked of restaurants."}
    quote = {"thinking": "", "content": [{"text": "Nuts.", "quote": "I am allergic to nuts"}]}
    below = Scripted(script=then(calling(("record_to_memory", quote)), "In Rome: Da Enzo."))
    asks = calling(("task", {"description": ASKED, "subagent_type": "helper"}))
    above = Scripted(script=then(asks, "Enjoy it.", "ok"))
    with Memory.in_memory(settings=settings, embedder="hashing", **models) as memory:
        inner = create_agent(below, middleware=[MemlayerMiddleware(memory, user_id="ada", mode="BOTH")])
        outer = calls_an_agent(inner, above, MemlayerMiddleware(memory, user_id="ada", mode="STATIC"), how)
        run(outer, "My friend Carla visits me, where shall we eat in Rome?")
        memory.flush()
        run(outer, "Which restaurant in Rome is good, and who is allergic to nuts?", "other")
        set_ahead(memory, 3)
        memory.flush()

        assert ASKED in str(below.seen[-1])
        told = [one.text for shown in above.seen for one in shown if one.type == "human"]
        assert not any(ASKED in text or "Enzo" in text for text in told)
        assert [record.source for record in memory.records(user_id="ada")] == ["implicit_inference"]
        assert ASKED in {hit.text for hit in memory.search("allergic to nuts", user_id="ada")}
        read = {one.session_id for one in memory.ledger(user_id="ada") if one.task != "record"}
        [apart] = {one.scope.session_id for one in memory.sessions(user_id="ada")} - read
        assert history(memory, str(apart))[0] == f"user: {ASKED}"
        memory.forget("ada")
        assert not memory.sessions(user_id="ada")


def test_an_agent_that_is_a_node_of_a_graph_goes_on_in_one_session(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(messages)}"))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    graph = (
        StateGraph(MessagesState).add_node("helper", agent).add_edge(START, "helper").add_edge("helper", END)
    )
    compiled = graph.compile(checkpointer=InMemorySaver())
    run(compiled, "one")
    run(compiled, "two")

    assert history(memory, "t/helper") == [
        "user: one",
        "assistant: answer 1",
        "user: two",
        "assistant: answer 3",
    ]
    assert len(memory.sessions(user_id="ada")) == 1
    run(compiled, "My boat is called Petrel.")
    memory.flush()
    assert "Petrel" in memory.chat(user_id="ada", session_id="u").context("What is my boat called?").recall


# Streams


@pytest.mark.trap("langchain", 6)
def test_a_streamed_answer_arrives_in_parts_and_is_stored_whole(memory) -> None:
    model = Scripted(script=then("it is raining in Oslo"))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
    given, at = {"messages": [HumanMessage("weather?")]}, {"configurable": {"thread_id": "t"}}
    parts = [part.text for part, _ in agent.stream(given, at, stream_mode="messages")]

    assert len(parts) >= 5
    assert "".join(parts) == "it is raining in Oslo"
    assert history(memory) == ["user: weather?", "assistant: it is raining in Oslo"]
    kept = memory.chat(user_id="ada", session_id="t").history()[-1]
    assert kept.raw.dump["type"] == "ai"


@pytest.mark.trap("langchain", 6)
def test_a_stream_that_is_left_early_keeps_its_question_and_the_thread_goes_on(memory) -> None:
    model = Scripted(script=then("it is raining in Oslo", "still raining"))
    agent = create_agent(
        model, middleware=[MemlayerMiddleware(memory, user_id="ada")], checkpointer=InMemorySaver()
    )
    given, at = {"messages": [HumanMessage("weather?")]}, {"configurable": {"thread_id": "t"}}
    stream = agent.stream(given, at, stream_mode="messages")
    next(stream)
    stream.close()
    assert history(memory)[0] == "user: weather?"

    Calls(awaits=False)(agent, "and now?")

    assert history(memory)[0] == "user: weather?"
    assert history(memory)[-2:] == ["user: and now?", "assistant: still raining"]


@pytest.mark.trap("langchain", 21)
def test_calls_that_sum_up_are_in_no_users_stream() -> None:
    summarizer = Scripted(script=lambda messages: AIMessage("a summary " * 30))
    settings = Tuned(index_delay=0.0, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate", summarizer=summarizer) as memory:
        model = Scripted(script=lambda messages: AIMessage("so it is " * 40))
        middleware = MemlayerMiddleware(memory, user_id="ada", token_limit=1800)

        @tool
        def wait() -> str:
            """Wait for the background."""
            memory.flush()
            return "waited"

        agent = create_agent(model, [wait], middleware=[middleware], checkpointer=InMemorySaver())
        at = {"configurable": {"thread_id": "t"}}
        told = ""
        for number in range(40):
            given = {"messages": [HumanMessage(f"question {number} " + "about pears " * 10)]}
            told += "".join(part.text for part, _ in agent.stream(given, at, stream_mode="messages"))
            memory.flush()

    assert summarizer.tags
    assert all("nostream" in tags for tags in summarizer.tags)
    assert "a summary" not in told


# Other middleware


class Hints(AgentMiddleware):
    """Tells the model something once, and hides a word from it."""

    def _changed(self, request):
        shown = [
            m.model_copy(update={"content": m.content.replace("secret", "[hidden]")})
            for m in request.messages
        ]
        return request.override(messages=[HumanMessage("first, a hint"), *shown, HumanMessage("and another")])

    def wrap_model_call(self, request, handler):
        return handler(self._changed(request))

    async def awrap_model_call(self, request, handler):
        return await handler(self._changed(request))


@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_what_another_middleware_tells_or_hides_once_is_shown_so_and_not_stored(run, memory, first) -> None:
    model = Scripted()
    both = [MemlayerMiddleware(memory, user_id="ada", mode="STATIC"), Hints()]
    agent = create_agent(model, middleware=both if first else both[::-1])
    out = run(agent, "my secret plan")["messages"]

    assert texts(model.seen[0]) == ["first, a hint", "my [hidden] plan", "and another"]
    assert texts(out) == ["my secret plan", "ok"]
    assert history(memory) == ["user: my secret plan", "assistant: ok"]


class Reminds(AgentMiddleware):
    """Puts something behind the model's messages, in their list itself, which LangChain keeps in the state."""

    def wrap_model_call(self, request, handler):
        request.messages.append(HumanMessage(f"be brief, {len(request.messages)}"))
        return handler(request)

    async def awrap_model_call(self, request, handler):
        request.messages.append(HumanMessage(f"be brief, {len(request.messages)}"))
        return await handler(request)


@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_what_another_middleware_puts_into_the_state_with_a_call_is_kept_in_its_place(
    run, memory, first
) -> None:
    model = Scripted(script=then(calling(("weather", {"city": "Oslo"})), "rain", "nothing"))
    both = [MemlayerMiddleware(memory, user_id="ada", mode="STATIC"), Reminds()]
    agent = create_agent(
        model, [weather], middleware=both if first else both[::-1], checkpointer=InMemorySaver()
    )
    run(agent, "go")
    out = run(agent, "and?")["messages"]

    kept = memory.chat(user_id="ada", session_id="t").history()
    assert [message.text for message in kept] == texts(out)
    assert texts(out) == [
        *("go", "be brief, 1", "", "Oslo: rain", "be brief, 4", "rain"),
        *("and?", "be brief, 7", "nothing"),
    ]
    assert texts(model.seen[2]) == texts(out)[:-1]


class AsksAnew(AgentMiddleware):
    """Makes a request of its own, of what a model call needs alone."""

    def _anew(self, request):
        return ModelRequest(model=request.model, messages=request.messages, system_prompt="Be brief.")

    def wrap_model_call(self, request, handler):
        return handler(self._anew(request))

    async def awrap_model_call(self, request, handler):
        return await handler(self._anew(request))


class Copies(AgentMiddleware):
    """Gives the next one copies of all messages, as middleware does that may change one of them."""

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=deepcopy(request.messages)))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=deepcopy(request.messages)))


def test_a_copy_of_what_the_state_has_does_not_hide_what_the_memory_says_by_now(run, memory) -> None:
    model = Scripted(script=lambda messages: AIMessage("ok"))
    both = [Copies(), MemlayerMiddleware(memory, user_id="ada")]
    agent = create_agent(model, middleware=both, checkpointer=InMemorySaver())
    for question in "I live in Oslo.", "And now?", "And then?":
        run(agent, question)
        memory.chat(user_id="ada", session_id="t").edit(0, "I live in Rome.")
    assert texts(model.seen[-1])[0] == "I live in Rome."


def test_a_request_that_another_middleware_makes_anew_belongs_to_its_thread(run, memory) -> None:
    model = Scripted(script=then("hello", "fine"))
    middleware = [AsksAnew(), MemlayerMiddleware(memory, user_id="ada", mode="STATIC")]
    agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    run(agent, "hi")
    out = run(agent, "how are you?")["messages"]

    assert [m.id for m in memory.chat(user_id="ada", session_id="t").history()] == [m.id for m in out]
    assert texts(model.seen[1]) == ["Be brief.", "hi", "hello", "how are you?"]


@pytest.mark.trap("langchain", 20, 21)
@pytest.mark.parametrize("keep", [1, 2, 5])
@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_the_transcript_outlives_a_middleware_that_sums_it_up_in_the_state(run, memory, first, keep) -> None:
    """LangChain's own summaries take the place of what they sum up: the words are gone from every checkpoint."""
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(model.seen)}"))
    summarizer = Scripted(script=lambda _: AIMessage("They talked."))
    stock = SummarizationMiddleware(summarizer, trigger=("messages", 6), keep=("messages", keep))
    both = [MemlayerMiddleware(memory, user_id="ada"), stock]
    agent = create_agent(model, middleware=both if first else both[::-1], checkpointer=InMemorySaver())
    for number in range(8):
        out = run(agent, f"What about pear number {number}?")["messages"]

    assert summarizer.seen
    assert len(out) < 8
    said = [
        line
        for number in range(8)
        for line in (f"user: What about pear number {number}?", f"assistant: answer {number + 1}")
    ]
    assert history(memory) == said
    assert "They talked." not in str(model.seen), "the memory knows the words themselves"
    assert model.seen[-1][-1].text.endswith("What about pear number 7?")


# Removing


class Forgets(AgentMiddleware):
    """Removes everything but the newest message from the state."""

    def before_model(self, state, runtime):
        return {"messages": [RemoveMessage(id=one.id) for one in state["messages"][:-1]]}

    async def abefore_model(self, state, runtime):
        return self.before_model(state, runtime)


class ForgetsWithTheAnswer(AgentMiddleware):
    """Removes the older messages along with the model's answer."""

    def _with(self, response, request):
        gone = [RemoveMessage(id=one.id) for one in request.state["messages"][:-1]]
        return ModelResponse([*gone, *response.result])

    def wrap_model_call(self, request, handler):
        return self._with(handler(request), request)

    async def awrap_model_call(self, request, handler):
        return self._with(await handler(request), request)


@pytest.mark.trap("langchain", 20)
@pytest.mark.parametrize("other", [Forgets, ForgetsWithTheAnswer])
@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])
def test_what_another_middleware_removes_from_the_state_stays_in_the_history(
    run, memory, first, other
) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(model.seen)}"))
    both = [MemlayerMiddleware(memory, user_id="ada"), other()]
    agent = create_agent(model, middleware=both if first else both[::-1], checkpointer=InMemorySaver())
    for number in range(4):
        out = run(agent, f"question {number}")["messages"]

    assert len(out) == 2
    assert history(memory) == [
        line
        for number in range(4)
        for line in (f"user: question {number}", f"assistant: answer {number + 1}")
    ]


@pytest.mark.trap("langchain", 20)
@pytest.mark.parametrize("destructive", [True, False])
def test_only_where_it_is_asked_for_does_the_state_lose_what_is_no_longer_shown(
    run, memory, destructive
) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"answer {len(model.seen)}"))
    middleware = MemlayerMiddleware(memory, user_id="ada", policy=MaxRounds(2), destructive=destructive)
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for number in range(6):
        out = run(agent, f"question {number}")["messages"]

    assert len(out) == (4 if destructive else 12)
    assert len(history(memory)) == 12
    assert history(memory)[-2:] == ["user: question 5", "assistant: answer 6"]


# The object


@pytest.mark.trap("langchain", 22)
def test_it_holds_nothing_of_a_conversation(memory) -> None:
    middleware = MemlayerMiddleware(memory, user_id="ada")
    before = {name: repr(value) for name, value in vars(middleware).items()}
    run = Calls(awaits=False)
    run(create_agent(Scripted(), middleware=[middleware]), "hi")

    assert {name: repr(value) for name, value in vars(middleware).items()} == before


@pytest.mark.trap("langchain", 11)
def test_an_async_agent_is_served_on_its_own_loop_alone(memory) -> None:
    where: list[str] = []

    class Where(AgentMiddleware):
        async def awrap_model_call(self, request, handler):
            where.append(threading.current_thread().name)
            return await handler(request)

    agent = create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada"), Where()])
    Calls(awaits=True)(agent, "hi")

    assert where == [threading.main_thread().name]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mode": "AUTO"}, ConfigurationError),
        ({"token_limit": 0}, InvalidLimitError),
        ({"policy": "newest"}, InvalidLimitError),
        ({"user_id": ""}, InvalidScopeError),
        ({"user_id": 5}, InvalidScopeError),
        ({"tenant_id": ""}, InvalidScopeError),
        ({"agent_id": ""}, InvalidScopeError),
        ({"session_id": ""}, InvalidScopeError),
        ({"roles": "admin"}, InvalidRecordError),
    ],
)
def test_wrong_arguments_are_refused_at_once(memory, given, problem) -> None:
    with pytest.raises(problem):
        MemlayerMiddleware(memory, **{"user_id": "ada"} | given)
    with pytest.raises(ConfigurationError, match="Memory"):
        MemlayerMiddleware("./memory", user_id="ada")  # type: ignore[arg-type]


@pytest.mark.slow
def test_without_langchain_the_import_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['langchain'] = None\n"
        "import langchain_memlayer\n"
        "try:\n    langchain_memlayer.MemlayerMiddleware\n"
        "except ImportError as problem:\n    print(type(problem).__name__, problem.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "MissingExtraError pip install 'memlayer-core[langchain]'", done.stderr


def block_of(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind, **fields}


FORMS = {
    "computer_call": (
        AIMessage([block_of("computer_call", id="cu", call_id="c1", action={"type": "screenshot"})]),
        ToolMessage([block_of("input_image", image_url="data:image/png;base64,AA")], tool_call_id="c1"),
    ),
    "local_shell_call, answered by its own id": (
        AIMessage([block_of("local_shell_call", id="lsh", call_id="c1", action={"command": ["ls"]})]),
        HumanMessage([block_of("local_shell_call_output", id="lsh", output="a.py")]),
    ),
    "older calls of OpenAI": (
        AIMessage("", additional_kwargs={"function_call": {"name": "look", "arguments": "{}"}}),
        FunctionMessage("found", name="look"),
    ),
    "calls in what an integration adds": (
        AIMessage("I look.", additional_kwargs={"tool_outputs": [block_of("computer_call", call_id="c1")]}),
        ToolMessage("found", tool_call_id="c1"),
    ),
    "an approval": (
        AIMessage([block_of("mcp_approval_request", id="ar", name="roll", arguments="{}", server_label="d")]),
        HumanMessage([block_of("mcp_approval_response", approval_request_id="ar", approve=True)]),
    ),
    "tool_use": (
        AIMessage([block_of("tool_use", id="t1", name="look", input={})]),
        ToolMessage("found", tool_call_id="t1"),
    ),
    "two results of a user": (
        AIMessage([block_of("tool_use", id=one, name="look", input={}) for one in ("t1", "t2")]),
        HumanMessage([block_of("tool_result", tool_use_id=one, content="found") for one in ("t2", "t1")]),
    ),
    "Bedrock": (
        AIMessage([{"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}}]),
        HumanMessage([{"toolResult": {"toolUseId": "t1", "content": [{"text": "found"}]}}]),
    ),
    "Gemini, without an id": (
        AIMessage([{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "x"}]),
        HumanMessage([{"functionResponse": {"name": "look", "response": {"found": 1}}}]),
    ),
    "a search of the provider, continued": (
        AIMessage([block_of("server_tool_use", id="s1", name="web_search", input={})]),
        AIMessage([block_of("web_search_tool_result", tool_use_id="s1", content=[])]),
    ),
    "equal ids": (
        AIMessage("", tool_calls=[{"id": "look", "name": "look", "args": {}} for _ in range(2)]),
        ToolMessage("found", tool_call_id="look"),
        ToolMessage("found more", tool_call_id="look"),
    ),
    "no ids": (
        AIMessage("", tool_calls=[{"id": None, "name": "look", "args": {}} for _ in range(2)]),
        ToolMessage("found", tool_call_id=""),
        ToolMessage("found more", tool_call_id=""),
    ),
}


@pytest.mark.requirement("A19", "L13")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_call_of_any_form_and_its_result_stay_together_and_no_turn_is_lost(memory, form) -> None:
    earlier = [HumanMessage("My name is Ada."), AIMessage("Hello, Ada.")]
    model = Scripted(script=lambda _: AIMessage("Done."))
    agent = create_agent(model, middleware=[MemlayerMiddleware(memory)], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t", "user_id": "ada"}}

    agent.invoke({"messages": [*earlier, HumanMessage("Look."), *form]}, config)
    assert [one.content for one in model.seen[-1]] == [
        one.content for one in (*earlier, HumanMessage("Look."), *form)
    ]
    agent.invoke({"messages": [HumanMessage("And now?")]}, config)
    assert [one.content for one in model.seen[-1][3:]] == [
        *[one.content for one in form],
        "Done.",
        "And now?",
    ]

    history = MemlayerChatMessageHistory(memory, user_id="ada", session_id="without results")
    history.add_messages([HumanMessage("Look."), form[0], HumanMessage("Stop."), *form[1:]])
    assert [one.content for one in history.context()][:2] == ["Look.", form[0].content]
