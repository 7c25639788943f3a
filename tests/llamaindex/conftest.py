"""What tests of LlamaIndex share: a session, and what two users said before it."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from llama_index.core.base.llms.types import ChatMessage
from scripted import Counting
from tuned import Tuned

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory


@pytest.fixture(autouse=True)
def no_loop_is_left_open(request):
    """LlamaIndex's sync code opens an event loop where it finds none set, and never closes it."""
    if not inspect.iscoroutinefunction(request.function):
        asyncio.set_event_loop(None)


@pytest.fixture
def session(memory):
    return MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday", token_limit=3000)


@pytest.fixture
def remembers(memory):
    """What two users said in older sessions."""
    for user, animal in (("ada", "parrot"), ("bob", "ferret")):
        old = MemlayerMemory.from_defaults(memory, user_id=user, session_id="old")
        old.put_messages([ChatMessage(f"my pet is a {animal}"), ChatMessage("nice", role="assistant")])


@pytest.fixture
def counting():
    """Return a session of a user who spoke before, and the embedding that is asked its questions."""
    embedding = Counting()
    settings = Tuned(index_delay=0.0, durability="normal")
    with Memory.in_memory(embedder=embedding, settings=settings) as memory:
        MemlayerMemory.from_defaults(memory, user_id="ada").put(ChatMessage("my pet is a parrot"))
        memory.flush()
        yield MemlayerMemory.from_defaults(memory, user_id="ada", token_limit=3000), embedding
