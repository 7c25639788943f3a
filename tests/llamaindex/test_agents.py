"""Real agents, with scripted models: what they are told, and what stays."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.workflow import Context, JsonSerializer
from scripted import Scripted, answers, said, speaking

from llamaindex_memlayer import MemlayerMemory

TURNS = [("user", "hello"), ("assistant", "yes"), ("user", "and now?"), ("assistant", "yes")]


def caller():
    """Return a model that asks for the weather once, and then tells it."""

    def reply(messages):
        if messages[-1].role == "tool":
            return ChatMessage(f"It is {messages[-1].content}.", role="assistant")
        call = ToolCallBlock(tool_call_id="call_1", tool_name="weather", tool_kwargs={"city": "Riga"})
        return ChatMessage(role="assistant", blocks=[call])

    return speaking(reply)


def weather(city: str) -> str:
    """Tell the weather."""
    return f"3 degrees in {city}"


@pytest.mark.trap("llamaindex", 1)
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
        calls = [ToolCallBlock(tool_name="weather", tool_kwargs={"city": city}) for city in places]
        return ChatMessage(role="assistant", blocks=calls)

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


@pytest.mark.trap("llamaindex", 3)
async def test_an_agents_state_prompt_never_reaches_the_memory(session):
    llm = answers("yes")
    agent = AgentWorkflow(agents=[FunctionAgent(llm=llm)], initial_state={"mood": "good"})

    await agent.run(user_msg="hello", memory=session)

    assert "mood" in llm.last_chat_messages[-1].content
    assert said(await session.aget_all()) == TURNS[:2]


@pytest.mark.trap("llamaindex", 2)
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


@pytest.mark.trap("llamaindex", 26)
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


async def test_forty_agents_at_once_on_one_memory_keep_to_their_sessions(memory):
    async def one(number):
        session = MemlayerMemory.from_defaults(memory, user_id=f"user {number}", session_id="today")
        llm = answers("noted")
        agent = FunctionAgent(llm=llm)
        await agent.run(user_msg=f"my number is secret{number}.", memory=session)
        await agent.run(user_msg="what is my number?", memory=session)
        return str(said(llm.last_chat_messages)), said(await session.aget_all())

    for number, (told, kept) in enumerate(await asyncio.gather(*map(one, range(40)))):
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
    agent = FunctionAgent(tools=[weather], llm=caller())
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
    result = await ReActAgent(tools=[weather], llm=llm).run(
        user_msg="which pet do I have, and how is the weather?", memory=session
    )

    assert result.response.content == "3 degrees"
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


async def test_an_agent_that_writes_code_keeps_its_turn_and_is_told_what_was_recalled(session, remembers):
    """It writes its own system prompt over the first system message that it is given."""

    async def execute(code: str) -> str:
        return f"ran {code}"

    def reply(messages):
        ran = "Result of executing" in (messages[-1].content or "")
        return ChatMessage("a parrot" if ran else "<execute>look()</execute>", role="assistant")

    llm = speaking(reply)
    agent = CodeActAgent(code_execute_fn=execute, llm=llm, streaming=False)
    await agent.run(user_msg="which pet do I have?", memory=session)

    assert said(await session.aget_all()) == [
        ("user", "which pet do I have?"),
        ("assistant", "<execute>look()</execute>"),
        ("user", "Result of executing the code given:\n\nran look()"),
        ("assistant", "a parrot"),
    ]
    assert all("my pet is a parrot" in told[1].content for told in llm.told)


async def test_an_agent_that_takes_over_knows_what_was_said_and_done(session, remembers):
    def hands_over(messages):
        call = ToolCallBlock(
            tool_call_id="call_1", tool_name="handoff", tool_kwargs={"to_agent": "keeper", "reason": "pets"}
        )
        return ChatMessage(role="assistant", blocks=[TextBlock(text="One moment."), call])

    keeper = answers("a parrot")
    greeter = speaking(hands_over)
    workflow = AgentWorkflow(
        agents=[
            FunctionAgent(name="greeter", description="says hello", llm=greeter, can_handoff_to=["keeper"]),
            FunctionAgent(name="keeper", description="knows pets", llm=keeper, system_prompt="be short"),
        ],
        root_agent="greeter",
        initial_state={"mood": "good"},
    )

    await workflow.run(user_msg="which pet do I have?", memory=session)

    kept = await session.aget_all()
    assert [message.role.value for message in kept] == ["user", "assistant", "tool", "assistant"]
    assert kept[0].content == "which pet do I have?"
    system, question, handover, result = keeper.last_chat_messages
    assert system.content == "be short"
    assert "my pet is a parrot" in question.content
    assert question.content.endswith("which pet do I have?")
    assert [handover, result] == kept[1:3]


async def test_agents_that_take_turns_share_what_was_said(session):
    for name in ("writer", "reviewer"):
        llm = answers(f"{name} was here")
        await FunctionAgent(name=name, llm=llm).run(user_msg=f"your turn, {name}", memory=session)

    assert said(llm.last_chat_messages) == [
        ("user", "your turn, writer"),
        ("assistant", "writer was here"),
        ("user", "your turn, reviewer"),
    ]


async def test_an_agent_that_must_stop_early_keeps_its_last_word_and_no_call_without_a_result(session):
    def reply(messages):
        if messages[-1].role == "system":
            return ChatMessage("enough", role="assistant")
        call = ToolCallBlock(tool_call_id="call_1", tool_name="weather", tool_kwargs={"city": "Riga"})
        return ChatMessage(role="assistant", blocks=[call])

    llm = speaking(reply)
    agent = FunctionAgent(tools=[weather], llm=llm, early_stopping_method="generate")
    await agent.run(user_msg="how is the weather?", memory=session, max_iterations=2)

    assert len(llm.told) == 3
    assert said(await session.aget_all()) == [("user", "how is the weather?"), ("assistant", "enough")]


async def test_structured_output_is_made_of_the_whole_turn(session):
    given = []

    def structured(messages):
        given.extend(said(messages))
        return {"words": len(messages)}

    agent = FunctionAgent(llm=answers("yes"), structured_output_fn=structured)
    result = await agent.run(user_msg="hello", memory=session)

    assert result.structured_response == {"words": 2}
    assert given == TURNS[:2]


async def test_a_run_that_fails_leaves_its_question_and_the_next_one_goes_on(session):
    def fails(messages):
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        await FunctionAgent(llm=speaking(fails)).run(user_msg="hello", memory=session)
    llm = answers("yes")
    await FunctionAgent(llm=llm).run(user_msg="and now?", memory=session)

    assert said(llm.last_chat_messages) == [("user", "hello"), ("user", "and now?")]


async def test_a_question_with_an_image_is_told_with_it_and_with_what_was_recalled(session, remembers):
    picture = ImageBlock(image=b"\x89PNG\xff")
    asked = ChatMessage(blocks=[picture, TextBlock(text="is this the pet I have?")])
    llm = answers("yes")

    await FunctionAgent(llm=llm).run(user_msg=asked, memory=session)

    assert (await session.aget_all())[0] == asked
    shown, question = llm.last_chat_messages[-1].blocks
    assert shown == picture
    assert "my pet is a parrot" in question.text


@pytest.mark.trap("llamaindex", 16, 17)
@pytest.mark.parametrize("kind", [FunctionAgent, ReActAgent])
@pytest.mark.parametrize("insert_method", ["system", "user", None])
async def test_what_is_recalled_makes_no_second_system_message(kind, insert_method, memory, remembers):
    """Some providers refuse more than one, and a reasoning agent formats the first one alone."""
    llm = answers("Thought: I can answer without using any more tools.\nAnswer: a parrot")
    session = MemlayerMemory.from_defaults(memory, user_id="ada", insert_method=insert_method)

    await kind(llm=llm, system_prompt="be short").run(user_msg="which pet do I have?", memory=session)

    assert [message.role.value for message in llm.last_chat_messages] == ["system", "user"]
    assert "my pet is a parrot" in str(said(llm.last_chat_messages))


@pytest.mark.parametrize("reads", ["get", "aget"])
async def test_three_reads_of_a_turn_cost_one_embedding(reads, counting):
    session, embedding = counting
    await session.aput(ChatMessage("which pet do I have?"))

    for given in (None, "which pet do I have?", ChatMessage("which pet do I have?")):
        told = await session.aget(given) if reads == "aget" else await asyncio.to_thread(session.get, given)
        assert "my pet is a parrot" in told[-1].content

    assert embedding.asked == ["which pet do I have?"]


async def test_a_run_with_tools_embeds_its_question_once(counting):
    """An agent reads the memory when it begins, after each round of tools, and when it is done."""
    session, embedding = counting

    def reply(messages):
        rounds = sum(message.role == "tool" for message in messages)
        if rounds == 3:
            return ChatMessage("cold", role="assistant")
        call = ToolCallBlock(tool_call_id=f"c{rounds}", tool_name="weather", tool_kwargs={"city": "Riga"})
        return ChatMessage(role="assistant", blocks=[call])

    llm = speaking(reply)
    await FunctionAgent(tools=[weather], llm=llm).run(user_msg="which pet do I have?", memory=session)

    assert len(llm.told) == 4
    assert all("my pet is a parrot" in told[0].content for told in llm.told)
    assert embedding.asked == ["which pet do I have?"]


@pytest.mark.trap("llamaindex", 31)
def test_an_agent_of_one_loop_leaves_the_memory_to_the_next(session):
    for asked in ("hello", "and now?"):
        agent = FunctionAgent(llm=answers("yes"))

        async def run(agent=agent, asked=asked):
            await agent.run(user_msg=asked, memory=session)

        asyncio.run(run())

    assert said(session.get_all()) == TURNS
