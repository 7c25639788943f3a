"""What `get` promises, on LlamaIndex's own messages: both spellings of tool calls, images, hidden messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, strategies as st
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from promises import IMAGE, Line, arguments, assert_kept, assert_within, places, policies, talks, token_limits
from tuned import Tuned

from examples import examples
from llamaindex_memlayer import MemlayerMemory, to_core
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
spellings = st.sampled_from(["blocks", "additional_kwargs"])


WAYS = {
    "offloaded": SMALL,
    "truncated": SMALL.replace(truncate_messages=True, truncate_characters=100),
}


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.keys())
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory.in_memory(settings=WAYS[request.param], tokenizer="estimate") as opened:
        yield opened


def session_of(memory: Memory, messages: list[ChatMessage], **options) -> MemlayerMemory:
    session = MemlayerMemory(memory, session_id=str(uuid.uuid4()), **options)
    session.put_messages(messages)
    return session


def llamaindex(line: Line, spelling: str) -> ChatMessage:
    blocks = [TextBlock(text=line.text)]
    extras = {"model_visible": False} if line.hidden else {}
    if line.image:
        blocks.append(ImageBlock(url=IMAGE))
    if line.answers is not None:
        extras["tool_call_id"] = line.answers
    if line.calls and spelling == "blocks":
        calls = [
            ToolCallBlock(tool_call_id=c, tool_name="look", tool_kwargs=arguments(line)) for c in line.calls
        ]
        blocks.extend(calls)
    elif line.calls:
        function = {"name": "look", "arguments": json.dumps(arguments(line))}
        extras["tool_calls"] = [{"id": call, "type": "function", "function": function} for call in line.calls]
    return ChatMessage(role=line.role, blocks=blocks, additional_kwargs=extras)


def line_of(message: ChatMessage) -> Line:
    extras = message.additional_kwargs
    spelled = [call["id"] for call in extras.get("tool_calls", ())]
    calls = [block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)]
    assert not (spelled and calls), "a call is told once"
    return Line(
        places(message.content or ""),
        message.role.value,
        message.content or "",
        tuple(calls or spelled),
        extras.get("tool_call_id"),
        any(isinstance(block, ImageBlock) for block in message.blocks),
    )


@pytest.mark.trap("llamaindex", 12, 14, 15)
@pytest.mark.requirement("F11", "F12", "L04", "L05", "L13", "L14", "L15", "A19", "J10", "M03")
@given(talk=talks(), limit=token_limits, policy=policies, spelling=spellings)
@examples(100)
def test_a_list_of_messages_for_a_model_keeps_its_promises(memory, talk, limit, policy, spelling) -> None:
    given_messages = [llamaindex(line, spelling) for line in talk]
    session = session_of(memory, given_messages, token_limit=limit, policy=policy)
    try:
        messages = session.get()
    except InvalidLimitError:
        assume(False)

    shown = [line_of(message) for message in messages]
    assert_kept(talk, shown)
    codes = {reason.code for reason in session.context().reasons}
    tokens = sum(memory.tokens.message(to_core(message)) for message in messages)
    assert_within(shown, tokens, limits(Limits(SMALL.max_tokens), policy, limit), codes)
    assert session.get_all() == given_messages
    assert session.get() == messages
    assert session.get(token_limit=limit, policy=policy) == messages


@pytest.mark.requirement("L05")
@given(talk=talks(), limit=token_limits, spelling=spellings)
@examples(50)
def test_the_window_of_a_window_is_the_window(memory, talk, limit, spelling) -> None:
    session = session_of(memory, [llamaindex(line, spelling) for line in talk], token_limit=limit)
    try:
        messages = session.get()
    except InvalidLimitError:
        assume(False)
    assume(sum(memory.tokens.message(to_core(message)) for message in messages) <= limit)

    assert session_of(memory, messages, token_limit=limit).get() == messages
