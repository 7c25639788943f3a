"""A store that version 1 of the tables holds is opened, brought up, and says what it said before.

`stores_of_version_1` holds two, written by the memlayer of that version: the file of an SQLite journal, and a
dump of a PostgreSQL one.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from memlayer_core import Memory, Message, ToolCall
from memlayer_core.records.item import FindItems, PutItem
from tests.conftest import PROMPT

STORES = Path(__file__).parent / "stores_of_version_1"
AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
SAID = [
    Message("system", "Be brief.", created_at=AT),
    Message("user", "I moved to Tokyo in May.", id="m1", name="Louis", created_at=AT, metadata={"k": 1}),
    Message("assistant", tool_calls=(ToolCall("c1", "look", '{"at":"map"}'),), created_at=AT),
    Message("tool", "found", tool_call_id="c1", created_at=AT),
    Message("assistant", ({"type": "text", "text": "Tokyo it is. 東京"},), created_at=AT),
    Message("system", "Be kind.", id="sys2", created_at=AT),
    Message("user", "Thanks!", created_at=AT),
]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Memory]:
    """Return a function that opens a store of version 1."""
    held = gzip.decompress((STORES / f"{request.param}.gz").read_bytes())
    where: dict[str, object] = {"path": tmp_path}
    if request.param == "sqlite":
        (tmp_path / "journal.sqlite3").write_bytes(held)
    else:
        where = {"database_url": request.getfixturevalue("postgres_url")}
        url = make_url(str(where["database_url"])).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            connection.execute(held)
    return lambda: Memory.open(**where, embedder="hashing", tokenizer="estimate", settings=PROMPT)


def same(message: Message, original: Message) -> bool:
    return original == Message(
        message.role,
        message.content,
        id=message.id if original.id else None,
        name=message.name,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        created_at=message.created_at,
        metadata=message.metadata,
        model_visible=message.model_visible,
        raw=message.raw,
    )


def test_everything_that_was_said_is_there_and_found(opened) -> None:
    with opened() as memory:
        chat = memory.chat(user_id="louis", session_id="s1")
        history = chat.history()
        assert len(history) == len(SAID)
        assert all(map(same, history, SAID))
        assert memory.search("moved to Tokyo", user_id="louis")[0].text == SAID[1].text
        assert not memory.search("Tokyo", user_id="eve")
        assert memory.search("pears", user_id="eve", tenant_id="other")[0].text == "I like pears."


def test_the_newest_system_message_is_in_force_and_a_window_can_be_chosen(opened) -> None:
    with opened() as memory:
        context = memory.chat(user_id="louis", session_id="s1").context()
        assert [message.text for message in context.system] == ["Be kind."]
        assert [message.role for message in context.window] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]


def test_the_session_goes_on(opened) -> None:
    with opened() as memory:
        chat = memory.chat(user_id="louis", session_id="s1")
        assert (
            chat.add("user", "I moved to Tokyo in May.", id="m1", name="Louis", metadata={"k": 1}).stored == 0
        )
        assert chat.add("system", "Be kind.").stored == 0
        chat.add("user", "Now I like sushi.")
        memory.flush()
        (session,) = memory.sessions(user_id="louis")
        assert (session.messages, session.ended, session.title) == (8, False, None)
        assert memory.search("sushi", user_id="louis")[0].text == "Now I like sushi."


def test_it_takes_items(opened) -> None:
    with opened() as memory:
        items = memory.items()
        items.batch([PutItem(("users", "louis"), "k", {"text": "sushi"})])
        (found,) = items.batch([FindItems(("users",), {"text": "sushi"}, "sushi")])
        assert [item.key for item in found] == ["k"]


def test_its_long_messages_are_offloaded_for_their_length_was_counted(opened) -> None:
    with opened() as memory:
        world = memory._world()
        chat = memory.chat(user_id="louis", session_id="s1")
        session = world.journal.session(chat.scope)
        entries = world.journal.tail(session, None, 100)[::-1]
        assert [entry.characters for entry in entries] == [len(message.text) for message in SAID]


def test_messages_and_records_are_filed_again_by_the_rules_of_today(tmp_path: Path) -> None:
    with Memory.open(tmp_path, embedder="hashing", settings=PROMPT) as memory:
        chat = memory.chat(user_id="louis", session_id="s1")
        chat.add("user", "I always take the train.")
        chat.remember("Louis is allergic to nuts", tags=["food"])
        chat.remember("The office closes at eight", visibility="public")
        filed = _words_filed(tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path / 'journal.sqlite3'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE memlayer_meta SET value = '4' WHERE name = 'schema_version'"))
        connection.execute(text("UPDATE memlayer_lexical SET terms = 'old'"))
        for later in ("folders", "folders_within", "items", "item_fields", "item_texts"):
            connection.execute(text(f"DROP TABLE memlayer_{later}"))
    engine.dispose()
    Memory.open(tmp_path, embedder="hashing", settings=PROMPT).close()
    assert _words_filed(tmp_path) == filed
    assert len(filed) == 3


def _words_filed(folder: Path) -> set[tuple[str, str]]:
    engine = create_engine(f"sqlite:///{folder / 'journal.sqlite3'}")
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT rowid, lanes, terms FROM memlayer_lexical")).all()
    engine.dispose()
    return {tuple(row) for row in rows}


def test_many_processes_may_open_it_at_the_same_time(opened) -> None:
    memories: list[Memory] = []
    threads = [threading.Thread(target=lambda: memories.append(opened())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(memory.chat(user_id="louis", session_id="s1").history()) for memory in memories] == [7] * 4
    for memory in memories:
        memory.close()


def test_it_gets_the_tables_that_a_new_store_gets(opened, tmp_path: Path, request) -> None:
    """Whatever a step forgets shows here: every table has the columns and indexes of a new store."""
    opened().close()
    new = tmp_path / "new"
    Memory.open(new, embedder="hashing").close()

    def described(url: str) -> dict[str, tuple[set[str], set[str]]]:
        engine = create_engine(url)
        found = inspect(engine)
        tables = {
            name: (
                {column["name"] for column in found.get_columns(name)},
                {str(i["name"]) for i in found.get_indexes(name) if "duplicates_constraint" not in i},
            )
            for name in found.get_table_names()
            if not name.startswith(("memlayer_lexical", "memlayer_words", "memlayer_places"))
        }
        with engine.connect() as connection:
            version = connection.execute(
                text("SELECT value FROM memlayer_meta WHERE name = 'schema_version'")
            ).scalar()
        engine.dispose()
        return {**tables, "version": ({str(version)}, set())}

    migrated = tmp_path / "journal.sqlite3"
    url = f"sqlite:///{migrated}" if migrated.exists() else request.getfixturevalue("postgres_url")
    assert described(url) == described(f"sqlite:///{new / 'journal.sqlite3'}")
