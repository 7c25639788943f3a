"""A dumped memory finds its store again, and carries neither messages nor secrets."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import Context, JsonSerializer
from scripted import answers

from llamaindex_memlayer import MemlayerChatStore, MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, InvalidStateError


def test_a_dump_of_a_memory_that_is_gone_tells_how_to_open_it():
    with Memory.in_memory() as memory:
        dumped = MemlayerMemory.from_defaults(memory, user_id="ada").to_dict()

    with pytest.raises(ConfigurationError, match="not open in this process") as raised:
        MemlayerMemory.from_dict(dumped)

    assert "from_dict(data, memory=" in raised.value.hint


def at(path, **more):
    return MemlayerMemory.from_defaults(path=path, embed_model="hashing", **more)


def test_a_dump_may_be_connected_to_a_memory_by_hand(session):
    session.put(ChatMessage("a secret"))
    with Memory.in_memory() as other:
        back = MemlayerMemory.from_dict(session.to_dict(), memory=other)

        assert back.memory is other
        assert back.chat.scope == session.chat.scope
        assert back.get_all() == []


def test_a_store_is_known_by_its_id_while_it_is_open_and_found_where_it_is_when_it_is_not(open_at):
    first = open_at()
    session = MemlayerMemory.from_defaults(first, user_id="ada", session_id="monday")
    session.put(ChatMessage("hello"))
    dumped = session.to_dict()
    first.close()

    back = MemlayerMemory.from_dict(dumped)
    assert back.get_all() == [ChatMessage("hello")]
    assert back.to_dict() == dumped
    back.memory.close()
    opened = open_at()
    assert MemlayerMemory.from_dict(dumped).memory is opened


def test_a_dump_makes_no_empty_memory_and_is_not_given_another_store_that_took_its_place(open_at, tmp_path):
    opened = open_at()
    dumped = MemlayerMemory.from_defaults(opened, user_id="ada").to_dict()
    opened.close()
    (tmp_path / "memory").rename(tmp_path / "old")

    with pytest.raises(ConfigurationError, match="there is none at"):
        MemlayerMemory.from_dict(dumped)
    assert not (tmp_path / "memory").exists()
    other = open_at()
    with pytest.raises(ConfigurationError, match="another one"):
        MemlayerMemory.from_dict(dumped)
    other.close()


@pytest.mark.trap("llamaindex", 5)
def test_a_dump_of_a_server_whose_chroma_is_in_a_directory_opens_no_journal_there(postgres_url, tmp_path):
    with Memory.open(tmp_path / "m", database_url=postgres_url, embedder="hashing") as opened:
        dumped = MemlayerMemory.from_defaults(opened, user_id="ada").to_dict()
    assert postgres_url not in str(dumped)
    assert "postgres" not in str(dumped)

    with pytest.raises(ConfigurationError, match="not open in this process"):
        MemlayerMemory.from_dict(dumped)

    assert not Memory.is_at(tmp_path / "m")


def test_a_restored_memory_with_an_embedder_of_its_own_asks_for_it(tmp_path):
    given = {"path": tmp_path / "m", "embed_model": MockEmbedding(embed_dim=4)}
    first = MemlayerMemory.from_defaults(**given)
    dumped = first.to_dict()
    first.memory.close()
    with pytest.raises(ConfigurationError, match="embedder"):
        MemlayerMemory.from_dict(dumped)

    again = MemlayerMemory.from_defaults(**given)
    assert MemlayerMemory.from_dict(dumped).memory is again.memory
    again.memory.close()


def test_one_path_is_one_memory_and_is_opened_again_after_it_was_closed(tmp_path):
    one, other = at(tmp_path, session_id="a"), at(tmp_path, session_id="b")

    assert one.memory is other.memory
    with pytest.raises(ConfigurationError, match="another embedder"):
        MemlayerMemory.from_defaults(path=tmp_path, embed_model=lambda texts: [[1.0] for _ in texts])
    one.put(ChatMessage("hello"))
    one.memory.close()
    again = at(tmp_path, session_id="a")
    assert again.get_all() == [ChatMessage("hello")]
    again.memory.close()


@pytest.mark.slow
@pytest.mark.trap("llamaindex", 5, 6)
def test_another_process_goes_on_with_an_agents_saved_context(tmp_path):
    session = at(tmp_path, user_id="ada", session_id="monday")

    async def first():
        agent = FunctionAgent(llm=answers("yes"))
        ctx = Context(agent)
        await agent.run(user_msg="hello {query_str}", memory=session, ctx=ctx)
        return ctx.to_dict(serializer=JsonSerializer())

    saved = json.dumps(asyncio.run(first()))
    session.memory.close()
    assert "hello" not in json.dumps(json.loads(saved)["state"]["state_data"]["_data"]["memory"])
    code = """
import asyncio, json, sys
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.workflow import Context, JsonSerializer

async def main():
    agent = FunctionAgent(llm=MockFunctionCallingLLM())  # says what it is told last
    ctx = Context.from_dict(agent, json.load(sys.stdin), serializer=JsonSerializer())
    await agent.run(user_msg="and now?", ctx=ctx)
    memory = await ctx.store.get("memory")
    print(json.dumps([message.content for message in await memory.aget_all()]))
    await memory.memory.aclose()

asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input=saved, capture_output=True, text=True, check=False
    )

    assert ran.stdout.strip() == json.dumps(["hello {query_str}", "yes", "and now?", "and now?"]), ran.stderr


@pytest.mark.parametrize("component", [MemlayerMemory, MemlayerChatStore])
def test_a_copy_of_a_directory_is_never_taken_for_the_original(component, tmp_path):
    """A copy has the store's id: the open memories must be asked for their place as well."""
    component.from_defaults(user_id="ada", path=tmp_path / "a", embed_model="hashing").memory.close()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    both = [component.from_defaults(user_id="ada", path=tmp_path / place) for place in ("a", "copy")]
    by_hand = [component(user_id="ada", memory=one.memory) for one in both]

    for one in (*both, *by_hand):
        assert component.from_dict(one.to_dict()).memory is one.memory

    dumped = by_hand[0].to_dict()
    both[0].memory.close()
    again = component.from_dict(dumped)
    assert again.memory.path == tmp_path / "a"
    for one in (again, both[1]):
        one.memory.close()


@pytest.mark.parametrize(
    ("dump", "what"),
    [
        (ChatMemoryBuffer.from_defaults(token_limit=3000).to_string(), "ChatMemoryBuffer"),
        ("[]", "list"),
        ('{"token_limit"', "cut off"),
    ],
)
def test_what_is_no_dump_of_a_memory_is_told_as_such_with_a_way(dump, what):
    with pytest.raises(InvalidStateError, match=what) as told:
        MemlayerMemory.from_string(dump)
    assert told.value.hint
    if what == "ChatMemoryBuffer":
        assert "docs/migration.md" in told.value.hint
