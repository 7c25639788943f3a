"""What a context promises, on LangChain's own messages: each spelling of tool calls, images, hidden messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from promises import IMAGE, Line, arguments, assert_kept, assert_within, places, policies, talks, token_limits
from tuned import Tuned

from examples import examples
from langchain_memlayer import MemlayerChatMessageHistory, to_core
from memlayer_core import Memory
from memlayer_core.errors import InvalidLimitError
from memlayer_core.seams import Limits
from memlayer_core.window.fit import limits

SMALL = Tuned(
    index_delay=3600,
    durability="normal",
    recall_tokens=0,
    offload_characters=250,
    preview_characters=40,
    last_keep=4,
)
ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}
spellings = st.sampled_from(
    ["tool_calls", "additional_kwargs", "content blocks", "content alone", "user's results"]
)


WAYS = {"offloaded": SMALL, "truncated": SMALL.replace(truncate_messages=True, truncate_characters=100)}


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.keys())
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory.in_memory(settings=WAYS[request.param], tokenizer="estimate") as opened:
        yield opened


def history_of(memory: Memory, messages: list[BaseMessage], **options) -> MemlayerChatMessageHistory:
    history = MemlayerChatMessageHistory(memory, session_id=str(uuid.uuid4()), **options)
    history.add_messages(messages)
    return history


def langchain(line: Line, spelling: str) -> BaseMessage:  # noqa: PLR0911  (one case a kind)
    more = {"additional_kwargs": {"model_visible": False}} if line.hidden else {}
    match line.role:
        case "user" if line.image:
            text = {"type": "text", "text": line.text}
            return HumanMessage([text, {"type": "image_url", "image_url": {"url": IMAGE}}], **more)
        case "user":
            return HumanMessage(line.text, **more)
        case "system":
            return SystemMessage(line.text)
        case "tool" if spelling == "user's results":
            result = {"type": "text", "text": line.text}
            return HumanMessage([{"type": "tool_result", "tool_use_id": line.answers, "content": [result]}])
        case "tool":
            return ToolMessage(line.text, tool_call_id=line.answers)
        case _ if not line.calls:
            return AIMessage(line.text, **more)
    calls = [{"id": call, "name": "look", "args": arguments(line)} for call in line.calls]
    if spelling == "tool_calls":
        return AIMessage(line.text, tool_calls=calls)
    if spelling == "additional_kwargs":
        function = {"name": "look", "arguments": json.dumps(arguments(line))}
        spelled = [{"id": call, "type": "function", "function": function} for call in line.calls]
        return AIMessage(line.text, additional_kwargs={"tool_calls": spelled})
    uses = [{"type": "tool_use", "id": call, "name": "look", "input": arguments(line)} for call in line.calls]
    said = {"type": "text", "text": line.text}
    return AIMessage([said, *uses], tool_calls=calls if spelling == "content blocks" else [])


def line_of(message: BaseMessage) -> Line:
    blocks = message.content if isinstance(message.content, list) else []
    spelled = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
    calls = {call["id"]: call["args"] for call in getattr(message, "tool_calls", ())}
    assert not (spelled and calls) or spelled == calls, (
        "a call that stands in the content, too, is the same call"
    )
    results = [block for block in blocks if block["type"] == "tool_result"]
    text = str(message.text) + "".join(result["content"][0]["text"] for result in results)
    return Line(
        places(text),
        "tool" if results else ROLES[message.type],
        text,
        tuple(calls or spelled),
        results[0]["tool_use_id"] if results else getattr(message, "tool_call_id", None),
        any(block["type"] == "image_url" for block in blocks),
    )


@pytest.mark.trap("langchain", 17, 19)
@pytest.mark.requirement("F11", "F12", "L04", "L05", "L13", "L14", "L15", "A19", "J10", "M03")
@given(talk=talks(nameless=False), limit=token_limits, policy=policies, spelling=spellings)
@examples(100)
def test_a_list_of_messages_for_a_model_keeps_its_promises(memory, talk, limit, policy, spelling) -> None:
    given_messages = [langchain(line, spelling) for line in talk]
    history = history_of(memory, given_messages, token_limit=limit, policy=policy)
    try:
        messages = history.context()
    except InvalidLimitError:
        assume(False)

    shown = [line_of(message) for message in messages]
    assert_kept(talk, shown)
    codes = {reason.code for reason in history.chat.context(token_limit=limit, policy=policy).reasons}
    tokens = sum(memory.tokens.message(to_core(message)) for message in messages)
    assert_within(shown, tokens, limits(Limits(SMALL.max_tokens), policy, limit), codes)
    assert history.messages == given_messages
    assert history.context() == messages
    assert history.context(token_limit=limit, policy=policy) == messages


@pytest.mark.requirement("L05")
@given(talk=talks(nameless=False), limit=token_limits, spelling=spellings)
@examples(50)
def test_the_window_of_a_window_is_the_window(memory, talk, limit, spelling) -> None:
    history = history_of(memory, [langchain(line, spelling) for line in talk], token_limit=limit)
    try:
        messages = history.context()
    except InvalidLimitError:
        assume(False)
    assume(sum(memory.tokens.message(to_core(message)) for message in messages) <= limit)

    assert history_of(memory, messages, token_limit=limit).context() == messages


@pytest.mark.requirement("A08", "A19")
def test_a_large_call_that_stands_in_the_content_as_well_is_made_smaller_in_both_places(memory) -> None:
    call = Line((1,), "assistant", "«1» " + "pear " * 400, ("c1",))
    talk = [HumanMessage("go"), langchain(call, "content blocks"), ToolMessage("ok", tool_call_id="c1")]
    history = history_of(memory, talk, token_limit=400)

    asking = history.context()[1]

    assert line_of(asking).calls == ("c1",)
    assert memory.tokens.message(to_core(asking)) < 300
    assert history.messages == talk
