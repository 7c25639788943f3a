"""Makes messages findable by meaning, in batches, in the background; and builds the index again from vectors.

Every step may be repeated: a worker that dies between two of them leaves a lease that runs out, and the next
worker does the same again with the same result. Vectors are committed before Chroma is asked, so a repeated
batch pays no model twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlayer_core.drive import Drive
from memlayer_core.errors import EmbedderMismatchError
from memlayer_core.events import Indexed, IndexRebuilt
from memlayer_core.ports import World
from memlayer_core.records.job import Job
from memlayer_core.records.session import Layout
from memlayer_core.records.vector import Filing, FloatVector, Unindexed

__all__ = ["adopt", "check_embedder", "embed", "index", "rebuild", "unindex"]

_REFILED = 100  # vectors read and written at once when a shard is built again
_FIRST = -(2**63)  # records have negative keys
_PROBES = 2  # vectors at either end of a shard that must find themselves


async def index(world: World, drive: Drive, jobs: Sequence[Job]) -> int:
    """Do jobs of kind `"index"`. Returns how many texts were embedded."""
    filings, embedded = await embed(world, drive, [job.subject for job in jobs])
    if world.index is not None:
        await drive.call(world.index.upsert, filings)
        await _take_out_what_went(world, drive, filings)
        world.health.up("index")
    await drive.call(world.journal.finish, jobs)
    if filings:
        world.tell(Indexed(messages=len(filings), embedded=embedded))
    return embedded


async def embed(world: World, drive: Drive, keys: Sequence[int]) -> tuple[list[Filing], int]:
    """Give what has no vector one, in the journal. Returns all vectors, and how many texts were embedded."""
    found = await drive.call(world.journal.unindexed, keys)
    wanted = [waiting for waiting in found if waiting.text.strip()]
    texts = list(dict.fromkeys(_text(world, waiting) for waiting in wanted if waiting.vector is None))
    made: dict[str, FloatVector] = {}
    if texts:
        vectors = await drive.ask(world.embedder.embed, world.embedder.aembed, texts)
        world.health.up("embedder")
        made = dict(zip(texts, vectors, strict=True))
        layout = await drive.call(world.journal.layout)
        if layout.dimension is None:
            layout = await drive.call(world.journal.settle, world.embedder.identity, len(vectors[0]))
        check_embedder(layout, world.embedder.identity)
    filings = [_filing(world, waiting, made) for waiting in wanted]
    if texts:
        await drive.call(world.journal.file, filings)
    return filings, len(texts)


async def unindex(world: World, drive: Drive, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"unindex"`: take deleted messages out of the index."""
    if world.index is not None:
        shards: dict[int, list[int]] = {}
        for job in jobs:
            shards.setdefault(world.journal.shard_of(job.namespace), []).append(job.subject)
        still = await drive.call(world.journal.present, [job.subject for job in jobs])
        for shard, keys in shards.items():
            await drive.call(world.index.remove, shard, [key for key in keys if key not in still])
    await drive.call(world.journal.finish, jobs)


async def adopt(world: World, drive: Drive, *, reason: str) -> list[int]:
    """Compare the index with the journal, and build again what does not agree. Returns those shards."""
    if world.index is None:
        return []
    samples = await drive.call(world.journal.samples, _PROBES)
    damaged = await drive.call(world.index.audit, samples)
    await rebuild(world, drive, damaged, reason=reason)
    return damaged


async def rebuild(world: World, drive: Drive, shards: Sequence[int], *, reason: str) -> int:
    """Build shards of the index again from the journal's vectors. No model is asked. Returns their number."""
    if world.index is None or not shards:
        return 0
    refiled = 0
    for shard in shards:
        await drive.call(world.index.reset, shard)
        after = _FIRST
        while True:
            filings = await drive.call(world.journal.filings, shard, after, _REFILED)
            if not filings:
                break
            await drive.call(world.index.upsert, filings)
            refiled += len(filings)
            after = filings[-1].key
    if refiled:
        world.tell(IndexRebuilt(tuple(shards), refiled, reason))
    world.health.up("index")
    return refiled


def check_embedder(layout: Layout, identity: str) -> None:
    """Refuse an embedder other than the one that made the store's vectors.

    Raises:
        EmbedderMismatchError: They differ; vectors of two models cannot be compared.
    """
    if layout.dimension is not None and layout.embedder != identity:
        raise EmbedderMismatchError(
            f"the store's vectors were made by {layout.embedder!r}, and the embedder given is {identity!r}",
            hint=(
                f"Open the store with the embedder {layout.embedder!r}, or embed everything again: "
                "`memlayer reindex --path DIR --embedder NAME`, or `Memory.open(…, reembed=True)`."
            ),
        )


async def _take_out_what_went(world: World, drive: Drive, filings: Sequence[Filing]) -> None:
    """Remove what was deleted while it was being indexed."""
    if world.index is None:
        return
    still = await drive.call(world.journal.present, [filing.key for filing in filings])
    for filing in filings:
        if filing.key not in still:
            await drive.call(world.index.remove, filing.shard, [filing.key])


def _text(world: World, waiting: Unindexed) -> str:
    return waiting.text[: world.settings.indexed_characters]


def _filing(world: World, waiting: Unindexed, made: dict[str, FloatVector]) -> Filing:
    vector = waiting.vector if waiting.vector is not None else made[_text(world, waiting)]
    return Filing(waiting.key, waiting.shard, waiting.lanes, vector, waiting.text_hash)
