"""An agent of LangChain gets back what its context shows only a preview of, and never what is another's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool

from langchain_memlayer import MemlayerChatMessageHistory, reload_tool
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, InvalidLimitError, InvalidMessageError, StoreClosedError
from memlayer_core.seams import MaxRounds
from tests.langchain.scripted_model import Scripted, calling, contents, says

REPORT = "\n".join(f"{number} of pears: {number * 7919 % 1000} kilograms" for number in range(500))
PREVIEW = re.compile(r"call context_reload with id '(msg-\d+)'")
NEXT = re.compile(r"\n\[characters [\d,]+ to [\d,]+ of [\d,]+; .* offset (\d+) to read on\]$")


def call(number: int, **arguments: Any) -> AIMessage:
    return calling(("context_reload", arguments), first=number + 1)


def reads_on(messages: list[BaseMessage]) -> AIMessage | str:
    """Ask for all of the preview, part by part, then answer."""
    results = [message for message in messages if isinstance(message, ToolMessage)]
    place = PREVIEW.search(results[0].content)[1]
    if len(results) == 1:
        return call(0, id=place)
    following = NEXT.search(results[-1].content)
    return call(len(results), id=place, offset=int(following[1])) if following else "read"


@pytest.fixture
def history(memory: Memory) -> MemlayerChatMessageHistory:
    made = MemlayerChatMessageHistory(memory, session_id="s", user_id="ada", token_limit=4000, reload=True)
    made.add_messages([HumanMessage("How many pears?"), calling(("count", {}))])
    made.add_messages([ToolMessage(REPORT, tool_call_id="c0"), AIMessage("Many.")])
    made.add_messages([HumanMessage("And the last line says?")])
    return made


@pytest.mark.requirement("A08", "A10", "A21", "A11")
def test_an_agent_reads_all_of_a_huge_result_that_its_context_shows_a_preview_of(do, history) -> None:
    told, model = history.context(), Scripted(script=reads_on)
    assert len(told[2].content) < len(REPORT)
    assert history.messages[2].content == REPORT
    said = do(create_agent(model, [reload_tool(history)]), "invoke", {"messages": told})["messages"]

    parts = [message.content for message in said[len(told) :] if message.type == "tool"]
    assert model.tools == ["context_reload"]
    assert "".join(NEXT.sub("", part) for part in parts) == REPORT
    assert all(history.chat.memory.tokens.text(part) <= 1000 for part in parts)
    assert len(parts) > 2
    assert said[-1].content == "read"


@pytest.mark.requirement("A08", "A10")
def test_what_was_read_again_stays_in_the_next_context_while_older_results_shrink(history) -> None:
    tool = reload_tool(history)
    for number in range(5):
        asked = call(number, id="msg-3", offset=0)
        history.add_messages([asked, tool.invoke({**asked.tool_calls[0], "type": "tool_call"})])

    context = history.context()
    assert context[-1].content == history.messages[-1].content
    assert PREVIEW.search(context[-9].content)
    assert history.chat.context(token_limit=4000).tokens <= 4000


@pytest.mark.requirement("A10")
def test_a_wrong_call_is_answered_and_the_agent_goes_on(do, history) -> None:
    for arguments, answer in (
        (
            {"id": "msg-99"},
            "this session has no message 'msg-99'. The id of an offloaded message is valid in",
        ),
        ({"id": "the report"}, "is no id of an offloaded message. Use an id as a preview shows it, such as "),
        ({"id": "msg-3", "offset": 10**7}, "`offset` must be a whole number from 0 to"),
        ({"id": "msg-3", "offset": -1}, "`offset` must be a whole number from 0 to"),
        ({"id": "msg-3", "offset": "behind"}, "context_reload cannot be called like this: `offset`"),
        ({"uuid": "msg-3"}, "context_reload cannot be called like this: `id`"),
    ):
        agent = create_agent(says(call(1, **arguments), "sorry"), [reload_tool(history)])
        *_, result, last = do(agent, "invoke", {"messages": [HumanMessage("go")]})["messages"]
        assert answer in result.content
        assert (result.status, last.content) == ("error", "sorry")


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


def test_the_tool_is_a_tool_and_takes_a_chat_as_well_and_no_memory(do, memory, history) -> None:
    tool = reload_tool(history.chat, token_limit=10**6)
    assert isinstance(tool, BaseTool)
    assert tool.name == "context_reload"
    assert do(tool, "invoke", {"id": "msg-3"}) == REPORT
    with pytest.raises(ConfigurationError, match="one conversation") as refused:
        reload_tool(memory)  # type: ignore[arg-type]
    assert "create_memory_tools" in refused.value.hint
    memory.close()
    with pytest.raises(StoreClosedError):
        do(tool, "invoke", {"id": "msg-3"})


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
    for wrong in ([HumanMessage("fine"), "text"], HumanMessage("alone")):
        with pytest.raises(InvalidMessageError):
            do(history, "add_temporary", wrong)

    for _ in range(2):
        assert contents(do(history, "context")) == ["shall I go out?", hint.content]
    assert do(history, "context")[-1] == hint
    assert contents(history.messages) == ["shall I go out?"]
    history.add_ai_message("No.")
    assert contents(do(history, "context")) == ["shall I go out?", "No."]


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
    assert contents(history.context()) == ["be kind", "hi", "hello"]
