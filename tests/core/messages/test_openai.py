"""A context as plain messages of OpenAI's chat API, for whoever calls a provider without a framework."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.errors import InvalidMessageError
from memlayer_core.messages.render import openai_message

IMAGE = {"type": "image", "base64": "aGk=", "mime_type": "image/jpeg"}


def test_a_context_is_told_to_openai_with_recall_and_names_that_it_takes(memory: Memory) -> None:
    memory.chat(user_id="louis", session_id="past").add("user", "My parrot is called Coco.")
    memory.flush()
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("system", "Be terse.")
    chat.add("user", "What is my parrot called?", name="Louis D.")
    instructions, question = told = chat.context().to_openai()
    assert json.loads(json.dumps(told)) == told
    assert instructions == {"role": "system", "content": "Be terse."}
    assert "My parrot is called Coco." in question["content"]
    assert question["name"] == "Louis_D"


AT = "https://example.org/a.png"
COUNTERPARTS = [
    ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi"}),
    (IMAGE, {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}),
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "aGk="}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,aGk="}},
    ),
    ({"type": "image", "url": AT}, {"type": "image_url", "image_url": {"url": AT}}),
    (
        {"type": "image_url", "image_url": {"url": AT, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": AT, "detail": "low"}},
    ),
    (
        {"type": "audio", "base64": "aGk=", "mime_type": "audio/mpeg"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
    ),
    ({"type": "video", "url": "https://example.org/a.mp4"}, {"type": "text", "text": "[video]"}),
    ({"type": "thinking", "thinking": "hm"}, None),
]


def test_a_block_of_any_provider_has_its_counterpart_or_a_word_for_it_and_only_users_have_them() -> None:
    for block, part in COUNTERPARTS:
        told = openai_message(Message("user", (IMAGE, block)))["content"]
        assert told[1:] == ([] if part is None else [part])
    said = ({"type": "text", "text": "Look:"}, IMAGE)
    for role in ("assistant", "system"):
        assert openai_message(Message(role, said))["content"] == "Look:\n[image]"
    result = openai_message(Message("tool", said, tool_call_id="c1"))
    assert result == {"role": "tool", "content": "Look:\n[image]", "tool_call_id": "c1"}
    assert openai_message(Message("user", said[:1])) == {"role": "user", "content": "Look:"}


DUMPS = [
    {"role": "developer", "content": "Be terse."},
    {"role": "user", "name": "Louis", "content": "What is this?"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "file", "file": {"file_id": "f1"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "a parrot", "tool_call_id": "c1"},
]
FROM_SDK = {"annotations": [], "audio": None, "function_call": None, "refusal": None, "tool_calls": None}
OLD_CALL = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"a": 1}'}}


def test_what_is_told_to_openai_is_read_from_openai(memory: Memory) -> None:
    chat = memory.chat(user_id="louis", session_id="from openai")
    messages = [Message.from_openai(dump) for dump in DUMPS]
    chat.add_messages(messages)
    assert chat.context("").to_openai() == DUMPS
    assert [one.role for one in chat.history()] == ["developer", "user", "user", "assistant", "tool"]
    assert [Message.from_json(json.dumps(message.to_json())) for message in messages] == messages


CUSTOM = [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]
READ = [
    (
        {**FROM_SDK, "role": "assistant", "content": None, "refusal": "I cannot help with that."},
        Message("assistant", "I cannot help with that."),
    ),
    (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        Message("assistant", ({"type": "text", "text": "No."},)),
    ),
    (
        {**FROM_SDK, "role": "assistant", "content": "I look.", "tool_calls": CUSTOM},
        Message("assistant", "I look.", tool_calls=(ToolCall("c", "sh", "ls"),)),
    ),
    (OLD_CALL, Message("assistant", tool_calls=(ToolCall("look", "look", '{"a": 1}'),))),
    (
        {"role": "function", "name": "look", "content": "it"},
        Message("tool", "it", name="look", tool_call_id="look"),
    ),
]


def test_openais_own_dumps_are_read_and_what_is_no_message_of_openais_is_told() -> None:
    for dump, message in READ:
        dumped = SimpleNamespace(model_dump=lambda dump=dump: dump)
        assert Message.from_openai(dump) == Message.from_openai(dumped) == message
    no_messages = [None, "hi", {"content": "hi"}, {"role": "user", "content": 3}]
    for form in (*no_messages, {"role": "assistant", "tool_calls": [{}]}):
        with pytest.raises(InvalidMessageError, match="OpenAI"):
            Message.from_openai(form)
