"""What is moved into a memory keeps the time at which it was said, whichever door it comes in by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
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


def in_core(memory: Memory) -> tuple[Put, Put]:
    chat = memory.chat(user_id="u", session_id="old")
    return (lambda role, text, **_: Message(role, text)), chat.add_messages


def in_history(memory: Memory) -> tuple[Put, Put]:
    history = MemlayerChatMessageHistory(memory, user_id="u", session_id="old")
    return langchain, history.add_messages


def in_history_later(memory: Memory) -> tuple[Put, Put]:
    history = MemlayerChatMessageHistory(memory, user_id="u", session_id="old")
    return langchain, lambda *args, **more: asyncio.run(history.aadd_messages(*args, **more))


def in_memory(memory: Memory) -> tuple[Put, Put]:
    return llama, MemlayerMemory.from_defaults(memory, user_id="u", session_id="old").put_messages


def in_list(memory: Memory) -> tuple[Put, Put]:
    return llama, MemlayerMemory.from_defaults(memory, user_id="u", session_id="old").set


def in_store(memory: Memory) -> tuple[Put, Put]:
    store = MemlayerChatStore(memory, user_id="u")
    return llama, lambda *args, **more: store.set_messages("old", *args, **more)


def in_async_store(memory: Memory) -> tuple[Put, Put]:
    store = MemlayerAsyncChatStore(memory, user_id="u")
    return llama, lambda *args, **more: asyncio.run(store.add_messages("old", *args, **more))


def langchain(role: str, text: str, **kwargs: Any) -> BaseMessage:
    if role == "user":
        return HumanMessage(text, additional_kwargs=kwargs)
    return AIMessage(text, response_metadata=kwargs)


def llama(role: str, text: str, **kwargs: Any) -> ChatMessage:
    return ChatMessage(role=role, content=text, additional_kwargs=kwargs)


DOORS = [in_core, in_history, in_history_later, in_memory, in_list, in_store, in_async_store]


def times(memory: Memory) -> list[datetime | None]:
    return [one.created_at for one in memory.chat(user_id="u", session_id="old").history()]


FORMS = {
    "datetimes": [THEN + n * HOUR for n in range(4)],
    "texts": [(THEN + n * HOUR).isoformat() for n in range(4)],
    "seconds": [(THEN + n * HOUR).timestamp() for n in range(4)],
    "some": [THEN, None, None, THEN + 3 * HOUR],
}


@pytest.mark.parametrize(
    ("door", "told"),
    [*((door, FORMS["some"]) for door in DOORS), *((in_history, form) for form in FORMS.values())],
)
def test_an_old_talk_that_is_moved_is_of_its_own_time(door, told: Sequence[Any]) -> None:
    """Its session, too; what it says ends nothing that was said since."""
    with Memory.in_memory(embedder="hashing", extractor=reads()) as memory:
        new, put = door(memory)
        memory.chat(user_id="u", session_id="new").add(
            "user", "I live in Oslo.", created_at=THEN + 500 * HOUR
        )
        memory.flush()
        put([new(role, text) for role, text in TALK], created_at=told)
        memory.flush()
        assert times(memory) == [THEN + n * HOUR for n in range(4)]
        old = next(one for one in memory.sessions(user_id="u") if one.scope.session_id == "old")
        assert (old.created_at, old.updated_at, old.ended) == (THEN, THEN + 3 * HOUR, True)
        assert [one.scope.session_id for one in memory.sessions(user_id="u")] == ["new", "old"]
        assert [fact.value for fact in memory.records(user_id="u") if fact.key == "home"] == ["Oslo"]


@pytest.mark.parametrize("door", DOORS)
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


@pytest.mark.parametrize("door", DOORS[1:])
def test_a_framework_s_own_field_tells_the_time(door) -> None:
    with Memory.in_memory(embedder="hashing") as memory:
        new, put = door(memory)
        for told, fields in ((True, TOLD), (False, NOT_TOLD)):
            for name, value in fields:
                before = datetime.now(UTC)
                put([new(role, text, **{name: value}) for role, text in TALK[:2]])
                assert all((at == THEN) is told and (told or at >= before) for at in times(memory)), value
                memory.forget(user_id="u")


@pytest.mark.parametrize("door", DOORS)
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
