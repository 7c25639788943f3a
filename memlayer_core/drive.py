"""Runs a flow with blocking ports, or with awaiting ones.

A flow is written once, as a coroutine, and asks its drive for everything that takes time. The blocking
drive does it on the spot, so the coroutine never suspends and one step runs it to its end, without an event
loop; only of two things at once, the other one is done by a thread. The awaiting drive does it in a worker thread, or by a model's own async method, and never
blocks the loop that it runs in.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["AWAITING", "BLOCKING", "Drive", "both", "step"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")


class Drive(Protocol):
    """How a flow gets things done."""

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work`, which touches a disk, a network or a processor for long."""
        ...

    async def ask(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do `work`, or its async twin `awork` where there is one and the caller awaits."""
        ...

    async def together(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        """Do both, at the same time where that is possible."""
        ...


class _Blocking:
    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)

    async def ask(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,  # noqa: ARG002  (the other drive's way)
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return work(*args, **kwargs)

    async def together(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        begun = _beside().submit(contextvars.copy_context().run, step, other)
        try:
            first = await one
        except BaseException:
            if begun.cancel():
                other.close()
            else:
                wait([begun])
            raise
        return first, begun.result()


class _Awaiting:
    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **kwargs)

    async def ask(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if awork is None:
            return await asyncio.to_thread(work, *args, **kwargs)
        return await awork(*args, **kwargs)

    async def together(self, one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
        second = asyncio.ensure_future(other)
        try:
            first = await one
        except BaseException:
            second.cancel()
            raise
        return first, await second


@cache
def _beside() -> ThreadPoolExecutor:
    """Return the threads that do the other of two things."""
    return ThreadPoolExecutor(thread_name_prefix="memlayer-beside")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_beside.cache_clear)  # a child has none of its parent's threads

BLOCKING: Drive = _Blocking()
AWAITING: Drive = _Awaiting()


def step(flow: Coroutine[Any, Any, T]) -> T:
    """Run a flow of blocking ports to its end.

    Raises:
        RuntimeError: A port suspended; the flow was given the wrong drive.
    """
    try:
        flow.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("a blocking flow suspended: one of its ports awaited something")


def both(
    flow: Callable[Concatenate[S, Drive, P], Coroutine[Any, Any, T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Make a verb and its async twin from one flow.

    Used in a class as `add, aadd = both(_add)`.

    Args:
        flow: A method whose first argument after `self` is the drive.

    Returns:
        The blocking method and the async one, with the flow's docstring and signature.
    """
    signature = inspect.signature(flow)
    seen = signature.replace(
        parameters=[value for name, value in signature.parameters.items() if name != "drive"]
    )
    name = flow.__name__.removeprefix("_")
    owner = flow.__qualname__.rpartition(".")[0]
    flow.__qualname__ = f"{owner}.{name}"  # an error about arguments names the public verb

    def verb(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return step(flow(self, BLOCKING, *args, **kwargs))

    async def averb(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await flow(self, AWAITING, *args, **kwargs)

    for made, called in ((verb, name), (averb, "a" + name)):
        made.__name__ = called
        made.__qualname__ = f"{owner}.{called}"
        made.__doc__, made.__module__ = flow.__doc__, flow.__module__
        made.__annotations__ = flow.__annotations__
        made.__dict__["__signature__"] = seen
    return verb, averb
