"""A memory, a chat and what holds them pickle by reconnecting: the store is named, and nothing of it is in the pickle."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest

from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, StoreClosedError


def _say(pickled: bytes, text: str) -> list[str]:
    """Add to a chat in another process, and return what it has."""
    chat = pickle.loads(pickled)
    chat.add("assistant", text)
    said = [one.text for one in chat.history()]
    chat.memory.close()
    return said


@pytest.mark.requirement("F01")
def test_a_chat_is_loaded_in_its_open_memory(memory: Memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s", agent_id="cook", tenant_id="t", roles=["chef"])
    chat.add("user", "My code is 7777.")
    pickled = pickle.dumps(chat)
    again = pickle.loads(pickled)
    assert again.memory is memory
    assert (again.scope, again.roles) == (chat.scope, ("chef",))
    assert b"7777" not in pickled
    assert copy.deepcopy(chat).memory is memory


@pytest.mark.slow
def test_a_chat_is_loaded_in_another_process_from_its_directory(open_at: Any) -> None:
    chat = open_at().chat(user_id="ada", session_id="s")
    chat.add("user", "Hello.")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_say, (pickle.dumps(chat), "Hi.")) == ["Hello.", "Hi."]
    assert [one.text for one in chat.history()] == ["Hello.", "Hi."]


def test_a_directory_is_opened_again_after_it_was_closed_and_what_ended_with_its_process_says_so(
    open_at: Any,
) -> None:
    memory = open_at()
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "Hello.")
    pickled = pickle.dumps(chat)
    memory.close()
    with pytest.raises(StoreClosedError):
        pickle.dumps(memory)
    again = pickle.loads(pickled)
    with again.memory as opened:
        assert opened is not memory
        assert [one.text for one in again.history()] == ["Hello."]
    with Memory.in_memory() as passing:
        pickled = pickle.dumps(passing.chat(user_id="ada"))
    with pytest.raises(ConfigurationError, match="is not open in this process") as refused:
        pickle.loads(pickled)
    assert "Open the memory before you load it" in refused.value.hint
