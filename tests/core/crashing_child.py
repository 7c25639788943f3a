"""A process that writes to a memory and dies by SIGKILL at a named point. Run by test_crashes.py.

It prints the id of each message after its `add` has returned: that is what may never be lost.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any

from sqlalchemy import event

from memlayer_core import Memory, Settings
from memlayer_core.stores import conversation, embeddings, owed
from memlayer_core.stores.chroma import EmbeddedChroma

SETTINGS = Settings(index_delay=0, index_batch=4, exact_scan_limit=0, lease_seconds=1, durability="normal")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, times: int) -> None:
    """Die right after `owner.name` was called for the given time."""
    inner, calls = getattr(owner, name), itertools.count(1)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        if next(calls) == times:
            die()
        return answer

    setattr(owner, name, wrapped)


def plan(point: str, memory: Memory) -> None:
    engine = memory._world().journal._db._engine
    match point:
        case "inside the transaction that adds":
            after(conversation, "put", 4)
        case "when the transaction is about to commit":
            event.listen(engine, "commit", lambda _: die() if next(COMMITS) == 6 else None)
        case "after the commit and before the answer":
            after(type(memory._world().journal), "append", 5)
        case "when a job was leased":
            after(owed, "lease", 2)
        case "when the vectors were written but not committed":
            after(embeddings, "file", 2)
        case "when the vectors were committed":
            after(type(memory._world().journal), "file", 2)
        case "when Chroma has the vectors":
            after(EmbeddedChroma, "upsert", 2)
        case "when the jobs were struck off but not committed":
            after(owed, "finish", 2)
        case _:
            assert point == "at any moment", point


COMMITS = itertools.count(1)


def main(point: str, where: str, first: int) -> None:
    options = json.loads(where)
    memory = Memory.open(embedder="hashing", settings=SETTINGS, **options)
    plan(point, memory)
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(first, first + 40 if point != "at any moment" else sys.maxsize):
        chat.add("user", f"thing{number} is here", id=f"m{number}")
        print(number, flush=True)
    memory.flush(60)
    print("survived", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
