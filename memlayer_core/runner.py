"""Runs a flow: blocking, or without blocking an event loop.

A flow is written once, as a coroutine. It passes everything that takes time to its runner. `step` runs a flow with the
runner `SYNC` to its end, in the caller's thread: the coroutine never suspends. `Threads` runs a flow with the runner
`ASYNC` to its end in a thread of the memory: one hop, however many steps the flow has. Only somebody else's async
method, such as that of an embedder, is awaited in the caller's event loop, and the flow goes on in a thread after it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from memlayer_core.errors import StoreClosedError

__all__ = ["ASYNC", "SYNC", "AsyncRunner", "Runner", "SyncRunner", "Threads", "step"]

P = ParamSpec("P")
T = TypeVar("T")


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
        """Do `work`, or await its async form `awork` in the event loop if there is one and the runner is async."""
        ...

    async def verb(
        self, verb: Callable[P, T], averb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do a verb of memlayer, or await its async twin. Inside of a flow it is a part of that flow."""
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

    async def verb(
        self, verb: Callable[P, T], averb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do `verb`."""
        return verb(*args, **kwargs)


class AsyncRunner:
    """Does work in the flow's thread, and awaits other people's async methods in the event loop.

    A flow that is awaited without `Threads` is in the event loop itself. There, each piece of work has a hop of its own,
    to the event loop's threads.
    """

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a thread."""
        if _in_loop():
            return await asyncio.to_thread(work, *args, **kwargs)
        request: _Request[T] = _Request(partial(work, *args, **kwargs))
        return await request

    async def either(
        self,
        work: Callable[P, T],
        awork: Callable[P, Awaitable[T]] | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await `awork` in the event loop if there is one; otherwise do `work` in a thread."""
        if awork is None:
            return await self(work, *args, **kwargs)
        if _in_loop():
            return await awork(*args, **kwargs)
        request: _Request[T] = _Request(awork=lambda: awork(*args, **kwargs))
        return await request

    async def verb(
        self, verb: Callable[P, T], averb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Await `averb`: inside of a flow, `Threads` makes no hop."""
        return await averb(*args, **kwargs)


class Threads:
    """The threads in which a memory runs the flows of its async verbs.

    Flows that write have threads of their own: while they wait for a lock, the others go on. A thread starts with the
    first flow that needs it. A flow sees the caller's context variables. If its caller is cancelled, it ends at its next
    step; a step that has begun is done.

    Args:
        size: Flows at once of each kind: those that write, and the others.
    """

    def __init__(self, size: int) -> None:
        self._readers = ThreadPoolExecutor(size, thread_name_prefix="memlayer-reader")
        self._writers = ThreadPoolExecutor(size, thread_name_prefix="memlayer-writing")

    async def read(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow that waits for no lock, and return its result."""
        return await (_drive(self._readers, flow) if _in_loop() else flow)

    async def write(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow that writes, and return its result."""
        return await (_drive(self._writers, flow) if _in_loop() else flow)

    def close(self) -> None:
        """Wait for the flows that run, and end all threads."""
        self._readers.shutdown()
        self._writers.shutdown()


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    """What a flow wants done: work in its thread, or something to await in the event loop.

    Attributes:
        work: The work.
        awork: If it is not None, the flow waits for the result of what it returns.
    """

    work: Callable[[], T] | None = None
    awork: Callable[[], Awaitable[T]] | None = None

    async def answer(self) -> T:
        """Await it in the event loop."""
        assert self.awork is not None  # a thread does the work
        return await self.awork()

    def __await__(self) -> Generator[_Request[T], T, T]:
        """Suspend the flow until it is done."""
        return (yield self)


@dataclass(slots=True)
class _Outcome:
    """The outcome of a request, or of a whole flow."""

    value: Any = None
    problem: BaseException | None = None


@dataclass(slots=True)
class _Flow:
    """A flow on its way.

    Attributes:
        coroutine: The flow.
        stop: Whether nobody waits for it any more.
    """

    coroutine: Coroutine[Any, Any, Any]
    stop: bool = False
    context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def advance(self, outcome: _Outcome) -> _Outcome | _Request[Any]:
        """Go on after a request, to the next one for the event loop or to the end.

        Raises:
            BaseException: What the flow raised.
        """
        while True:
            if self.stop and outcome.problem is None:
                outcome = _Outcome(problem=asyncio.CancelledError())
            try:
                request = self._resume(outcome)
            except StopIteration as done:
                return _Outcome(done.value)
            if request.work is not None:
                outcome = _done(request.work)
            elif not self.stop:
                return request
            else:
                outcome = _Outcome()  # nobody answers it: the next step cancels the flow

    def _resume(self, outcome: _Outcome) -> _Request[Any]:
        if outcome.problem is None:
            request = self.coroutine.send(outcome.value)
        else:
            request = self.coroutine.throw(outcome.problem)
        if not isinstance(request, _Request):
            self.coroutine.close()
            raise RuntimeError("a flow awaited something besides its runner")  # noqa: TRY004  (as `step` does)
        return request


def _done(work: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(work())
    except BaseException as problem:  # noqa: BLE001  (the flow raises it)
        return _Outcome(problem=problem)


async def _drive(executor: Executor, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a flow in an executor's threads; await in this event loop what it cannot do there."""
    flow, outcome = _Flow(coroutine), _Outcome()
    while True:
        request = await _hop(executor, flow, outcome)
        if isinstance(request, _Outcome):
            return request.value  # type: ignore[no-any-return]
        try:
            # A task sees what the flow has set in its context.
            outcome = _Outcome(await asyncio.create_task(request.answer(), context=flow.context))
        except BaseException as problem:  # noqa: BLE001  (the flow raises it, a cancellation, too)
            outcome = _Outcome(problem=problem)


async def _hop(executor: Executor, flow: _Flow, outcome: _Outcome) -> _Outcome | _Request[Any]:
    try:
        begun = executor.submit(flow.context.run, flow.advance, outcome)
    except RuntimeError as problem:
        flow.coroutine.close()
        raise StoreClosedError(
            "this memory is closed", hint="Close a memory when nobody uses it any more."
        ) from problem
    try:
        return await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        flow.stop = True
        if begun.cancel():  # it has not begun, or waits to go on
            flow.context.run(flow.coroutine.close)  # what it has set in its context, it takes back there
        raise


def _in_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    return asyncio._get_running_loop() is not None  # noqa: SLF001  (public for event loops; the other one raises)


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
