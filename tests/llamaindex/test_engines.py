"""Real chat engines and agents, with scripted models: what they are told, and what stays."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.llms.mock import (
    MockFunctionCallingLLMWithChatMemoryOfLastCall,
    MockLLMWithChatMemoryOfLastCall,
)
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.workflow import Context, JsonSerializer

from llamaindex_memlayer import MemlayerMemory


@pytest.fixture(autouse=True)
def no_loop_is_left_open(request):
    """LlamaIndex's sync code opens an event loop where it finds none set, and never closes it."""
    if not inspect.iscoroutinefunction(request.function):
        asyncio.set_event_loop(None)


class Library(BaseRetriever):
    """Finds the same page whatever is asked."""

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=TextNode(text="Riga lies on the Daugava."), score=1.0)]


def echo():
    return MockLLMWithChatMemoryOfLastCall(is_chat_model=True)


def answers(text):
    """Return a model that always says the same."""
    return MockFunctionCallingLLMWithChatMemoryOfLastCall(
        is_chat_model=True, response_generator=lambda messages, **_: ChatMessage(text, role="assistant")
    )


def caller():
    """Return a model that asks for the weather once, and then tells it."""

    def reply(messages, **_):
        if messages[-1].role == "tool":
            return ChatMessage(f"It is {messages[-1].content}.", role="assistant")
        call = ToolCallBlock(tool_call_id="call_1", tool_name="weather", tool_kwargs={"city": "Riga"})
        return ChatMessage(role="assistant", blocks=[call])

    return MockFunctionCallingLLMWithChatMemoryOfLastCall(is_chat_model=True, response_generator=reply)


def weather(city: str) -> str:
    """Tell the weather."""
    return f"3 degrees in {city}"


def said(messages):
    return [(message.role.value, message.content) for message in messages]


def engine(kind, llm, memory):
    if kind is SimpleChatEngine:
        return kind.from_defaults(llm=llm, memory=memory, system_prompt="be short")
    return kind.from_defaults(retriever=Library(), llm=llm, memory=memory, system_prompt="be short")


ENGINES = [SimpleChatEngine, ContextChatEngine, CondensePlusContextChatEngine]


@pytest.fixture
def session(memory):
    return MemlayerMemory.from_defaults(memory=memory, user_id="ada", session_id="monday", token_limit=3000)


@pytest.fixture
def remembers(memory):
    """What two users said in older sessions."""
    for user, animal in (("ada", "parrot"), ("bob", "ferret")):
        old = MemlayerMemory.from_defaults(memory=memory, user_id=user, session_id="old")
        old.put_messages([ChatMessage(f"my pet is a {animal}"), ChatMessage("nice", role="assistant")])


TURNS = [("user", "hello"), ("assistant", "yes"), ("user", "and now?"), ("assistant", "yes")]


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_keeps_the_turns_and_tells_the_model_the_earlier_ones(kind, session):
    llm = answers("yes")
    chat = engine(kind, llm, session)

    chat.chat("hello")
    assert chat.chat("and now?").response == "yes"

    assert said(session.get_all()) == said(chat.chat_history) == TURNS
    told = said(llm.last_chat_messages)
    assert told[0][0] == "system"
    assert told[1:] == TURNS[:3]


@pytest.mark.parametrize("kind", ENGINES)
async def test_an_engine_that_awaits_does_the_same(kind, session):
    llm = answers("yes")
    chat = engine(kind, llm, session)

    await chat.achat("hello")
    await chat.achat("and now?")

    assert said(await session.aget_all()) == TURNS
    assert said(llm.last_chat_messages)[1:] == TURNS[:3]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_streamed_answer_is_kept_though_another_thread_writes_it(kind, session):
    chat = engine(kind, answers("yes"), session)

    for asked in ("hello", "and now?"):
        assert "".join(chat.stream_chat(asked).response_gen) == "yes"
        deadline = time.monotonic() + 10
        while len(session.get_all()) % 2 and time.monotonic() < deadline:
            time.sleep(0.01)

    assert said(session.get_all()) == TURNS


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_streamed_answer_is_kept_by_an_engine_that_awaits(kind, session):
    chat = engine(kind, answers("yes"), session)

    for asked in ("hello", "and now?"):
        stream = await chat.astream_chat(asked)
        assert "".join([token async for token in stream.async_response_gen()]) == "yes"
        if stream.awrite_response_to_history_task is not None:
            await stream.awrite_response_to_history_task

    assert said(await session.aget_all()) == TURNS


@pytest.mark.requirement("J11", "J15")
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_tells_the_model_what_the_user_said_in_another_session(kind, session, remembers):
    llm = answers("a parrot")
    chat = engine(kind, llm, session)

    chat.chat("which pet do I have?")

    told = str(said(llm.last_chat_messages))
    assert "my pet is a parrot" in told
    assert "ferret" not in told
    assert said(session.get_all()) == [("user", "which pet do I have?"), ("assistant", "a parrot")]


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_given_a_history_replaces_the_sessions(kind, session):
    chat = engine(kind, answers("yes"), session)
    chat.chat("forget me")

    chat.chat("and now?", chat_history=[ChatMessage("hello"), ChatMessage("yes", role="assistant")])

    assert said(session.get_all()) == TURNS


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_is_reset_empties_the_session(kind, session):
    chat = engine(kind, answers("yes"), session)
    chat.chat("hello")
    chat.reset()

    assert chat.chat_history == session.get_all() == []


def test_a_condensing_engine_stores_its_turns(session):
    class Query:
        callback_manager = None

        def query(self, question):
            from llama_index.core.base.response.schema import Response

            return Response("by the Daugava")

    llm = answers("Where is Riga?")
    chat = CondenseQuestionChatEngine.from_defaults(query_engine=Query(), llm=llm, memory=session)
    chat.chat("where is Riga?")

    assert said(session.get_all()) == [("user", "where is Riga?"), ("assistant", "by the Daugava")]


def test_an_engine_can_make_the_memory_by_its_class():
    chat = SimpleChatEngine.from_defaults(llm=answers("yes"), memory_cls=MemlayerMemory)
    chat.chat("hello")

    assert isinstance(chat._memory, MemlayerMemory)
    assert said(chat.chat_history) == TURNS[:2]


@pytest.mark.parametrize("kind", [ContextChatEngine, CondensePlusContextChatEngine])
def test_what_looks_like_a_prompts_variable_is_told_as_it_was_said(kind, session, memory):
    other = MemlayerMemory.from_defaults(memory=memory, user_id="ada")
    other.put(ChatMessage("a template holds {query_str} and {context_str}, remember"))
    session.put_messages(
        [ChatMessage("write {query_str} down"), ChatMessage("done {context_str}", role="assistant")]
    )
    llm = answers("yes")

    engine(kind, llm, session).chat("what does a template hold?")

    recalled, answer, asked = (message.content for message in llm.last_chat_messages[1:])
    assert "a template holds {query_str} and {context_str}, remember" in recalled
    assert recalled.endswith("write {query_str} down")
    assert answer == "done {context_str}"
    assert asked == "what does a template hold?"


def test_the_prompt_of_a_simple_engine_is_taken_from_the_window(memory):
    session = MemlayerMemory.from_defaults(memory=memory, user_id="ada", token_limit=400)
    session.put_messages(
        [ChatMessage(f"hello {number}", role=("user", "assistant")[number % 2]) for number in range(100)]
    )
    told = []
    for prompt in ("short", "long " * 300):
        llm = answers("yes")
        SimpleChatEngine.from_defaults(llm=llm, memory=session, system_prompt=prompt).chat("and now?")
        told.append(len(llm.last_chat_messages))

    assert 2 < told[1] < told[0] < 90


@pytest.mark.requirement("F05", "A11")
def test_a_restart_brings_the_earlier_turns_back(open_at):
    first = MemlayerMemory.from_defaults(memory=open_at(), user_id="ada", session_id="monday")
    SimpleChatEngine.from_defaults(llm=answers("yes"), memory=first).chat("hello")
    first.chat.memory.close()

    again = MemlayerMemory.from_defaults(memory=open_at(), user_id="ada", session_id="monday")
    llm = answers("yes")
    SimpleChatEngine.from_defaults(llm=llm, memory=again).chat("and now?")

    assert said(again.get_all()) == TURNS
    assert said(llm.last_chat_messages) == TURNS[:3]


@pytest.mark.requirement("A11", "A19")
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_keeps_the_question_the_call_its_result_and_the_answer(session, streaming):
    llm = caller()
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="be short", streaming=streaming)

    result = await agent.run(user_msg="how is the weather?", memory=session)

    assert result.response.content == "It is 3 degrees in Riga."
    kept = await session.aget_all()
    assert said(kept) == [
        ("user", "how is the weather?"),
        ("assistant", None),
        ("tool", "3 degrees in Riga"),
        ("assistant", "It is 3 degrees in Riga."),
    ]
    assert kept[1].blocks[0].tool_call_id == kept[2].additional_kwargs["tool_call_id"] == "call_1"
    assert await session.aget() == kept


async def test_an_agents_next_run_is_told_the_first_one_with_its_tools(session):
    llm = caller()
    await FunctionAgent(tools=[weather], llm=llm).run(user_msg="how is the weather?", memory=session)
    later = answers("yes")
    await FunctionAgent(tools=[weather], llm=later).run(user_msg="sure?", memory=session)

    told = [message.role.value for message in later.last_chat_messages]
    assert told == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.requirement("J11")
async def test_an_agent_tells_the_model_what_the_user_said_in_another_session(session, remembers):
    llm = answers("a parrot")

    await FunctionAgent(llm=llm).run(user_msg="which pet do I have?", memory=session)

    asked = llm.last_chat_messages[-1]
    assert asked.role == "user"
    assert "my pet is a parrot" in asked.content
    assert "ferret" not in str(llm.last_chat_messages)


async def test_an_agents_state_prompt_never_reaches_the_memory(session):
    llm = answers("yes")
    agent = AgentWorkflow(agents=[FunctionAgent(llm=llm)], initial_state={"mood": "good"})

    await agent.run(user_msg="hello", memory=session)

    assert "mood" in llm.last_chat_messages[-1].content
    assert said(await session.aget_all()) == TURNS[:2]


async def test_a_tool_that_edits_the_state_does_not_part_the_agent_from_its_memory(session):
    async def note(ctx: Context, city: str) -> str:
        """Write down a city."""
        async with ctx.store.edit_state() as state:
            state["city"] = city
        return "3 degrees"

    from llama_index.core.tools import FunctionTool

    agent = FunctionAgent(tools=[FunctionTool.from_defaults(note, name="weather")], llm=caller())
    ctx = Context(agent)
    await agent.run(user_msg="how is the weather?", memory=session, ctx=ctx)

    assert await ctx.store.get("memory") is session
    assert len(await session.aget_all()) == 4


async def test_an_agent_given_a_history_replaces_the_sessions(session):
    await session.aput(ChatMessage("forget me"))

    history = [ChatMessage("hello"), ChatMessage("yes", role="assistant")]
    await FunctionAgent(llm=answers("yes")).run(user_msg="and now?", chat_history=history, memory=session)

    assert said(await session.aget_all()) == TURNS


async def test_a_reasoning_agent_keeps_its_turns(session):
    llm = answers("Thought: I can answer without using any more tools.\nAnswer: yes")

    result = await ReActAgent(llm=llm).run(user_msg="hello", memory=session)

    assert result.response.content == "yes"
    assert [message.role.value for message in await session.aget_all()] == ["user", "assistant"]


async def test_agents_of_many_users_at_once_never_hear_of_each_other(memory):
    async def one(number):
        session = MemlayerMemory.from_defaults(memory=memory, user_id=f"user {number}")
        llm = answers("noted")
        agent = FunctionAgent(llm=llm)
        await agent.run(user_msg=f"my number is secret{number}", memory=session)
        await agent.run(user_msg="what is my number?", memory=session)
        return str(said(llm.last_chat_messages))

    told = await asyncio.gather(*map(one, range(8)))

    for number, text in enumerate(told):
        assert f"secret{number}" in text
        assert text.count("secret") == 1


async def test_a_workflows_context_finds_the_memory_again(session):
    agent = FunctionAgent(tools=[weather], llm=caller())
    ctx = Context(agent)
    await agent.run(user_msg="how is the weather?", memory=session, ctx=ctx)

    saved = ctx.to_dict(serializer=JsonSerializer())
    await session.aput(ChatMessage("said later"))
    restored = Context.from_dict(agent, saved, serializer=JsonSerializer())
    memory = await restored.store.get("memory")

    assert "Riga" not in str(saved["state"]["state_data"]["_data"]["memory"])
    assert isinstance(memory, MemlayerMemory)
    assert [message.content for message in await memory.aget_all()][-1] == "said later"
