"""Runs a flow: blocking, or in an event loop.

A flow is written once, as a coroutine. It passes everything that takes time to its runner. `SYNC` does it at once, in
the caller's thread: the coroutine never suspends, and one step runs it to its end without an event loop. `ASYNC` does
it in a worker thread, or with a model's own async method, and never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, ParamSpec, Protocol, TypeVar

__all__ = ["ASYNC", "SYNC", "AsyncRunner", "Runner", "SyncRunner", "step"]

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Runner(Protocol):
    """Does the slow work of a flow, blocking or awaiting."""

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work`, which uses a disk, a network, or a processor for long."""
        ...

    async def either(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do `work`, or await its async form `awork` if there is one and the runner is async."""
        ...

    async def both(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        """Do both at the same time."""
        ...


class SyncRunner:
    """Does everything in the caller's thread."""

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work`."""
        return work(*args, **kwargs)

    async def either(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,  # for `AsyncRunner`
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do `work`."""
        return work(*args, **kwargs)

    async def both(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        """Do both: `one` in this thread, `other` in another one."""
        begun = _threads().submit(contextvars.copy_context().run, step, other)
        try:
            first = await one
        except BaseException:
            if begun.cancel():
                other.close()
            else:
                wait([begun])
            raise
        return first, begun.result()


class AsyncRunner:
    """Awaits everything: worker threads do what blocks."""

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a worker thread."""
        return await asyncio.to_thread(work, *args, **kwargs)

    async def either(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await `awork` if there is one; otherwise do `work` in a worker thread."""
        if awork is None:
            return await asyncio.to_thread(work, *args, **kwargs)
        return await awork(*args, **kwargs)

    async def both(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        """Await both at the same time."""
        second = asyncio.ensure_future(other)
        try:
            first = await one
        except BaseException:
            second.cancel()
            raise
        return first, await second


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads for the second of two things that are done at the same time."""
    return ThreadPoolExecutor(thread_name_prefix="memlayer-second")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads

SYNC: Runner = SyncRunner()
ASYNC: Runner = AsyncRunner()


def step(flow: Coroutine[Any, Any, T]) -> T:
    """Run a flow with the runner `SYNC` to its end, and return its result.

    Raises:
        RuntimeError: The flow suspended: it has the runner `ASYNC`.
    """
    try:
        flow.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("a blocking flow suspended: it awaited something besides its runner")
