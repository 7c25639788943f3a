"""An agent of LangChain gets back what its context shows only a preview of, and never what is another's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, reload_tool
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidMessageError, StoreClosedError
from memlayer_core.seams import MaxRounds

REPORT = "\n".join(f"{number} of pears: {number * 7919 % 1000} kilograms" for number in range(500))
PREVIEW = re.compile(r"call context_reload with id '(msg-\d+)'")
NEXT = re.compile(r"\n\[characters [\d,]+ to [\d,]+ of [\d,]+; .* offset (\d+) to read on\]$")


class Scripted(BaseChatModel):
    """A model that says what a function says."""

    script: Callable[[list[BaseMessage]], AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Scripted:
        assert [tool.name for tool in tools] == ["context_reload"]
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])


def call(number: int, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "context_reload", "id": f"reload-{number}", "args": arguments}])


def reads_on(messages: list[BaseMessage]) -> AIMessage:
    """Ask for all of the preview, part by part, then answer."""
    results = [message for message in messages if isinstance(message, ToolMessage)]
    place = PREVIEW.search(results[0].content)[1]
    if len(results) == 1:
        return call(0, id=place)
    following = NEXT.search(results[-1].content)
    return call(len(results), id=place, offset=int(following[1])) if following else AIMessage("read")


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=Tuned(index_delay=3600), tokenizer="estimate") as opened:
        yield opened


@pytest.fixture
def history(memory: Memory) -> MemlayerChatMessageHistory:
    made = MemlayerChatMessageHistory(memory, session_id="s", user_id="ada", token_limit=4000, reload=True)
    made.add_messages(
        [
            HumanMessage("How many pears?"),
            AIMessage("", tool_calls=[{"name": "count", "id": "c1", "args": {}}]),
            ToolMessage(REPORT, tool_call_id="c1"),
            AIMessage("Many."),
            HumanMessage("And the last line says?"),
        ]
    )
    return made


def ran(agent: Any, given: dict[str, Any], *, awaits: bool) -> dict[str, Any]:
    return asyncio.run(agent.ainvoke(given)) if awaits else agent.invoke(given)


@pytest.mark.requirement("A08", "A10", "A21", "A11")
@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
def test_an_agent_reads_all_of_a_huge_result_that_its_context_shows_a_preview_of(history, awaits) -> None:
    told = history.context()
    assert len(told[2].content) < len(REPORT)
    assert history.messages[2].content == REPORT
    agent = create_agent(Scripted(script=reads_on), [reload_tool(history)])

    said = ran(agent, {"messages": told}, awaits=awaits)["messages"]

    parts = [message for message in said if (getattr(message, "tool_call_id", "") or "").startswith("reload")]
    assert "".join(NEXT.sub("", message.content) for message in parts) == REPORT
    assert all(history.chat.memory.tokens.text(message.content) <= 1000 for message in parts)
    assert len(parts) > 2
    assert said[-1].content == "read"


@pytest.mark.requirement("A08", "A10")
def test_what_was_read_again_stays_in_the_next_context_while_older_results_shrink(history) -> None:
    tool = reload_tool(history)
    for number, offset in enumerate((0, 0, 0, 0, 0)):
        asked = call(number, id="msg-3", offset=offset)
        history.add_messages([asked, tool.invoke({**asked.tool_calls[0], "type": "tool_call"})])

    context = history.context()

    whole = history.messages[-1].content
    assert context[-1].content == whole
    assert PREVIEW.search(context[-9].content)
    tokens = history.chat.context(token_limit=4000).tokens
    assert tokens <= 4000


@pytest.mark.requirement("A10")
@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"id": "msg-99"},
            "this session has no message 'msg-99'. The id of an offloaded message is valid in its",
        ),
        (
            {"id": "the report"},
            'is no id of an offloaded message. Use an id as a preview shows it, such as "',
        ),
        ({"id": "msg-3", "offset": 10**7}, "`offset` must be a whole number from 0 to"),
        ({"id": "msg-3", "offset": -1}, "`offset` must be a whole number from 0 to"),
        ({"id": "msg-3", "offset": "behind"}, "context_reload cannot be called like this: `offset`"),
        ({"uuid": "msg-3"}, "context_reload cannot be called like this: `id`"),
    ],
)
def test_a_wrong_call_is_answered_with_what_to_do_and_the_agent_goes_on(
    history, arguments, says, awaits
) -> None:
    def script(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage("sorry") if messages[-1].type == "tool" else call(1, **arguments)

    agent = create_agent(Scripted(script=script), [reload_tool(history)])
    *_, answer, last = ran(agent, {"messages": [HumanMessage("go")]}, awaits=awaits)["messages"]

    assert says in answer.content
    assert answer.status == "error"
    assert last.content == "sorry"


@pytest.mark.requirement("A10")
def test_no_model_reads_another_session_by_this_tool(memory, history) -> None:
    other = MemlayerChatMessageHistory(memory, session_id="other", user_id="ada")
    other.add_messages([HumanMessage(f"secret {number}") for number in range(4)])
    tool = reload_tool(other)

    assert set(tool.args) == {"id", "offset"}
    assert tool.invoke({"id": "msg-8"}) == "secret 2"
    named = {"id": "msg-8", "session_id": "s", "user_id": "ada", "scope": "s", "token_limit": 10**6}
    assert tool.invoke(named) == "secret 2"
    for of_another in range(1, 6):
        assert f"no message 'msg-{of_another}'" in tool.invoke({"id": f"msg-{of_another}"})


def test_the_tool_is_a_tool_and_takes_a_chat_as_well(memory, history) -> None:
    tool = reload_tool(history.chat, token_limit=10**6)

    assert isinstance(tool, BaseTool)
    assert tool.name == "context_reload"
    assert tool.invoke({"id": "msg-3"}) == REPORT
    assert asyncio.run(tool.ainvoke({"id": "msg-3"})) == REPORT
    memory.close()
    with pytest.raises(StoreClosedError):
        tool.invoke({"id": "msg-3"})


# What a history passes on


@pytest.mark.requirement("L15", "L04", "F06")
def test_limits_are_given_with_the_history_or_for_a_call(do, memory) -> None:
    talk = [kind(f"{number}") for number in range(6) for kind in (HumanMessage, AIMessage)]
    history = MemlayerChatMessageHistory(memory, session_id="t", policy=MaxRounds(2), token_limit=500)
    history.add_messages(talk)

    assert do(history, "context") == talk[-4:]
    assert do(history, "context", policy={"max_messages": 6}) == talk[-6:]
    assert do(history, "context", policy=[]) == talk
    assert len(do(history, "context", token_limit=15)) == 2
    with pytest.raises(InvalidLimitError):
        do(history, "context", policy="newest")
    for wrong in ({"token_limit": 0}, {"policy": "newest"}, {"policy": MaxRounds(0)}):
        with pytest.raises(InvalidLimitError):
            MemlayerChatMessageHistory(memory, session_id="t", **wrong)


@pytest.mark.requirement("F13", "M03")
def test_temporary_messages_are_told_until_an_answer_is_added_and_never_kept(do, memory) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="t")
    hint = HumanMessage([{"type": "text", "text": "it is raining"}], additional_kwargs={"of": "weather"})
    history.add_user_message("shall I go out?")
    do(history, "add_temporary", [hint])

    assert do(history, "context")[-1] == hint
    assert do(history, "context")[-1] == hint
    assert len(history.messages) == 1
    history.add_ai_message("No.")
    assert [message.content for message in do(history, "context")] == ["shall I go out?", "No."]


def test_temporary_messages_that_could_not_be_kept_are_refused_all_together(do, memory) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="t")
    with pytest.raises(InvalidMessageError):
        do(history, "add_temporary", [HumanMessage("fine"), "text"])
    with pytest.raises(InvalidMessageError):
        do(history, "add_temporary", HumanMessage("alone"))
    assert do(history, "context") == []


@pytest.mark.requirement("F20")
def test_what_only_people_see_stays_in_the_transcript_and_no_context_shows_it(do, memory) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="t")
    card = AIMessage("a card with buttons", additional_kwargs={"model_visible": False})
    talk = [SystemMessage("be kind"), HumanMessage("hi"), card, AIMessage("hello")]
    do(history, "add_messages", talk)

    assert history.messages == talk
    assert do(history, "context") == [talk[0], talk[1], talk[3]]
    assert reload_tool(history).invoke({"id": "msg-3"}).startswith("this session has no message")
    history.chat.add("user", "typing…", model_visible=False)
    history.messages = history.messages
    assert [message.content for message in history.context()] == ["be kind", "hi", "hello"]


@pytest.mark.parametrize("given", [{}, {"token_limit": 500}])
def test_a_whole_memory_is_no_conversation_and_is_refused_before_a_model_calls(given) -> None:
    with Memory.in_memory() as memory, pytest.raises(ConfigurationError, match="one conversation") as refused:
        reload_tool(memory, **given)  # type: ignore[arg-type]
    assert "create_memory_tools" in refused.value.hint
