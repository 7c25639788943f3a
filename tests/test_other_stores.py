"""What LangChain wrote into a file comes in with its times; a database is left to the class that wrote it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime

import pytest
from langchain_community.chat_message_histories import FileChatMessageHistory
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from langchain_memlayer import MemlayerChatMessageHistory
from memlayer_core import Memory, errors

SAID = "2023-05-01T10:00:00+02:00"
TALK: list[AnyMessage] = [
    HumanMessage("I live in Riga.", additional_kwargs={"created_at": SAID}),
    AIMessage(
        "One moment.",
        tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    ToolMessage("found", tool_call_id="c1", artifact={"rows": [1]}, status="error"),
    AIMessage([{"type": "text", "text": "Fine."}], id="a9", response_metadata={"model": "m"}),
]


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(embedder="hashing") as made:
        yield made


def test_langchains_file_comes_back_equal_with_its_times(memory, tmp_path) -> None:
    path = tmp_path / "s1.json"
    FileChatMessageHistory(str(path)).add_messages(TALK)
    report = memory.import_from(path, user_id="ada")
    assert memory.import_from(path, user_id="ada").stored == 0
    assert (report.source_format, report.stored, report.without_time) == ("langchain", 4, 3)
    (session,) = memory.sessions(user_id="ada")
    assert session.updated_at == datetime.fromisoformat(SAID), (
        "what has no time is not newer than what has one"
    )
    read = MemlayerChatMessageHistory(memory, session_id=session.scope.session_id, user_id="ada").messages
    assert [one.model_copy(update={"id": None}) for one in read] == [
        one.model_copy(update={"id": None}) for one in TALK
    ]
    assert read[-1].id == "a9"


def test_a_database_is_refused_with_the_page_that_shows_how_it_is_read(memory, tmp_path) -> None:
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE other (a)").connection.close()
    urls = "postgresql://ada:hush-hush@127.0.0.1:1/x", "redis://:hush-hush@127.0.0.1:1"
    for source in (tmp_path / "x.db", *urls):
        with pytest.raises((errors.ImportStoppedError, errors.InputError)) as caught:
            memory.import_from(source, user_id="ada")
        assert "docs/migration.md" in str(caught.value.hint)
        assert "hush" not in f"{caught.value}{caught.value.hint}"
