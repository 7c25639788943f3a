"""An agent's memory tools record, look up and reload, for the user that they were made for and nobody else."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.calling import acall_tool, call_tool
from llama_index.core.tools.tool_spec.base import BaseToolSpec

from llamaindex_memlayer import MemlayerMemory, MemlayerToolSpec
from memlayer_core.errors import ConfigurationError, InvalidScopeError

RECORD, RETRIEVE, RELOAD = "record_to_memory", "retrieve_from_memory", "context_reload"
CORRECT, FORGET = "correct_memory", "forget_memory"


@pytest.fixture
def session(memory):
    return MemlayerMemory(memory, user_id="ada", session_id="monday", token_limit=4000)


def by_name(spec):
    return {tool.metadata.name: tool for tool in spec.to_tool_list()}


@pytest.fixture
def tools(session):
    return by_name(MemlayerToolSpec(session))


def used(do, tool, **given):
    """Call a tool as agents do, or as they await it."""
    return asyncio.run(acall_tool(tool, given)) if do.awaits else call_tool(tool, given)


@pytest.mark.trap("llamaindex", 11)
def test_it_is_a_tool_spec_of_five_tools_with_async_twins_of_which_some_may_be_chosen(tools, session):
    spec = MemlayerToolSpec(session.chat, token_limit=1000)

    assert isinstance(spec, BaseToolSpec)
    assert [*tools] == [*by_name(spec)] == [RECORD, RETRIEVE, CORRECT, FORGET, RELOAD]
    for tool in tools.values():
        assert isinstance(tool, FunctionTool)
        assert inspect.iscoroutinefunction(tool.async_fn)
        assert tool.async_fn.__name__ == f"a{tool.real_fn.__name__}"
    for chosen in (RETRIEVE, f"a{RETRIEVE}"):
        (tool,) = spec.to_tool_list([chosen])
        assert tool.metadata.name == RETRIEVE
        assert asyncio.run(tool.acall(keywords=["parrot"])).content == "Nothing was found."


@pytest.mark.requirement("A13")
@pytest.mark.parametrize(
    ("mode", "has_tools", "recalls"), [("STATIC", False, True), ("AGENT", True, False), ("BOTH", True, True)]
)
def test_the_mode_decides_who_looks_into_the_memory(memory, do, mode, has_tools, recalls):
    MemlayerMemory(memory, user_id="ada", session_id="past").put(ChatMessage("my parrot is called Coco"))
    session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="now", mode=mode)
    session.put(ChatMessage("what is my parrot called?"))

    told = " ".join(message.content for message in do(session, "get"))
    assert ("Coco" in told) == recalls
    assert "what is my parrot called?" in told
    for tools in (MemlayerToolSpec(session).to_tool_list(), session.tools):
        names = {tool.metadata.name for tool in tools}
        assert names == ({RECORD, RETRIEVE, CORRECT, FORGET, RELOAD} if has_tools else set())
    assert MemlayerMemory.from_dict(session.to_dict()).mode == mode


def test_without_a_mode_a_memory_brings_no_tools_and_an_unknown_one_is_refused(memory):
    session = MemlayerMemory.from_defaults(memory, user_id="ada")
    assert (session.mode, session.tools) == ("STATIC", [])
    assert len(MemlayerToolSpec(session).to_tool_list()) == 5, "a spec of it does"
    with pytest.raises(InvalidScopeError, match="neither a user nor a session"):
        MemlayerToolSpec(memory)
    with pytest.raises(ConfigurationError, match="unknown mode"):
        MemlayerMemory(memory, user_id="ada", mode="static")


# What a memory shows a preview of
