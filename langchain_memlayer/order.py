"""Keeps async calls that are about the same thing in the order in which they were made.

Awaited work is done by threads, and of two threads either may be the first. Whoever gathers several writes to one key
expects the last one to stay, as it does where one task does everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, TypeVar

__all__ = ["Order"]


T = TypeVar("T")


class Order:
    """Who waits for whom: calls of one event loop, by what they are about."""

    def __init__(self) -> None:
        self._before: dict[tuple[asyncio.AbstractEventLoop, Hashable], list[asyncio.Future[None]]] = {}

    async def behind(self, subjects: Iterable[Hashable], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work when every earlier call about one of these is done; those that come later wait for this one.

        A caller that is cancelled while it waits does nothing. Work that has begun goes on without its caller, for
        the thread that does it does, and others wait until that is over: a timeout must not let an old value come
        behind the new one.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        names = [(loop, subject) for subject in dict.fromkeys(subjects)]
        waited_for = {one for name in names for one in self._before.get(name, ())}
        for name in names:
            self._before.setdefault(name, []).append(done)

        def leave(_: object = None) -> None:
            done.set_result(None)
            for name in names:
                self._before[name].remove(done)
                if not self._before[name]:
                    del self._before[name]

        try:
            if waited_for:
                await asyncio.wait(waited_for)
        except BaseException:
            leave()
            raise
        begun = asyncio.ensure_future(work())
        begun.add_done_callback(leave)
        return await asyncio.shield(begun)
