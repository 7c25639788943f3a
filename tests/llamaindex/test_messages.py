"""What LlamaIndex said comes back as it was said."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from llama_index.core.base.llms import types as llama
from llama_index.core.base.llms.types import ChatMessage, DocumentBlock, ImageBlock, TextBlock, ThinkingBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import ImageDocument
from refusals import refused

from llamaindex_memlayer import from_core, to_core
from memlayer_core import Memory, Message, ToolCall, errors
from memlayer_core.message import Raw

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"


@pytest.fixture(scope="module")
def kept() -> Iterator[Memory]:
    with Memory.in_memory() as memory:
        yield memory


def stored(message: ChatMessage) -> ChatMessage:
    """Send a message through a journal and take it out again."""
    with Memory.in_memory() as memory:
        chat = memory.chat(user_id="ada")
        chat.add_messages([to_core(message)])
        return from_core(chat.history()[0])


CALL = llama.ToolCallBlock(tool_call_id="call_1", tool_name="weather", tool_kwargs={"city": "Riga"})
CITED = {"source": "s", "title": "t"}
BLOCKS = [
    ImageBlock(url="https://example.org/a.png"),
    llama.AudioBlock(audio=b"RIFF\xff\xfe", format="wav"),
    llama.VideoBlock(video=b"\x00\x00\x00\xff", fps=2),
    DocumentBlock(data=b"%PDF-1.7\xff", title="contract"),
    ThinkingBlock(content="hm", num_tokens=7, additional_information={"signature": b"\xff\0"}),
    llama.CachePoint(cache_control=llama.CacheControl(type="ephemeral")),
    llama.CitableBlock(title="t", source="s", content=[TextBlock(text="cited"), ImageBlock(image=PNG)]),
    llama.CitationBlock(cited_content=TextBlock(text="c"), additional_location_info={"start": 3}, **CITED),
    llama.CitationBlock(cited_content=ImageBlock(image=PNG), additional_location_info={}, **CITED),
]


@pytest.mark.trap("llamaindex", 20)
def test_every_role_has_one_of_ours_and_text_is_joined_as_llamaindex_joins_it():
    ours = {"developer": "system", "chatbot": "assistant", "model": "assistant", "function": "tool"}
    for role in llama.MessageRole:
        assert to_core(ChatMessage("x", role=role)).role == ours.get(role.value, role.value)
    two = ChatMessage(blocks=[TextBlock(text="a"), TextBlock(text="b")])
    assert to_core(ChatMessage("a")).content == "a"
    assert to_core(ChatMessage()).content == ""
    assert to_core(two).text == two.content == "a\nb"
    for cited, text in zip(BLOCKS[6:8], ("cited", "c"), strict=True):
        assert to_core(ChatMessage(blocks=[cited])).content[0]["text"] == text
    for wrong in ("hello", None, Message("user", "x")):
        refused(errors.MessageTypeError, type(wrong).__name__, to_core, wrong)


names = st.text() | st.just("$memlayer") | st.just("value")
leaves = st.none() | st.integers() | st.text() | st.binary()
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=12
)
made_of_json = st.dictionaries(st.text(), json_values)
ids, arguments = st.none() | st.text(), st.text() | made_of_json
blocks = st.one_of(
    st.sampled_from(BLOCKS),
    st.builds(TextBlock, text=st.text()),
    st.builds(ImageBlock, image=st.binary(min_size=1), detail=st.none() | st.text()),
    st.builds(DocumentBlock, data=st.binary(min_size=1)),
    st.builds(ThinkingBlock, content=st.none() | st.text(), additional_information=made_of_json),
    st.builds(llama.ToolCallBlock, tool_call_id=ids, tool_name=st.text(), tool_kwargs=arguments),
)
spelled = st.sampled_from(["tool_calls", "tool_call_id", "name", "function_call", "$memlayer"])
extras = st.dictionaries(st.text().filter(lambda key: key != "images") | spelled, json_values)


roles = st.sampled_from(llama.MessageRole)
messages = st.builds(ChatMessage, role=roles, blocks=st.lists(blocks, max_size=4), additional_kwargs=extras)


@pytest.mark.trap("llamaindex", 20, 21, 22)
@pytest.mark.requirement("F18")
@given(st.lists(messages, max_size=3))
def test_any_messages_come_out_of_the_journal_equal_and_are_written_the_same_again(kept, messages):
    chat, first = kept.chat(user_id="ada"), [to_core(one) for one in messages]
    chat.add_messages(first)
    back = [from_core(message) for message in chat.history()]

    assert back == messages
    assert [to_core(one) for one in back] == first


class Hostile:
    """What providers put into messages: no JSON, and no good manners."""

    @property
    def __class__(self):
        raise RuntimeError("no")


@pytest.mark.trap("llamaindex", 21)
def test_what_nothing_can_write_is_left_out_with_a_warning_and_the_rest_is_what_pydantic_makes_of_it(caplog):
    """In a list it leaves its place."""
    selection = ToolSelection(tool_id="1", tool_name="f", tool_kwargs={"data": b"\xff"})
    extras = {"good": [b"\xff", 1, selection]}
    assert stored(ChatMessage("x", additional_kwargs=extras)).additional_kwargs == {
        "good": [b"\xff", 1, selection.model_dump()]
    }
    assert not caplog.records
    odd = Hostile()
    back = stored(ChatMessage("kept", additional_kwargs={"odd": odd, "l": [1, odd, {odd: 3}, b"\xff"]}))
    assert (back.content, back.additional_kwargs["l"][:2]) == ("kept", [1, None])
    assert back.additional_kwargs["l"][3] == b"\xff"
    assert "additional_kwargs.odd" in caplog.text


async def test_a_stream_is_read_and_no_file_is_looked_for_that_is_there_is_gone_or_never_was(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    by_path, here = ImageBlock(path=file), DocumentBlock(path=Path(__file__))
    cited = llama.CitableBlock(title="", source="", content=[by_path])
    documents = [DocumentBlock(path=name) for name in ("s3://bucket/a.pdf", "a.pdf")]
    given = [by_path, cited, here, *documents]
    kept = to_core(ChatMessage(blocks=[*given, ImageBlock(image=io.BytesIO(PNG))]))
    file.unlink()

    *back, streamed = from_core(kept).blocks  # in a loop in which nothing may block

    assert back == given
    assert isinstance(back[0].path, Path)
    assert streamed.resolve_image().read() == PNG


def test_images_in_the_old_place_are_not_doubled():
    message = ChatMessage("look", additional_kwargs={"images": [ImageDocument(image="iVBORw0KGgo=")]})

    back = stored(message)

    assert (back.blocks, len(back.blocks)) == (message.blocks, 2)
    assert ChatMessage.model_validate(back.model_dump()) == back


@pytest.mark.trap("llamaindex", 12)
@pytest.mark.requirement("A19")
def test_tool_calls_are_known_in_every_spelling_and_once(caplog):
    arguments = '{"city": "Riga"}'
    function = SimpleNamespace(name="weather", arguments=arguments)
    extras = {"tool_calls": [{"id": "call_1", "type": "function", "function": vars(function)}]}
    of_objects = ChatMessage(
        role="assistant", additional_kwargs={"tool_calls": [SimpleNamespace(id="call_1", function=function)]}
    )

    for message in (
        ChatMessage(role="assistant", blocks=[CALL]),
        ChatMessage(role="assistant", additional_kwargs=extras),
        ChatMessage(role="assistant", blocks=[CALL], additional_kwargs=extras),
        of_objects,
    ):
        assert to_core(message).tool_calls == (ToolCall("call_1", "weather", arguments),)
        assert to_core(message).content == ""
    assert stored(of_objects).additional_kwargs == extras
    listed = ChatMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": []}})
    assert to_core(listed).tool_calls[0].arguments == "[]"
    assert not caplog.records


@pytest.mark.requirement("A19")
def test_a_call_without_a_usable_id_has_its_place_as_its_id_and_only_a_tool_answers_one():
    for call_id in (None, "", "\0", "\ud800"):
        block = CALL.model_copy(update={"tool_call_id": call_id})
        spelled = {"id": call_id, "function": {"name": "weather", "arguments": "{}"}}
        given = ChatMessage(role="assistant", blocks=[block], additional_kwargs={"tool_calls": [spelled]})
        message = to_core(given)
        assert message.tool_calls == (ToolCall("call-0", "weather", '{"city": "Riga"}'),)
        assert (from_core(message), message.content) == (given, "")
    for role, answers in (("tool", "call_1"), ("assistant", None)):
        result = ChatMessage("3", role=role, additional_kwargs={"tool_call_id": "call_1"})
        assert to_core(result).tool_call_id == answers


REASONED = [
    ("Thought: a\n", "One. What?\nAnswer: two.\nThree. What?\nAnswer: four."),
    ("Thought: a\nAction: f\nObservation: x\nAnswer: no\nThought: b\n", "yes\nAnswer: yes"),
    ("Thought: a\n", "He said:\nThought: I am."),
]


def test_an_answer_behind_an_agents_steps_is_whole_whatever_lines_it_and_they_have():
    for steps, answer in REASONED:
        thought, text = to_core(ChatMessage(f"{steps}Answer: {answer}", role="assistant")).content
        assert (thought, text) == ({"type": "thinking", "thinking": steps}, {"type": "text", "text": answer})


def test_a_message_of_the_core_or_of_another_framework_becomes_the_nearest_of_ours():
    call = ToolCall("call_1", "weather", '{"city": "Riga"}')
    named = ChatMessage("hi", additional_kwargs={"name": "Ada"})
    result = ChatMessage("3", role="tool", additional_kwargs={"tool_call_id": "call_1"})
    assert from_core(Message("user", "hi", name="Ada")) == named
    assert from_core(Message("assistant", tool_calls=(call,))) == ChatMessage(role="assistant", blocks=[CALL])
    assert from_core(Message("tool", "3", tool_call_id="call_1")) == result

    content = (
        {"type": "text", "text": "look"},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Riga"}},
        {"type": "image", "url": "no url"},
        {"type": "something new", "value": 3},
    )
    message = Message("assistant", content, tool_calls=(call,), raw=Raw("other", "1", {}))
    assert from_core(message).blocks == [
        TextBlock(text="look"),
        ImageBlock(image=b"iVBORw0KGgo=", image_mimetype="image/png"),
        ImageBlock(url="https://example.org/a.png"),
        ImageBlock(image=b"iVBORw0KGgo="),
        ThinkingBlock(content="hm"),
        CALL,
    ]
    for block in BLOCKS[:5]:  # content alone is enough to rebuild media
        rebuilt = from_core(Message("user", to_core(ChatMessage(blocks=[block])).content)).blocks[0]
        fields = {"image", "audio", "video", "data", "url", "content"} & set(type(rebuilt).model_fields)
        assert type(rebuilt) is type(block)
        assert all(getattr(rebuilt, field) == getattr(block, field) for field in fields)
