"""Real agents, with scripted models: what they are told, and what stays."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.workflow import Context, JsonSerializer
from scripted import Scripted, answers, said, speaking

from llamaindex_memlayer import MemlayerMemory
from tests.llamaindex.conftest import TURNS, calls, uses, weather


@pytest.mark.trap("llamaindex", 1)
@pytest.mark.requirement("A11", "A19")
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_keeps_the_question_the_call_its_result_and_the_answer(session, streaming):
    llm = uses("weather", city="Riga")
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="be short", streaming=streaming)

    told = await agent.run(user_msg="how is the weather?", memory=session)

    assert told.response.content == "It is 3 degrees in Riga."
    kept = await session.aget_all()
    assert said(kept) == [
        ("user", "how is the weather?"),
        ("assistant", None),
        ("tool", "3 degrees in Riga"),
        ("assistant", "It is 3 degrees in Riga."),
    ]
    assert kept[1].blocks[0].tool_call_id == kept[2].additional_kwargs["tool_call_id"] == "call_1"
    assert await session.aget() == kept

    later = answers("yes")
    await FunctionAgent(tools=[weather], llm=later).run(user_msg="sure?", memory=session)
    assert later.last_chat_messages == [*kept, ChatMessage("sure?")], "the next run is told all of it"


class Nameless(Scripted):
    """A model whose calls have no id, as Ollama's: the framework's result names the tool."""

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **kwargs):
        made = super().get_tool_calls_from_response(response, error_on_no_tool_call=False, **kwargs)
        return [call.model_copy(update={"tool_id": call.tool_name}) for call in made]


@pytest.mark.requirement("A19")
@pytest.mark.parametrize("kind", [Nameless, Scripted], ids=["named by the tool", "no name"])
async def test_calls_without_an_id_keep_their_results_and_come_back_without_an_id(session, kind):
    def reply(messages):
        if messages[-1].role == "tool":
            return ChatMessage("Cold.", role="assistant")
        places = ("Riga", "Oslo")
        blocks = [ToolCallBlock(tool_name="weather", tool_kwargs={"city": city}) for city in places]
        return ChatMessage(role="assistant", blocks=blocks)

    llm = kind(response_generator=lambda messages, **_: reply(messages))
    for asked in ("how is the weather?", "and now?"):
        await FunctionAgent(tools=[weather], llm=llm).run(user_msg=asked, memory=session)

    both = ["3 degrees in Riga", "3 degrees in Oslo"]
    first = [text for _, text in said(llm.last_chat_messages)]
    assert first[2:4] == first[7:9] == both
    kept = await session.aget()
    assert kept == await session.aget_all()
    assert [block.tool_call_id for block in kept[1].blocks] == [None, None]
    told = [one for one in (await session.acontext()).to_openai() if one["role"] != "user"]
    assert [one["content"] for one in told if one["role"] == "tool"] == 2 * both
    assert [call["id"] for call in told[0]["tool_calls"]] == [one["tool_call_id"] for one in told[1:3]]


async def test_an_agent_tells_the_model_the_users_profile_once_whatever_is_asked(session, memory):
    await memory.chat(user_id="ada").aremember("Lives in Tokyo.", type="profile")
    await memory.chat(user_id="bob").aremember("Lives in Paris.", type="profile")
    for question in ("hello", "and now?"):
        llm = answers("yes")
        await FunctionAgent(llm=llm, system_prompt="be short").run(user_msg=question, memory=session)

        system, first, *_ = llm.last_chat_messages
        assert [message.role for message in llm.last_chat_messages].count("system") == 1
        assert system.content == "be short"
        assert "Lives in Tokyo." in first.content
        assert str(llm.last_chat_messages).count("Lives in Tokyo.") == 1
        assert "Paris" not in str(llm.last_chat_messages)
        assert llm.last_chat_messages[-1].content.endswith(question)
    assert said(await session.aget_all()) == TURNS


async def execute(code: str) -> str:
    return f"ran {code}"


KINDS = [FunctionAgent, ReActAgent, partial(CodeActAgent, code_execute_fn=execute, streaming=False)]


@pytest.mark.requirement("J11")
@pytest.mark.trap("llamaindex", 16, 17)
@pytest.mark.parametrize("kind", KINDS, ids=["function", "reasoning", "code"])
@pytest.mark.parametrize("insert_method", ["system", "user", None])
async def test_what_the_user_said_in_another_session_is_told_and_makes_no_second_system_message(
    kind, insert_method, memory, remembers
):
    """Some providers refuse more than one, and agents that reason or write code write over the first one."""
    llm = answers("Thought: I can answer without using any more tools.\nAnswer: a parrot")
    session = MemlayerMemory.from_defaults(memory, user_id="ada", insert_method=insert_method)

    await kind(llm=llm, system_prompt="be short").run(user_msg="which pet do I have?", memory=session)

    assert [message.role.value for message in llm.last_chat_messages] == ["system", "user"]
    assert "my pet is a parrot" in llm.last_chat_messages[1].content
    assert "ferret" not in str(llm.last_chat_messages)
    assert said(await session.aget_all())[0] == ("user", "which pet do I have?")


async def test_many_agents_at_once_on_one_memory_keep_to_their_sessions(memory):
    async def one(number):
        session = MemlayerMemory.from_defaults(memory, user_id=f"user {number}", session_id="today")
        llm = answers("noted")
        agent = FunctionAgent(llm=llm)
        await agent.run(user_msg=f"my number is secret{number}.", memory=session)
        await agent.run(user_msg="what is my number?", memory=session)
        return str(said(llm.last_chat_messages)), said(await session.aget_all())

    for number, (told, kept) in enumerate(await asyncio.gather(*map(one, range(12)))):
        assert f"secret{number}." in told
        assert told.count("secret") == 1
        assert kept == [
            ("user", f"my number is secret{number}."),
            ("assistant", "noted"),
            ("user", "what is my number?"),
            ("assistant", "noted"),
        ]


@pytest.mark.trap("llamaindex", 5, 6)
async def test_a_workflows_context_finds_the_memory_again(session):
    agent = FunctionAgent(tools=[weather], llm=uses("weather", city="Riga"))
    ctx = Context(agent)
    await agent.run(user_msg="how is the weather?", memory=session, ctx=ctx)

    saved = ctx.to_dict(serializer=JsonSerializer())
    await session.aput(ChatMessage("said later"))
    restored = Context.from_dict(agent, saved, serializer=JsonSerializer())
    memory = await restored.store.get("memory")

    stored = saved["state"]["state_data"]["_data"]
    assert stored.pop("user_msg_str") == '"how is the weather?"'  # LlamaIndex itself stores it
    assert "weather?" not in str(saved)
    assert "Riga" not in str(saved)
    assert isinstance(memory, MemlayerMemory)
    assert [message.content for message in await memory.aget_all()][-1] == "said later"


@pytest.mark.trap("llamaindex", 4)
async def test_a_context_that_has_a_memory_keeps_it_whichever_is_passed_later(session, memory):
    """`run(ctx=ctx, memory=other)` ignores the other one."""
    other = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="tuesday")
    agent = FunctionAgent(llm=answers("yes"))
    ctx = Context(agent)
    await agent.run(user_msg="hello", memory=session, ctx=ctx)
    await agent.run(user_msg="and now?", memory=other, ctx=ctx)

    assert said(await session.aget_all()) == TURNS
    assert await other.aget_all() == []


async def test_an_agent_that_reasons_with_a_tool_keeps_what_it_thought(session, remembers):
    def reply(messages):
        observed = "Observation: 3 degrees" in (messages[-1].content or "")
        done = "Thought: I can answer without using any more tools.\nAnswer: 3 degrees"
        act = 'Thought: I need a tool.\nAction: weather\nAction Input: {"city": "Riga"}'
        return ChatMessage(done if observed else act, role="assistant")

    llm = speaking(reply)
    told = await ReActAgent(tools=[weather], llm=llm).run(
        user_msg="which pet do I have, and how is the weather?", memory=session
    )

    assert told.response.content == "3 degrees"
    kept = await session.aget_all()
    assert [message.role.value for message in kept] == ["user", "assistant"]
    assert "Observation: 3 degrees in Riga" in kept[1].content
    assert all("my pet is a parrot" in str(said(told)) for told in llm.told)

    memory = session.memory
    await asyncio.to_thread(memory.flush)
    later = await memory.chat(user_id="ada", session_id="later").acontext(
        "which tool tells the weather in Riga in degrees?"
    )
    assert "assistant] 3 degrees" in later.recall
    assert not any(step in later.recall for step in ("Thought", "Action", "Observation"))


async def test_a_run_that_fails_leaves_its_question_and_the_next_one_goes_on(session):
    def fails(messages):
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        await FunctionAgent(llm=speaking(fails)).run(user_msg="hello", memory=session)
    llm = answers("yes")
    await FunctionAgent(llm=llm).run(user_msg="and now?", memory=session)

    assert said(llm.last_chat_messages) == [("user", "hello"), ("user", "and now?")]


async def test_a_run_with_tools_embeds_its_question_once(counting):
    """An agent reads the memory when it begins, after each round of tools, and when it is done."""
    session, embedding = counting

    def reply(messages):
        rounds = sum(message.role == "tool" for message in messages)
        if rounds == 3:
            return ChatMessage("cold", role="assistant")
        return calls("weather", f"c{rounds}", city="Riga")

    llm = speaking(reply)
    await FunctionAgent(tools=[weather], llm=llm).run(user_msg="which pet do I have?", memory=session)

    assert len(llm.told) == 4
    assert all("my pet is a parrot" in told[0].content for told in llm.told)
    assert embedding.asked == ["which pet do I have?"]
