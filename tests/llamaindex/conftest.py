"""What tests of LlamaIndex share: a session, what two users said before it, and a model that uses a tool."""

import asyncio
import inspect

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from scripted import speaking

from llamaindex_memlayer import MemlayerMemory

TURNS = [("user", "hello"), ("assistant", "yes"), ("user", "and now?"), ("assistant", "yes")]
"""What was said where a model that always answers "yes" was asked twice."""


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
        old.put_messages(talk(f"my pet is a {animal}", "nice"))


def talk(*words):
    """Return messages of the user and the assistant in turn."""
    return [ChatMessage(word, role=("user", "assistant")[at % 2]) for at, word in enumerate(words)]


def texts(messages):
    return [message.content for message in messages]


def weather(city: str) -> str:
    """Tell the weather."""
    return f"3 degrees in {city}"


def calls(tool, call_id="call_1", **arguments):
    """Return a model's message that calls a tool."""
    block = ToolCallBlock(tool_call_id=call_id, tool_name=tool, tool_kwargs=arguments)
    return ChatMessage(role="assistant", blocks=[block])


def result(text, call_id="call_1", **extras):
    """Return a tool's result."""
    return ChatMessage(text, role="tool", additional_kwargs={"tool_call_id": call_id, **extras})


def uses(tool, **arguments):
    """Return a model that calls a tool once, and then tells its result."""

    def reply(messages):
        if messages[-1].role == "tool":
            return ChatMessage(f"It is {messages[-1].content}.", role="assistant")
        return calls(tool, **arguments)

    return speaking(reply)
