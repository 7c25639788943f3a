"""A process that writes to a memory and is interrupted again and again by real SIGINTs. Run by test_crashes.py.

Its main thread adds and reads; every second SIGINT or so finds it in the midst of that. Further threads add meanwhile and
are never interrupted. At the end it prints, as JSON, what each thread was told is stored, what the journal has, and
whatever went wrong.
"""

from __future__ import annotations

import faulthandler
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

    def begin(self) -> None:
        """Load the modules of a turn. A thread that is interrupted in an import may keep Python's lock of imports for ever."""
        for _ in range(4):
            self.turn()
        self.chat.memory.flush(30)

    def guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as problem:
            self.problems.append(f"{type(problem).__name__}: {problem}")

    def told(self) -> dict[str, Any]:
        there = [message.id for message in self.chat.history()]
        return {"acknowledged": self.acknowledged, "there": there, "problems": self.problems}


def at_random(wanted: int, interrupts: Interrupts, chance: random.Random) -> None:
    """Send SIGINTs until so many were raised."""
    while interrupts.raised < wanted:
        time.sleep(chance.uniform(0, 0.002))
        os.kill(os.getpid(), signal.SIGINT)


def after_each_commit(memory: Memory) -> None:
    """Send a SIGINT right behind a commit, before the thread that commits goes on."""
    dialect = memory.runtime.db._engine.dialect
    commit = dialect.do_commit

    def do_commit(connection: Any) -> None:
        commit(connection)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)

    dialect.do_commit = do_commit
    wait = postgres._wait  # PostgreSQL is asked without SQLAlchemy

    def wait_and_interrupt(connection: Any, last: str) -> None:
        wait(connection, last)
        if last == "COMMIT":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)

    postgres._wait = wait_and_interrupt


def main(moment: str, where: str, threads: int, wanted: int, seed: int) -> None:
    chance = random.Random(seed)
    options = json.loads(where)
    memory = (
        Memory.open(embedder="hashing", settings=SETTINGS, **options)
        if options
        else Memory.in_memory(settings=SETTINGS)
    )
    interrupts, over = Interrupts(), threading.Event()
    mine = Writer(memory, "main")
    others = [Writer(memory, f"other{number}") for number in range(1, threads)]

    mine.begin()

    def go_on(writer: Writer) -> None:
        while not over.is_set():
            writer.guarded(writer.add)
            time.sleep(0.001)

    running = [threading.Thread(target=go_on, args=(writer,), daemon=True) for writer in others]
    if moment == "at random":
        sending = threading.Thread(target=at_random, args=(wanted, interrupts, chance), daemon=True)
        running.append(sending)
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
    faulthandler.dump_traceback_later(25)  # what each thread waits for
    memory.flush(30)  # background work goes on, too
    faulthandler.cancel_dump_traceback_later()
    told = [writer.told() for writer in (mine, *others)]
    memory.close()
    print(json.dumps({"raised": interrupts.raised, "writers": told}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
