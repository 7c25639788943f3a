"""What is forgotten leaves Chroma's files, and files that go away while they are open are noticed."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from projection import assert_whole, boats, copied, found, in_journal, say
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Chat, Memory, Message, errors
from memlayer_core.events import ProblemBegan
from memlayer_core.items.model import PutItem
from memlayer_core.storage import outbox, statements
from tests.conftest import offload_id

SETTINGS = Tuned(index_delay=0, exact_scan_limit=0, job_backoff=0.01, lease_seconds=1, durability="normal")
SECRET = "the password of the vault is swordfish"
ITEM = "the key is under the mat"


def signs(texts: list[str]) -> list[list[float]]:
    """Embed texts by vectors of length 1 exactly, which nobody who makes their length 1 changes by a bit."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return [[0.125 if bit else -0.125 for bit in np.unpackbits(np.frombuffer(d, np.uint8))] for d in digests]


def bytes_of(*texts: str) -> list[bytes]:
    """Return the vectors of texts as they lie in files."""
    return [np.asarray(vector, dtype="<f4").tobytes() for vector in signs(list(texts))]


def key_of(chat: Chat) -> bytes:
    """Return the id that a session's first message has in Chroma."""
    return offload_id(chat, 0).removeprefix("msg-").encode()


def traces(directory: Path, wanted: list[bytes]) -> set[str]:
    """Return the names of the files below a directory in which any of that stands."""
    files = filter(Path.is_file, directory.rglob("*"))
    found = [path for path in files if any(one in path.read_bytes() for one in wanted)]
    return {str(path.relative_to(directory)) for path in found}


@pytest.fixture
def large_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys be numbers that no file has by chance."""
    opened = Memory.open

    def open_far(*args: Any, **kwargs: Any) -> Memory:
        memory = opened(*args, **kwargs)
        memory.runtime.db.write(statements.take_keys, 4_123_456_789)
        return memory

    monkeypatch.setattr(Memory, "open", open_far)


@pytest.fixture
def chroma(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "chroma"


WAYS: dict[str, Callable[[Any], Any]] = {
    "forget": lambda chat: chat.memory.forget(user_id=chat.scope.user_id),
    "forget the session": lambda chat: chat.memory.forget(user_id=chat.scope.user_id, session_id="s"),
    "clear": lambda chat: chat.clear(),
    "delete": lambda chat: chat.delete_message(0),
    "edit": lambda chat: chat.edit(0, content="nothing of interest"),
    "resync": lambda chat: chat.resync([Message("user", "something else")], replace="all", erase=True),
}


@pytest.mark.parametrize("persisted", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("large_keys")
def test_what_is_taken_back_is_in_none_of_chromas_files(open_at, chroma, persisted) -> None:
    memory = open_at(settings=SETTINGS.replace(chroma_collections=1), embedder=signs)
    if persisted:  # beyond 250 vectors, Chroma writes the files of its graph
        say(memory, *boats(0, 300), user="bob")
    copied(memory, *boats(0, 5), user="eve")
    for way, take_back in WAYS.items():
        chat, said = memory.chat(user_id=way, session_id="s"), f"{SECRET} {way}"
        copied(memory, said, user=way)
        gone = bytes_of(said)
        assert traces(chroma, gone), way
        assert not persisted or list(chroma.glob("*/data_level0.bin"))
        gone += [] if way == "edit" else [key_of(chat)]
        gone += [chat.scope.session_bucket.encode()] if way.startswith("forget") else []
        take_back(chat)
        memory.flush(60)
        assert traces(chroma, gone) == set(), way
    record = memory.chat(user_id="louis").remember(SECRET)
    memory.items().batch([PutItem(("notes",), "one", {"text": "a"}, texts=(ITEM,))])
    memory.flush(60)
    secret, item = bytes_of(SECRET, ITEM)
    assert traces(chroma, [secret])
    assert traces(chroma, [item])
    memory.forget(record_id=record.memory_id)
    memory.items().forget(("notes",))
    memory.flush(60)
    assert traces(chroma, [secret, item]) == set()
    assert memory.admin.status().index == "held"
    before = len([*chroma.iterdir()])
    for _ in range(2):
        assert memory.admin.reindex() == len(in_journal(memory))
    assert len([*chroma.iterdir()]) == before, "and no directory is left behind"
    assert (memory.admin.verify(), found(memory, "eve")) == ([], 5)


def test_many_forgets_are_cleared_out_together_by_a_flush_or_within_an_hour(open_at, monkeypatch) -> None:
    memory = open_at(settings=SETTINGS)
    for number in range(6):
        say(memory, f"{SECRET} {number}", user=f"u{number}")
    memory.flush(60)
    erased: list[Any] = []
    inner = memory.runtime.index.erase
    monkeypatch.setattr(memory.runtime.index, "erase", lambda shards: (erased.append(shards), inner(shards)))
    for number in range(5):
        memory.forget(user_id=f"u{number}")
    assert memory.admin.status().backlog.queued <= 1  # that of the journal's files
    memory.flush(60)
    assert len(erased) == 1
    assert memory.admin.verify() == []
    memory.forget(user_id="u5")
    now = memory.runtime.now()
    for minutes, is_due in ((59, False), (61, True)):
        memory.runtime.db.write(outbox.owe, now + timedelta(minutes=minutes))
        assert bool(memory.runtime.db.read(outbox.stale)) is is_due


@pytest.mark.slow
def test_searches_stay_right_and_quiet_while_a_shard_is_filled_again(open_at, monkeypatch) -> None:
    memory = open_at(settings=SETTINGS)
    say(memory, *boats(0, 120))
    copied(memory, SECRET, session="gone")
    degraded, index, amid = heard(memory, ProblemBegan), memory.runtime.index, list[int]()
    memory.forget(user_id="ada", session_id="gone")

    def searching(inner: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda given: (inner(given), amid.append(found(memory)))

    for name in ("erase", "write"):  # between two writes, the collection has some of its vectors again
        monkeypatch.setattr(index, name, searching(getattr(index, name)))
    memory.flush(60)
    assert len(amid) > 1
    assert set(amid) == {120}
    assert degraded == []
    assert memory.admin.status().problems == {}


# --- files that go away


def refused(memory: Memory) -> bool:
    try:
        say(memory, "into the void")
    except errors.StoreUnavailableError as problem:
        return "removed or replaced" in str(problem) and "open the store again" in problem.hint
    return False


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_store_that_is_removed_while_open_takes_nothing_more(open_at, tmp_path, way) -> None:
    where = tmp_path / "memory"
    memory = copied(open_at(settings=SETTINGS), *boats(0, 20))
    problems = heard(memory, ProblemBegan)
    if way == "removed":
        # SQLite may open a file meanwhile.
        wait_for(lambda: shutil.rmtree(where, ignore_errors=True) or not where.exists())
    else:
        where.rename(tmp_path / "elsewhere")
        with Memory.open(where, embedder="hashing", settings=SETTINGS) as other:
            say(other, *boats(0, 3))
    wait_for(lambda: refused(memory))
    gone = lambda: [one.source for one in problems].count("journal")  # noqa: E731  (a count)
    wait_for(gone)  # a write may fail a moment before
    assert "removed or replaced" in memory.admin.status().problems["journal"]
    wait_for(lambda: memory.admin.status().index == "not held")  # the worker gives it up at its next step
    for verb in (memory.flush, memory.admin.verify, memory.admin.reindex):
        with pytest.raises(errors.StoreUnavailableError, match="removed or replaced"):
            verb()
    assert gone() == 1
    fresh = copied(open_at(settings=SETTINGS), *boats(0, 2), session="fresh")
    assert fresh.admin.status().index == "held"
    memory.close()
    assert len(fresh.chat(user_id="ada", session_id="s").history()) == (3 if way == "replaced" else 0)
    assert len(fresh.chat(user_id="ada", session_id="fresh").history()) == 2
    assert_whole(fresh)


@pytest.mark.slow
def test_opening_a_second_memory_takes_no_lock_from_the_first(open_at, tmp_path) -> None:
    """A process that opens the journal's file beside SQLite, and closes it, gives up SQLite's locks on it."""
    code = "import sys, memlayer_core as m; m.Memory.open(sys.argv[1], embedder='hashing').close()"
    one, _ = open_at(settings=SETTINGS), open_at(settings=SETTINGS)
    say(one, "before")
    subprocess.run([sys.executable, "-c", code, tmp_path / "memory"], timeout=60, check=True)
    say(one, "after")
    for _ in range(2):
        with open_at(settings=SETTINGS) as another:
            said = [message.text for message in another.chat(user_id="ada", session_id="s").history()]
            assert said == ["before", "after"]
        one.close()
