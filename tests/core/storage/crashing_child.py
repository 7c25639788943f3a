"""A process that writes to a memory and dies by SIGKILL at a named point. Run by test_crashes.py.

It prints the id of each message after its `add` has returned: that is what may never be lost.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flaky import FlakyEmbedder
from sqlalchemy import event
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.chroma import directory
from memlayer_core.chroma.directory import EmbeddedChroma
from memlayer_core.chroma.index import ChromaIndex
from memlayer_core.messages import writes as messages_writes
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs, outbox, postgres, vectors

AT_ONCE = Tuned(index_delay=0, exact_scan_limit=0, durability="normal")
SETTINGS = AT_ONCE.replace(index_batch=4, lease_seconds=1, chroma_collections=1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, times: int, is_it: Callable[..., bool] = lambda *_: True) -> None:
    """Die right after `owner.name` was called for the given time, of those calls that `is_it` is true of."""
    inner, calls = getattr(owner, name), itertools.count(1)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        if is_it(*args) and next(calls) == times:
            die()
        return answer

    setattr(owner, name, wrapped)


def after_commit(memory: Memory, work: Any, times: int) -> None:
    """Die as soon as a piece of work was committed for so many times."""
    after(type(memory.runtime.db), "write", times, lambda _, done, *__: done is work)


def before_commit(memory: Memory, times: int) -> None:
    """Die before a commit. PostgreSQL is asked to commit what was written past SQLAlchemy, which hears nothing of it."""
    event.listen(memory.runtime.db._engine, "commit", lambda _: die() if next(commits) == times else None)
    begin, commit, commits, writes_now = postgres._WRITE.run, postgres._COMMIT.run, itertools.count(1), []

    def note(connection: Any, *values: Any) -> None:
        writes_now.append(connection)
        begin(connection, *values)

    def commit_or_die(connection: Any, *values: Any) -> None:
        if connection in writes_now:
            writes_now.remove(connection)
            if next(commits) == times:
                die()
        commit(connection, *values)

    postgres._WRITE.run, postgres._COMMIT.run = note, commit_or_die


POINTS: dict[str, Callable[[Memory], None]] = {
    "inside the transaction that adds": lambda _: after(messages_writes, "apply", 4),
    "when the transaction is about to commit": lambda memory: before_commit(memory, 6),
    "after the commit and before the answer": lambda memory: after_commit(memory, messages_writes.append, 5),
    "when a job was leased": lambda _: after(jobs, "lease", 1),
    "when the vectors were written but not committed": lambda _: after(vectors, "store", 2),
    "when the vectors were committed": lambda memory: after_commit(memory, vectors.store, 2),
    "when Chroma has the vectors": lambda _: after(ChromaIndex, "write", 1),
    "when the marks were taken back but not committed": lambda _: after(outbox, "end_batch", 1),
    "at any moment": lambda _: None,
}
CLEARING: dict[str, tuple[Any, str]] = {
    "before Chroma is cleared": (EmbeddedChroma, "erase"),
    "when Chroma was emptied": (directory, "_compact"),
    "while Chroma is filled again": (EmbeddedChroma, "write"),
    "when Chroma was filled again": (outbox, "end_batch"),
}
"""Points of what a forget leads to, in a directory."""


def main(point: str, where: str, first: int) -> None:
    options = json.loads(where)
    # Hashing's vectors are written with the messages; those of any other embedder by jobs.
    embedder: Any = FlakyEmbedder(HashingEmbedder()) if "vectors were" in point else "hashing"
    memory = Memory.open(embedder=embedder, settings=SETTINGS, **options)
    if point in CLEARING:
        memory.chat(user_id="eve").add("user", "thing for a while")
    else:
        POINTS[point](memory)
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(first, first + 40 if point != "at any moment" else sys.maxsize):
        chat.add("user", f"thing{number} is here", id=f"m{number}")
        print(number, flush=True)
    memory.flush(60)
    if point in CLEARING:
        setattr(*CLEARING[point], lambda *_, **__: die())
        memory.forget(user_id="eve")
        memory.flush(60)
    print("survived", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
