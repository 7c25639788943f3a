"""A session without a user is copied and rewritten as any other one; what comes of it stands alone too."""

from __future__ import annotations

import pytest

from memlayer_core import Chat, Memory, Message
from memlayer_core.scope import Scope

pytestmark = pytest.mark.each_database


@pytest.fixture
def chat(store: Memory) -> Chat:
    made = store.chat_of(Scope.alone("monday", agent_id="clerk"))
    made.add_messages([Message("user", "my parrot is called Coco"), Message("assistant", "nice")])
    store.flush()
    return made


def texts(chat: Chat) -> list[str]:
    return [message.text for message in chat.history()]


def test_it_is_forgotten_by_its_id_alone_and_nobody_elses_session_of_that_id(store, chat) -> None:
    of_ada = store.chat(user_id="ada", session_id="monday", agent_id="clerk")
    of_ada.add("user", "mine stays")
    other = store.chat_of(Scope.alone("tuesday", agent_id="clerk"))
    other.add("user", "so does this")

    assert store.forget(session_id="monday", tenant_id="other", agent_id="clerk").sessions == 0
    assert texts(chat)
    chat.edit(0, "my parrot is called Kiki")
    gone = store.forget(session_id="monday", agent_id="clerk")
    assert (gone.sessions, gone.messages) == (1, 2)
    assert chat.history(all_versions=True) == []
    assert texts(of_ada) == ["mine stays"]
    assert texts(other) == ["so does this"]


def test_a_copy_goes_its_own_way_and_neither_recalls_the_other(store, chat) -> None:
    copy = chat.fork(session_id="tuesday")
    copy.add("user", "my ferret is called Fred")
    chat.add("user", "and my cat is called Tom")
    store.flush()

    assert copy.scope == Scope.alone("tuesday", agent_id="clerk")
    assert texts(copy) == ["my parrot is called Coco", "nice", "my ferret is called Fred"]
    for one, other in ((chat, "Fred"), (copy, "Tom")):
        found = store.search(
            "my parrot cat ferret", user_id=one.user_id, session_id=one.session_id, agent_id="clerk", limit=20
        )
        assert "Coco" in str([hit.text for hit in found])
        assert other not in str([hit.text for hit in found])
    chat.clear()
    store.flush()
    (hit,) = store.search("Coco", user_id=copy.user_id, session_id="tuesday", agent_id="clerk", limit=1)
    assert "meaning" in [reason.code for reason in hit.reasons], "it has vectors of its own"
    assert store.admin.verify() == []
