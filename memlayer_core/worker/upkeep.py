"""Flows of the worker and of maintenance: checks and repairs a store, builds the index again, erases deleted content."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from memlayer_core.errors import MemlayerError
from memlayer_core.events import WordsRepaired
from memlayer_core.index.flow import adopt, rebuild
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue, texts, vectors
from memlayer_core.storage.jobs import Job

__all__ = ["ErasureDelayError", "erase", "reindex", "retry_dead", "verify"]


async def verify(rt: Runtime, run: Runner) -> list[str]:
    """Check the journal, and compare both indexes with it. Returns what was repaired."""
    await run(rt.db.check_file)
    repaired = []
    mended = await run(rt.db.write, texts.repair_words, rt.redact)
    await run(rt.db.check)
    if mended:
        rt.emit(WordsRepaired())
        repaired.append("words")
    if await run(_holds_index, rt):
        shards = await adopt(rt, run, reason="it was verified")
        repaired += [f"collection {shard}" for shard in shards]
    return repaired


async def reindex(rt: Runtime, run: Runner) -> int:
    """Build the whole index again from the journal's vectors. Returns how many there are."""
    await run(rt.db.check_file)
    if not await run(_holds_index, rt):
        return 0
    shards = range((await run(rt.db.read, vectors.layout)).shards)
    return await rebuild(rt, run, shards, reason="it was asked for")


async def retry_dead(rt: Runtime, run: Runner) -> int:
    """Give every dead letter of the background work a new start. Returns how many there were."""
    revived = await run(rt.db.write, job_queue.revive, rt.now())
    rt.wake()
    return revived


def _holds_index(rt: Runtime) -> bool:
    return rt.index is not None and (rt.index.held or rt.index.acquire())


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
