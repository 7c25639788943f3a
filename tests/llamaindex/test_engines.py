"""Real chat engines, with scripted models: what they are told, and what stays."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    VideoBlock,
)
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
    types as engine_types,
)
from llama_index.core.chat_engine.multi_modal_condense_plus_context import (
    MultiModalCondensePlusContextChatEngine,
)
from llama_index.core.chat_engine.multi_modal_context import MultiModalContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices import VectorStoreIndex
from llama_index.core.memory import ChatMemoryBuffer, Memory as FrameworkMemory
from llama_index.core.schema import TextNode
from scripted import Library, answers, said, speaking, takes_any_store

from llamaindex_memlayer import MemlayerAsyncChatStore, MemlayerChatStore, MemlayerMemory


def engine(kind, llm, memory):
    if kind is SimpleChatEngine:
        return kind.from_defaults(llm=llm, memory=memory, system_prompt="be short")
    given = {"multi_modal_llm": llm} if kind in MULTI_MODAL else {"llm": llm}
    return kind.from_defaults(retriever=Library(), memory=memory, system_prompt="be short", **given)


MULTI_MODAL = [MultiModalContextChatEngine, MultiModalCondensePlusContextChatEngine]
ENGINES = [SimpleChatEngine, ContextChatEngine, CondensePlusContextChatEngine, *MULTI_MODAL]
MODES = ["best", "context", "condense_plus_context", "condense_question", "simple"]


def wait_for(messages, session):
    """Wait for the thread that writes a streamed answer."""
    deadline = time.monotonic() + 10
    while len(session.get_all()) < messages and time.monotonic() < deadline:
        time.sleep(0.01)


def assert_told(llm):
    """The model was told the first turn as it was said, and asked the second question."""
    system, *turn, question = said(llm.last_chat_messages)
    assert system[0] == "system"
    assert turn == TURNS[:2]
    assert question[0] == "user"
    assert "and now?" in question[1]


TURNS = [("user", "hello"), ("assistant", "yes"), ("user", "and now?"), ("assistant", "yes")]


@pytest.mark.trap("llamaindex", 1, 28)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_keeps_the_turns_and_tells_the_model_the_earlier_ones(kind, session):
    llm = answers("yes")
    chat = engine(kind, llm, session)

    chat.chat("hello")
    assert chat.chat("and now?").response == "yes"

    assert said(session.get_all()) == said(chat.chat_history) == TURNS
    assert_told(llm)


@pytest.mark.parametrize("kind", ENGINES)
async def test_an_engine_that_awaits_does_the_same(kind, session):
    llm = answers("yes")
    chat = engine(kind, llm, session)

    await chat.achat("hello")
    await chat.achat("and now?")

    assert said(await session.aget_all()) == TURNS
    assert_told(llm)


@pytest.mark.trap("llamaindex", 31)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_streamed_answer_is_kept_though_another_thread_writes_it(kind, session):
    chat = engine(kind, answers("yes"), session)

    for asked in ("hello", "and now?"):
        assert "".join(chat.stream_chat(asked).response_gen) == "yes"
        wait_for(2 if asked == "hello" else 4, session)

    assert said(session.get_all()) == TURNS


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_streamed_answer_is_kept_by_an_engine_that_awaits(kind, session):
    chat = engine(kind, answers("yes"), session)

    for asked in ("hello", "and now?"):
        stream = await chat.astream_chat(asked)
        assert "".join([token async for token in stream.async_response_gen()]) == "yes"
        if stream.awrite_response_to_history_task is not None:
            await stream.awrite_response_to_history_task

    assert said(await session.aget_all()) == TURNS


@pytest.mark.requirement("J11", "J15")
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_tells_the_model_what_the_user_said_in_another_session(kind, session, remembers):
    llm = answers("a parrot")
    chat = engine(kind, llm, session)

    chat.chat("which pet do I have?")

    told = str(said(llm.last_chat_messages))
    assert "my pet is a parrot" in told
    assert "ferret" not in told
    assert said(session.get_all()) == [("user", "which pet do I have?"), ("assistant", "a parrot")]


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_given_a_history_replaces_the_sessions(kind, session):
    chat = engine(kind, answers("yes"), session)
    chat.chat("forget me")

    chat.chat("and now?", chat_history=[ChatMessage("hello"), ChatMessage("yes", role="assistant")])

    assert said(session.get_all()) == TURNS


@pytest.mark.trap("llamaindex", 27)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_is_reset_empties_the_session(kind, session):
    chat = engine(kind, answers("yes"), session)
    chat.chat("hello")
    chat.reset()

    assert chat.chat_history == session.get_all() == []


@pytest.fixture
def index():
    embed_model = MockEmbedding(embed_dim=4)
    return VectorStoreIndex([TextNode(text="Riga lies on the Daugava.")], embed_model=embed_model)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_an_index_takes_the_memory(mode, index, session, remembers):
    chat = index.as_chat_engine(chat_mode=mode, llm=answers("yes"), memory=session)

    chat.chat("hello")
    assert "".join(chat.stream_chat("and now?").response_gen) == "yes"
    wait_for(4, session)

    assert said(session.get_all()) == said(chat.chat_history) == TURNS


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_of_an_index_that_awaits_takes_the_memory(mode, index, session):
    chat = index.as_chat_engine(chat_mode=mode, llm=answers("yes"), memory=session)

    await chat.achat("hello")
    stream = await chat.astream_chat("and now?")
    assert "".join([token async for token in stream.async_response_gen()]) == "yes"

    assert said(await session.aget_all()) == TURNS


@pytest.mark.parametrize("mode", MODES)
def test_no_engine_shows_a_model_two_messages_of_the_user_in_a_row(mode, index, session, remembers):
    llm = answers("yes")
    chat = index.as_chat_engine(chat_mode=mode, llm=llm, memory=session)
    for question in ("which pet do I have?", "and what does my parrot eat?"):
        chat.chat(question)
        told = [message.role.value for message in llm.told[-1] if message.role != MessageRole.SYSTEM]
        assert all(one != other for one, other in pairwise(told))

    assert "my pet is a parrot" in str(said(llm.told[0]))


@pytest.mark.parametrize("mode", ["condense_question", "condense_plus_context"])
def test_a_question_is_condensed_with_what_was_said_in_another_session(mode, index, session, remembers):
    llm = answers("yes")

    index.as_chat_engine(chat_mode=mode, llm=llm, memory=session).chat("which pet do I have?")

    condensing = str(said(llm.told[0]))
    assert "my pet is a parrot" in condensing
    assert "ferret" not in condensing


@pytest.mark.trap("llamaindex", 8)
@pytest.mark.parametrize("mode", ["simple", "condense_question"])
def test_an_engine_can_make_the_memory_by_its_class(mode, index):
    chat = index.as_chat_engine(chat_mode=mode, llm=answers("yes"), memory_cls=MemlayerMemory)
    chat.chat("hello")

    assert isinstance(chat._memory, MemlayerMemory)
    assert said(chat.chat_history) == TURNS[:2]


@pytest.mark.trap("llamaindex", 18)
@pytest.mark.parametrize("kind", ENGINES[1:])
def test_what_looks_like_a_prompts_variable_is_told_as_it_was_said(kind, session, memory):
    """Context engines make a template of the whole history."""
    other = MemlayerMemory.from_defaults(memory, user_id="ada")
    other.put(ChatMessage("a template holds {query_str} and {context_str}, remember"))
    session.put_messages(
        [ChatMessage("write {query_str} down"), ChatMessage("done {context_str}", role="assistant")]
    )
    llm = answers("yes")

    engine(kind, llm, session).chat("what does a template hold?")

    recalled, answer, asked = (message.content for message in llm.last_chat_messages[1:])
    assert "a template holds {query_str} and {context_str}, remember" in recalled
    assert recalled.endswith("write {query_str} down")
    assert answer == "done {context_str}"
    assert "what does a template hold?" in asked


def with_our_memory(memory):
    return MemlayerMemory(memory, user_id="ada", session_id="monday")


def with_a_buffer(memory):
    store = MemlayerChatStore(memory, user_id="ada")
    return ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="monday", token_limit=8000)


def with_a_queue(memory):
    store = MemlayerAsyncChatStore(memory, user_id="ada")
    return FrameworkMemory.from_defaults(session_id="monday", chat_store=store)


HELD = [with_our_memory, with_a_buffer, pytest.param(with_a_queue, marks=takes_any_store)]


@pytest.mark.trap("llamaindex", 18)
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("held", HELD)
def test_braces_of_every_kind_are_told_as_they_were_said(kind, held, memory):
    said_before = ['{query_str} {context_str} {unknown} {"a": {}} {{ x }} {0}', "{chat_history} {"]
    session = held(memory)
    session.put_messages([ChatMessage(said_before[0]), ChatMessage(said_before[1], role="assistant")])
    llm = answers("yes")
    engine(kind, llm, session).chat("and now?")

    assert [message.content for message in llm.last_chat_messages[1:3]] == said_before
    assert [message.content for message in session.get_all()[:2]] == said_before


@pytest.mark.trap("llamaindex", 19)
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("held", HELD)
def test_whatever_holds_the_history_no_engine_fetches_its_media(kind, held, memory, monkeypatch):
    def resolve(self, *args, **kwargs):
        raise AssertionError("resolved")

    media = {ImageBlock: "image", AudioBlock: "audio", VideoBlock: "video", DocumentBlock: "document"}
    for block, name in media.items():
        monkeypatch.setattr(block, f"resolve_{name}", resolve)
    for block, name in media.items():
        medium = block(url=f"https://example.org/{name}")
        session = held(memory)
        session.set(
            [ChatMessage(blocks=[TextBlock(text="look"), medium]), ChatMessage("seen", role="assistant")]
        )
        llm = answers("yes")
        engine(kind, llm, session).chat("what was it?")

        assert llm.last_chat_messages[1].blocks[1:] == [medium]


@pytest.mark.trap("llamaindex", 17)
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("method", ["system", "user", None])
def test_what_is_recalled_makes_no_second_system_message_in_an_engine(kind, method, memory, remembers):
    session = MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method=method)
    llm = answers("a parrot")
    engine(kind, llm, session).chat("which pet do I have?")

    roles = [message.role.value for message in llm.last_chat_messages]
    assert roles.count("system") == 1
    assert (roles[0], roles[-1]) == ("system", "user")
    assert "my pet is a parrot" in str(llm.last_chat_messages)


@pytest.mark.trap("llamaindex", 25)
@pytest.mark.skipif(
    not hasattr(engine_types, "_set_message_content"),
    reason="engines of this version fail at the end of a stream that holds a thought",
)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_answer_is_kept_as_the_engine_hands_it_over(kind, session):
    """Of an answer that is streamed or made of documents, engines hand over its text alone."""
    thought = ThinkingBlock(content="hm", additional_information={"signature": "EqQB=="})
    answer = ChatMessage(role="assistant", blocks=[thought, TextBlock(text="yes")])
    chat = engine(kind, speaking(lambda _: answer.model_copy(deep=True)), session)

    chat.chat("hello")
    assert "".join(chat.stream_chat("and now?").response_gen) == "yes"
    wait_for(4, session)
    chat.chat("so?")

    assert said(session.get_all()) == [*TURNS, ("user", "so?"), ("assistant", "yes")]
    kept = [message.blocks for message in session.get_all()[1::2]]
    assert kept[0][-1] == kept[1][-1] == kept[2][-1] == TextBlock(text="yes")
    if kind is SimpleChatEngine:
        assert kept[0] == kept[2] == answer.blocks


@pytest.mark.trap("llamaindex", 19)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_fetches_no_image_of_the_history_to_measure_it(kind, session, monkeypatch):
    """Context engines resolve what a block has the URL of, to estimate its tokens."""

    def resolve(self, *args, **kwargs):
        raise AssertionError("resolved")

    monkeypatch.setattr(ImageBlock, "resolve_image", resolve)
    picture = ImageBlock(url="https://example.org/cat.png")
    cited = CitableBlock(title="t", source="s", content=[picture])
    for block in (picture, cited):
        session.set(
            [ChatMessage(blocks=[TextBlock(text="look"), block]), ChatMessage("seen", role="assistant")]
        )
        llm = answers("yes")

        engine(kind, llm, session).chat("what was it?")

        assert llm.last_chat_messages[1].blocks[1:] == [block]


@pytest.mark.trap("llamaindex", 9, 10)
def test_the_prompt_of_a_simple_engine_is_taken_from_the_window(memory):
    session = MemlayerMemory.from_defaults(memory, user_id="ada", token_limit=400)
    session.put_messages(
        [ChatMessage(f"hello {number}", role=("user", "assistant")[number % 2]) for number in range(100)]
    )
    told = []
    for prompt in ("short", "long " * 300):
        llm = answers("yes")
        SimpleChatEngine.from_defaults(llm=llm, memory=session, system_prompt=prompt).chat("and now?")
        told.append(len(llm.last_chat_messages))

    assert 2 < told[1] < told[0] < 90


@pytest.mark.requirement("A11")
def test_a_restart_brings_the_earlier_turns_back(open_at):
    first = MemlayerMemory.from_defaults(open_at(), user_id="ada", session_id="monday")
    SimpleChatEngine.from_defaults(llm=answers("yes"), memory=first).chat("hello")
    first.chat.memory.close()

    again = MemlayerMemory.from_defaults(open_at(), user_id="ada", session_id="monday")
    llm = answers("yes")
    SimpleChatEngine.from_defaults(llm=llm, memory=again).chat("and now?")

    assert said(again.get_all()) == TURNS
    assert said(llm.last_chat_messages) == TURNS[:3]


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_turn_of_an_engine_embeds_its_question_once_alone_and_once_with_the_round_before(
    kind, counting
):
    session, embedding = counting
    chat = engine(kind, answers("yes"), session)

    await chat.achat("which pet do I have?")
    await asyncio.to_thread(chat.chat, "and its name?")

    first, second = "which pet do I have?", "and its name?"
    assert embedding.asked == [first, second, f"{first} yes {second}"]
