"""The process of the first session. It plays, tells its parent what it did, and waits to be killed.

Run as `python -m memlayer_core.demo.child JSON`; answers with one JSON object a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Any

from memlayer_core.demo.cast import playing
from memlayer_core.demo.clock import MemoryOfThen
from memlayer_core.demo.script import STORY, USER
from memlayer_core.demo.turn import Stage
from memlayer_core.errors import MemlayerError

__all__ = ["Child", "FirstProcessError", "Order", "begun"]


class FirstProcessError(MemlayerError):
    """The process of the first session did not get to its end."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the first process is to do.

    Attributes:
        path: The memory's directory.
        embedder: `"minilm"` or `"hashing"`.
        framework: What to play with.
        token_limit: Tokens of a context.
        model: Name of a real model.
    """

    path: str
    embedder: str
    framework: str
    token_limit: int
    model: str | None


class Child:
    """The first process, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[str], complaints: Any) -> None:
        self._process = process
        self._complaints = complaints

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def turns(self) -> Iterator[dict[str, Any]]:
        """Yield what it tells of each turn, until its last write is durable.

        Raises:
            FirstProcessError: It failed.
        """
        assert self._process.stdout is not None  # noqa: S101  (it is piped)
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # some library prints
            if "done" in told:
                return
            if "error" in told:
                raise FirstProcessError(told["error"], hint=told["hint"])
            yield told
        self._complaints.seek(0)
        last = self._complaints.read().strip().rpartition("\n")[2]
        raise FirstProcessError(
            f"the process of the first session ended by itself: {last or 'it said nothing'}",
            hint="That is not meant to happen: please report it.",
        )

    def kill(self) -> str:
        """End it without a warning. Returns by what."""
        self._process.kill()
        code = self._process.wait(60)
        return "SIGKILL" if code < 0 else "TerminateProcess"


@contextmanager
def begun(order: Order) -> Iterator[Child]:
    """Start the first process; whatever happens, it is ended."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(order))]
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(  # noqa: S603  (our own module)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        with process:
            try:
                yield Child(process, complaints)
            finally:
                process.kill()


def _play(order: Order) -> None:
    part = STORY[0]
    memory = MemoryOfThen.opened(order.path, order.embedder)
    memory.ago = timedelta(weeks=part.weeks_ago)
    chat = memory.chat(user_id=USER, session_id=part.session_id)
    replies = tuple(reply for _, reply in part.lines)
    player = playing(order.framework).player(Stage(chat, order.token_limit, replies, order.model))
    for question, _ in part.lines:
        turn = player.ask(question)
        _tell(question=question, answer=turn.answer, note=turn.note)
    _tell(done=os.getpid())
    sys.stdin.read()  # returns when the parent is gone


def _tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        _play(Order(**json.loads(sys.argv[1])))
    except MemlayerError as problem:
        _tell(error=str(problem), hint=problem.hint)
        sys.exit(1)
