"""What LlamaIndex does to whatever is handed to it, done to each of our classes."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import BaseComponent
from llama_index.core.settings import Settings
from llama_index.core.workflow import Context, JsonSerializer
from scripted import answers

from llamaindex_memlayer import (
    MemlayerAsyncChatStore,
    MemlayerChatStore,
    MemlayerMemory,
    MemlayerMemoryBlock,
    MemlayerRetriever,
    MemlayerToolSpec,
)
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError
from memlayer_core.events import MessagesStored
from memlayer_core.scope import Scope

KEPT = {
    "memory": lambda memory, **more: MemlayerMemory(memory, user_id="ada", session_id="monday", **more),
    "chat store": lambda memory, **more: MemlayerChatStore(memory, user_id="ada", **more),
    "async chat store": lambda memory, **more: MemlayerAsyncChatStore(memory, user_id="ada", **more),
    "memory block": lambda memory, **more: MemlayerMemoryBlock(
        memory, user_id="ada", session_id="monday", **more
    ),
}
"""Those that a dump names, and that write."""
MADE = KEPT | {
    "retriever": lambda memory, **more: MemlayerRetriever(memory, user_id="ada", **more),
    "tool spec": lambda memory, **more: MemlayerToolSpec(
        memory.chat(user_id="ada", session_id="monday"), **more
    ),
}
kept = pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
made = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


async def write(component, messages):
    """Put messages into the session `monday` by whatever way a component has."""
    match component:
        case MemlayerMemory():
            await component.aput_messages(messages)
        case MemlayerChatStore():
            for message in messages:
                await component.async_add_message("monday", message)
        case MemlayerAsyncChatStore():
            await component.add_messages("monday", messages)
        case _:
            await component.aput(messages)


async def found(component, words):
    """Return what a component tells of `words`, as text."""
    match component:
        case MemlayerMemory():
            return str(await component.aget(words))
        case MemlayerChatStore():
            return str(await component.aget_messages("monday"))
        case MemlayerAsyncChatStore():
            return str(await component.get_messages("monday"))
        case MemlayerMemoryBlock():
            return await component.aget([ChatMessage(words)])
        case MemlayerRetriever():
            return str([node.get_content() for node in await component.aretrieve(words)])
        case _:
            return await component.aretrieve_from_memory(keywords=[words])


def history(memory):
    """Return the session `monday`, as it is stored."""
    return memory.chat_of(Scope.of_session("monday", user_id="ada")).history()


# In consumers that ask, copy and dump


@pytest.mark.trap("llamaindex", 1)
@made
def test_nothing_is_taken_for_none_while_it_is_empty(make, memory):
    component = make(memory)

    assert (component or None) is component
    for name in ("__len__", "__bool__"):
        assert not hasattr(type(component), name)


@pytest.mark.trap("llamaindex", 2)
@made
async def test_a_workflow_that_edits_its_state_goes_on_with_the_same_memory(make, memory):
    component = make(memory)
    ctx = Context(FunctionAgent(llm=answers("yes")))
    await ctx.store.set("held", {"inside": [component]})
    async with ctx.store.edit_state() as state:
        state["else"] = 1
    after = (await ctx.store.get("held"))["inside"][0]
    await memory.chat(user_id="ada", session_id="monday").aadd("user", "my parrot is called Coco")

    assert "Coco" in await found(after, "my parrot")
    if not isinstance(component, MemlayerToolSpec):  # its copies have nothing of their own
        assert after is component


@pytest.mark.trap("llamaindex", 2)
@made
async def test_a_copy_reaches_the_same_memory(make, memory):
    component = make(memory)
    await memory.chat(user_id="ada", session_id="monday").aadd("user", "my parrot is called Coco")

    for other in (copy.copy(component), copy.deepcopy({"held": [component]})["held"][0]):
        assert "Coco" in await found(other, "my parrot")


@pytest.mark.trap("llamaindex", 3)
def test_nodes_are_copies_on_their_way_out(memory, do):
    """Postprocessors of engines write into the nodes that they read."""
    memory.chat(user_id="ada", session_id="old").add("user", "my parrot is called Coco")
    memory.flush()
    retriever = MemlayerRetriever(memory, user_id="ada")
    (first,) = do(retriever, "retrieve", "my parrot")
    before = first.model_copy(deep=True)
    first.node.set_content("else")
    first.node.metadata.clear()
    first.score = 0.0

    (again,) = do(retriever, "retrieve", "my parrot")
    assert (again.get_content(), again.metadata) == (before.get_content(), before.metadata)
    assert again.score != 0.0


def frameworks(root=BaseComponent):
    """Yield every component of the framework that is loaded."""
    for kind in root.__subclasses__():
        yield kind
        yield from frameworks(kind)


@pytest.mark.trap("llamaindex", 5, 7)
def test_the_names_in_dumps_are_our_own(memory):
    """A serialiser finds a class by its module and name; other code goes by the name alone."""
    classes = [type(make(memory)) for make in KEPT.values()]
    names = {kind.class_name() for kind in classes}
    taken = {kind.__name__ for kind in frameworks() if kind.__module__.startswith("llama_index")}

    assert len(names) == len(classes)
    assert "BaseMemory" in taken
    assert not names & taken
    for kind in classes:
        assert getattr(importlib.import_module(kind.__module__), kind.__qualname__) is kind


@pytest.mark.trap("llamaindex", 5, 6, 7)
@kept
def test_a_dump_is_pure_json_and_finds_the_same_memory(make, memory):
    component = make(memory)
    asyncio.run(write(component, [ChatMessage("my parrot is called Coco")]))
    dumped = json.dumps(component.to_dict())
    backs = [
        type(component).from_dict(json.loads(dumped)),
        type(component).model_validate(component.model_dump()),
        type(component).model_validate(component.model_dump(mode="json")),
        JsonSerializer().deserialize(JsonSerializer().serialize(component)),
        pickle.loads(pickle.dumps(component)),
    ]
    asyncio.run(write(component, [ChatMessage("and its cage is red")]))

    assert "Coco" not in dumped
    for back in backs:
        assert type(back) is type(component)
        assert back.to_dict() == json.loads(dumped)
        assert [message.text for message in history(back._current_memory())] == [
            "my parrot is called Coco",
            "and its cage is red",
        ]


class Keyed(MockEmbedding):
    """An embedding of a provider that wants a key."""

    api_key: str = "sk-embedding"


@pytest.mark.trap("llamaindex", 5)
@kept
def test_a_dump_tells_no_key_of_the_models(make):
    def summarize(prompt, key="sk-summary"):
        return key

    opened = {"embedder": Keyed(embed_dim=4), "summarizer": summarize}
    with Memory.in_memory(**opened, tokenizer=lambda text: [*text.split(), "sk-tokens"]) as memory:
        component = make(memory)
        dumps = [
            json.dumps(component.to_dict()),
            component.model_dump_json(),
            JsonSerializer().serialize(component),
            str(pickle.dumps(component)),
        ]

    assert [dump for dump in dumps if "sk-" in dump] == []


# What they are made of


@pytest.mark.trap("llamaindex", 7)
@made
def test_a_mistyped_argument_is_refused_by_its_name(make, memory):
    for name in ("tokenlimit", "sesion_id"):
        with pytest.raises((ValueError, TypeError), match=name):
            make(memory, **{name: 5})


@pytest.mark.trap("llamaindex", 7)
@kept
def test_a_mistyped_argument_of_from_defaults_is_refused_by_its_name(make, memory):
    with pytest.raises((ConfigurationError, ValueError, TypeError), match="sesion_id"):
        type(make(memory)).from_defaults(memory=memory, sesion_id="monday")


@pytest.mark.trap("llamaindex", 8)
@made
def test_neither_making_nor_using_one_asks_for_a_global_model(make, monkeypatch):
    """`Settings.llm` and `Settings.embed_model` become OpenAI's where nobody set them."""

    def touched(self):
        raise AssertionError("touched")

    for name in ("llm", "embed_model", "tokenizer", "node_parser", "text_splitter", "prompt_helper"):
        monkeypatch.setattr(type(Settings), name, property(touched))
    with Memory.in_memory() as memory:
        component = make(memory)
        memory.chat(user_id="ada", session_id="monday").add("user", "my parrot is called Coco")
        memory.flush()

        assert "Coco" in asyncio.run(found(component, "my parrot"))
    if not isinstance(component, MemlayerRetriever | MemlayerToolSpec):
        with type(component).from_defaults()._current_memory() as alone:
            assert alone is not memory


# What they take


@pytest.mark.trap("llamaindex", 11)
@kept
async def test_nothing_to_add_is_no_error_and_begins_no_session(make, memory):
    await write(make(memory), [])

    assert await memory.asessions(user_id="ada") == []


@pytest.mark.trap("llamaindex", 21)
@kept
async def test_an_object_that_nothing_can_write_costs_neither_its_message_nor_the_batch(make, memory, caplog):
    """Gemini's calls are such objects."""
    batch = [
        ChatMessage("before"),
        ChatMessage("odd", role="assistant", additional_kwargs={"call": object(), "kept": b"\xff"}),
        ChatMessage("after", role="assistant"),
    ]
    await write(make(memory), batch)

    stored = await asyncio.to_thread(history, memory)
    assert [message.text for message in stored] == ["before", "odd", "after"]
    assert "additional_kwargs.call" in caplog.text
    read = await MemlayerMemory(memory, user_id="ada", session_id="monday").aget_all()
    assert read[1].additional_kwargs == {"kept": b"\xff"}


@pytest.mark.trap("llamaindex", 23)
@kept
async def test_what_is_written_carries_nothing_of_ours_in_additional_kwargs(make, memory):
    """Providers are sent what is in it, and prompts that condense a talk show it."""
    component = make(memory)
    messages = [ChatMessage("hello"), ChatMessage("hi", role="assistant", additional_kwargs={"own": 1})]
    await write(component, messages)
    session = MemlayerMemory(memory, user_id="ada", session_id="monday")

    for read in (messages, await session.aget_all(), await session.aget()):
        assert [message.additional_kwargs for message in read] == [{}, {"own": 1}]


@pytest.mark.trap("llamaindex", 30)
@kept
def test_the_first_writes_may_come_all_at_once(make, open_at):
    """The first call makes the tables, for everybody."""
    component = make(open_at())
    with ThreadPoolExecutor(8) as threads:
        written = threads.map(
            lambda number: asyncio.run(
                write(component, [ChatMessage(f"{number}"), ChatMessage("noted", role="assistant")])
            ),
            range(24),
        )
        assert [*written] == [None] * 24

    stored = [message.text for message in history(component._current_memory())]
    assert sorted(stored) == sorted([*map(str, range(24)), *["noted"] * 24])


@pytest.mark.trap("llamaindex", 31)
@made
def test_what_one_loop_used_serves_the_next_loop_and_a_thread(make, memory):
    component = make(memory)
    memory.chat(user_id="ada", session_id="monday").add("user", "my parrot is called Coco")

    async def twice_at_once():
        return await asyncio.gather(found(component, "my parrot"), found(component, "the parrot"))

    for _ in range(2):
        assert all("Coco" in told for told in asyncio.run(twice_at_once()))
    with ThreadPoolExecutor(1) as thread:
        assert all("Coco" in told for told in thread.submit(asyncio.run, twice_at_once()).result())


@pytest.mark.trap("llamaindex", 32)
@kept
async def test_the_same_words_twice_are_two_messages(make, memory):
    component = make(memory)
    batch = [ChatMessage("again"), ChatMessage("again"), ChatMessage("yes", role="assistant")]
    await write(component, batch)
    if not isinstance(component, MemlayerMemoryBlock):  # it is shown the same queue again and again
        await write(component, batch)
        batch += batch

    stored = await asyncio.to_thread(history, memory)
    assert [message.text for message in stored] == [message.content for message in batch]


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.parametrize("make", [*KEPT.values()][:3], ids=[*KEPT][:3])
async def test_a_history_that_is_set_at_every_turn_is_stored_and_indexed_once(make, memory):
    component = make(memory)
    talked = [ChatMessage(f"my parrot number {n}", role=("user", "assistant")[n % 2]) for n in range(8)]
    stored = []
    memory.listen(lambda event: stored.append(event.stored) if isinstance(event, MessagesStored) else None)
    for end in (4, 6, 8, 8):
        if isinstance(component, MemlayerMemory):
            await component.aset(talked[:end])
        elif isinstance(component, MemlayerChatStore):
            await component.aset_messages("monday", talked[:end])
        else:
            await component.set_messages("monday", talked[:end])
    await memory.aflush()

    assert sum(stored) == 8
    nodes = await MemlayerRetriever(memory, user_id="ada", similarity_top_k=50).aretrieve("my parrot")
    assert sorted(node.get_content() for node in nodes) == sorted(one.content for one in talked)
