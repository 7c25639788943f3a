"""A full disk: the write raises our error, the status names the problem, and both end when there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool, Pool
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import StoreFullError, StoreUnavailableError

MANY = [Message("user", f"Word {number} of many. " * 40) for number in range(200)]
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER no_room BEFORE INSERT ON memlayer_messages FOR EACH ROW EXECUTE FUNCTION no_room()
"""


@pytest.fixture
def set_room(place: dict[str, str]) -> Iterator[Callable[[bool], None]]:
    """Return a function that says whether the store's disk has room."""
    files: list[Any] = []

    def on_connect(driven: Any, _: object) -> None:
        files.append(driven)

    def in_file(has_room: bool) -> None:
        for one in files:
            (pages,) = one.execute("PRAGMA page_count").fetchone()
            one.execute(f"PRAGMA max_page_count = {pages + 10_000 * has_room}")

    def on_server(has_room: bool) -> None:
        server = create_engine(place["database_url"], poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text("DROP FUNCTION no_room() CASCADE" if has_room else NO_ROOM))

    event.listen(Pool, "connect", on_connect)
    yield in_file if "path" in place else on_server
    event.remove(Pool, "connect", on_connect)


def test_a_full_disk_is_our_error_and_a_problem_until_there_is_room(place, set_room) -> None:
    with Memory.open(**place, embedder="hashing", settings=Tuned(index_delay=3600)) as memory:
        chat = memory.chat(user_id="ada", session_id="s")
        chat.add("user", "There is room for this.")
        set_room(False)
        with pytest.raises(StoreFullError, match="the disk is full") as told:
            chat.add_messages(MANY)
        assert isinstance(told.value, StoreUnavailableError)
        assert told.value.retryable
        assert "the disk is full" in memory.admin.status().problems["disk"]
        assert [one.text for one in chat.history()] == ["There is room for this."]
        set_room(True)
        chat.add_messages(MANY)
        assert "disk" not in memory.admin.status().problems
