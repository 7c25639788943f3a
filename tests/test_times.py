"""What is moved into a memory keeps the time at which it was said, whichever door it comes in by."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from llama_index.core.base.llms.types import ChatMessage
from scripted_reader import reads

from langchain_memlayer import MemlayerChatMessageHistory
from llamaindex_memlayer import MemlayerAsyncChatStore, MemlayerChatStore, MemlayerMemory
from memlayer_core import Memory, Message, errors

THEN = datetime(2023, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TALK = [("user", "I live in Riga."), ("assistant", "Riga it is."), ("user", "Yes."), ("assistant", "Good.")]
Put = Callable[..., Any]


def core(role: str, text: str, **_: Any) -> Message:
    return Message(role, text)


def langchain(role: str, text: str, **kwargs: Any) -> BaseMessage:
    if role == "user":
        return HumanMessage(text, additional_kwargs=kwargs)
    return AIMessage(text, response_metadata=kwargs)


def llama(role: str, text: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(role=role, content=text, additional_kwargs=kwargs)


def old(kind: type[Any], memory: Memory) -> Any:
    return kind(memory, user_id="u", session_id="old")


def awaited(verb: Put, *first: Any) -> Put:
    return lambda *args, **more: asyncio.run(verb(*first, *args, **more))


DOORS: dict[str, Callable[[Memory], tuple[Put, Put]]] = {
    "core": lambda memory: (core, memory.chat(user_id="u", session_id="old").add_messages),
    "history": lambda memory: (langchain, old(MemlayerChatMessageHistory, memory).add_messages),
    "async history": lambda memory: (
        langchain,
        awaited(old(MemlayerChatMessageHistory, memory).aadd_messages),
    ),
    "memory": lambda memory: (llama, old(MemlayerMemory, memory).put_messages),
    "memory's list": lambda memory: (llama, old(MemlayerMemory, memory).set),
    "store": lambda memory: (llama, partial(MemlayerChatStore(memory, user_id="u").set_messages, "old")),
    "async store": lambda memory: (
        llama,
        awaited(MemlayerAsyncChatStore(memory, user_id="u").add_messages, "old"),
    ),
}
"""How each door makes a message, and stores messages in one session."""
every_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


def times(memory: Memory) -> list[datetime | None]:
    return [one.created_at for one in memory.chat(user_id="u", session_id="old").history()]


FORMS = {
    "datetimes": [THEN + n * HOUR for n in range(4)],
    "texts": [(THEN + n * HOUR).isoformat() for n in range(4)],
    "seconds": [(THEN + n * HOUR).timestamp() for n in range(4)],
    "some": [THEN, None, None, THEN + 3 * HOUR],
}


MOVED = [(door, FORMS["some"]) for door in DOORS.values()]
MOVED += [(DOORS["history"], form) for form in FORMS.values()]


@pytest.mark.parametrize(("door", "told"), MOVED)
def test_an_old_talk_that_is_moved_is_of_its_own_time(door, told: Sequence[Any]) -> None:
    """Its session, too; what it says ends nothing that was said since."""
    with Memory.in_memory(embedder="hashing", extractor=reads()) as memory:
        new, put = door(memory)
        memory.chat(user_id="u", session_id="new").add("user", "I live in Oslo.", created_at=THEN + 99 * HOUR)
        memory.flush()
        put([new(role, text) for role, text in TALK], created_at=told)
        memory.flush()
        assert times(memory) == [THEN + n * HOUR for n in range(4)]
        old = next(one for one in memory.sessions(user_id="u") if one.scope.session_id == "old")
        assert (old.created_at, old.updated_at, old.ended) == (THEN, THEN + 3 * HOUR, True)
        assert [one.scope.session_id for one in memory.sessions(user_id="u")] == ["new", "old"]
        assert [fact.value for fact in memory.records(user_id="u") if fact.key == "home"] == ["Oslo"]


@every_door
def test_one_time_is_that_of_all_messages_and_what_is_no_time_is_refused(door) -> None:
    with Memory.in_memory(embedder="hashing") as memory:
        new, put = door(memory)
        for wrong in ("yesterday", [THEN], [THEN] * 5, [THEN, "?", None, None]):
            with pytest.raises(errors.InvalidMessageError, match="created_at"):
                put([new(role, text) for role, text in TALK], created_at=wrong)
        put([new(role, text) for role, text in TALK], created_at=THEN)
        assert times(memory) == [THEN] * 4


TOLD = [
    ("created_at", "2023-05-04T14:00:00+02:00"),
    ("timestamp", "2023-05-04T12:00:00.000000001Z"),
    ("created", THEN.timestamp()),
    ("created_at", THEN),
    ("timestamp", str(int(THEN.timestamp()))),
    ("created", int(THEN.timestamp() * 1000)),
]
NOT_TOLD = [
    ("created_at", "0001-01-01T00:00:00Z"),
    ("timestamp", "last May"),
    ("timestamp", 12.5),
    ("created", True),
    ("created_at", None),
    ("day", "2023-05-04"),
]


@pytest.mark.parametrize("door", [*DOORS.values()][1:], ids=[*DOORS][1:])
def test_a_framework_s_own_field_tells_the_time(door) -> None:
    with Memory.in_memory(embedder="hashing") as memory:
        new, put = door(memory)
        for told, fields in ((True, TOLD), (False, NOT_TOLD)):
            for name, value in fields:
                before = datetime.now(UTC)
                put([new(role, text, **{name: value}) for role, text in TALK[:2]])
                assert all((at == THEN) is told and (told or at >= before) for at in times(memory)), value
                memory.forget(user_id="u")


@every_door
def test_who_opens_a_session_with_many_messages_of_no_time_is_warned_once(door, caplog) -> None:
    caplog.set_level(logging.WARNING, "memlayer")
    with Memory.in_memory(embedder="hashing") as memory:
        new, put = door(memory)
        put([new(role, text) for role, text in TALK * 5], created_at=THEN)
        memory.forget(user_id="u")
        put([new(role, text) for role, text in TALK])  # a turn or two
        assert not caplog.records
        memory.forget(user_id="u")
        for _ in range(2):
            put([new(role, text) for role, text in TALK * 5])
            memory.forget(user_id="u")
        assert ["created_at=" in one.getMessage() for one in caplog.records] == [True]
