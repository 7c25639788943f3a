"""Waits for background work, and shows how much is left where somebody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memlayer_core.errors import FlushTimeoutError
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import Backlog, JobKind
from memlayer_core.worker.bell import Bell

__all__ = ["wait_until_done"]

_PATIENCE = 60.0  # seconds without any progress before the waiting ends
_SHOWN_AFTER = 1.0  # seconds after which a progress bar appears
_LOOK = 0.05  # seconds between two looks


def wait_until_done(
    rt: Runtime,
    timeout: float | None,
    *,
    has_notes: Callable[[], bool],
    ring: Callable[[], None],
    last_error: Callable[[], str | None],
    pause: Bell,
) -> Backlog:
    """Wait until no job is queued. Returns the backlog.

    Args:
        rt: What the memory works with.
        timeout: Seconds to wait at the most; None: as long as the number of jobs goes down.
        has_notes: Tells whether the worker has notes that become jobs.
        ring: Wakes the worker.
        last_error: Returns the worker's last error.
        pause: The worker rings it after each batch.

    Raises:
        FlushTimeoutError: Jobs are left after that time, or nothing progressed for a minute.
        StoreUnavailableError: The store was removed while it was open.
    """
    others: list[JobKind] = []  # another process has the model, or the service
    others += ["summarize", "episode"] if rt.summarizer is None else []
    others += ["learn"] if rt.extractor is None else []
    others += ["record"] if rt.long_term is None else []
    patience = _PATIENCE if timeout is None else timeout
    deadline = time.monotonic() + patience
    fewest: int | None = None
    with _progress() as show:
        while True:
            noted = has_notes()  # read first: notes that become jobs now are in the backlog
            backlog = rt.db.read(job_queue.backlog, others)
            if not noted and not backlog.queued:
                return backlog
            if timeout is None and (fewest is None or backlog.queued < fewest):
                fewest, deadline = backlog.queued, time.monotonic() + patience
            left = deadline - time.monotonic()
            if left <= 0:
                raise _timeout_error(rt, backlog, patience, last_error(), in_all=timeout is not None)
            show(backlog.queued)
            rt.db.check_file()
            now = rt.now()
            if not rt.db.read(job_queue.is_hurried, now):
                rt.db.write(job_queue.hurry, now)
            ring()
            pause.wait(min(left, _LOOK))


def _timeout_error(
    rt: Runtime, backlog: Backlog, seconds: float, last_error: str | None, *, in_all: bool
) -> FlushTimeoutError:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in rt.db.read(job_queue.count_kinds).items())
    waits = f" ({kinds})" if kinds else ""
    when = f"after {seconds:g} seconds" if in_all else f"and none was done for {seconds:g} seconds"
    cause = f"; the last failure was: {last_error}" if last_error else ""
    return FlushTimeoutError(
        f"{backlog.queued:,} job(s) are left{waits} {when}{cause}",
        hint="The work goes on in the background. `memory.status()` shows its problems.",
    )


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many jobs are left, on a terminal or in a notebook."""
    watched = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if not watched:
        yield lambda _: None
        return
    from tqdm import tqdm  # only where somebody looks

    with tqdm(desc="memlayer: background jobs", delay=_SHOWN_AFTER, unit="job", leave=False) as bar:

        def show(queued: int) -> None:
            bar.total = max(bar.total or 0, bar.n, queued)
            bar.update(bar.total - queued - bar.n)

        yield show
