"""An agent's memory tools record, look up and reload, for the user that they were made for and nobody else."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.calling import acall_tool, call_tool
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from llama_index.core.workflow import Context
from scripted import speaking

from llamaindex_memlayer import MemlayerMemory, MemlayerToolSpec, reload_tool
from memlayer_core import RecallFilter
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidScopeError
from tests.conftest import offload_id
from tests.llamaindex.conftest import calls, result, talk, texts, uses

RECORD, RETRIEVE, RELOAD = "record_to_memory", "retrieve_from_memory", "context_reload"
CORRECT, FORGET = "correct_memory", "forget_memory"
WANTED = {"thinking": "it matters later", "content": ["Ada is allergic to peanuts.", "Ada lives in Riga."]}


REPORT = "\n".join(f"{number} of pears: {number * 7919 % 1000} kilograms" for number in range(500))
PREVIEW = re.compile(r"call context_reload with id '(msg-\d+)'")
NEXT = re.compile(r"\n\[characters [\d,]+ to [\d,]+ of [\d,]+; .* offset (\d+) to read on\]$")


@pytest.fixture
def session(memory):
    return MemlayerMemory(memory, user_id="ada", session_id="monday", token_limit=4000)


def by_name(spec):
    return {tool.metadata.name: tool for tool in spec.to_tool_list()}


@pytest.fixture
def tools(session):
    return by_name(MemlayerToolSpec(session))


def used(do, tool, **given):
    """Call a tool as agents do, or as they await it."""
    return asyncio.run(acall_tool(tool, given)) if do.awaits else call_tool(tool, given)


async def ran(agent, asked, session):
    """Let an agent or a workflow answer. Returns its answer, and what its tools gave."""
    handler = agent.run(asked, memory=session, ctx=Context(agent))
    results = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
    return str(await handler), [one.tool_output for one in results]


@pytest.mark.trap("llamaindex", 11)
def test_it_is_a_tool_spec_of_five_tools_with_async_twins_of_which_some_may_be_chosen(tools, session):
    spec = MemlayerToolSpec(session.chat, token_limit=1000)

    assert isinstance(spec, BaseToolSpec)
    assert [*tools] == [*by_name(spec)] == [RECORD, RETRIEVE, CORRECT, FORGET, RELOAD]
    for tool in tools.values():
        assert isinstance(tool, FunctionTool)
        assert inspect.iscoroutinefunction(tool.async_fn)
        assert tool.async_fn.__name__ == f"a{tool.real_fn.__name__}"
    for chosen in (RETRIEVE, f"a{RETRIEVE}"):
        (tool,) = spec.to_tool_list([chosen])
        assert tool.metadata.name == RETRIEVE
        assert asyncio.run(tool.acall(keywords=["parrot"])).content == "Nothing was found."


def test_a_model_sees_what_to_give_and_nothing_of_whose_memory_it_is(tools):
    fields = {name: tool.metadata.get_parameters_dict() for name, tool in tools.items()}

    assert {name: [*schema["properties"]] for name, schema in fields.items()} == {
        RECORD: ["thinking", "content"],
        RETRIEVE: ["keywords"],
        CORRECT: ["memory_id", "text", "reason", "value", "quote"],
        FORGET: ["memory_ids", "quote"],
        RELOAD: ["id", "offset"],
    }
    assert fields[RECORD]["properties"]["content"]["type"] == "array"
    shown = str([tool.metadata.to_openai_tool() for tool in tools.values()])
    assert "ada" not in shown
    assert "session" not in shown


def test_what_is_recorded_is_found_later_in_another_session(tools, memory, do):
    said = used(do, tools[RECORD], **WANTED)
    later = by_name(MemlayerToolSpec(memory, user_id="ada", session_id="tuesday"))

    assert said.content == "Recorded: ada_mem_001, ada_mem_002"
    assert "Ada is allergic to peanuts." in used(do, later[RETRIEVE], keywords=["peanuts"]).content
    assert {record.source for record in memory.records(user_id="ada")} == {"implicit_inference"}


def test_what_was_said_is_found_unless_the_filter_of_the_tools_leaves_it_out(tools, session, do):
    session.put(ChatMessage("my parrot is called Coco"))
    records = by_name(MemlayerToolSpec(session, filter=RecallFilter(kinds=["record"])))

    assert "parrot is called Coco" in used(do, tools[RETRIEVE], keywords=["parrot", "name"]).content
    assert used(do, records[RETRIEVE], keywords=["parrot"]).content == "Nothing was found."
    assert used(do, tools[RETRIEVE], keywords=[]).content.startswith("Nothing was looked up")


WRONG = [
    (RECORD, {"thinking": "x", "content": "Ada is allergic."}, "valid list"),
    (RECORD, {"content": ["Ada is allergic."]}, "thinking"),
    (RETRIEVE, {"keywords": "parrot"}, "valid list"),
    (RELOAD, {"id": "msg-99"}, "no message 'msg-99'"),
]


def test_a_wrong_call_is_an_error_that_the_model_is_told_and_records_nothing(tools, memory, do):
    """A text where a list belongs would be recorded letter by letter."""
    for name, given, says in WRONG:
        answer = used(do, tools[name], **given)
        assert answer.is_error
        assert says in answer.content

    assert memory.records(user_id="ada") == []


def test_no_model_reaches_another_user_by_naming_one(tools, memory, do):
    other = MemlayerMemory(memory, user_id="bob", session_id="monday")
    other.put(ChatMessage("my parrot is called Fred"))
    other.chat.remember("Bob's parrot is blue.")

    for named in ({}, {"user_id": "bob"}, {"session_id": "monday", "user_id": "bob", "tenant_id": "default"}):
        found = used(do, tools[RETRIEVE], keywords=["parrot"], **named).content
        assert "Fred" not in found
        assert "blue" not in found
        used(do, tools[RECORD], **WANTED, **named)
    assert {record.user_id for record in memory.records(user_id="bob")} == {"bob"}
    assert len(memory.records(user_id="bob")) == 1


def test_they_are_made_of_a_memory_and_ids_or_of_a_conversation(memory, session, do):
    session.chat.remember("Ada keeps bees.")
    memory.chat(user_id="bob").remember("Bob rents hives.", visibility="share", allowed_roles=["keeper"])
    of_ids = MemlayerToolSpec(memory, user_id="ada", session_id="monday", roles=["keeper"])
    ways = {
        "ids": of_ids,
        "memory": MemlayerToolSpec(session),
        "chat": MemlayerToolSpec(session.chat),
        "user": MemlayerToolSpec(memory, user_id="ada"),
        "alone": MemlayerToolSpec(memory, session_id="monday"),
        "tenant": MemlayerToolSpec(memory, user_id="ada", tenant_id="other"),
    }

    finds = {
        name: used(do, spec.to_tool_list([RETRIEVE])[0], keywords=["bees", "hives"]).content
        for name, spec in ways.items()
    }

    own = {name for name, found in finds.items() if "Ada keeps bees." in found}
    assert own == {"ids", "memory", "chat", "user"}
    assert {name for name, found in finds.items() if "Bob rents hives." in found} == {"ids"}
    session.put(ChatMessage("a swarm"))
    named = offload_id(session.chat, 0)
    assert used(do, of_ids.to_tool_list([RELOAD])[0], id=named).content == "a swarm"


def test_they_are_not_made_of_nobodys_memory_or_with_ids_of_two_kinds(memory, session):
    with pytest.raises(InvalidScopeError, match="neither a user nor a session"):
        MemlayerToolSpec(memory)
    with pytest.raises(ConfigurationError, match="`memory` must be"):
        MemlayerToolSpec("./memory", user_id="ada")
    for source in (session, session.chat):
        with pytest.raises(ConfigurationError, match="its own ids"):
            MemlayerToolSpec(source, user_id="ada")
    with pytest.raises(InvalidLimitError):
        MemlayerToolSpec(memory, user_id="ada", token_limit=0)
    for whole in (memory, "./memory", None):
        with pytest.raises(ConfigurationError, match="one conversation") as refused:
            reload_tool(whole, token_limit=500)
        assert "memory.chat(" in refused.value.hint


async def test_an_agent_records_what_it_is_told_and_looks_it_up_in_the_next_session(memory):
    def reply(messages):
        if messages[-1].role == "tool":
            return ChatMessage(f"I see: {messages[-1].content}", role="assistant")
        asks = messages[-1].content.endswith("?")
        return calls(RETRIEVE, keywords=["allergic"]) if asks else calls(RECORD, **WANTED)

    told = []
    for day, said in (("monday", "I am allergic to peanuts"), ("tuesday", "what am I allergic to?")):
        session = MemlayerMemory(memory, user_id="ada", session_id=day)
        tools = MemlayerToolSpec(session).to_tool_list()
        agent = FunctionAgent(tools=tools, llm=speaking(reply), streaming=False)
        _, [output] = await ran(agent, said, session)
        told.append(output.content)

    assert told[0] == "Recorded: ada_mem_001, ada_mem_002"
    assert "Ada is allergic to peanuts." in told[1]


@pytest.mark.requirement("A13")
@pytest.mark.parametrize(
    ("mode", "has_tools", "recalls"), [("STATIC", False, True), ("AGENT", True, False), ("BOTH", True, True)]
)
def test_the_mode_decides_who_looks_into_the_memory(memory, do, mode, has_tools, recalls):
    MemlayerMemory(memory, user_id="ada", session_id="past").put(ChatMessage("my parrot is called Coco"))
    session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="now", mode=mode)
    session.put(ChatMessage("what is my parrot called?"))

    told = " ".join(message.content for message in do(session, "get"))
    assert ("Coco" in told) == recalls
    assert "what is my parrot called?" in told
    for tools in (MemlayerToolSpec(session).to_tool_list(), session.tools):
        names = {tool.metadata.name for tool in tools}
        assert names == ({RECORD, RETRIEVE, CORRECT, FORGET, RELOAD} if has_tools else set())
    assert MemlayerMemory.from_dict(session.to_dict()).mode == mode


def test_without_a_mode_a_memory_brings_no_tools_and_an_unknown_one_is_refused(memory):
    session = MemlayerMemory.from_defaults(memory, user_id="ada")
    assert (session.mode, session.tools) == ("STATIC", [])
    assert len(MemlayerToolSpec(session).to_tool_list()) == 5, "a spec of it does"
    with pytest.raises(ConfigurationError, match="unknown mode"):
        MemlayerMemory(memory, user_id="ada", mode="static")


def test_an_agent_corrects_and_forgets_through_its_tools(tools, session, memory, do):
    used(do, tools[RECORD], thinking="x", content=[{"text": "Ada has a dog.", "key": "pet", "value": "dog"}])
    session.put(ChatMessage("My locker is B17."))
    locker = {"text": "x", "key": "locker", "value": "B17"}
    by_user = {"asserted_by": "user", "quote": "My locker is B17"}
    used(do, tools[RECORD], thinking="x", content=[locker | by_user])
    change = {"memory_id": "ada_mem_001", "text": "Ada has a cat.", "value": "cat", "reason": "it meows"}
    assert "version 2" in used(do, tools[CORRECT], **change).content
    refused = used(do, tools[FORGET], memory_ids=["ada_mem_002"])
    assert refused.is_error
    assert {one.value for one in memory.records(user_id="ada")} == {"cat", "B17"}
    session.put(ChatMessage("Forget my locker, please."))
    assert not used(do, tools[FORGET], memory_ids=["ada_mem_002"], quote="Forget my locker").is_error
    assert {one.value for one in memory.records(user_id="ada")} == {"cat"}


# What a memory shows a preview of


@pytest.fixture
def reported(session):
    """Return a session in which a tool reported more than a model is shown."""
    made = session.model_copy(update={"mode": "BOTH"})
    question, answer = talk("How many pears?", "Many.")
    made.put_messages([question, calls("count"), result(REPORT), answer])
    return made


@pytest.mark.requirement("A08", "A10", "A11", "A21")
@pytest.mark.parametrize("many", [False, True], ids=["FunctionAgent", "AgentWorkflow"])
async def test_an_agent_reads_all_of_a_huge_result_that_its_memory_shows_a_preview_of(reported, many):
    def reads_on(messages):
        results = [message.content for message in messages if message.role == "tool"]
        place = PREVIEW.search(results[0])[1]
        if len(results) == 1:
            return calls(RELOAD, id=place)
        if following := NEXT.search(results[-1]):
            return calls(RELOAD, f"call_{len(results)}", id=place, offset=int(following[1]))
        return ChatMessage("read", role="assistant")

    agent = FunctionAgent(tools=[reload_tool(reported)], llm=speaking(reads_on), streaming=False)

    said, outputs = await ran(
        AgentWorkflow(agents=[agent]) if many else agent, "And the last line says?", reported
    )

    parts = [output.content for output in outputs]
    assert "".join(NEXT.sub("", part) for part in parts) == REPORT
    assert len(parts) > 2
    assert max(reported.memory.tokens.text(part) for part in parts) <= 1000
    assert said == "read"
    assert texts(await reported.aget_all())[2] == REPORT


@pytest.mark.requirement("A10")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"id": "msg-99"},
            "this session has no message 'msg-99'. The id of an offloaded message is valid in",
        ),
        ({"id": "msg-3", "offset": 10**7}, "`offset` must be a whole number from 0 to"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_to_do_and_the_agent_goes_on(reported, arguments, says):
    llm = uses(RELOAD, **arguments)
    agent = FunctionAgent(tools=[reload_tool(reported)], llm=llm, streaming=False)

    said, [output] = await ran(agent, "go", reported)

    assert says in output.content
    assert output.is_error
    assert said.startswith("It is ")


def test_the_tool_is_a_tool_and_takes_a_chat_as_well(reported, do):
    tool = reload_tool(reported.chat, token_limit=10**6)

    assert isinstance(tool, FunctionTool)
    assert tool.metadata.name == RELOAD
    described = tool.metadata.get_parameters_dict()
    assert described["required"] == ["id"]
    assert "msg-17" in described["properties"]["id"]["description"]
    assert used(do, tool, id="msg-3").content == REPORT
    wrong = used(do, tool, id="x")
    assert wrong.is_error
    assert "such as" in wrong.content


@pytest.mark.requirement("A10")
def test_no_model_reads_another_session_by_this_tool(memory, reported, do):
    other = MemlayerMemory(memory, session_id="other", user_id="ada")
    other.put_messages([ChatMessage(f"secret {number}") for number in range(3)])
    tool = reload_tool(other)

    assert set(tool.metadata.get_parameters_dict()["properties"]) == {"id", "offset"}
    assert used(do, tool, id="msg-7").content == "secret 2"
    named = used(do, tool, id="msg-7", session_id="s", user_id="ada")
    assert named.content == "secret 2", "what a model invents counts for nothing"
    for of_another in range(1, 5):
        assert f"no message 'msg-{of_another}'" in used(do, tool, id=f"msg-{of_another}").content
