"""What LlamaIndex does to whatever is handed to it, done to each of our classes."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.memory import BaseMemory
from llama_index.core.schema import BaseComponent
from llama_index.core.settings import Settings
from llama_index.core.storage.chat_store import BaseChatStore
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer
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
from memlayer_core.errors import ConfigurationError, InvalidScopeError, MessageTypeError
from memlayer_core.events import MessagesStored
from memlayer_core.scope import Scope
from tests.llamaindex.conftest import talk, texts


def maker(kind, **fixed):
    """Return a function that makes a component of Ada's, or of whom it is told."""
    return lambda memory, **more: kind(memory, **{"user_id": "ada", **fixed, **more})


KEPT = {
    "memory": maker(MemlayerMemory, session_id="monday"),
    "chat store": maker(MemlayerChatStore),
    "async chat store": maker(MemlayerAsyncChatStore),
    "memory block": maker(MemlayerMemoryBlock, session_id="monday"),
}
"""Those that a dump names, and that write."""
MADE = KEPT | {
    "retriever": maker(MemlayerRetriever),
    "tool spec": maker(MemlayerToolSpec, session_id="monday"),
}
kept = pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
listed = pytest.mark.parametrize("make", [*KEPT.values()][:3], ids=[*KEPT][:3])
"""Those of which a history is set and read as a list."""
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


async def replace(component, messages):
    """Make the session `monday` these messages."""
    match component:
        case MemlayerMemory():
            await component.aset(messages)
        case MemlayerChatStore():
            await component.aset_messages("monday", messages)
        case _:
            await component.set_messages("monday", messages)


async def read(component):
    """Return the messages of the session `monday`."""
    match component:
        case MemlayerMemory():
            return await component.aget_all()
        case MemlayerChatStore():
            return await component.aget_messages("monday")
        case _:
            return await component.get_messages("monday")


async def found(component, words):
    """Return what a component tells of `words`, as text."""
    match component:
        case MemlayerMemory():
            return str(await component.aget(words))
        case MemlayerChatStore() | MemlayerAsyncChatStore():
            return str(await read(component))
        case MemlayerMemoryBlock():
            return await component.aget([ChatMessage(words)])
        case MemlayerRetriever():
            return str([node.get_content() for node in await component.aretrieve(words)])
        case _:
            return await component.aretrieve_from_memory(keywords=[words])


def history(memory, tenant_id="default", agent_id=None):
    """Return the session `monday`, as it is stored."""
    ids = {"user_id": "ada", "tenant_id": tenant_id, "agent_id": agent_id}
    return memory.chat_of(Scope.of_session("monday", **ids)).history()


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

    for other in (after, copy.copy(component)):
        assert "Coco" in await found(other, "my parrot")
        assert (other is component) == (
            not isinstance(component, MemlayerToolSpec)
        )  # it has nothing of its own


@kept
def test_a_copy_with_an_update_is_another_of_the_same_memory(make, memory):
    component = make(memory)
    other = component.model_copy(update={"user_id": "bob"})

    assert component.model_copy(deep=True) is component
    assert (component.user_id, other.user_id) == ("ada", "bob")
    assert other._current_memory() is memory


@pytest.mark.trap("llamaindex", 3, 23)
@listed
async def test_messages_are_copies_on_their_way_in_and_out(make, memory):
    """Agents write into what they read."""
    component = make(memory)
    plain = ChatMessage("hello", additional_kwargs={"k": [1]})
    given = plain.model_copy(deep=True)
    await write(component, [given])
    for changed in (given, (await read(component))[0]):
        changed.blocks[0].text = "Current state: …"
        changed.additional_kwargs["k"].append(2)

    assert await read(component) == [plain]


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
@pytest.mark.requirement("F01", "A04")
@kept
def test_a_dump_is_pure_json_and_finds_the_same_memory(make, memory):
    component = make(memory, tenant_id="school", agent_id="tutor")
    asyncio.run(write(component, [ChatMessage("my parrot is called Coco")]))
    dumped = json.dumps(component.to_dict())
    backs = [
        type(component).from_dict(json.loads(dumped)),
        type(component).model_validate(component.model_dump()),
        type(component).model_validate(component.model_dump(mode="json")),
        JsonSerializer().deserialize(JsonSerializer().serialize(component)),
        JsonPickleSerializer().deserialize(JsonPickleSerializer().serialize(component)),
        pickle.loads(pickle.dumps(component)),
    ]
    asyncio.run(write(component, [ChatMessage("and its cage is red")]))

    assert "Coco" not in dumped
    for back in backs:
        assert type(back) is type(component)
        assert back.to_dict() == json.loads(dumped)
        assert [message.text for message in history(back._current_memory(), "school", "tutor")] == [
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
def test_what_names_no_memory_or_two_is_refused(make, memory, tmp_path):
    from_defaults = type(make(memory)).from_defaults
    for wrong, says in (
        ({"memory": memory, "sesion_id": "monday"}, "sesion_id"),
        ({"memory": memory, "path": tmp_path}, "`memory` is given"),
        ({"memory": memory, "embed_model": "hashing"}, "`memory` is given"),
    ):
        with pytest.raises((ConfigurationError, ValueError, TypeError), match=says):
            from_defaults(**wrong)
    for wrong in ("./memory", {}, object()):
        with pytest.raises(ConfigurationError, match=r"memlayer_core.Memory"):
            make(wrong)
    with pytest.raises(ConfigurationError, match="not open"):
        make(None, store_id="another")
    for name in ("user_id", "tenant_id", "agent_id"):
        with pytest.raises(InvalidScopeError, match=name):
            make(memory, **{name: ""})


@pytest.mark.trap("llamaindex", 11)
def test_the_async_twins_are_native():
    for ours, base in ((MemlayerMemory, BaseMemory), (MemlayerChatStore, BaseChatStore)):
        twins = [name for name in vars(base) if inspect.iscoroutinefunction(getattr(base, name))]
        assert len(twins) > 5
        assert [name for name in twins if getattr(ours, name) is getattr(base, name)] == []
    assert MemlayerRetriever._aretrieve is not BaseRetriever._aretrieve


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


@kept
async def test_what_one_user_tenant_or_agent_keeps_is_out_of_reach_of_the_others(make, memory):
    whose = [{}, {"user_id": "bob"}, {"tenant_id": "other"}, {"agent_id": "clerk"}, {"user_id": None}]
    components = [make(memory, **one) for one in whose]
    for number, component in enumerate(components):
        await write(component, talk(f"my secret {number}", "noted"))
        if isinstance(component, MemlayerAsyncChatStore):
            await component.archive_oldest_messages("monday", 1)
        if isinstance(component, MemlayerChatStore):
            await component.async_add_message(f"day {number}", ChatMessage("more"))
    if not isinstance(component, MemlayerMemoryBlock):
        await replace(components[0], [])
    for number, component in enumerate(components[1:], 1):
        ids = {name: getattr(component, name) for name in ("user_id", "tenant_id", "agent_id")}
        chat = memory.chat_of(Scope.of_session("monday", **ids))
        assert [one.text for one in await chat.ahistory()] == [f"my secret {number}", "noted"]
        if isinstance(component, MemlayerAsyncChatStore):
            assert texts(await component.get_messages("monday", status=None)) == [
                f"my secret {number}",
                "noted",
            ]
            assert await component.get_keys() == ["monday"]
        if isinstance(component, MemlayerChatStore):
            assert await component.aget_keys() == ["monday", f"day {number}"]


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
            lambda number: asyncio.run(write(component, talk(f"{number}", "noted"))),
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
    batch = [ChatMessage("again"), *talk("again", "yes")]
    await write(component, batch)
    if not isinstance(component, MemlayerMemoryBlock):  # it is shown the same queue again and again
        await write(component, batch)
        batch += batch

    stored = await asyncio.to_thread(history, memory)
    assert [message.text for message in stored] == texts(batch)


@pytest.mark.trap("llamaindex", 21)
@listed
async def test_a_set_or_a_batch_is_whole_or_not_at_all(make, memory):
    """Nothing is deleted before everything can be written."""
    component = make(memory)
    await replace(component, talk("a", "b"))
    ways = [replace] if isinstance(component, MemlayerChatStore) else [replace, write]
    for wrong in ("text", ChatMessage("x"), None, [ChatMessage("fine"), "no message"]):
        for way in ways:
            with pytest.raises(MessageTypeError):
                await way(component, wrong)

    assert await read(component) == talk("a", "b")


@pytest.mark.trap("llamaindex", 26)
@listed
async def test_a_history_that_is_set_at_every_turn_is_stored_and_indexed_once(make, memory):
    component = make(memory)
    talked = talk(*(f"my parrot number {n}" for n in range(8)))
    stored = []
    memory.listen(lambda event: stored.append(event.stored) if isinstance(event, MessagesStored) else None)
    for end in (4, 6, 8, 8):
        await replace(component, talked[:end])
    await memory.aflush()

    assert sum(stored) == 8
    nodes = await MemlayerRetriever(memory, user_id="ada", similarity_top_k=50).aretrieve("my parrot")
    assert sorted(node.get_content() for node in nodes) == sorted(texts(talked))
