"""A dumped memory finds its store again, and carries neither messages nor secrets."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.workflow import JsonPickleSerializer, JsonSerializer

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError


@pytest.fixture
def session(memory):
    made = MemlayerMemory.from_defaults(
        memory=memory,
        user_id="ada",
        session_id="monday",
        tenant_id="school",
        agent_id="tutor",
        token_limit=500,
        insert_method="system",
    )
    made.put(ChatMessage("a secret"))
    return made


@pytest.fixture
def at_path(tmp_path):
    """Return a function that makes a session of a memory at a path."""
    made = []

    def make(**kwargs):
        made.append(MemlayerMemory.from_defaults(path=tmp_path / "m", embed_model="hashing", **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.chat.memory.close()


WAYS = {
    "dict": lambda one: MemlayerMemory.from_dict(one.to_dict()),
    "json": lambda one: MemlayerMemory.from_dict(json.loads(json.dumps(one.to_dict()))),
    "json of a component": lambda one: MemlayerMemory.from_json(one.to_json()),
    "string": lambda one: MemlayerMemory.from_string(one.to_string()),
    "model": lambda one: MemlayerMemory.model_validate(one.model_dump(mode="json")),
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "workflow json": lambda one: JsonSerializer().deserialize(JsonSerializer().serialize(one)),
    "workflow pickle": lambda one: JsonPickleSerializer().deserialize(JsonPickleSerializer().serialize(one)),
}


@pytest.mark.requirement("F01", "A04")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_dump_comes_back_as_the_same_session(session, way):
    back = way(session)

    assert back.model_dump() == session.model_dump()
    assert back.get_all() == session.get_all() == [ChatMessage("a secret")]
    assert back.chat.memory is session.chat.memory


def test_a_dump_holds_no_message_and_is_small_json(session):
    dumped = session.to_dict()

    assert json.loads(json.dumps(dumped)) == dumped
    assert "a secret" not in str(dumped)
    assert dumped["class_name"] == "MemlayerMemory"
    assert set(dumped) == {*MemlayerMemory.model_fields, "class_name", "store_id"}


def test_restoring_rolls_nothing_back(session):
    dumped = session.to_dict()
    session.put(ChatMessage("said later"))

    assert len(MemlayerMemory.from_dict(dumped).get_all()) == 2


async def test_dumping_does_not_block_the_loop(session):
    assert session.to_dict()["store_id"]


class State(BaseModel):
    memory: MemlayerMemory


def test_a_memory_may_be_a_field_of_a_typed_state(session):
    state = State(memory=session)

    assert state.memory is session
    assert State.model_validate(json.loads(state.model_dump_json())).memory.get_all() == session.get_all()


def test_a_dump_of_a_memory_that_is_gone_tells_how_to_open_it():
    with Memory.in_memory() as memory:
        dumped = MemlayerMemory.from_defaults(memory=memory, user_id="ada").to_dict()

    with pytest.raises(ConfigurationError, match="not open in this process") as raised:
        MemlayerMemory.from_dict(dumped)

    assert "from_dict(data, memory=" in raised.value.hint


def test_a_dump_may_be_connected_to_a_memory_by_hand(session):
    with Memory.in_memory() as other:
        back = MemlayerMemory.from_dict(session.to_dict(), memory=other)

        assert back.chat.memory is other
        assert back.chat.scope == session.chat.scope
        assert back.get_all() == []


def test_a_store_that_is_opened_again_is_known_by_its_id(open_at):
    first = open_at()
    session = MemlayerMemory.from_defaults(memory=first, user_id="ada", session_id="monday")
    session.put(ChatMessage("hello"))
    dumped = session.to_dict()
    first.close()

    MemlayerMemory.from_defaults(memory=open_at())

    assert MemlayerMemory.from_dict(dumped).get_all() == [ChatMessage("hello")]


def test_one_path_is_one_memory(at_path):
    one, other = at_path(session_id="a"), at_path(session_id="b")

    assert one.chat.memory is other.chat.memory
    assert MemlayerMemory.from_dict(one.to_dict()).chat.memory is one.chat.memory


def test_a_path_is_opened_again_after_it_was_closed(at_path):
    at_path(session_id="a").put(ChatMessage("hello"))
    at_path(session_id="a").chat.memory.close()

    assert at_path(session_id="a").get_all() == [ChatMessage("hello")]


def test_a_path_that_is_open_with_another_embedder_is_refused(at_path, tmp_path):
    at_path()

    with pytest.raises(ConfigurationError, match="another embedder"):
        MemlayerMemory.from_defaults(path=tmp_path / "m", embed_model=lambda texts: [[1.0] for _ in texts])


def test_another_process_restores_a_session_from_its_path(at_path):
    session = at_path(user_id="ada", session_id="monday")
    session.put(ChatMessage("hello {query_str}"))
    saved = JsonSerializer().serialize({"memory": session})
    session.chat.memory.close()
    code = """
import sys
from llama_index.core.workflow import JsonSerializer
memory = JsonSerializer().deserialize(sys.stdin.read())["memory"]
print(memory.get()[0].content)
memory.chat.memory.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input=saved, capture_output=True, text=True, check=False
    )

    assert ran.stdout.strip() == "hello {query_str}", ran.stderr
