"""One flow is driven in two ways, and two halves of it at the same time."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from memlayer_core.drive import AWAITING, BLOCKING, Drive, step

asked = contextvars.ContextVar("asked", default="nobody")


def run(drive: Drive, flow: Callable[[Drive], Any]) -> Any:
    return step(flow(drive)) if drive is BLOCKING else asyncio.run(flow(drive))


@pytest.fixture(params=[BLOCKING, AWAITING], ids=["blocking", "awaiting"])
def drive(request: pytest.FixtureRequest) -> Drive:
    return request.param


def test_two_things_are_done_at_the_same_time(drive: Drive) -> None:
    both_here = threading.Barrier(2, timeout=10)  # passed only if both are on their way

    async def half(drive: Drive, name: str) -> str:
        await drive.call(both_here.wait)
        return name

    async def flow(drive: Drive) -> tuple[str, str]:
        return await drive.together(half(drive, "one"), half(drive, "other"))

    assert run(drive, flow) == ("one", "other")


def test_both_halves_see_what_the_caller_set(drive: Drive) -> None:
    async def half(drive: Drive) -> str:
        return await drive.call(asked.get)

    async def flow(drive: Drive) -> tuple[str, str]:
        asked.set("louis")
        return await drive.together(half(drive), half(drive))

    assert contextvars.copy_context().run(run, drive, flow) == ("louis", "louis")


@pytest.mark.parametrize("failing", ["one", "other"])
def test_an_error_of_either_half_reaches_the_caller_and_nothing_goes_on_behind_it(drive, failing) -> None:
    running = threading.Event()
    ended = threading.Event()

    async def bad(drive: Drive) -> None:
        await drive.call(running.wait, 10)
        raise ValueError("no")

    async def good(drive: Drive) -> None:
        running.set()
        try:
            await drive.call(threading.Event().wait, 0.05)
        finally:
            ended.set()

    async def flow(drive: Drive) -> None:
        halves = (bad(drive), good(drive)) if failing == "one" else (good(drive), bad(drive))
        await drive.together(*halves)

    with pytest.raises(ValueError, match="no"):
        run(drive, flow)
    assert ended.wait(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    async def half() -> int:
        return os.getpid()

    async def flow(drive: Drive) -> tuple[int, int]:
        return await drive.together(half(), half())

    run(BLOCKING, flow)  # the parent's threads are there
    child = os.fork()
    if child == 0:
        os._exit(0 if run(BLOCKING, flow) == (os.getpid(), os.getpid()) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_blocking_flow_that_suspends_is_an_error_and_no_silence() -> None:
    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        step(flow())
