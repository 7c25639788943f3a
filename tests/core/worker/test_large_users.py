"""Chroma has the texts of large users only: recall compares the vectors of the others one by one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Memory, Message
from memlayer_core.chroma import EmbeddedChroma
from memlayer_core.errors import IndexUnavailableError
from memlayer_core.events import IndexRebuilt
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs, vectors
from memlayer_core.storage.statements import shard_of
from memlayer_core.storage.tables import texts
from memlayer_core.testing import FlakyEmbedder

SETTINGS = Tuned(index_delay=0, durability="normal", exact_scan_limit=8)
ONE = SETTINGS.replace(chroma_collections=1)
TURNS = [Message("user", f"The boat number {number} is in harbor {number * 7}.") for number in range(9)]

Open = Callable[..., Memory]


@pytest.fixture
def open_here(tmp_path: Path) -> Open:
    return lambda settings=SETTINGS: Memory.open(tmp_path / "store", embedder="hashing", settings=settings)


def say(memory: Memory, *messages: Message, user: str = "ada") -> None:
    memory.chat(user_id=user, session_id="s").add_messages(messages)
    memory.flush()


def copies(memory: Memory, user: str = "ada") -> int:
    """Return how many of a user's texts Chroma has."""
    index, namespace = memory.runtime.index, memory.chat(user_id=user, session_id="s").scope.namespace
    assert index is not None
    return len(index.keys(shard_of(namespace, memory.runtime.shards)))


def waiting(memory: Memory) -> dict[str, int]:
    return memory.runtime.db.read(jobs.count_kinds)


def test_chroma_gets_all_texts_of_a_user_with_more_than_half_of_the_limit(open_here: Open) -> None:
    with open_here() as memory:
        say(memory, *TURNS[:4])
        assert copies(memory) == 0
        say(memory, TURNS[4])
        assert copies(memory) == 5
        say(memory, TURNS[5])
        say(memory, TURNS[6], user="bob")
        assert (copies(memory), copies(memory, "bob")) == (6, 0)
        assert memory.admin.verify() == []


def test_only_a_user_with_more_than_the_limit_is_asked_for_in_chroma(open_here: Open, monkeypatch) -> None:
    asked = []
    with open_here() as memory:
        index: Any = memory.runtime.index
        nearest = index.nearest
        monkeypatch.setattr(index, "nearest", lambda *args: [asked.append(args), nearest(*args)][1])
        say(memory, *TURNS[:8])
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text
        assert asked == []
        say(memory, TURNS[8])
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text
        assert len(asked) == 1


def test_a_small_user_whose_texts_come_in_a_batch_with_a_large_ones_stays_out_of_chroma(
    open_here: Open,
) -> None:
    with open_here(ONE.replace(index_delay=60)) as memory:
        say(memory, *TURNS[:8])
        memory.chat(user_id="ada", session_id="s").add_messages(TURNS[8:])
        memory.chat(user_id="bob", session_id="s").add_messages(TURNS[:2])
        memory.flush()  # the worker waits for more until then
        assert (copies(memory), memory.admin.verify()) == (len(TURNS), [])
        memory.admin.reindex()
        assert (copies(memory), memory.admin.verify()) == (len(TURNS), [])


def test_what_chroma_has_of_a_small_user_is_removed_by_an_audit(open_here: Open) -> None:
    with open_here(ONE) as memory:
        say(memory, *TURNS[:2], user="bob")
        say(memory, *TURNS)
        index: Any = memory.runtime.index
        keys = [hit.key for hit in memory.runtime.db.read(all_texts)]
        index.upsert(memory.runtime.db.read(vectors.entries_of, keys))
        assert copies(memory) == len(TURNS) + 2
        memory.admin.verify()
        assert copies(memory) == len(TURNS)


def all_texts(connection: Any) -> list[Any]:
    return list(connection.execute(select(texts.c.key)))


def test_a_search_leaves_out_the_user_as_a_condition_where_the_collection_has_nobody_else(
    open_here: Open, monkeypatch
) -> None:
    asked = []
    with open_here(ONE.replace(exact_scan_limit=4)) as memory:
        index: Any = memory.runtime.index
        nearest = index.nearest
        monkeypatch.setattr(index, "nearest", lambda *args: [asked.append(args[1]), nearest(*args)][1])
        say(memory, *TURNS)
        say(memory, *TURNS[:2], user="bob")  # a small one
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text
        assert asked == [None]
        say(memory, *TURNS, *TURNS, user="eve")
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text
        assert asked[1:] == [memory.chat(user_id="ada", session_id="s").scope.user_lane]


def test_a_user_whom_chroma_does_not_have_is_never_asked_for_there(open_here: Open, monkeypatch) -> None:
    with open_here() as memory:
        # As before the worker gave it one.
        monkeypatch.setattr(vectors, "namespaces_of", lambda *_: (set(), []))
        monkeypatch.setattr(vectors, "large_namespaces", lambda *_: [])
        index: Any = memory.runtime.index
        monkeypatch.setattr(index, "nearest", lambda *_: pytest.fail("Chroma was asked"))
        say(memory, *TURNS)
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text


def test_no_search_asks_chroma_while_a_lower_limit_gives_it_a_user(open_here: Open, monkeypatch) -> None:
    with open_here(ONE) as memory:
        say(memory, *TURNS[:4])
    served = []
    put = EmbeddedChroma.upsert

    def upsert(index: EmbeddedChroma, entries: Any) -> None:
        served.append(index.serves(0))
        put(index, entries)

    monkeypatch.setattr(EmbeddedChroma, "upsert", upsert)
    with open_here(ONE.replace(exact_scan_limit=2)) as memory:
        say(memory, TURNS[4], user="bob")
        assert copies(memory) == 4
    assert served[0] is False


def test_what_small_users_delete_or_forget_is_no_work_for_chroma(open_here: Open, monkeypatch) -> None:
    with open_here() as memory:
        say(memory, *TURNS[:4])
        say(memory, *TURNS[:2], user="bob")
        index: Any = memory.runtime.index
        for name in ("remove", "erase", "upsert"):
            monkeypatch.setattr(index, name, lambda *_: pytest.fail("Chroma was asked"))
        chat = memory.chat(user_id="ada", session_id="s")
        chat.delete_message(0)
        chat.edit(1, content="The boat is sold.")
        memory.forget(user_id="bob")
        memory.flush()
        assert memory.admin.verify() == []


def test_what_large_users_delete_leaves_chroma_also_when_few_texts_are_left(open_here: Open) -> None:
    with open_here() as memory:
        say(memory, *TURNS)
        chat = memory.chat(user_id="ada", session_id="s")
        for _ in range(7):
            chat.delete_message(0)
        memory.flush()
        assert copies(memory) == 2
        memory.forget(user_id="ada")
        memory.flush()
        assert copies(memory) == 0
        say(memory, *TURNS[:2])
        assert (copies(memory), memory.admin.verify()) == (0, [])


def test_a_lower_limit_takes_effect_when_the_store_is_opened(open_here: Open) -> None:
    with open_here() as memory:
        say(memory, *TURNS[:4])
    lower = SETTINGS.replace(exact_scan_limit=2)
    with open_here(lower) as memory:
        events: list[Any] = []
        memory.listen(events.append)
        say(memory, TURNS[4], user="bob")
        assert (copies(memory), copies(memory, "bob")) == (4, 0)
        assert memory.search("boat 3", user_id="ada")[0].text == TURNS[3].text
        assert memory.admin.verify() == []
    with open_here() as memory:
        say(memory, TURNS[5])
        assert (copies(memory), memory.admin.verify()) == (5, [])  # it stays there


def test_a_process_that_dies_before_chroma_has_all_texts_leaves_them_to_the_next(
    open_here: Open, monkeypatch
) -> None:
    with open_here() as memory, monkeypatch.context() as patch:
        patch.setattr(memory.runtime.index, "upsert", away)
        say(memory, *TURNS[:3])
        memory.chat(user_id="ada", session_id="s").add_messages(TURNS[3:])
        wait_for(lambda: waiting(memory) == {"upsert": len(TURNS)})
    with open_here() as memory:
        events: list[Any] = []
        memory.listen(events.append)
        memory.admin.verify()
        assert [event for event in events if isinstance(event, IndexRebuilt)] == []  # what waits is no damage
        memory.flush()
        assert (copies(memory), waiting(memory)) == (len(TURNS), {})


def test_a_user_whom_another_process_gives_chroma_while_texts_are_embedded_lacks_none(
    tmp_path: Path, monkeypatch
) -> None:
    slow = FlakyEmbedder(HashingEmbedder())
    with Memory.open(tmp_path / "store", embedder=slow, settings=SETTINGS) as memory:
        asked = vectors.namespaces_of

        def namespaces_of(connection: Any, names: Any, max_vectors: int) -> Any:
            found = asked(connection, names, max_vectors)
            memory.runtime.db.write(
                vectors.add_to_content, names, memory.runtime.now()
            )  # as the other's audit does
            return found

        monkeypatch.setattr(vectors, "namespaces_of", namespaces_of)
        say(memory, *TURNS[:3])
        assert copies(memory) == 3
        say(memory, TURNS[3])
        assert (copies(memory), memory.admin.verify()) == (4, [])


def away(_: object) -> None:
    raise IndexUnavailableError("Chroma is away", hint="Wait.")


def test_small_users_do_not_load_chroma(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom memlayer_core import Memory\n"
        f"with Memory.open({str(tmp_path / 'm')!r}, embedder='hashing') as memory:\n"
        "    memory.chat(user_id='ada').add('user', 'My boat lies in Bergen.')\n"
        "    memory.flush()\n"
        "    assert memory.search('Where is my boat?', user_id='ada')\n"
        "    assert memory.admin.status().index == 'held'\n"
        "    memory.forget('ada')\n"
        "    memory.flush()\n"
        "    assert memory.admin.verify() == [] and memory.admin.reindex() == 0\n"
        "print('chromadb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
