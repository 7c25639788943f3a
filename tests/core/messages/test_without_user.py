"""A session without a user is copied and rewritten as any other one; what comes of it stands alone too."""

from __future__ import annotations

import pytest

from memlayer_core import Chat, Memory, Message
from memlayer_core.scope import Scope
from memlayer_core.storage import vectors

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
    gone = store.forget(session_id="monday", agent_id="clerk")
    assert (gone.sessions, gone.messages) == (1, 2)
    assert texts(chat) == []
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


def test_a_copy_is_found_by_its_vectors_and_counts_them_as_its_own(store, chat) -> None:
    copy = chat.fork()
    store.flush()
    db = store.runtime.db
    overviews = [db.read(vectors.overview, one.scope.reach()) for one in (chat, copy)]

    assert [overview.vectors for overview in overviews] == [2, 2]
    chat.clear()
    store.flush()
    assert db.read(vectors.overview, copy.scope.reach()).vectors == 2
