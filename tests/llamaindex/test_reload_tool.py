"""An agent of LlamaIndex gets back what its memory shows only a preview of, and never what is another's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.calling import acall_tool, call_tool
from llama_index.core.workflow import Context
from tuned import Tuned

from llamaindex_memlayer import MemlayerMemory, reload_tool
from memlayer_core import Memory
from memlayer_core.errors import InvalidLimitError, MessageTypeError
from memlayer_core.seams import MaxRounds, MaxTokens
from tests.llamaindex.conftest import calls, result, talk, texts

REPORT = "\n".join(f"{number} of pears: {number * 7919 % 1000} kilograms" for number in range(500))
PREVIEW = re.compile(r"call context_reload with id '(msg-\d+)'")
NEXT = re.compile(r"\n\[characters [\d,]+ to [\d,]+ of [\d,]+; .* offset (\d+) to read on\]$")


def reads_on(messages: list[ChatMessage], **kwargs: Any) -> ChatMessage:
    """Ask for all of the preview, part by part, then answer."""
    results = [message.content for message in messages if message.role.value == "tool"]
    place = PREVIEW.search(results[0])[1]
    if len(results) == 1:
        return calls("context_reload", id=place)
    following = NEXT.search(results[-1])
    if following:
        return calls("context_reload", f"call_{len(results)}", id=place, offset=int(following[1]))
    return ChatMessage("read", role="assistant")


def agent_of(session: MemlayerMemory, script: Callable[..., ChatMessage]) -> FunctionAgent:
    llm = MockFunctionCallingLLM(response_generator=script, is_chat_model=True)
    return FunctionAgent(name="clerk", tools=[reload_tool(session)], llm=llm, streaming=False)


async def ran(agent: Any, said: str, session: MemlayerMemory) -> tuple[str, list[ToolCallResult]]:
    handler = agent.run(said, memory=session, ctx=Context(agent))
    results = [event async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
    return str(await handler), results


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=Tuned(index_delay=3600), tokenizer="estimate") as opened:
        yield opened


@pytest.fixture
def session(memory: Memory) -> MemlayerMemory:
    made = MemlayerMemory(memory, session_id="s", user_id="ada", token_limit=4000, mode="BOTH")
    question, answer = talk("How many pears?", "Many.")
    made.put_messages([question, calls("count"), result(REPORT), answer])
    return made


@pytest.mark.requirement("A08", "A10", "A11", "A21")
@pytest.mark.parametrize("many", [False, True], ids=["FunctionAgent", "AgentWorkflow"])
async def test_an_agent_reads_all_of_a_huge_result_that_its_memory_shows_a_preview_of(session, many) -> None:
    agent = agent_of(session, reads_on)
    workflow = AgentWorkflow(agents=[agent]) if many else agent

    said, results = await ran(workflow, "And the last line says?", session)

    parts = [one.tool_output.content for one in results]
    assert "".join(NEXT.sub("", part) for part in parts) == REPORT
    assert len(parts) > 2
    counted = [session.memory.tokens.text(part) for part in parts]
    assert max(counted) <= 1000
    assert said == "read"
    assert [message.content for message in await session.aget_all()][2] == REPORT


@pytest.mark.requirement("A10")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"id": "msg-99"},
            "this session has no message 'msg-99'. The id of an offloaded message is valid in",
        ),
        (
            {"id": "the report"},
            'is no id of an offloaded message. Use an id as a preview shows it, such as "',
        ),
        ({"id": "msg-3", "offset": 10**7}, "`offset` must be a whole number from 0 to"),
        ({"uuid": "msg-3"}, "context_reload cannot be called like this: `id`"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_to_do_and_the_agent_goes_on(
    session, arguments, says
) -> None:
    def script(messages: list[ChatMessage], **kwargs: Any) -> ChatMessage:
        answered = messages[-1].role.value == "tool"
        return ChatMessage("sorry", role="assistant") if answered else calls("context_reload", **arguments)

    said, [answer] = await ran(agent_of(session, script), "go", session)

    assert says in answer.tool_output.content
    assert answer.tool_output.is_error
    assert said == "sorry"


def test_the_tool_is_a_tool_and_takes_a_chat_as_well(session) -> None:
    tool = reload_tool(session.chat, token_limit=10**6)

    assert isinstance(tool, FunctionTool)
    assert tool.metadata.name == "context_reload"
    described = tool.metadata.get_parameters_dict()
    assert described["required"] == ["id"]
    assert "msg-17" in described["properties"]["id"]["description"]
    for output in (tool.call(id="msg-3"), asyncio.run(tool.acall(id="msg-3"))):
        assert output.content == REPORT
    for output in (call_tool(tool, {"id": "x"}), asyncio.run(acall_tool(tool, {"id": "x"}))):
        assert output.is_error
        assert "such as" in output.content


@pytest.mark.requirement("A10")
def test_no_model_reads_another_session_by_this_tool(memory, session) -> None:
    other = MemlayerMemory(memory, session_id="other", user_id="ada")
    other.put_messages([ChatMessage(f"secret {number}") for number in range(3)])
    tool = reload_tool(other)

    assert set(tool.metadata.get_parameters_dict()["properties"]) == {"id", "offset"}
    assert tool.call(id="msg-7").content == "secret 2"
    named = call_tool(tool, {"id": "msg-7", "session_id": "s", "user_id": "ada"})
    assert named.content == "secret 2", "what a model invents counts for nothing"
    for of_another in range(1, 5):
        assert f"no message 'msg-{of_another}'" in call_tool(tool, {"id": f"msg-{of_another}"}).content


# What a memory passes on


@pytest.mark.requirement("L15", "L04", "F06")
def test_limits_are_given_with_the_memory_or_for_a_call(do, memory) -> None:
    said = talk(*"0123456789")
    session = MemlayerMemory.from_defaults(memory, chat_history=said, token_limit=500, policy=MaxRounds(2))

    assert do(session, "get") == said[-4:]
    assert do(session, "get", policy={"max_messages": 6}) == said[-6:]
    assert do(session, "get", policy=[]) == said
    assert len(do(session, "get", token_limit=15)) == 2
    assert do(session, "context", None, 485).token_limit == 15
    assert do(session, "context", token_limit=60, policy=MaxTokens(50)).token_limit == 50
    for wrong in ({"token_limit": 0}, {"policy": "newest"}, {"policy": {"max_rounds": True}}):
        with pytest.raises(InvalidLimitError):
            do(session, "get", **wrong)
        with pytest.raises(InvalidLimitError):
            MemlayerMemory(memory, **wrong)


def test_a_policy_of_ones_own_holds_and_is_not_dumped(memory) -> None:
    class Even:
        def allows(self, portion) -> bool:
            return portion.rounds <= 2

    session = MemlayerMemory.from_defaults(memory, chat_history=talk(*"0123456789"), policy=Even())
    assert texts(session.get()) == ["6", "7", "8", "9"]
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        session.to_dict()


@pytest.mark.requirement("F01")
def test_a_policy_survives_a_dump_as_json(memory) -> None:
    session = MemlayerMemory(memory, policy=["max_messages", MaxRounds(3), MaxRounds(4)])

    again = MemlayerMemory.from_string(session.to_string())

    assert again.policy == session.to_dict()["policy"] == {"max_messages": 10, "max_rounds": 3}


@pytest.mark.requirement("F13", "M03")
def test_temporary_messages_are_told_until_an_answer_is_put_and_never_kept(do, session) -> None:
    hint = ChatMessage("it is raining", additional_kwargs={"of": "weather"})
    kept = len(session.get_all())
    do(session, "put_temporary", [hint])

    assert do(session, "get")[-1] == hint
    assert do(session, "get")[-1] == hint
    assert len(session.get_all()) == kept
    session.put(ChatMessage("No.", role="assistant"))
    assert hint not in do(session, "get")
    with pytest.raises(MessageTypeError):
        do(session, "put_temporary", hint)


@pytest.mark.requirement("F20")
def test_what_only_people_see_stays_in_the_history_and_no_model_is_told(do, memory) -> None:
    session = MemlayerMemory(memory)
    question, answer = talk("hi", "hello")
    card = ChatMessage("a card", role="assistant", additional_kwargs={"model_visible": False})
    do(session, "put_messages", [question, card, answer])

    assert session.get_all() == [question, card, answer]
    assert do(session, "get") == [question, answer]
    session.chat.add("user", "typing…", model_visible=False)
    session.set(session.get_all())
    assert session.get() == [question, answer]
