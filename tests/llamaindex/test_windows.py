"""What a model is told in the situations in which the framework's own memories went wrong."""

from __future__ import annotations

import asyncio
import json

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    CompletionResponse,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from scripted import Library, Scripted, answers, said, speaking
from tuned import Tuned

from llamaindex_memlayer import (
    MemlayerAsyncChatStore,
    MemlayerChatStore,
    MemlayerMemory,
    MemlayerMemoryBlock,
    MemlayerRetriever,
    MemlayerToolSpec,
    to_core,
)
from memlayer_core import Memory
from tests.llamaindex.conftest import calls, result, talk

PICTURE = ImageBlock(image=b"iVBORw0KGgo=")
SUMMARY = (
    "Ada looked for three herons in the garden, and for two, and was told each time that there are five of them; "
    "she asked for many gardens, one after the other, and the assistant looked into all of these gardens for her."
)
METHODS = ["system", "user", None]


def turns(count, words="I walked along the river and saw a heron"):
    return talk(*(f"{who} {number}: {words}" for number in range(count) for who in ("question", "answer")))


def asks_to_look():
    return calls("look", where="garden")


def cost(memory, messages):
    return sum(memory.tokens.message(to_core(message)) for message in messages)


# What a window holds


def test_a_prompt_has_four_cache_points_at_the_most_and_the_newest(memory, do):
    session = MemlayerMemory(memory, user_id="ada", session_id="marks")
    point = CachePoint(cache_control=CacheControl(type="ephemeral"))
    answer = ChatMessage("yes", role="assistant", additional_kwargs={"cache_control": {"a": 1}})
    for number in range(7):
        do(session, "put", ChatMessage(blocks=[TextBlock(text=f"{number}?"), point]))
        do(session, "put", answer)
    told = do(session, "get")
    marked = [len(one.blocks) == 2 or "cache_control" in one.additional_kwargs for one in told]
    assert marked == [False] * 10 + [True] * 4
    assert [one.content for one in told][::2] == [f"{number}?" for number in range(7)]
    assert sum(len(one.blocks) for one in do(session, "get_all")) == 21, "the history is as it was"


LONG = "word " * 500
ENDS = {
    "a question": [ChatMessage(LONG)],
    "an answer": talk("hello", LONG),
    "an answer to nobody": [ChatMessage(LONG, role="assistant")],
    "a result": [ChatMessage("hello"), asks_to_look(), result(LONG)],
    "instructions": [ChatMessage("be", role="system")],
}


@pytest.mark.trap("llamaindex", 12, 14)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_where_nothing_fits_the_last_turn_is_told_all_the_same(memory, do, end):
    session = MemlayerMemory.from_defaults(memory, chat_history=[*turns(5)], user_id="ada", token_limit=5)
    do(session, "reset")
    do(session, "put_messages", end)

    told = do(session, "get")
    last = max((at for at, one in enumerate(end) if one.role == "user"), default=0)
    assert [message.role for message in told] == [message.role for message in end[last:]]


def set_at_once(memory, messages):
    MemlayerMemory(memory, user_id="ada", session_id="long").set(messages)


def stored_by_key(memory, messages):
    MemlayerChatStore(memory, user_id="ada").set_messages("long", messages)


def stored_for_a_queue(memory, messages):
    asyncio.run(MemlayerAsyncChatStore(memory, user_id="ada").add_messages("long", messages))


def given_as_history(memory, messages):
    MemlayerMemory.from_defaults(memory, chat_history=messages, user_id="ada", session_id="long")


WAYS = [set_at_once, stored_by_key, stored_for_a_queue, given_as_history]


@pytest.mark.trap("llamaindex", 13, 15, 28)
@pytest.mark.requirement("J06", "L05")
@pytest.mark.parametrize("come_in", WAYS)
def test_the_limit_holds_at_the_first_read_and_the_next_message_collapses_nothing(memory, do, come_in):
    instructions = ChatMessage("be short", role="developer")
    come_in(memory, [instructions, *turns(100)])
    session = MemlayerMemory(memory, user_id="ada", session_id="long", token_limit=600)
    first = do(session, "get")
    assert first[-1] == turns(100)[-1]
    do(session, "put", ChatMessage("and now?"))
    then = do(session, "get")

    for told in (first, then):
        assert cost(memory, told) <= 600
        assert told[0] == instructions
        assert told[1].role == "user"
        assert len(told) > 5
    assert do(session, "context").tokens <= 600
    assert then[-1].content.endswith("and now?")  # what is recalled may stand in front
    assert len(do(session, "get_all")) == 202


# What is recalled


class Writing(Scripted):
    """Completes every prompt with the same summary, and notes it."""

    def complete(self, prompt, formatted=False, **kwargs):
        self.__dict__.setdefault("prompts", []).append(prompt)
        return CompletionResponse(text=SUMMARY)


class Choosing(Scripted):
    """Notes which tool it is told to call."""

    def achat_with_tools(self, *args, tool_choice=None, **kwargs):
        self.__dict__.setdefault("chosen", []).append(tool_choice)
        return super().achat_with_tools(*args, **kwargs)


@pytest.mark.trap("llamaindex", 16)
@pytest.mark.parametrize("method", METHODS)
async def test_an_agent_that_is_to_begin_with_a_tool_begins_with_it(memory, remembers, method):
    """It looks whether the last message is the user's."""

    def look(where: str) -> str:
        """Look somewhere."""
        return "a heron"

    def reply(messages, **_):
        return ChatMessage("a heron", role="assistant") if messages[-1].role == "tool" else asks_to_look()

    llm = Choosing(response_generator=reply)
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method=method)
    agent = FunctionAgent(tools=[look], llm=llm, initial_tool_choice="look", streaming=False)
    await agent.run(user_msg="which pet do I have?", memory=session)

    assert "my pet is a parrot" in str(llm.told[0])
    assert llm.told[0][-1].role == "user"
    assert llm.__dict__["chosen"] == ["look", None]


@pytest.mark.trap("llamaindex", 3, 16)
@pytest.mark.parametrize("method", METHODS)
async def test_a_state_is_told_beside_the_question_and_never_reaches_the_memory(memory, remembers, method):
    """A workflow writes its state into the last message."""
    llm = answers("a parrot")
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method=method)
    agents = AgentWorkflow(agents=[FunctionAgent(llm=llm)], initial_state={"mood": "good"})
    await agents.run(user_msg="which pet do I have?", memory=session)

    last = llm.told[0][-1]
    assert last.role == "user"
    assert "mood" in last.content
    assert "which pet do I have?" in last.content
    assert "my pet is a parrot" in str(llm.told[0])
    assert await session.aget_all() == talk("which pet do I have?", "a parrot")


@pytest.mark.trap("llamaindex", 17)
@pytest.mark.parametrize("kind", [FunctionAgent, ReActAgent])
@pytest.mark.parametrize("method", METHODS)
def test_what_was_summed_up_makes_no_second_system_message(kind, method):
    words = "there are three herons in the garden, and Ada looks for two of them, and asks for many gardens. "
    llm = answers("Thought: I can answer without using any more tools.\nAnswer: yes")
    with Memory.in_memory(embedder="hashing", model=lambda _: SUMMARY) as memory:
        session = MemlayerMemory(memory, user_id="ada", token_limit=2000, insert_method=method)
        session.put_messages(turns(40, words * 3))
        session.get()
        memory.flush(30)
        assert session.context().summary is not None

        async def run():
            await kind(llm=llm, system_prompt="be short").run(user_msg="and now?", memory=session)

        asyncio.run(run())
    roles = [message.role.value for message in llm.last_chat_messages]
    assert roles.count("system") == 1
    assert roles[:2] == ["system", "user"]
    assert "<conversation_summary key=" in llm.last_chat_messages[1].content


@pytest.mark.trap("llamaindex", 17, 23)
@pytest.mark.parametrize("method", METHODS)
def test_a_question_is_condensed_with_what_was_said_and_nothing_else(memory, method):
    """The engine writes roles, system messages and `additional_kwargs` into that prompt."""
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method=method)
    llm = Writing(response_generator=lambda *_, **__: ChatMessage("yes", role="assistant"))
    chat = CondensePlusContextChatEngine.from_defaults(
        Library(), llm=llm, memory=session, condense_prompt="{chat_history}|{question}"
    )
    chat.chat("hello")
    chat.chat("and now?")

    assert llm.__dict__["prompts"] == ["user: hello\nassistant: yes|and now?"]


@pytest.mark.trap("llamaindex", 20)
async def test_what_has_no_words_is_never_quoted(memory):
    """A call's or a picture's content is None."""
    old = MemlayerMemory(memory, user_id="ada", session_id="old")
    await old.aput_messages(
        [
            ChatMessage("my parrot is called Coco"),
            calls("look", at="my parrot"),
            result("my parrot is green"),
            ChatMessage(blocks=[PICTURE]),
            ChatMessage(" \n", role="assistant"),
        ]
    )
    await memory.aflush()
    new = MemlayerMemory(memory, user_id="ada", session_id="new")
    asked = ChatMessage("what of my parrot?")

    nodes = await MemlayerRetriever(memory, user_id="ada", similarity_top_k=50).aretrieve(asked.content)
    assert {node.get_content() for node in nodes} == {"my parrot is called Coco", "my parrot is green"}
    for told in (  # a tool's result is no memory of other sessions, but can be searched for
        (await new.aget(asked))[0].content,
        await MemlayerMemoryBlock(memory, user_id="ada").aget([asked]),
        await MemlayerToolSpec(new).aretrieve_from_memory(keywords=["my parrot"]),
    ):
        (quote,) = [line for line in told.splitlines() if line.startswith("- [")]
        assert "my parrot is" in quote
        assert "None" not in told


@pytest.mark.trap("llamaindex", 20)
@pytest.mark.parametrize("method", METHODS)
def test_a_question_that_is_a_picture_alone_is_asked_as_it_is(memory, remembers, do, method):
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method=method)
    picture = ChatMessage(blocks=[PICTURE])
    do(session, "put", picture)

    assert do(session, "get") == do(session, "get", picture) == [picture]
    assert asyncio.run(MemlayerMemoryBlock(memory, user_id="ada").aget([picture])) == ""


# What stays as it was


@pytest.mark.trap("llamaindex", 22)
@pytest.mark.parametrize("mode", ["STATIC", "BOTH"])
@pytest.mark.parametrize("truncates", [False, True])
def test_what_is_made_smaller_keeps_all_but_its_words(do, mode, truncates):
    """Providers check a thought's signature, and refuse a thought that was changed."""
    arguments = {"path": "a.py", "text": "x = 1\n" * 4000}
    openai = {"id": "call_1", "function": {"name": "look", "arguments": json.dumps(arguments)}}
    signed = {"signature": "EqQB==", "of": b"\xff\0"}
    thought = ThinkingBlock(content="heron " * 40, num_tokens=7, additional_information=signed)
    spoken = calls("look", **arguments)
    spoken.blocks[:0] = [thought, TextBlock(text="I see. " * 3000)]
    spoken.additional_kwargs = {"thought_signatures": ["U0lH"], "tool_calls": [openai]}
    seen = result("heron " * 3000, is_error=True)
    seen.blocks.append(CachePoint(cache_control={"type": "ephemeral"}))
    messages = [ChatMessage("Write the module."), spoken, seen]
    with Memory.in_memory(settings=Tuned(index_delay=3600, truncate_messages=truncates)) as memory:
        session = MemlayerMemory(memory, user_id="ada", session_id="monday", token_limit=5000, mode=mode)
        do(session, "put_messages", messages)
        told = do(session, "get")
        assert cost(memory, told) <= 5000
        assert do(session, "get_all") == messages
        if not truncates:
            do(session, "set", [*told, ChatMessage("Done.", role="assistant")])
            assert do(session, "get_all")[:3] == messages, "what comes back is known again"
    for whole, small in zip(messages, told, strict=True):
        assert [block.block_type for block in small.blocks] == [block.block_type for block in whole.blocks]
        assert {**small.additional_kwargs, "tool_calls": 0} == {**whole.additional_kwargs, "tool_calls": 0}
    kept, text, call = told[1].blocks
    assert kept == thought
    assert ("I see. " * 3000).startswith(text.text.rstrip("…")), "no words that it did not say"
    assert call.tool_kwargs["path"] == "a.py"
    assert json.loads(told[1].additional_kwargs["tool_calls"][0]["function"]["arguments"]) == call.tool_kwargs
    assert len(call.tool_kwargs["text"]) < 12_000
    assert told[2].blocks[1] == messages[2].blocks[1]
    assert ("context_reload" in str(told)) == (mode == "BOTH" and not truncates)


@pytest.mark.trap("llamaindex", 24)
def test_the_model_that_sums_up_is_given_plain_text_and_no_calls():
    """Some providers refuse calls in a talk that is sent without tools."""
    llm = Writing()
    quiet = Tuned(index_delay=3600, max_tokens=1000, recall_tokens=0)
    with Memory.in_memory(summarizer=llm, settings=quiet) as memory:
        session = MemlayerMemory(memory, user_id="ada", session_id="monday")
        for number in range(30):
            function = {"name": "look", "arguments": '{"where": "y"}'}
            asks = calls("look", f"c{number}", where="x")
            asks.additional_kwargs["tool_calls"] = [
                {"id": f"d{number}", "type": "function", "function": function}
            ]
            results = [result("three herons", f"c{number}"), result("two herons", f"d{number}")]
            question, answer = talk(f"are there herons in garden {number}? " * 4, "five " * 20)
            session.put_messages([question, asks, *results, answer])
        session.get()
        memory.flush(30)
        assert session.context().summary is not None

    prompts = llm.__dict__["prompts"]
    assert llm.told == []
    assert all(isinstance(prompt, str) for prompt in prompts)
    assert "three herons" in prompts[0]
    assert "two herons" in prompts[0]
    for raw in ("ToolCallBlock", "tool_call", "tool_kwargs", '"function"', "c0", "d0", "None"):
        assert raw not in str(prompts)


@pytest.mark.trap("llamaindex", 25)
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agents_answer_keeps_its_thought_streamed_or_not(session, streaming):
    thought = ThinkingBlock(content="hm", additional_information={"signature": "EqQB=="})
    answer = ChatMessage(role="assistant", blocks=[thought, TextBlock(text="yes")])
    llm = speaking(lambda _: answer)
    await FunctionAgent(llm=llm, streaming=streaming).run(user_msg="hello", memory=session)

    assert await session.aget_all() == [ChatMessage("hello"), answer]
    assert said(await session.aget()) == [("user", "hello"), ("assistant", "yes")]
