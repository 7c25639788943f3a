"""A context as plain messages of OpenAI's chat API, for whoever calls a provider without a framework."""

from __future__ import annotations

import json

import pytest

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.messages.render import openai_message

IMAGE = {"type": "image", "base64": "aGk=", "mime_type": "image/jpeg"}


def test_a_context_is_told_to_openai_with_recall_calls_and_results(memory: Memory) -> None:
    memory.chat(user_id="louis", session_id="past").add("user", "My parrot is called Coco.")
    memory.flush()
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("system", "Be terse.")
    chat.add("user", "What is my parrot called?", name="Louis D.")
    chat.add("assistant", tool_calls=[ToolCall("c1", "look", '{"for": "parrot"}')])
    chat.add("tool", "a parrot", tool_call_id="c1", name="look")
    context = chat.context()
    told = context.to_openai()
    assert json.loads(json.dumps(told)) == told
    assert [one["role"] for one in told] == ["system", "user", "assistant", "tool"]
    assert "My parrot is called Coco." in told[1]["content"]
    assert told[1]["name"] == "Louis_D"
    assert told[2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"for": "parrot"}'}}
        ],
    }
    assert told[3] == {"role": "tool", "content": "a parrot", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi"}),
        (IMAGE, {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "aGk="}},
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,aGk="}},
        ),
        (
            {"type": "image", "url": "https://example.org/a.png"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        ),
        (
            {"type": "audio", "base64": "aGk=", "mime_type": "audio/mpeg"},
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        ),
        ({"type": "video", "url": "https://example.org/a.mp4"}, {"type": "text", "text": "[video]"}),
        ({"type": "thinking", "thinking": "hm"}, None),
    ],
)
def test_a_block_of_any_provider_has_its_counterpart_or_a_word_for_it(block, part) -> None:
    told = openai_message(Message("user", (IMAGE, block)))["content"]
    assert told[1:] == ([] if part is None else [part])


def test_only_users_have_more_than_text() -> None:
    said = ({"type": "text", "text": "Look:"}, IMAGE)
    for role in ("assistant", "system"):
        assert openai_message(Message(role, said))["content"] == "Look:\n[image]"
    result = openai_message(Message("tool", said, tool_call_id="c1"))
    assert result == {"role": "tool", "content": "Look:\n[image]", "tool_call_id": "c1"}
    assert openai_message(Message("user", said[:1])) == {"role": "user", "content": "Look:"}
