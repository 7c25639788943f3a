"""What LlamaIndex does to whatever is handed to it, done to each of our classes."""

import asyncio
import copy
import inspect
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.settings import Settings
from llama_index.core.storage.chat_store import BaseChatStore
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from llama_index.core.workflow import Context, JsonPickleSerializer, JsonSerializer
from refusals import refused
from scripted import answers
from waiting import heard

from llamaindex_memlayer import (
    MemlayerAsyncChatStore,
    MemlayerChatStore,
    MemlayerMemory,
    MemlayerMemoryBlock,
    MemlayerRetriever,
    MemlayerToolSpec,
)
from memlayer_core import Memory, Scope, errors
from memlayer_core.events import MessagesStored
from memlayer_core.tools import AGENT_TOOLS
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
MADE = KEPT | {"retriever": maker(MemlayerRetriever), "tools": maker(MemlayerToolSpec, session_id="monday")}
kept = pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
listed = pytest.mark.parametrize("make", [*KEPT.values()][:3], ids=[*KEPT][:3])
"""Those of which a history is set and read as a list."""
made = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


KEYED = MemlayerChatStore | MemlayerAsyncChatStore
WRITE = {MemlayerAsyncChatStore: "add_messages", MemlayerMemoryBlock: "aput", MemlayerMemory: "aput_messages"}
SET = {MemlayerAsyncChatStore: "set_messages", MemlayerChatStore: "aset_messages", MemlayerMemory: "aset"}
GET = {MemlayerAsyncChatStore: "get_messages", MemlayerChatStore: "aget_messages", MemlayerMemory: "aget_all"}


def call(component, names, *given):
    """Call a verb, by its name in each class, for the session `monday`."""
    key = ["monday"] if isinstance(component, KEYED) else []
    return getattr(component, names[type(component)])(*key, *given)


async def write(component, messages):
    """Put messages into the session `monday` by whatever way a component has."""
    if isinstance(component, MemlayerChatStore):
        for message in messages:
            await component.async_add_message("monday", message)
    else:
        await call(component, WRITE, messages)


async def found(component, words):
    """Return what a component tells of `words`, as text."""
    match component:
        case MemlayerMemory():
            return str(await component.aget(words))
        case MemlayerMemoryBlock():
            return await component.aget([ChatMessage(words)])
        case MemlayerRetriever():
            return str([node.get_content() for node in await component.aretrieve(words)])
        case MemlayerToolSpec():
            return await component.aretrieve_from_memory(keywords=[words])
        case _:
            return str(await call(component, GET))


def history(memory, tenant_id="default", agent_id=None):
    """Return the session `monday`, as it is stored."""
    ids = {"user_id": "ada", "tenant_id": tenant_id, "agent_id": agent_id}
    return memory.chat_of(Scope.of_session("monday", **ids)).history()


# In consumers that ask, copy and dump


@pytest.mark.trap("llamaindex", 1, 2)
@made
async def test_an_empty_one_is_itself_and_a_workflow_that_edits_its_state_goes_on_with_it(make, memory):
    component = make(memory)
    assert (component or None) is component
    for name in ("__len__", "__bool__"):
        assert not hasattr(type(component), name)
    ctx = Context(FunctionAgent(llm=answers("yes")))
    await ctx.store.set("held", {"inside": [component]})
    async with ctx.store.edit_state() as state:
        state["else"] = 1
    after = (await ctx.store.get("held"))["inside"][0]
    await memory.chat(user_id="ada", session_id="monday").aadd("user", "my parrot is called Coco")

    for other in (after, copy.copy(component)):
        assert "Coco" in await found(other, "my parrot")
        # a tool spec has nothing of its own
        assert (other is component) == (not isinstance(component, MemlayerToolSpec))


class Keyed(MockEmbedding):
    """An embedding of a provider that wants a key."""

    api_key: str = "sk-embedding"


@pytest.fixture
def keyed():
    """Return a memory whose models have keys."""

    def summarize(prompt, key="sk-summary"):
        return key

    opened = {"embedder": Keyed(embed_dim=4), "summarizer": summarize}
    with Memory.in_memory(**opened, tokenizer=lambda text: [*text.split(), "sk-tokens"]) as memory:
        yield memory


@pytest.mark.trap("llamaindex", 5, 6, 7)
@pytest.mark.requirement("F01", "A04")
@kept
def test_a_dump_is_json_without_messages_and_keys_and_finds_the_same_memory(make, keyed):
    component = make(keyed, tenant_id="school", agent_id="tutor")
    asyncio.run(write(component, [ChatMessage("my parrot is called Coco")]))
    kind, dumped = type(component), json.dumps(component.to_dict())
    plain, strict = JsonSerializer(), JsonPickleSerializer()
    dumps = [plain.serialize(component), strict.serialize(component), pickle.dumps(component)]
    backs = [
        kind.from_dict(json.loads(dumped)),
        kind.model_validate(component.model_dump()),
        kind.model_validate_json(component.model_dump_json()),
        plain.deserialize(dumps[0]),
        strict.deserialize(dumps[1]),
        pickle.loads(dumps[2]),
    ]
    asyncio.run(write(component, [ChatMessage("and its cage is red")]))

    for word in ("Coco", "sk-"):
        assert word not in f"{dumped}{component.model_dump_json()}{dumps}"
    for back in backs:
        assert type(back) is kind
        assert back.to_dict() == json.loads(dumped)
        said = [message.text for message in history(back.memory, "school", "tutor")]
        assert said == ["my parrot is called Coco", "and its cage is red"]
    other = component.model_copy(update={"user_id": "bob"})
    assert component.model_copy(deep=True) is component
    assert (component.user_id, other.user_id, other.memory) == ("ada", "bob", keyed)


# What they are made of


@pytest.mark.trap("llamaindex", 7)
def test_a_mistyped_argument_and_what_names_no_memory_or_two_is_refused(memory, tmp_path):
    for make in MADE.values():
        with pytest.raises((ValueError, TypeError), match="sesion_id"):
            make(memory, sesion_id=5)
    for wrong, says in (
        ({"sesion_id": "monday"}, "sesion_id"),
        ({"llm": "gpt"}, "`llm` must be"),
        ({"token_limit": 1.5}, "token_limit"),
        ({"memory": None, "path": ""}, "directory"),
        ({"path": tmp_path}, "`memory` is given"),
        ({"embed_model": "hashing"}, "`memory` is given"),
    ):
        with pytest.raises((errors.ConfigurationError, ValueError), match=says):
            MemlayerMemory.from_defaults(**{"memory": memory, **wrong})
    for make in KEPT.values():
        refused(errors.ConfigurationError, r"memlayer_core.Memory", make, "./memory")
        refused(errors.ConfigurationError, "not open", make, None, store_id="another")
        for name in ("user_id", "tenant_id", "agent_id"):
            refused(errors.InvalidScopeError, name, make, memory, **{name: ""})
    with pytest.raises(ValueError, match="frozen"):
        MemlayerMemory(memory).session_id = "another"


@pytest.mark.trap("llamaindex", 11)
def test_the_async_twins_are_native_and_some_of_five_tools_may_be_chosen(memory):
    for ours, base in ((MemlayerMemory, BaseMemory), (MemlayerChatStore, BaseChatStore)):
        twins = [name for name in vars(base) if inspect.iscoroutinefunction(getattr(base, name))]
        assert len(twins) > 5
        assert [name for name in twins if getattr(ours, name) is getattr(base, name)] == []
    assert MemlayerRetriever._aretrieve is not BaseRetriever._aretrieve

    spec = MemlayerToolSpec(memory, user_id="ada")
    assert isinstance(spec, BaseToolSpec)
    assert [tool.metadata.name for tool in spec.to_tool_list()] == [*AGENT_TOOLS]
    for tool in spec.to_tool_list():
        assert inspect.iscoroutinefunction(tool.async_fn)
        assert tool.async_fn.__name__ == f"a{tool.real_fn.__name__}"
    for chosen in ("retrieve_from_memory", "aretrieve_from_memory"):
        (tool,) = spec.to_tool_list([chosen])
        assert tool.metadata.name == "retrieve_from_memory"
        assert asyncio.run(tool.acall(keywords=["parrot"])).content == "Nothing was found."
    refused(errors.InvalidScopeError, "neither a user nor a session", MemlayerToolSpec, memory)


@pytest.mark.trap("llamaindex", 8, 31)
@made
def test_one_serves_every_loop_and_thread_and_asks_for_no_global_model(make, monkeypatch):
    """`Settings.llm` and `Settings.embed_model` become OpenAI's where nobody set them."""

    def touched(self):
        raise AssertionError("touched")

    for name in ("llm", "embed_model", "tokenizer", "node_parser", "text_splitter", "prompt_helper"):
        monkeypatch.setattr(type(Settings), name, property(touched))

    async def twice_at_once():
        return await asyncio.gather(found(component, "my parrot"), found(component, "the parrot"))

    with Memory.in_memory() as memory:
        component = make(memory)
        memory.chat(user_id="ada", session_id="monday").add("user", "my parrot is called Coco")
        memory.flush()
        for _ in range(2):
            assert all("Coco" in told for told in asyncio.run(twice_at_once()))
        with ThreadPoolExecutor(1) as thread:
            assert all("Coco" in told for told in thread.submit(asyncio.run, twice_at_once()).result())
    if not isinstance(component, MemlayerRetriever | MemlayerToolSpec):
        with type(component)().memory as alone:
            assert alone is not memory


# What they take


@pytest.mark.trap("llamaindex", 11, 21, 23, 32)
@kept
async def test_what_is_written_stands_as_it_was_said_with_nothing_of_ours_in_it(make, memory, caplog):
    """Providers are sent what is in `additional_kwargs`. Gemini's calls are objects that nothing can write."""
    component = make(memory)
    await write(component, [])
    assert await memory.asessions(user_id="ada") == []
    kwargs = {"call": object(), "kept": b"\xff"}
    batch = [ChatMessage("again"), *talk("again", "yes")]
    batch.append(ChatMessage("odd", role="assistant", additional_kwargs=kwargs))
    await write(component, batch)
    assert "additional_kwargs.call" in caplog.text
    if not isinstance(component, MemlayerMemoryBlock):  # it is shown the same queue again and again
        await write(component, batch)
        batch += batch

    kept = await MemlayerMemory(memory, user_id="ada", session_id="monday").aget_all()
    assert texts(kept) == texts(batch)
    assert [one.additional_kwargs for one in kept[:4]] == [{}, {}, {}, {"kept": b"\xff"}]
    assert [one.additional_kwargs for one in batch[:4]] == [{}, {}, {}, kwargs]


@pytest.mark.trap("llamaindex", 3, 21, 23, 26)
@listed
async def test_a_set_is_whole_or_not_at_all_of_copies_and_at_every_turn_stored_once(make, memory):
    """Nothing is deleted before everything can be written, and agents write into what they read."""
    component = make(memory)
    talked = talk(*(f"my parrot number {n}" for n in range(8)))
    events = heard(memory, MessagesStored)
    for end in (4, 6, 8, 8):
        given = [one.model_copy(deep=True) for one in talked[:end]]
        await call(component, SET, given)
        for changed in (given[0], (await call(component, GET))[0]):
            changed.blocks[0].text = "Current state: …"
            changed.additional_kwargs["state"] = 1
    await memory.aflush()
    verbs = [SET] if isinstance(component, MemlayerChatStore) else [SET, WRITE]
    for wrong in ("text", ChatMessage("x"), None, [ChatMessage("fine"), "no message"]):
        for verb in verbs:
            with pytest.raises(errors.MessageTypeError):
                await call(component, verb, wrong)

    assert await call(component, GET) == talked
    assert sum(event.stored for event in events) == 8
    nodes = await MemlayerRetriever(memory, user_id="ada", similarity_top_k=50).aretrieve("my parrot")
    assert sorted(node.get_content() for node in nodes) == sorted(texts(talked))


@kept
async def test_what_one_user_tenant_or_agent_keeps_is_out_of_reach_of_the_others(make, memory):
    whose = [{}, {"user_id": "bob"}, {"tenant_id": "other"}, {"agent_id": "clerk"}, {"user_id": None}]
    whose += [{"user_id": None, "tenant_id": "other"}, {"user_id": None, "agent_id": "clerk"}]
    components = [make(memory, **one) for one in whose]
    for number, component in enumerate(components):
        await write(component, talk(f"my secret {number}", "noted"))
        if isinstance(component, MemlayerAsyncChatStore):
            await component.archive_oldest_messages("monday", 1)
        if isinstance(component, MemlayerChatStore):
            await component.async_add_message(f"day {number}", ChatMessage("more"))
    if not isinstance(component, MemlayerMemoryBlock):
        await call(components[0], SET, [])
    for number, component in enumerate(components[1:], 1):
        secret = [f"my secret {number}", "noted"]
        ids = {name: getattr(component, name) for name in ("user_id", "tenant_id", "agent_id")}
        chat = memory.chat_of(Scope.of_session("monday", **ids))
        assert [one.text for one in await chat.ahistory()] == secret
        if isinstance(component, MemlayerAsyncChatStore):
            assert texts(await component.get_messages("monday", status=None)) == secret
            assert await component.get_keys() == ["monday"]
        if isinstance(component, MemlayerChatStore):
            assert await component.aget_keys() == ["monday", f"day {number}"]


@pytest.mark.trap("llamaindex", 30)
def test_the_first_writes_may_come_all_at_once(open_at):
    """The first call makes the tables, for everybody."""
    component = KEPT["memory block"](open_at())
    with ThreadPoolExecutor(8) as threads:
        done = threads.map(lambda n: asyncio.run(write(component, talk(f"{n}", "noted"))), range(24))
        assert [*done] == [None] * 24

    stored = [message.text for message in history(component.memory)]
    assert sorted(stored) == sorted([*map(str, range(24)), *["noted"] * 24])


# Dumps find their store again


def at(path, **more):
    return MemlayerMemory.from_defaults(path=path, embed_model="hashing", **more)


def test_a_dump_is_connected_to_a_memory_by_hand_and_of_one_that_is_gone_tells_how():
    with Memory.in_memory() as memory, Memory.in_memory() as other:
        session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday")
        session.put(ChatMessage("a secret"))
        back = MemlayerMemory.from_dict(dumped := session.to_dict(), memory=other)
        assert back.memory is other
        assert (back.chat.scope, back.get_all()) == (session.chat.scope, [])
    with pytest.raises(errors.ConfigurationError, match="not open in this process") as raised:
        MemlayerMemory.from_dict(dumped)
    assert "from_dict(data, memory=" in raised.value.hint


def test_a_store_is_known_by_its_id_while_it_is_open_and_found_where_it_is_when_it_is_not(open_at, tmp_path):
    first = open_at()
    session = MemlayerMemory.from_defaults(first, user_id="ada", session_id="monday")
    session.put(ChatMessage("hello"))
    dumped = session.to_dict()
    first.close()

    back = MemlayerMemory.from_dict(dumped)
    assert (back.get_all(), back.to_dict()) == ([ChatMessage("hello")], dumped)
    back.memory.close()
    opened = open_at()
    assert MemlayerMemory.from_dict(dumped).memory is opened
    opened.close()
    (tmp_path / "memory").rename(tmp_path / "old")
    refused(errors.ConfigurationError, "there is none at", MemlayerMemory.from_dict, dumped)
    assert not (tmp_path / "memory").exists()
    open_at()  # it took the other one's place
    refused(errors.ConfigurationError, "another one", MemlayerMemory.from_dict, dumped)


@pytest.mark.trap("llamaindex", 5)
def test_a_dump_of_a_server_whose_chroma_is_in_a_directory_opens_no_journal_there(postgres_url, tmp_path):
    with Memory.open(tmp_path / "m", database_url=postgres_url, embedder="hashing") as opened:
        dumped = MemlayerMemory.from_defaults(opened, user_id="ada").to_dict()
    assert postgres_url not in str(dumped)
    assert "postgres" not in str(dumped)

    refused(errors.ConfigurationError, "not open in this process", MemlayerMemory.from_dict, dumped)

    assert not Memory.is_at(tmp_path / "m")


def test_one_path_is_one_memory_and_is_opened_again_with_its_own_embedder(tmp_path):
    given = {"path": tmp_path / "m", "embed_model": MockEmbedding(embed_dim=4)}
    one, other = (MemlayerMemory.from_defaults(**given, session_id=name) for name in "ab")
    dumped = one.to_dict()
    assert one.memory is other.memory
    refused(errors.ConfigurationError, "another embedder", at, given["path"])
    one.put(ChatMessage("hello"))
    one.memory.close()
    refused(errors.ConfigurationError, "embedder", MemlayerMemory.from_dict, dumped)
    again = MemlayerMemory.from_defaults(**given, session_id="a")
    assert again.get_all() == [ChatMessage("hello")]
    assert MemlayerMemory.from_dict(dumped).memory is again.memory
    again.memory.close()


def test_a_copy_of_a_directory_is_never_taken_for_the_original(tmp_path):
    """A copy has the store's id: the open memories must be asked for their place as well."""
    at(tmp_path / "a").memory.close()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    both = [at(tmp_path / place) for place in ("a", "copy")]
    by_hand = [MemlayerMemory(memory=one.memory) for one in both]

    for one in (*both, *by_hand):
        assert MemlayerMemory.from_dict(one.to_dict()).memory is one.memory

    dumped = by_hand[0].to_dict()
    both[0].memory.close()
    again = MemlayerMemory.from_dict(dumped)
    assert again.memory.path == tmp_path / "a"
    for one in (again, both[1]):
        one.memory.close()


def test_what_is_no_dump_of_a_memory_is_told_as_such_with_a_way():
    buffer = ChatMemoryBuffer.from_defaults(token_limit=3000).to_string()
    for dump, what in ((buffer, "ChatMemoryBuffer"), ("[]", "list"), ('{"token_limit"', "cut off")):
        with pytest.raises(errors.InvalidStateError, match=what) as told:
            MemlayerMemory.from_string(dump)
        assert told.value.hint
        assert dump != buffer or "docs/migration.md" in told.value.hint
