"""Removes deleted content from the journal's files."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from memlayer_core.errors import MemlayerError
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.job import Job

__all__ = ["ErasureDelayError", "erase"]


class ErasureDelayError(MemlayerError):
    """An erasure cannot be finished yet, because a reader holds the journal's log."""

    retryable = True


async def erase(rt: Runtime, run: Runner, job: Job, pause: Callable[[float], bool]) -> None:
    """Do a job of kind `"erase"` in parts, so that others can read and write in between.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        job: The job.
        pause: Waits so many seconds. Returns whether to stop; the job then stays to be done.

    Raises:
        ErasureDelayError: All is done but the log, because a reader holds it.
    """
    goes_on, more = False, True
    while more:
        began = time.monotonic()
        until = rt.now() + timedelta(seconds=rt.settings.lease_seconds)
        more = await run(rt.db.write, job_queue.erase, job, until, goes_on=goes_on)
        goes_on = True
        if pause(time.monotonic() - began):  # others get as much time
            return
    if not await run(rt.db.tidy, whole=True):
        raise ErasureDelayError(
            "deleted content is still in the journal's log, because a reader holds it",
            hint="End the long transaction that reads the journal.",
        )
    rt.health.up("erasure")
    await run(rt.db.write, job_queue.finish, [job])
