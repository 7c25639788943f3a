"""Runs async calls about the same subject in the order in which they were made.

Awaited work runs in threads, which may finish in any order. If a caller gathers several writes to one key, the last one
must win, as it does in a single task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, TypeVar

__all__ = ["Order"]


T = TypeVar("T")


class Order:
    """The order of calls in an event loop, by their subjects."""

    def __init__(self) -> None:
        self._pending: dict[tuple[asyncio.AbstractEventLoop, Hashable], list[asyncio.Future[None]]] = {}

    async def run_in_order(
        self, subjects: Iterable[Hashable], work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Run work after every earlier call about one of the subjects. Later calls wait for this one.

        A caller that is cancelled while it waits does nothing. Work that has begun continues without its caller, as its
        thread does, and later calls wait for its end: a timeout must not let an old value replace a new one.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        names = [(loop, subject) for subject in dict.fromkeys(subjects)]
        waited_for = {one for name in names for one in self._pending.get(name, ())}
        for name in names:
            self._pending.setdefault(name, []).append(done)

        def leave(_: object = None) -> None:
            done.set_result(None)
            for name in names:
                self._pending[name].remove(done)
                if not self._pending[name]:
                    del self._pending[name]

        try:
            if waited_for:
                await asyncio.wait(waited_for)
        except BaseException:
            leave()
            raise
        begun = asyncio.ensure_future(work())
        begun.add_done_callback(leave)
        return await asyncio.shield(begun)
