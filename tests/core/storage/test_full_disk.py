"""A full disk: the write raises our error, the status names the problem, and both end when there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool, Pool
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import StoreFullError, StoreUnavailableError

Disk: TypeAlias = tuple[dict[str, Any], Callable[[bool], None]]
MANY = [Message("user", f"Word {number} of many. " * 40) for number in range(200)]
NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER no_room BEFORE INSERT ON memlayer_messages FOR EACH ROW EXECUTE FUNCTION no_room()
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Return what opens a store, and a function that says whether its disk has room."""
    files: list[Any] = []

    def on_connect(driven: Any, _: object) -> None:
        files.append(driven)

    def room_in_file(has_room: bool) -> None:
        for one in files:
            (pages,) = one.execute("PRAGMA page_count").fetchone()
            one.execute(f"PRAGMA max_page_count = {pages + 10_000 * has_room}")

    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        server = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

        def room_on_server(has_room: bool) -> None:
            with server.connect() as connection:
                connection.execute(text("DROP FUNCTION no_room() CASCADE" if has_room else NO_ROOM))

        yield {"database_url": url}, room_on_server
        return
    event.listen(Pool, "connect", on_connect)
    yield {"path": tmp_path / "m"}, room_in_file
    event.remove(Pool, "connect", on_connect)


def test_a_full_disk_is_our_error_and_a_problem_until_there_is_room(disk: Disk) -> None:
    place, set_room = disk
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
