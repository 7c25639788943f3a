"""A LlamaIndex memory is a component of a session: its messages come back equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory
from memlayer_core.session_files import JsonSession, SessionManager

SAID = [
    ChatMessage("Be brief.", role="system"),
    ChatMessage(role="user", blocks=[TextBlock(text="Look:\ud800"), ImageBlock(image=b"\x89PNG\xff")]),
    ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(content="hm", num_tokens=7),
            ToolCallBlock(tool_call_id="c1", tool_name="weather", tool_kwargs={"city": "Oslo"}),
        ],
        additional_kwargs={"mood": "calm"},
    ),
    ChatMessage("cold", role="tool", additional_kwargs={"tool_call_id": "c1", "name": "weather"}),
    ChatMessage("It is cold.", role="assistant"),
]


@pytest.mark.requirement("A04", "A17", "F18")
def test_a_memory_comes_back_equal_from_a_session_file(memory, do, tmp_path: Path) -> None:
    told = MemlayerMemory.from_defaults(memory, user_id="ada")
    told.put_messages(SAID)
    session = JsonSession(tmp_path)
    do(SessionManager("u1").with_session(session).add_component(told), "save_session")
    with Memory.in_memory() as elsewhere:
        other = MemlayerMemory.from_defaults(elsewhere)
        other.put(ChatMessage("forgotten"))
        assert do(SessionManager("u1").with_session(session).add_component(other), "load_if_exists")
        assert other.get_all() == told.get_all() == SAID
        assert do(other, "save_state") == do(told, "save_state")
