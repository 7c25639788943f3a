"""Real agents and chat engines, with scripted models: what they are told, and what stays."""

import asyncio
from itertools import pairwise

import llama_index.core.chat_engine.multi_modal_condense_plus_context as condense
import llama_index.core.chat_engine.types as engine_types
import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.base.llms import types as llama
from llama_index.core.base.llms.types import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, VideoBlock
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine, SimpleChatEngine
from llama_index.core.chat_engine.multi_modal_context import MultiModalContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices import VectorStoreIndex
from llama_index.core.memory import ChatMemoryBuffer, Memory as FrameworkMemory
from llama_index.core.schema import TextNode
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, JsonSerializer
from scripted import Counting, Library, Scripted, answers, said, speaking, takes_any_store
from waiting import wait_for

from llamaindex_memlayer import MemlayerAsyncChatStore, MemlayerChatStore, MemlayerMemory
from memlayer_core import Memory
from tests.conftest import PROMPT
from tests.llamaindex.conftest import TURNS, calls, talk, texts, uses, weather

# Agents


@pytest.mark.trap("llamaindex", 1)
@pytest.mark.requirement("A11", "A19")
async def test_an_agent_keeps_the_question_the_call_its_result_and_the_answer(session):
    llm = uses("weather", city="Riga")
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="be short")

    told = await agent.run(user_msg="how is the weather?", memory=session)

    assert told.response.content == "It is 3 degrees in Riga."
    kept = await session.aget_all()
    before = [("user", "how is the weather?"), ("assistant", None), ("tool", "3 degrees in Riga")]
    assert said(kept) == [*before, ("assistant", "It is 3 degrees in Riga.")]
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
        blocks = [llama.ToolCallBlock(tool_name="weather", tool_kwargs={"city": city}) for city in places]
        return ChatMessage(role="assistant", blocks=blocks)

    async def aweather(city: str) -> str:  # two that block would run in threads, and end in either order
        return weather(city)

    tool = FunctionTool.from_defaults(async_fn=aweather, name="weather")
    llm = kind(response_generator=lambda messages, **_: reply(messages))
    for asked in ("how is the weather?", "and now?"):
        await FunctionAgent(tools=[tool], llm=llm).run(user_msg=asked, memory=session)

    both = ["3 degrees in Riga", "3 degrees in Oslo"]
    first = [text for _, text in said(llm.last_chat_messages)]
    assert first[2:4] == first[7:9] == both
    kept = await session.aget()
    assert kept == await session.aget_all()
    assert [block.tool_call_id for block in kept[1].blocks] == [None, None]
    told = [one for one in (await session.acontext()).to_openai() if one["role"] != "user"]
    assert [one["content"] for one in told if one["role"] == "tool"] == 2 * both
    assert [call["id"] for call in told[0]["tool_calls"]] == [one["tool_call_id"] for one in told[1:3]]


@pytest.mark.trap("llamaindex", 4, 5, 6)
async def test_a_workflows_context_keeps_its_memory_and_finds_it_again(session, memory):
    """`run(ctx=ctx, memory=other)` ignores the other one."""
    other = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="tuesday")
    agent = FunctionAgent(llm=answers("yes"))
    ctx = Context(agent)
    await agent.run(user_msg="hello", memory=session, ctx=ctx)
    await agent.run(user_msg="and now?", memory=other, ctx=ctx)
    assert said(await session.aget_all()) == TURNS
    assert await other.aget_all() == []

    saved = ctx.to_dict(serializer=JsonSerializer())
    await session.aput(ChatMessage("said later"))
    restored = Context.from_dict(agent, saved, serializer=JsonSerializer())
    found = await restored.store.get("memory")
    assert saved["state"]["state_data"]["_data"].pop("user_msg_str") == '"and now?"', "LlamaIndex stores it"
    assert not any(word in str(saved) for word in ("hello", "now?"))
    assert isinstance(found, MemlayerMemory)
    assert (await found.aget_all())[-1].content == "said later"


async def test_an_agent_that_reasons_with_a_tool_keeps_what_it_thought(session, remembers):
    def reply(messages):
        observed = "Observation: 3 degrees" in (messages[-1].content or "")
        done = "Thought: I can answer without using any more tools.\nAnswer: 3 degrees"
        act = 'Thought: I need a tool.\nAction: weather\nAction Input: {"city": "Riga"}'
        return ChatMessage(done if observed else act, role="assistant")

    llm = speaking(reply)
    asked = "which pet do I have, and how is the weather?"
    told = await ReActAgent(tools=[weather], llm=llm).run(user_msg=asked, memory=session)

    assert told.response.content == "3 degrees"
    kept = await session.aget_all()
    assert [message.role.value for message in kept] == ["user", "assistant"]
    assert "Observation: 3 degrees in Riga" in kept[1].content
    assert all("my pet is a parrot" in str(said(told)) for told in llm.told)

    memory = session.memory
    await asyncio.to_thread(memory.flush)
    asked = "which tool tells the weather in Riga in degrees?"
    later = await memory.chat(user_id="ada", session_id="later").acontext(asked)
    assert "assistant] 3 degrees" in later.recall
    assert not any(step in later.recall for step in ("Thought", "Action", "Observation"))


async def test_a_run_that_fails_leaves_its_question_and_one_that_is_asked_again_is_kept_once(session):
    """The caller's history has no trace of the run that failed."""

    def fails(messages):
        raise ConnectionError("away")

    async def ask(llm, question, **given):
        await FunctionAgent(llm=llm).run(user_msg=question, memory=session, **given)

    llm = answers("yes")
    with pytest.raises(ConnectionError):
        await ask(speaking(fails), "hello")
    await ask(llm, "and now?")
    assert said(llm.last_chat_messages) == [("user", "hello"), ("user", "and now?")]
    history = await session.aget_all()
    with pytest.raises(ConnectionError):
        await ask(speaking(fails), "so?", chat_history=history)
    await ask(llm, "so?", chat_history=history)
    assert await session.aget_all() == [*history, *talk("so?", "yes")]


# Engines


def engine(kind, llm, memory):
    if kind is SimpleChatEngine:
        return kind.from_defaults(llm=llm, memory=memory, system_prompt="be short")
    given = {"multi_modal_llm": llm} if kind in MULTI_MODAL else {"llm": llm}
    return kind.from_defaults(retriever=Library(), memory=memory, system_prompt="be short", **given)


STREAMS = hasattr(engine_types, "_set_message_content")
MULTI_MODAL = [MultiModalContextChatEngine, condense.MultiModalCondensePlusContextChatEngine]
ENGINES = [SimpleChatEngine, ContextChatEngine, CondensePlusContextChatEngine, *MULTI_MODAL]


def assert_told(llm):
    """The model was told the first turn as it was said, and asked the second question."""
    system, *turn, question = said(llm.last_chat_messages)
    assert system[0] == "system"
    assert turn == TURNS[:2]
    assert question[0] == "user"
    assert "and now?" in question[1]


def streamed(chat, question):
    """Return an answer that is streamed, once the thread that writes it into the memory is done."""
    before = len(chat.chat_history)
    told = "".join(chat.stream_chat(question).response_gen)
    wait_for(lambda: len(chat.chat_history) == before + 2)
    return told


@pytest.mark.trap("llamaindex", 1, 26, 27, 28, 31)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_keeps_its_turns_and_a_history_that_it_is_given_until_it_is_reset(kind, session):
    """Another thread writes what is streamed."""
    llm = answers("yes")
    chat = engine(kind, llm, session)

    async def awaits():
        await chat.achat("hello")
        stream = await chat.astream_chat("and now?")
        assert "".join([token async for token in stream.async_response_gen()]) == "yes"
        if stream.awrite_response_to_history_task is not None:
            await stream.awrite_response_to_history_task

    chat.chat("hello")
    assert chat.chat("and now?").response == "yes"
    assert_told(llm)
    assert [streamed(chat, question) for question in ("hello", "and now?")] == ["yes", "yes"]
    asyncio.run(awaits())
    assert said(llm.last_chat_messages)[1:-1] == [*TURNS, *TURNS, *TURNS[:2]]
    assert said(session.get_all()) == said(chat.chat_history) == 3 * TURNS

    chat.chat("and now?", chat_history=talk("hi", "yes"))
    assert said(session.get_all()) == [("user", "hi"), *TURNS[1:]]
    chat.reset()
    assert chat.chat_history == session.get_all() == []


@pytest.mark.parametrize("mode", ["best", "context", "condense_plus_context", "condense_question", "simple"])
@pytest.mark.parametrize("rules", [[], [ChatMessage("be short", role="system")]], ids=["bare", "with rules"])
def test_each_mode_takes_the_memory_and_no_questions_are_neighbours(mode, rules, session, remembers):
    nodes, llm = [TextNode(text="Riga lies on the Daugava.")], answers("yes")
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=4))
    session.put_messages(rules)
    chat = index.as_chat_engine(chat_mode=mode, llm=llm, memory=session)
    chat.chat("which pet do I have?")
    streamed(chat, "and what does my parrot eat?")
    asyncio.run(chat.achat("and now?"))

    for messages in llm.told:
        told = [message.role.value for message in messages if message.role != llama.MessageRole.SYSTEM]
        assert all(one != other for one, other in pairwise(told))
    assert "my pet is a parrot" in str(said(llm.told[0])), "also where a question is condensed first"
    assert "ferret" not in str(said(llm.told[0]))
    asked = ["which pet do I have?", "and what does my parrot eat?", "and now?"]
    expected = [line for question in asked for line in (("user", question), ("assistant", "yes"))]
    assert said(session.get_all()) == said(chat.chat_history) == [*said(rules), *expected]


def with_our_memory(memory):
    return MemlayerMemory(memory, user_id="ada", session_id="monday")


def with_a_buffer(memory):
    store = MemlayerChatStore(memory, user_id="ada")
    return ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday", token_limit=8000)


def with_a_queue(memory):
    store = MemlayerAsyncChatStore(memory, user_id="ada")
    return FrameworkMemory.from_defaults(session_id="monday", chat_store=store)


HELD = [
    *((kind, with_our_memory) for kind in ENGINES),
    (ContextChatEngine, with_a_buffer),
    pytest.param(ContextChatEngine, with_a_queue, marks=takes_any_store),
]


@pytest.mark.trap("llamaindex", 18, 19)
@pytest.mark.parametrize(("kind", "held"), HELD)
def test_braces_are_told_as_they_were_said_and_no_media_are_fetched(kind, held, memory, monkeypatch):
    """Context engines make a template of the whole history and of what is recalled, and resolve URLs to estimate tokens."""

    def resolve(self, *args, **kwargs):
        raise AssertionError("resolved")

    kinds = {ImageBlock: "image", AudioBlock: "audio", VideoBlock: "video", DocumentBlock: "document"}
    for block, name in kinds.items():
        monkeypatch.setattr(block, f"resolve_{name}", resolve)
    media = [block(url=f"https://example.org/{name}") for block, name in kinds.items()]
    media.append(llama.CitableBlock(title="t", source="s", content=media[:1]))
    older = "a template holds {query_str} and {context_str}, remember"
    MemlayerMemory.from_defaults(memory, user_id="ada").put(ChatMessage(older))
    braces = '{query_str} {context_str} {unknown} {"a": {}} {{ x }} {0}'
    session, llm = held(memory), answers("yes")
    session.put_messages(talk(braces, "{history} {"))
    engine(kind, llm, session).chat("what does a template hold?")

    question, answer = texts(llm.last_chat_messages[1:3])
    assert question.endswith(braces)
    assert any(older in text for text in texts(llm.last_chat_messages)) == (held is with_our_memory)
    assert answer == "{history} {"
    assert texts(session.get_all()) == [braces, "{history} {", "what does a template hold?", "yes"]
    for medium in media:
        session = held(memory)
        session.set([ChatMessage(blocks=[llama.TextBlock(text="look"), medium]), *talk("", "seen")[1:]])
        engine(kind, llm, session).chat("what was it?")
        assert llm.last_chat_messages[1].blocks[1:] == [medium]


@pytest.mark.trap("llamaindex", 25)
@pytest.mark.skipif(not STREAMS, reason="engines of this version fail at the end of a stream with a thought")
@pytest.mark.parametrize("kind", [SimpleChatEngine, ContextChatEngine])
def test_an_answer_is_kept_as_the_engine_hands_it_over(kind, session):
    """Of an answer that is streamed or made of documents, engines hand over its text alone."""
    thought = llama.ThinkingBlock(content="hm", additional_information={"signature": "EqQB=="})
    answer = ChatMessage(role="assistant", blocks=[thought, llama.TextBlock(text="yes")])
    chat = engine(kind, speaking(lambda _: answer.model_copy(deep=True)), session)

    chat.chat("hello")
    assert streamed(chat, "and now?") == "yes"

    assert said(session.get_all()) == TURNS
    first, second = (message.blocks for message in session.get_all()[1::2])
    assert first[-1] == second[-1] == llama.TextBlock(text="yes")
    if kind is SimpleChatEngine:
        assert first == answer.blocks


async def test_the_result_of_an_agents_code_is_not_what_the_user_said(memory):
    """A `CodeActAgent` writes it as a message of the user."""
    replies = iter(["<execute>print(pet)</execute>", "It printed a pet."])
    llm = speaking(lambda _: ChatMessage(next(replies), role="assistant"))

    async def printed(code: str) -> str:
        return "my pet is a ferret"

    agent = CodeActAgent(printed, llm=llm, streaming=False)
    session = MemlayerMemory(memory, user_id="ada", session_id="code")
    await agent.run(user_msg="please print a pet", memory=session)

    assert [one.role.value for one in await session.aget_all()] == ["user", "assistant", "user", "assistant"]
    assert "ferret" in str(await session.aget()), "the same conversation goes on with it"
    later = MemlayerMemory(memory, user_id="ada", session_id="later")
    assert "ferret" not in (await later.acontext("what is my pet?")).recall


# Both


def of_an_agent(kind, **given):
    async def ask(llm, memory, question):
        await kind(llm=llm, system_prompt="be short", **given).run(user_msg=question, memory=memory)

    return ask


def of_an_engine(kind):
    async def ask(llm, memory, question):
        await asyncio.to_thread(engine(kind, llm, memory).chat, question)

    return ask


async def execute(code: str) -> str:
    return f"ran {code}"


ASKS = [
    of_an_agent(FunctionAgent),
    of_an_agent(ReActAgent),
    of_an_agent(CodeActAgent, code_execute_fn=execute, streaming=False),
    *map(of_an_engine, ENGINES),
]


@pytest.mark.requirement("J11", "J15")
@pytest.mark.trap("llamaindex", 16, 17)
@pytest.mark.parametrize("ask", ASKS)
async def test_what_was_said_elsewhere_is_told_and_makes_no_second_system_message(ask, memory, remembers):
    """Some providers refuse more than one, and agents that reason or write code write over the first one."""
    llm = answers("Thought: I can answer without using any more tools.\nAnswer: a parrot")
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method="system")
    await ask(llm, session, "which pet do I have?")

    roles = [message.role.value for message in llm.last_chat_messages]
    assert roles.count("system") == 1
    assert (roles[0], roles[-1]) == ("system", "user")
    assert "my pet is a parrot" in str(llm.last_chat_messages)
    assert "ferret" not in str(llm.last_chat_messages)
    assert (await session.aget_all())[0] == ChatMessage("which pet do I have?")


def test_a_question_and_an_answer_that_it_follows_are_embedded_once():
    """An agent reads the memory when it begins, after each round of tools, and when it is done."""

    def reply(messages):
        rounds = sum(message.role == "tool" for message in messages)
        call = calls("weather", f"c{rounds}", city="Oslo")
        return ChatMessage("cold", role="assistant") if rounds == 3 else call

    async def run(session):
        await FunctionAgent(tools=[weather], llm=llm).run(user_msg=first, memory=session)
        assert embedding.asked == [first]
        await engine(SimpleChatEngine, answers("Coco"), session).achat(second)

    llm, embedding, first, second = speaking(reply), Counting(), "which pet do I have?", "and its name?"
    with Memory.in_memory(embedder=embedding, settings=PROMPT) as memory:
        memory.chat(user_id="ada").add("user", "my pet is a parrot")
        memory.flush()
        asyncio.run(run(MemlayerMemory(memory, user_id="ada", session_id="monday")))
    assert len(llm.told) == 4
    assert all("my pet is a parrot" in told[0].content for told in llm.told)
    assert embedding.asked == [first, second, "cold"]


def test_what_a_tool_asks_another_agent_is_a_task_and_no_other_session_recalls_it(memory):
    asked = MemlayerMemory(memory, user_id="ada", session_id="sub", is_task=True)
    asked.put_messages(talk("The user lives in Oslo. Find bees there.", "Bees are insects."))
    memory.flush()
    other = MemlayerMemory(memory, user_id="ada", session_id="main")
    assert "Oslo" not in str(other.get("Where does the user live, in Oslo?"))
    assert next(message.content for message in asked.get_all()).startswith("The user lives in Oslo.")
