"""Flows run in threads; what a flow asks of others is awaited in the event loop, between two hops."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import errors
from memlayer_core.runtime import Asking, Threads, ask


@pytest.fixture
def threads() -> Iterator[Threads]:
    one = Threads(1)
    yield one
    one.close()


async def test_a_service_that_others_wait_for_holds_no_thread(threads) -> None:
    """There is one thread: whoever held it would let nobody else begin."""
    waiting = asyncio.Barrier(20)

    def flow() -> Asking[None]:
        yield ask(str, waiting.wait)

    async with asyncio.timeout(10):
        await asyncio.gather(*(threads.drive(flow()) for _ in range(20)))


async def ends(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_write_that_has_begun_is_done_whole_when_its_caller_is_cancelled(threads) -> None:
    begun, go_on, steps = threading.Event(), threading.Event(), []

    def flow() -> None:
        begun.set()
        go_on.wait(10)
        steps.extend(["one", "two"])

    task = asyncio.create_task(threads.write(flow))
    assert await asyncio.to_thread(begun.wait, 10)
    await ends(task)
    go_on.set()
    await threads.write(steps.append, "three")  # behind it, in the only thread
    assert steps == ["one", "two", "three"]


async def test_a_flow_that_is_cancelled_before_it_begins_never_begins(threads) -> None:
    go_on, steps = threading.Event(), []

    def flow(name: str) -> None:
        go_on.wait(10)
        steps.append(name)

    first, second = (asyncio.create_task(threads.write(flow, name)) for name in ("first", "second"))
    await asyncio.sleep(0.01)
    await ends(second)
    go_on.set()
    await first
    await threads.write(flow, "third")
    assert steps == ["first", "third"]


@pytest.mark.parametrize("where", ["in a step", "at the service", "before the next step"])
async def test_a_cancelled_flow_goes_no_further_and_takes_back_what_it_set(where) -> None:
    """A span is current in its flow alone: it must be ended in the flow's own context."""
    threads, busy, free, ended = Threads(1), threading.Event(), threading.Event(), []
    current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="")
    reached = asyncio.Event()
    others: list[asyncio.Task[Any]] = []

    def hold() -> None:
        busy.set()
        free.wait(30)

    async def answer() -> None:
        if where == "before the next step":
            others.append(asyncio.create_task(threads.read(hold)))  # it takes the only thread
            await asyncio.to_thread(busy.wait, 30)
        reached.set()
        if where == "at the service":
            await asyncio.Event().wait()

    def flow() -> Asking[None]:
        token = current.set("flow")
        try:
            if where == "in a step":
                hold()
            yield ask(int, answer)
            ended.append("went on")
        finally:
            current.reset(token)  # a `ValueError` in another context
            ended.append(current.get())

    task = asyncio.create_task(threads.drive(flow()))
    await (asyncio.to_thread(busy.wait, 30) if where == "in a step" else reached.wait())
    await asyncio.sleep(0.1)
    await ends(task)
    free.set()
    await asyncio.gather(*others)
    await asyncio.to_thread(threads.close)
    assert ended == [""]


# A memory's threads


async def test_writers_that_wait_for_a_lock_hold_up_neither_readers_nor_other_threads(open_at, tmp_path):
    memory = await asyncio.to_thread(open_at, settings=Tuned(async_threads=2, index_delay=60))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    chat = memory.chat(user_id="ada", session_id="s")
    await chat.aadd("user", "I like pears.")
    journal = tmp_path / "memory" / "journal.sqlite3"
    with closing(sqlite3.connect(journal, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.create_task(chat.aadd("user", f"And {number}.")) for number in range(5)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):  # else the test waits for the lock, too
            for _ in range(3):
                assert (await chat.acontext("")).window[0].text == "I like pears."
        assert await asyncio.to_thread(str, "free") == "free"
        assert not any(task.done() for task in waiting)
        other.execute("ROLLBACK")
    await asyncio.gather(*waiting)
    assert len(await chat.ahistory()) == 6
    await memory.aclose()


async def test_a_memory_that_closes_ends_its_threads(open_at) -> None:
    memory = await asyncio.to_thread(open_at)
    await memory.chat(user_id="ada").aadd("user", "hello")
    names = ("memlayer-writing", "memlayer-reader")
    ours = [one for one in threading.enumerate() if one.name.startswith(names)]
    assert ours
    threads = memory.runtime.threads
    await memory.aclose()
    assert not any(one.is_alive() for one in ours)
    with pytest.raises(errors.StoreClosedError):
        await threads.read(str)
