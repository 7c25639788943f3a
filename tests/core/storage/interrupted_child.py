"""A process that writes to a memory and is interrupted again and again by real SIGINTs. Run by test_crashes.py.

Its main thread adds and reads; every second SIGINT or so finds it in the midst of that. Further threads add meanwhile and
are never interrupted. At the end it prints, as JSON, what each thread was told is stored, what the journal has, and
whatever went wrong.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from tuned import Tuned

from memlayer_core import Chat, Memory
from memlayer_core.storage import postgres

SETTINGS = Tuned(index_delay=0, durability="normal", busy_timeout=5)
LATER = 20  # writes after the last interrupt


class Interrupts:
    """Raises KeyboardInterrupt in the main thread, as Python does by default, but only where it is waited for."""

    def __init__(self) -> None:
        self.armed = False
        self.raised = 0
        signal.signal(signal.SIGINT, self._raise)

    def _raise(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            self.raised += 1
            raise KeyboardInterrupt


class Writer:
    """Adds messages to a session of its own, and notes those that are acknowledged."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.chat: Chat = memory.chat(user_id=name, session_id="s")
        self.acknowledged: list[str] = []
        self.problems: list[str] = []
        self.number = 0

    def add(self) -> None:
        self.number += 1
        self.chat.add("user", f"thing{self.number}", id=f"m{self.number}")
        self.acknowledged.append(f"m{self.number}")

    def turn(self) -> None:
        self.add()
        self.chat.history(limit=3)
        if self.number % 4 == 0:
            self.chat.context(f"what of thing{self.number}?", token_limit=500)

    def guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as problem:
            self.problems.append(f"{type(problem).__name__}: {problem}")

    def go_on(self, over: threading.Event) -> None:
        while not over.is_set():
            self.guarded(self.add)
            time.sleep(0.001)

    def told(self) -> dict[str, Any]:
        there = [message.id for message in self.chat.history()]
        return {"acknowledged": self.acknowledged, "there": there, "problems": self.problems}


def interrupt(seconds: float = 0.001) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(seconds)


def at_random(wanted: int, interrupts: Interrupts, chance: random.Random) -> None:
    """Send SIGINTs until so many were raised."""
    while interrupts.raised < wanted:
        interrupt(chance.uniform(0, 0.002))


def after_each_commit(memory: Memory) -> None:
    """Send a SIGINT right behind a commit, before the thread that commits goes on."""
    dialect = memory.runtime.db._engine.dialect
    commit, wait = dialect.do_commit, postgres._wait  # PostgreSQL is asked without SQLAlchemy

    def commit_and_interrupt(connection: Any) -> None:
        commit(connection)
        interrupt()

    def wait_and_interrupt(connection: Any, last: str) -> None:
        wait(connection, last)
        if last == "COMMIT":
            interrupt()

    dialect.do_commit, postgres._wait = commit_and_interrupt, wait_and_interrupt


def main(moment: str, where: str, wanted: int, seed: int) -> None:
    options = json.loads(where)
    opening = Memory.open if options else Memory.in_memory
    memory = opening(embedder="hashing", settings=SETTINGS, **options)
    interrupts, over = Interrupts(), threading.Event()
    mine = Writer(memory, "main")
    others = [Writer(memory, f"other{number}") for number in range(2)]

    # Modules are loaded first: a thread that is interrupted in an import may keep Python's lock of imports for ever.
    for _ in range(4):
        mine.turn()
    memory.flush(30)

    running = [threading.Thread(target=writer.go_on, args=(over,), daemon=True) for writer in others]
    if moment == "at random":
        sent = (wanted, interrupts, random.Random(seed))
        running.append(threading.Thread(target=at_random, args=sent, daemon=True))
    else:
        after_each_commit(memory)
    for thread in running:
        thread.start()
    while interrupts.raised < wanted and len(mine.problems) < 10:
        try:
            interrupts.armed = True
            mine.guarded(mine.turn)
            interrupts.armed = False
        except KeyboardInterrupt:
            pass
    over.set()
    for thread in running:
        thread.join(30)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for writer in (mine, *others):
        for _ in range(LATER):
            writer.guarded(writer.turn)
    memory.flush(30)  # background work goes on, too
    told = [writer.told() for writer in (mine, *others)]
    memory.close()
    print(json.dumps({"raised": interrupts.raised, "writers": told}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
