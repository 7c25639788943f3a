"""Counts what a turn costs: SQL statements, transactions that write, hops to threads."""

import statistics
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.storage.sqlite import Writer

__all__ = ["Costs", "Meter", "memory_with_history", "meter"]

_ROW = "INSERT INTO memlayer_words"
_WORKER = "memlayer-worker"
_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_FACTS = "pears", "plums", "boats", "trains", "cats", "dogs", "tulips", "roses", "chess", "poker"


@dataclass(frozen=True)
class Costs:
    """The medians of some turns.

    Attributes:
        statements: SQL statements, without the worker's.
        writes: Transactions that write, without the worker's.
        hops: Calls that are handed to threads of memlayer.
    """

    statements: float
    writes: float
    hops: float


class Meter:
    """Counts while it is installed. The statements of a connection are seen if it is opened after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._statements = self._writes = self._hops = 0
        self._last = ""
        self._of_worker = False  # whether the writer's thread works for the worker
        event.listen(Pool, "connect", self._watch)
        write, submit = Writer.run, ThreadPoolExecutor.submit

        def counting(writer: Writer, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            of_worker = threading.current_thread().name == _WORKER
            self._writes += not of_worker

            def marked(connection: Any) -> Any:
                self._of_worker = of_worker
                try:
                    return work(connection, *args, **kwargs)
                finally:
                    self._of_worker = False

            return write(writer, marked)

        def hop(executor: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> Any:
            self._hops += executor._thread_name_prefix.startswith("memlayer-")
            return submit(executor, *args, **kwargs)

        monkeypatch.setattr(Writer, "run", counting)
        monkeypatch.setattr(ThreadPoolExecutor, "submit", hop)

    def close(self) -> None:
        """Watch no new connection."""
        event.remove(Pool, "connect", self._watch)

    def turns(self, turn: Callable[[str], Any], count: int = 5) -> Costs:
        """Return what turns cost, after two that are not counted."""
        costs = [self._turn(turn, question) for question in _questions(count + 2)]
        return _medians(costs[2:])

    async def aturns(self, turn: Callable[[str], Awaitable[Any]], count: int = 5) -> Costs:
        """Return what async turns cost, after two that are not counted."""
        costs = []
        for question in _questions(count + 2):
            before = self._taken()
            await turn(question)
            costs.append(self._since(before))
        return _medians(costs[2:])

    def _turn(self, turn: Callable[[str], Any], question: str) -> Costs:
        before = self._taken()
        turn(question)
        return self._since(before)

    def _taken(self) -> tuple[int, int, int]:
        return self._statements, self._writes, self._hops

    def _since(self, before: tuple[int, int, int]) -> Costs:
        return Costs(*(now - then for now, then in zip(self._taken(), before, strict=True)))

    def _watch(self, connection: Any, _: object) -> None:
        if hasattr(connection, "set_trace_callback"):
            connection.set_trace_callback(self._note)

    def _note(self, statement: str) -> None:
        ours = not self._of_worker and threading.current_thread().name != _WORKER
        again = statement.startswith(_ROW) and self._last.startswith(_ROW)  # a further row of the same one
        # SQLite's own begin with "--".
        self._statements += ours and not again and statement.startswith(_VERBS)
        self._last = statement


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    """Install a meter. A memory must be opened after that."""
    one = Meter(monkeypatch)
    yield one
    one.close()


def memory_with_history(path: Path) -> Memory:
    """Open a memory in which Ada has spoken of ten things in another session. Its worker rests."""
    settings = Tuned(index_delay=86_400)
    memory = Memory.open(path, embedder="hashing", tokenizer="estimate", settings=settings)
    chat = memory.chat(user_id="ada", session_id="in-may")
    chat.add_messages(
        Message(role, f"I think that {fact} are fine, number {place}.")
        for place, fact in enumerate(_FACTS)
        for role in ("user", "assistant")
    )
    memory.flush()
    return memory


def _questions(count: int) -> list[str]:
    return [f"What do I think of {_FACTS[place % len(_FACTS)]} today?" for place in range(count)]


def _medians(costs: list[Costs]) -> Costs:
    names = "statements", "writes", "hops"
    return Costs(*(statistics.median(getattr(one, name) for one in costs) for name in names))
