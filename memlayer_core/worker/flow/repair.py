"""Checks a store, and repairs what does not agree in it."""

from __future__ import annotations

from memlayer_core.events import WordsRepaired
from memlayer_core.index.flow import adopt, rebuild
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue, texts, vectors

__all__ = ["reindex", "retry_dead", "verify"]


async def verify(rt: Runtime, run: Runner) -> list[str]:
    """Check the journal, and compare both indexes with it. Returns what was repaired."""
    await run(rt.db.check_file)
    repaired = []
    mended = await run(rt.db.write, texts.repair_words)
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
