"""One flow is run in two ways; `Threads` run it in one hop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.errors import StoreClosedError
from memlayer_core.runtime import ASYNC, SYNC, Runner, Threads, step

asked = contextvars.ContextVar("asked", default="nobody")


def run(runner: Runner, flow: Callable[[Runner], Any]) -> Any:
    if runner is SYNC:
        return step(flow(runner))
    threads = Threads(2)
    try:
        return asyncio.run(threads.read(flow(runner)))
    finally:
        threads.close()


def test_a_blocking_flow_that_suspends_is_an_error_and_no_silence() -> None:
    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        step(flow())


# One hop


@pytest.fixture
def threads() -> Iterator[Threads]:
    one = Threads(1)
    yield one
    one.close()


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the functions that were handed to threads."""
    handed: list[str] = []
    submit = ThreadPoolExecutor.submit

    def counting(executor: ThreadPoolExecutor, work: Any, *args: Any, **kwargs: Any) -> Any:
        handed.append(getattr(work, "__qualname__", repr(work)))
        return submit(executor, work, *args, **kwargs)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counting)
    return handed


async def test_a_flow_of_many_steps_is_one_hop_and_all_of_them_are_done_in_one_thread(threads, hops) -> None:
    async def inner() -> str:
        return await threads.read(flow(1))

    async def flow(depth: int) -> str:
        seen = {await ASYNC(threading.get_ident) for _ in range(5)}
        assert seen == {threading.get_ident()}
        return "done" if depth else await ASYNC.verb(str, inner)

    assert await threads.read(flow(0)) == "done"
    assert len(hops) == 1


async def test_an_async_method_of_others_is_awaited_in_the_callers_loop_and_sees_what_the_flow_set(
    threads, hops
) -> None:
    here = threading.get_ident()

    async def embed(text: str) -> tuple[str, str]:
        assert threading.get_ident() == here
        await asyncio.sleep(0)
        return text, asked.get()

    async def flow() -> tuple[str, str]:
        asked.set("louis")
        before = await ASYNC(threading.get_ident)
        answer = await ASYNC.either(len, embed, "pears")
        assert before != here != await ASYNC(threading.get_ident)
        return answer

    assert await threads.read(flow()) == ("pears", "louis")
    assert len(hops) == 2
    assert asked.get() == "nobody"


async def test_an_error_of_an_awaited_method_can_be_handled_by_the_flow(threads) -> None:
    async def embed() -> None:
        raise ValueError("late")

    async def flow() -> str:
        try:
            await ASYNC.either(str, embed)
        except ValueError as problem:
            return await ASYNC(str, problem)
        return "no error"

    assert await threads.read(flow()) == "late"


async def test_a_flow_that_awaits_besides_its_runner_is_an_error(threads) -> None:
    with pytest.raises(RuntimeError, match="besides its runner"):
        await threads.read(asyncio.sleep(0))


async def test_a_cancelled_flow_ends_at_its_next_step_and_the_step_that_has_begun_is_done(threads) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    steps: list[str] = []

    def slow() -> None:
        begun.set()
        go_on.wait(10)
        steps.append("done")

    async def flow() -> None:
        try:
            await ASYNC(slow)
            await ASYNC(steps.append, "never")
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise
        finally:
            ended.set()

    task = asyncio.create_task(threads.write(flow()))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert steps == ["done", "cancelled"]


async def test_a_flow_that_is_cancelled_before_it_begins_never_begins(threads) -> None:
    go_on, steps = threading.Event(), []

    async def flow(name: str) -> None:
        await ASYNC(go_on.wait, 10)
        steps.append(name)

    first, second = (asyncio.create_task(threads.write(flow(name))) for name in ("first", "second"))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first
    await threads.write(flow("third"))
    assert steps == ["first", "third"]


async def test_a_flow_cancelled_while_it_awaits_others_is_told_so(threads) -> None:
    waits, told = asyncio.Event(), []

    async def embed() -> None:
        waits.set()
        await asyncio.Event().wait()

    async def flow() -> None:
        try:
            await ASYNC.either(str, embed)
        except asyncio.CancelledError:
            told.append(await ASYNC(lambda: "cleaned"))
            raise

    task = asyncio.create_task(threads.read(flow()))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cleaned"]


# A memory's threads


@asynccontextmanager
async def locked(path: Any) -> AsyncIterator[None]:
    """Hold the lock for writing of a directory's journal."""
    other = sqlite3.connect(path / "journal.sqlite3", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_writers_that_wait_for_a_lock_hold_up_neither_readers_nor_the_applications_threads(
    open_at, tmp_path
) -> None:
    memory = await asyncio.to_thread(open_at, settings=Tuned(async_threads=2, index_delay=60))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    chat = memory.chat(user_id="ada", session_id="s")
    await chat.aadd("user", "I like pears.")
    async with locked(tmp_path / "memory"):
        waiting = [asyncio.create_task(chat.aadd("user", f"And {number}.")) for number in range(5)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):  # else the test waits for the lock, too
            for _ in range(3):
                assert (await chat.acontext("")).window[0].text == "I like pears."
        assert await asyncio.to_thread(str, "free") == "free"
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert len(await chat.ahistory()) == 6
    await memory.aclose()


async def test_a_memory_that_closes_ends_its_threads(open_at) -> None:
    memory = await asyncio.to_thread(open_at)
    await memory.chat(user_id="ada").aadd("user", "hello")
    ours = [
        one for one in threading.enumerate() if one.name.startswith(("memlayer-writing", "memlayer-reader"))
    ]
    assert ours
    threads = memory.runtime.threads
    await memory.aclose()
    assert not any(one.is_alive() for one in ours)
    with pytest.raises(StoreClosedError):
        await threads.read(ASYNC(str))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_async_verbs_of_a_memory_survive_a_fork(open_at) -> None:
    memory: Memory = open_at()
    chat = memory.chat(user_id="ada", session_id="s")
    asyncio.run(chat.aadd("user", "from the parent"))
    child = os.fork()
    if child == 0:
        asyncio.run(chat.aadd("user", "from the child"))
        os._exit(0 if len(asyncio.run(chat.ahistory())) == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [message.text for message in asyncio.run(chat.ahistory())] == ["from the parent", "from the child"]


async def test_a_flow_that_is_cancelled_while_it_waits_for_a_thread_takes_back_what_it_set() -> None:
    """A span is current in its flow alone: it must be ended in the flow's own context."""
    threads, free, ended = Threads(1), threading.Event(), []
    current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="")

    async def answer() -> None:
        busy.append(asyncio.create_task(threads.read(wait())))  # it takes the only thread
        await asyncio.sleep(0.1)

    async def wait() -> None:
        await ASYNC(free.wait, 30)

    async def flow() -> None:
        token = current.set("flow")
        try:
            await ASYNC.either(int, answer)
        finally:
            current.reset(token)  # a `ValueError` in another context
            ended.append(current.get())

    busy: list[asyncio.Task[None]] = []
    task = asyncio.create_task(threads.read(flow()))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free.set()
    await asyncio.gather(*busy)
    assert ended == [""]
    await asyncio.to_thread(threads.close)
