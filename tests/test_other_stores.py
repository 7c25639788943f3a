"""What LangChain, LangGraph and LlamaIndex stored comes in with its times, from their own stores."""

from __future__ import annotations

import asyncio
import os
import pickle
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from langchain.agents import create_agent
from langchain_community.chat_message_histories import (
    FileChatMessageHistory,
    RedisChatMessageHistory,
    SQLChatMessageHistory,
)
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory as LlamaMemory
from refusals import refused

from langchain_memlayer import MemlayerChatMessageHistory
from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory
from memlayer_core.errors import ImportStoppedError, StoreUnavailableError
from memlayer_core.items.model import GetItem

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


def texts(memory: Memory, session: str) -> list[str]:
    return [one.label for one in memory.chat(user_id="ada", session_id=session).history()]


def sql(tmp_path: Path) -> tuple[Any, Any]:
    url = f"sqlite:///{tmp_path}/old.db"
    return SQLChatMessageHistory("s1", connection=url), tmp_path / "old.db"


def file(tmp_path: Path) -> tuple[Any, Any]:
    return FileChatMessageHistory(str(tmp_path / "s1.json")), tmp_path / "s1.json"


def redis(_: Path) -> tuple[Any, Any]:
    url = "redis://127.0.0.1:6379/9"
    try:
        history = RedisChatMessageHistory(f"s1{uuid.uuid4().hex}", url=url, ttl=60)
        history.redis_client.ping()
    except Exception as problem:
        pytest.skip(f"no Redis: {type(problem).__name__}")
    return history, url


def test_a_redis_without_histories_is_named(memory, tmp_path) -> None:
    _, url = redis(tmp_path)
    with pytest.raises(ImportStoppedError, match="begins with 'nothing:'"):
        memory.import_from(f"{url}#nothing:", user_id="ada")


@pytest.mark.parametrize("make", [sql, file, redis])
def test_langchains_histories_come_back_equal_with_their_times(
    memory, tmp_path, make: Callable[..., Any]
) -> None:
    history, source = make(tmp_path)
    history.add_messages(TALK)
    try:
        report = memory.import_from(source, user_id="ada")
        assert memory.import_from(source, user_id="ada").stored == 0
    finally:
        if make is redis:
            history.clear()
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


@pytest.mark.postgres
def test_rows_of_postgresql_bring_their_times_and_a_password_is_never_shown(
    memory, postgres_url, monkeypatch
) -> None:
    engine = sa.create_engine(postgres_url)
    at = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    with engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE chats (id serial, session_id uuid, message jsonb, created_at timestamptz)")
        )
        row = sa.text(
            "INSERT INTO chats (session_id, message, created_at) VALUES (:s, CAST(:m AS jsonb), :at)"
        )
        for number, text in enumerate(("Hi", "Yo")):
            form = f'{{"type": "{("human", "ai")[number]}", "data": {{"content": "{text}"}}}}'
            connection.execute(row, {"s": uuid.UUID(int=7), "m": form, "at": at + timedelta(minutes=number)})
    try:
        memory.import_from(postgres_url, user_id="ada")
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE chats"))
        engine.dispose()
    said = memory.chat(user_id="ada", session_id=str(uuid.UUID(int=7))).history()
    assert [(one.text, one.created_at) for one in said] == [("Hi", at), ("Yo", at + timedelta(minutes=1))]
    monkeypatch.setenv("MEMLAYER_SOURCE_PASSWORD", "hush-hush")
    for url in (
        "postgresql://ada:hush-hush@127.0.0.1:1/x",
        "postgresql://ada@127.0.0.1:1/x",
        "redis://:hush-hush@127.0.0.1:1",
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            memory.import_from(url, user_id="ada")
        assert "hush" not in f"{caught.value}{caught.value.hint}"


def talk(saver: Any) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one"), AIMessage("two"), AIMessage("three")]))
    agent = create_agent(model, checkpointer=saver)
    for thread, text in (("t1", "hello"), ("t1", "again"), ("t2", "other")):
        agent.invoke(
            {"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread, "user_id": "ada"}}
        )
    first = agent.get_state({"configurable": {"thread_id": "t2"}}).values["messages"][0]
    agent.update_state({"configurable": {"thread_id": "t2"}}, {"messages": [RemoveMessage(first.id)]})


def check_threads(memory: Memory, source: Any) -> None:
    report = memory.import_from(source)  # the checkpoints say whose they are
    assert memory.import_from(source).stored == 0
    assert report.left_out == {"removed before the last checkpoint": 1}
    assert texts(memory, "t1") == ["hello", "one", "again", "two"]
    assert texts(memory, "t2") == ["three"]
    times = [one.created_at for one in memory.chat(user_id="ada", session_id="t1").history()]
    assert times == sorted(times)
    assert times[1] < times[2], "each message has the time of the first checkpoint that has it"


def test_threads_of_langgraph_bring_the_last_state_and_the_time_of_each_message(memory, tmp_path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        talk(saver)
    check_threads(memory, tmp_path / "threads.db")


@pytest.mark.postgres
def test_threads_in_postgresql_come_the_same_way(memory, postgres_url) -> None:
    url = postgres_url.replace("+psycopg", "")
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations")
    engine = sa.create_engine(postgres_url)
    try:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            talk(saver)
        check_threads(memory, url)
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {', '.join(tables)}"))
        engine.dispose()


def test_no_code_runs_that_a_checkpoint_names(memory, tmp_path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        talk(saver)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE checkpoints SET type = 'pickle', checkpoint = ?", (pickle.dumps(Bomb()),))
    refused(ImportStoppedError, "could run any code", memory.import_from, path)
    assert not (tmp_path / "exploded").exists()
    assert memory.sessions(user_id="ada") == []


def test_a_store_of_langgraph_brings_its_values_with_their_times(memory, tmp_path) -> None:
    path = tmp_path / "items.db"
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.put(("users", "ada"), "drink", {"text": "likes tea"})
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE store SET created_at = '2024-01-02 03:04:05', updated_at = '2024-02-02 03:04:05'"
        )
    report = memory.import_from(path)
    assert (report.placed, memory.import_from(path).placed) == (1, 0)
    (item,) = memory.items().batch([GetItem(("users", "ada"), "drink")])
    assert (item.value, item.created_at) == ({"text": "likes tea"}, datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert memory.import_from(path, user_id="eve").left_out == {"an item of nobody, or of another user": 1}


def test_llamaindexs_memory_brings_its_nanoseconds_and_comes_back_equal(memory, tmp_path) -> None:
    said = [
        ChatMessage(role="user", content="hey", additional_kwargs={"a": 1}),
        ChatMessage(role="assistant", content="ho"),
    ]
    old = LlamaMemory.from_defaults(
        session_id="s1", async_database_uri=f"sqlite+aiosqlite:///{tmp_path}/llama.db"
    )

    async def fill() -> None:
        await old.aput_messages(said)
        await old.sql_store._async_engine.dispose()

    asyncio.run(fill())
    assert memory.import_from(tmp_path / "llama.db", user_id="ada").source_format == "llamaindex"
    assert memory.import_from(tmp_path / "llama.db", user_id="ada").stored == 0
    assert MemlayerMemory.from_defaults(memory, session_id="s1", user_id="ada").get_all() == said
    now = datetime.now(UTC)
    assert all(
        now - one.created_at < timedelta(minutes=5)
        for one in memory.chat(user_id="ada", session_id="s1").history()
    )


def test_a_database_without_a_known_table_is_named(memory, tmp_path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("CREATE TABLE other (a)")
    with pytest.raises(ImportStoppedError, match="no table of messages that is known"):
        memory.import_from(tmp_path / "x.db", user_id="ada")
    with Memory.open(tmp_path / "ours", embedder="hashing") as ours:
        ours.chat(user_id="u").add("user", "Hi")
    with pytest.raises(ImportStoppedError, match="has no table of messages"):
        memory.import_from(tmp_path / "ours" / "journal.sqlite3", user_id="ada")
