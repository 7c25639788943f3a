"""A message of LangChain comes out of the journal as it went in; objects that JSON has no type for become JSON."""

import json
import uuid
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core import messages as lc
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from langchain_core.version import VERSION
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, from_core, to_core
from langchain_memlayer.messages import put_after, put_before
from memlayer_core import Memory, Message, ToolCall, errors
from memlayer_core.codec import TAG
from memlayer_core.message import Raw
from tests.langchain.running import contents as contents_of

CALL = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1", "type": "tool_call"}
BROKEN_CALL = {**CALL, "args": '{"city": ', "id": "call_2", "error": "no JSON", "type": "invalid_tool_call"}
TOKENS = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
USAGE = {**TOKENS, "input_token_details": {"cache_read": 5}, "output_token_details": {"reasoning": 2}}


class Sloppy:
    """An object that raises at whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, name)
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


class LoudMessage(HumanMessage):
    volume: int = 11


class OddMessage(BaseMessage):
    type: str = "odd"
    twist: str = "left"


@pytest.fixture(scope="module")
def journal() -> Iterator[Memory]:
    with Memory.in_memory(settings=Tuned(index_delay=60.0)) as memory:
        yield memory


def kept(memory: Memory, *messages: BaseMessage) -> list[BaseMessage]:
    """Return messages as they come out of the journal."""
    session = str(uuid.uuid4())
    MemlayerChatMessageHistory(memory, session_id=session).add_messages(messages)
    return MemlayerChatMessageHistory(memory, session_id=session).messages


# What users and models may put into messages

texts = st.text(st.sampled_from("ab \n\0\udc80😀汉"), max_size=8) | st.just(TAG)
anything = st.recursive(
    st.none() | st.integers() | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
dicts = st.dictionaries(texts, anything, max_size=2)
typed = [
    st.fixed_dictionaries({"type": st.just(kind), kind: texts}) for kind in ("text", "image_url", "reasoning")
]
blocks = st.one_of(texts, *typed, dicts)
contents = texts | st.lists(blocks, max_size=4)
ids = st.none() | texts
common = {"content": contents, "additional_kwargs": dicts, "response_metadata": dicts, "name": ids, "id": ids}
call = {"name": texts, "args": st.dictionaries(texts, anything, max_size=3), "id": ids}
broken_call = {"name": ids, "args": ids, "id": ids, "error": ids}
messages = st.one_of(
    st.builds(HumanMessage, **common),
    st.builds(lc.SystemMessage, **common),
    st.builds(
        AIMessage,
        **common,
        tool_calls=st.lists(st.fixed_dictionaries(call), max_size=3),
        invalid_tool_calls=st.lists(st.fixed_dictionaries(broken_call), max_size=2),
        usage_metadata=st.sampled_from([None, USAGE]),
    ),
    st.builds(ToolMessage, **common, tool_call_id=texts, artifact=anything, status=st.just("error")),
    st.builds(lc.FunctionMessage, **{**common, "name": texts}),
    st.builds(ChatMessage, **common, role=texts | st.sampled_from(["user", "assistant", "tool"])),
    st.builds(HumanMessage, **common, extra=anything),
)


@pytest.mark.trap("langchain", 12, 13, 15)
@pytest.mark.requirement("F18")
@given(message=messages)
def test_what_goes_into_the_journal_comes_out_equal(journal, message) -> None:
    [out] = kept(journal, message)

    assert out == message
    assert type(out) is type(message)


THOUGHT = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "so"}]
TOLD = {"output_version": "v1", "logprobs": [-0.5, None]}
WHOLE = [
    HumanMessage(content_blocks=[{"type": "image", "base64": "aGk=", "mime_type": "image/png"}]),
    AIMessage("", tool_calls=[CALL], invalid_tool_calls=[BROKEN_CALL]),
    AIMessage(content_blocks=THOUGHT, response_metadata=TOLD, usage_metadata=USAGE),
    AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}),
    AIMessage("", additional_kwargs={"audio": {"id": "a", "data": "AA==", "transcript": "Good morning."}}),
    BaseMessage("from elsewhere", type="developer"),
    *(
        ToolMessage("42", tool_call_id="call_1", artifact=value, additional_kwargs={"same": [value]})
        for value in ({TAG: "bytes", "value": "AAAA"}, [Document("page", metadata={"n": 1}, id="d"), b"\x00"])
    ),
    AIMessage("").model_copy(update={"tool_calls": [{**CALL, "extras": {"signature": b"\x01"}}]}),
]


@pytest.mark.trap("langchain", 12, 13, 14)
@pytest.mark.requirement("F18", "A19")
def test_every_kind_of_message_keeps_all_its_fields(journal) -> None:
    out = kept(journal, *WHOLE)

    assert out == WHOLE
    assert [lc.message_to_dict(one) for one in out] == [lc.message_to_dict(one) for one in WHOLE]
    assert out[-1].tool_calls[0]["extras"] == {"signature": b"\x01"}


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}]], ids=["text", "blocks"])
def test_the_dump_is_langchains_own_with_the_content_in_our_field_alone(content) -> None:
    message = AIMessage(content, tool_calls=[CALL], usage_metadata=USAGE, id="m1", name="bot")
    core, whole = to_core(message), lc.message_to_dict(message)

    assert (core.text, core.id, core.name, core.created_at, core.metadata) == ("hi", "m1", "bot", None, {})
    assert from_core(Message("user", "", raw=Raw("langchain", "0.3.0", whole))) == message
    del whole["data"]["content"]
    assert core.raw == Raw("langchain", VERSION, whole)


# Values that JSON does not have


@pytest.mark.trap("langchain", 13, 15)
@pytest.mark.requirement("F18")
def test_what_has_no_json_form_is_left_out_with_a_warning_and_the_message_stays(journal, caplog) -> None:
    odd = {"lost": object(), "sloppy": Sloppy(), "keys": [Sloppy]}
    artifact = {**odd, "pages": [Document("page", metadata={"when": date(2026, 1, 1)})], "bytes": b"1"}
    result = ToolMessage("42", tool_call_id="call_1", artifact=artifact)
    out = kept(journal, HumanMessage("what is it?"), result, AIMessage("42"))

    assert contents_of(out) == ["what is it?", "42", "42"]
    page = Document("page", metadata={"when": "2026-01-01"})
    assert out[1].artifact == {"keys": [None], "pages": [page], "bytes": b"1"}
    assert all(f"artifact.{name}" in caplog.text for name in odd)


# Tool calls


@pytest.mark.trap("langchain", 14)
@pytest.mark.requirement("A19")
def test_valid_and_invalid_calls_want_an_answer_and_what_was_taken_away_does_not_come_back(journal) -> None:
    core = to_core(AIMessage("", tool_calls=[CALL], invalid_tool_calls=[BROKEN_CALL]))
    first = ToolCall("call_1", "weather", '{"city": "Oslo"}')
    second = ToolCall("call_2", "weather", '{"city": ')
    assert core.tool_calls == (first, second)
    asked = to_core(AIMessage("", tool_calls=[{**CALL, "id": None}] * 2))
    assert [call.id for call in asked.tool_calls] == ["call-0", "call-1"]
    assert to_core(ToolMessage("42", tool_call_id="")).tool_call_id == "call-0"

    raw_call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parsed = AIMessage("", additional_kwargs={"tool_calls": [raw_call]})
    cleared = parsed.model_copy(update={"tool_calls": []})
    assert kept(journal, parsed, cleared) == [parsed, cleared]
    assert to_core(parsed).tool_calls == (ToolCall("c", "f", "{}"),)
    assert to_core(cleared).tool_calls == ()


# Text


@pytest.mark.trap("langchain", 16)
def test_only_text_is_searched_for_and_blocks_that_are_no_json_are_non_standard_ones() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    block = {"type": "text", "text": "block"}
    odd = [{"no": "type"}, {"type": "media", "data": b"\x00"}, {1: 2}]
    core = to_core(HumanMessage(["plain", block, image, *odd]))

    assert core.text == "plain\nblock"
    assert core.content[:3] == ({"type": "text", "text": "plain"}, block, image)
    assert [block["type"] for block in core.content[3:]] == ["non_standard", "media", "non_standard"]
    json.dumps([dict(block) for block in core.content], allow_nan=False)


# Our own fields


def test_each_message_has_the_role_and_the_name_of_its_speaker() -> None:
    for message, role, name in (
        (HumanMessage("x", role="system"), "user", None),
        (BaseMessage("x", type="odd"), "user", None),
        (ChatMessage("x", role="moderator"), "user", "moderator"),
        (ChatMessage("x", role="moderator", name="Kim"), "user", "Kim"),
        (AIMessage("x"), "assistant", None),
        (ChatMessage("x", role="assistant"), "assistant", None),
        (ChatMessage("x", role="ai"), "assistant", None),
        (ChatMessage("x", role="developer"), "system", None),
        (lc.FunctionMessage("x", name="f"), "tool", "f"),
    ):
        core = to_core(message)
        assert (core.role, core.name) == (role, name), message


# Classes


@pytest.mark.trap("langchain", 13, 20)
@pytest.mark.requirement("F18")
def test_a_subclass_comes_back_as_its_base_class_and_an_instruction_to_remove_is_refused(journal) -> None:
    loud, odd = kept(journal, LoudMessage("hey", volume=12, mood="bad"), OddMessage("well", twist="right"))
    assert loud == HumanMessage("hey", volume=12, mood="bad")
    assert odd == BaseMessage("well", type="odd", twist="right")

    history = MemlayerChatMessageHistory(journal, session_id=str(uuid.uuid4()))
    with pytest.raises(errors.InvalidMessageError, match="RemoveMessage"):
        history.add_messages([HumanMessage("hi"), lc.RemoveMessage(id="m1")])
    assert history.messages == []


PIECE = {"name": "f", "args": '{"a": 1}', "id": "c", "index": 0}
CHUNKS = [
    lc.AIMessageChunk(content="", tool_call_chunks=[PIECE], usage_metadata=USAGE, chunk_position="last"),
    lc.AIMessageChunk(content=[{"type": "text", "text": "hi", "index": 0}], response_metadata={"stop": True}),
    lc.SystemMessageChunk(content="hi", id="m1"),
    lc.ToolMessageChunk(content="42", tool_call_id="c", artifact={"x": 1}),
    lc.ChatMessageChunk(content="psst", role="prompter"),
]


class MyChunk(lc.AIMessageChunk):
    pass


@pytest.mark.trap("langchain", 6, 12)
def test_a_chunk_is_stored_and_read_as_the_whole_message(journal) -> None:
    out = kept(journal, *CHUNKS, MyChunk(content="hi", parsed={"a": 1}))

    whole = [lc.message_chunk_to_message(chunk) for chunk in CHUNKS]
    assert out == [*whole, AIMessage("hi", parsed={"a": 1})], "of a subclass, too, with its extras"
    for one in out:
        assert "Chunk" not in type(one).__name__ + one.type + json.dumps(lc.message_to_dict(one))
    somebodys = [Raw("langchain", "0.1.0", lc.message_to_dict(chunk)) for chunk in CHUNKS]
    assert [from_core(Message("assistant", "", raw=raw)) for raw in somebodys] == whole


# Messages from elsewhere


CALLS = (("c1", "f", '{"a": 1}'), ("c2", "g", "[1]"), ("c3", "h", "{"))
TAGGED = {TAG: "bytes", "type": "x", "value": "AA=="}


def test_a_message_without_a_dump_of_langchains_that_can_be_read_is_made_of_our_fields(caplog) -> None:
    invalid = [{"name": name, "args": args, "id": id, "error": None} for id, name, args in CALLS[1:]]
    valid = [{"name": "f", "args": {"a": 1}, "id": "c1"}]
    called = Message("assistant", "", tool_calls=tuple(ToolCall(*call) for call in CALLS))
    for core, expected in (
        (Message("user", "hi", name="ada", id="m1"), HumanMessage("hi", name="ada", id="m1")),
        (called, AIMessage("", tool_calls=valid, invalid_tool_calls=invalid)),
        (Message("system", "be kind"), lc.SystemMessage("be kind")),
        (Message("tool", "42", tool_call_id="c1"), ToolMessage("42", tool_call_id="c1")),
        (Message("tool", "42"), ToolMessage("42", tool_call_id="")),
        (Message("user", (TAGGED,)), HumanMessage([TAGGED])),
        (Message("user", "hi", raw=Raw("llamaindex", "0.14", {"role": "user"})), HumanMessage("hi")),
    ):
        assert from_core(core) == expected
    odd = {"type": "AIMessageChunk", "data": {"content": 7}}
    humans = [{"type": "human", "data": one} for one in ([], {"content": {TAG: "bytes", "value": "?"}})]
    for dump in ({}, *humans, odd):
        caplog.clear()
        assert from_core(Message("user", "hi", raw=Raw("langchain", "9.9", dump))) == HumanMessage("hi")
        assert "cannot be read" in caplog.text


# Putting recalled text beside a message's own


NOTE, THERE = ({"type": "text", "text": text} for text in ("note", "there"))


@pytest.mark.requirement("F12")
def test_text_is_put_beside_a_copy_and_the_message_itself_stays() -> None:
    blocks = ["hi", THERE], [NOTE, "hi", THERE], ["hi", THERE, NOTE]
    for content, before, after in (("hi", "note\n\nhi", "hi\n\nnote"), blocks):
        message = HumanMessage(content, id="m1", name="ada")
        assert put_before(message, "note") == HumanMessage(before, id="m1", name="ada")
        assert put_after(message, "note") == HumanMessage(after, id="m1", name="ada")
        assert message == HumanMessage(content, id="m1", name="ada")


def test_a_spoken_answer_is_told_as_it_was_and_found_by_its_transcript(memory) -> None:
    spoken = AIMessage("", additional_kwargs={"audio": {"id": "a", "transcript": "The heron is grey."}})
    history = MemlayerChatMessageHistory(memory, user_id="ada", session_id="s")
    history.add_messages([HumanMessage("Which colour has it?"), spoken])
    told = history.context()[1]
    assert (told.content, told.additional_kwargs) == ("", spoken.additional_kwargs)
    assert memory.search("heron", user_id="ada")[0].text == "The heron is grey."
