"""What tests of messages share: a memory that works at once, one that rests, and conversations of others."""

import pytest
from tuned import Tuned

from memlayer_core import Chat, Memory, Message, Scope
from tests.conftest import PROMPT


@pytest.fixture
def store(open_with) -> Memory:
    """Return a memory on each database, which works at once."""
    return open_with(PROMPT)


@pytest.fixture
def resting(open_with) -> Memory:
    """Return a memory on each database, which indexes nothing before a flush asks for it."""
    return open_with(Tuned(index_delay=3600, durability="normal"))


def beside(chat: Chat) -> list[Chat]:
    """Return conversations of another user, tenant, agent and session, of odd ids, and one without a user."""
    memory, user, session = chat.memory, chat.user_id, chat.session_id
    return [
        memory.chat(user_id="bob", session_id=session),
        memory.chat(user_id=user, session_id=session, tenant_id="other"),
        memory.chat(user_id=user, session_id=session, agent_id="helper"),
        memory.chat(user_id=user, session_id="tuesday"),
        memory.chat(user_id="a" * 10_000, session_id="'; DROP TABLE memlayer_messages; --"),
        memory.chat_of(Scope.alone(session)),
    ]


WHO = {"u": "user", "a": "assistant", "s": "system", "t": "tool", "h": "assistant"}


def listed(written: str) -> list[Message]:
    """Read `"u1 a1#id"`: who speaks (h: hidden), what is said, and perhaps an id."""
    made = []
    for text, _, named in (word.partition("#") for word in written.split()):
        call = "c" if text[0] == "t" else None
        shown = text[0] != "h"
        made.append(Message(WHO[text[0]], text, id=named or None, tool_call_id=call, model_visible=shown))
    return made
