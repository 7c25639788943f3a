"""Collects async calls: what is called in one tick of an event loop, or while a batch runs, is one batch.

A batch is one transaction, so many calls that are awaited together cost little more than one. Batches run one after
the other. If a caller gathers several writes to one key, the last one wins, as it does in a single task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Batches"]

T = TypeVar("T")
R = TypeVar("R")

_MOST = 512
"""Most calls in one batch: other writers wait for its transaction."""

_Call = tuple[Sequence[T], "asyncio.Future[list[R]]"]


class Batches(Generic[T, R]):
    """Does the operations of many calls together, for any number of event loops.

    Args:
        work: Does operations: all of them, or none if it raises. Returns their results.
    """

    def __init__(self, work: Callable[[list[T]], Coroutine[Any, Any, list[R]]]) -> None:
        self._work = work
        self._calls: dict[asyncio.AbstractEventLoop, list[_Call[T, R]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop itself keeps none of its tasks

    async def run(self, ops: Sequence[T]) -> list[R]:
        """Do the operations of one call in the next batch, after those of earlier calls. Returns their results.

        A call that is cancelled while it waits does nothing. A batch that has begun continues without its callers, as
        its thread does, and later calls wait for its end: a timeout must not let an old value replace a new one.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[R]] = loop.create_future()
        calls = self._calls.setdefault(loop, [])
        calls.append((ops, done))
        if len(calls) == 1:
            task = loop.create_task(self._run_all(loop, calls))
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._end(loop, calls, task))
        return await done

    async def _run_all(self, loop: asyncio.AbstractEventLoop, calls: list[_Call[T, R]]) -> None:
        while calls:
            batch = calls[:_MOST]
            await self._run_batch(batch)
            del calls[: len(batch)]
        del self._calls[loop]

    async def _run_batch(self, batch: list[_Call[T, R]]) -> None:
        """Do a batch. If it fails, do its halves, so that a call fails by its own fault alone."""
        batch = [(ops, done) for ops, done in batch if not done.done()]
        if not batch:
            return
        try:
            results = await self._work([op for ops, _ in batch for op in ops])
        except Exception as problem:  # noqa: BLE001  (the callers get it)
            if len(batch) > 1 and not getattr(problem, "retryable", False):
                half = len(batch) // 2
                await self._run_batch(batch[:half])
                await self._run_batch(batch[half:])
                return
            for _, done in batch:
                if not done.done():
                    done.set_exception(problem)
            return
        start = 0
        for ops, done in batch:
            if not done.done():
                done.set_result(results[start : start + len(ops)])
            start += len(ops)

    def _end(
        self, loop: asyncio.AbstractEventLoop, calls: list[_Call[T, R]], task: asyncio.Task[None]
    ) -> None:
        """Clean up after a task. If the task was cancelled, its callers are, too."""
        self._tasks.discard(task)
        if self._calls.get(loop) is calls:
            del self._calls[loop]
        for _, done in calls:
            done.cancel()
