"""One flow is driven in two ways, and two halves of it at the same time."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from memlayer_core.runner import ASYNC, SYNC, Runner, step

asked = contextvars.ContextVar("asked", default="nobody")


def run(runner: Runner, flow: Callable[[Runner], Any]) -> Any:
    return step(flow(runner)) if runner is SYNC else asyncio.run(flow(runner))


@pytest.fixture(params=[SYNC, ASYNC], ids=["blocking", "awaiting"])
def runner(request: pytest.FixtureRequest) -> Runner:
    return request.param


def test_two_things_are_done_at_the_same_time(runner: Runner) -> None:
    both_here = threading.Barrier(2, timeout=10)  # passed only if both are on their way

    async def half(runner: Runner, name: str) -> str:
        await runner(both_here.wait)
        return name

    async def flow(runner: Runner) -> tuple[str, str]:
        return await runner.both(half(runner, "one"), half(runner, "other"))

    assert run(runner, flow) == ("one", "other")


def test_both_halves_see_what_the_caller_set(runner: Runner) -> None:
    async def half(runner: Runner) -> str:
        return await runner(asked.get)

    async def flow(runner: Runner) -> tuple[str, str]:
        asked.set("louis")
        return await runner.both(half(runner), half(runner))

    assert contextvars.copy_context().run(run, runner, flow) == ("louis", "louis")


@pytest.mark.parametrize("failing", ["one", "other"])
def test_an_error_of_either_half_reaches_the_caller_and_nothing_goes_on_behind_it(runner, failing) -> None:
    running = threading.Event()
    ended = threading.Event()

    async def bad(runner: Runner) -> None:
        await runner(running.wait, 10)
        raise ValueError("no")

    async def good(runner: Runner) -> None:
        running.set()
        try:
            await runner(threading.Event().wait, 0.05)
        finally:
            ended.set()

    async def flow(runner: Runner) -> None:
        halves = (bad(runner), good(runner)) if failing == "one" else (good(runner), bad(runner))
        await runner.both(*halves)

    with pytest.raises(ValueError, match="no"):
        run(runner, flow)
    assert ended.wait(10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    async def half() -> int:
        return os.getpid()

    async def flow(runner: Runner) -> tuple[int, int]:
        return await runner.both(half(), half())

    run(SYNC, flow)  # the parent's threads are there
    child = os.fork()
    if child == 0:
        os._exit(0 if run(SYNC, flow) == (os.getpid(), os.getpid()) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_blocking_flow_that_suspends_is_an_error_and_no_silence() -> None:
    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        step(flow())
