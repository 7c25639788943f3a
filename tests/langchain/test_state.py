"""A LangChain history is a component of a session: its messages come back equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memlayer import MemlayerChatMessageHistory
from memlayer_core import Memory
from memlayer_core.session_files import JsonSession, SessionManager

SAID: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage([{"type": "text", "text": "Look:\ud800"}, {"type": "image_url", "image_url": {"url": "x"}}]),
    AIMessage(
        "",
        id="a1",
        name="bot",
        tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "c1"}],
        usage_metadata={"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
        response_metadata={"model": "m"},
    ),
    ToolMessage("cold", tool_call_id="c1", artifact={"rows": [1, 2]}, status="error"),
    AIMessage("It is cold.", additional_kwargs={"mood": "calm"}),
]


@pytest.mark.requirement("A04", "A17", "F18")
def test_a_history_comes_back_equal_from_a_session_file(memory, do, tmp_path: Path) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="s", user_id="ada")
    history.add_messages(SAID)
    session = JsonSession(tmp_path)
    do(SessionManager("u1").with_session(session).add_component(history), "save_session")
    with Memory.in_memory() as elsewhere:
        other = MemlayerChatMessageHistory(elsewhere, session_id="t")
        other.add_user_message("forgotten")
        assert do(SessionManager("u1").with_session(session).add_component(other), "load_if_exists")
        assert other.messages == history.messages
        assert [type(message) for message in other.messages] == [type(message) for message in SAID]
        assert [message.content for message in other.messages] == [message.content for message in SAID]
        assert do(other, "save_state") == do(history, "save_state")
