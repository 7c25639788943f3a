"""Whoever tells a model the conversation by themselves is given what is worth telling beside it, and nothing twice."""

from __future__ import annotations

import pytest

from memlayer_core import Chat, Memory, Message
from memlayer_core.errors import InvalidLimitError, InvalidMessageError, MessageTypeError
from memlayer_core.scope import Scope
from memlayer_core.tools import AGENT_TOOLS
from tests.conftest import offload_id

WALK = "what did my parrot do on the long Sunday walk to the harbour?"
BIT = "the parrot bit the postman"


@pytest.fixture
def chat(memory) -> Chat:
    said = BIT, "oh no", "I like tea with milk", "noted", "my sister lives in Tokyo", "nice"
    memory.chat(user_id="ada", session_id="old").add_messages(
        Message(("user", "assistant")[place % 2], text) for place, text in enumerate(said)
    )
    memory.chat(user_id="bob").add("user", "my parrot likes long walks to the harbour")
    memory.flush()
    return memory.chat(user_id="ada", session_id="now")


def texts(hits) -> list[str]:
    return [hit.text for hit in hits]


def test_what_is_told_already_neither_comes_again_nor_hides_what_bears_less_on_it(chat, memory):
    assert BIT in texts(chat.recall("whom did the parrot bite?"))
    told = [Message("user", BIT), Message("user", "whom did the parrot bite?")]
    assert BIT not in texts(chat.recall(told[1].text, exclude=told)), "it is of another session"
    told = [Message("user", WALK)]
    chat.add_messages(told)
    memory.flush()
    assert texts(chat.recall(WALK))[0] == WALK
    found = texts(chat.recall(WALK, exclude=told))
    assert found[0] == BIT
    assert WALK not in found


def test_what_a_search_finds_and_is_not_worth_telling_is_left_out(chat, memory) -> None:
    for number in range(30):
        memory.chat(user_id="ada", session_id="walks").add("user", f"Route {number} to the tea shop.")
    memory.flush()
    asked = "do I like milk in my tea?"
    found = texts(chat.recall(asked, limit=40))
    assert found[0] == "I like tea with milk"
    assert len(found) < 20 < len(memory.search(asked, user_id="ada", limit=40))
    assert chat.recall("please write a poem") == ()


def test_records_are_told_and_nothing_of_another_user_or_of_who_stands_alone(chat, memory) -> None:
    chat.remember("Ada's parrot is called Coco.")
    asked = "what is my parrot called?"
    assert "Ada's parrot is called Coco." in texts(chat.recall(asked, limit=20))
    assert "harbour" not in str(texts(chat.recall(WALK, limit=50)))
    alone, other = (memory.chat_of(Scope.alone(name)) for name in "st")
    alone.add("user", "my parrot is called Solo")
    other.add("user", "my parrot is called Tom")
    memory.flush()
    assert texts(alone.recall(asked)) == ["my parrot is called Solo"]
    told = "".join(texts(alone.context(asked).messages))
    assert ("Solo" in told, "Tom" in told) == (True, False)


def test_it_keeps_to_limits_and_refuses_what_makes_no_sense(chat) -> None:
    assert len(chat.recall(WALK, limit=1)) == 1
    assert chat.recall(WALK, token_limit=1) == ()
    for asked, more, problem in (
        (WALK, {"limit": 0}, InvalidLimitError),
        (WALK, {"token_limit": 0}, InvalidLimitError),
        (WALK, {"exclude": ["text"]}, MessageTypeError),
        (None, {}, InvalidMessageError),
    ):
        with pytest.raises(problem):
            chat.recall(asked, **more)


def test_what_is_found_can_be_encoded_also_with_half_an_emoji(memory: Memory) -> None:
    half = "My parrot \ud83d is called Coco"
    old, chat = (memory.chat(user_id="louis", session_id=name) for name in ("old", "new"))
    old.add("user", half)
    old.add("user", [{"type": "text", "text": f"{half} and Polly"}])
    memory.flush()
    chat.add("user", "What is my parrot called?")
    retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(chat, None, ValueError, None)
    context = chat.context()
    found = [
        *texts((*memory.search("parrot", user_id="louis"), *chat.recall("parrot"))),
        *(piece.text for piece in context.pieces if piece.kind == "recall"),
        *(old.reload_text(offload_id(old, 1)), context.recall, retrieve(["parrot"])),
    ]
    assert len(found) >= 7
    assert "Coco" in "".join(found).encode().decode()
    assert old.history()[0].text == half, "the history is word for word"
