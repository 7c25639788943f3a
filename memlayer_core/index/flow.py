"""Embeds messages in batches, finds the nearest vectors in one scope, and builds the index again from stored vectors."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from memlayer_core import errors, seams
from memlayer_core.events import IndexRebuilt, MessagesIndexed
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Reach
from memlayer_core.seams import FloatVector, IndexEntry, Neighbour, SimilarityScale
from memlayer_core.settings import Constants
from memlayer_core.storage import jobs as storage_jobs, outbox, texts as texts_sql, vectors as storage_vectors
from memlayer_core.storage.database import Connection
from memlayer_core.storage.terms import language_of, passages

# Measures the scale of an embedder's cosines: what unrelated texts get, and what a question and its answer get.
#
# `calibration.json` has twelve sentences in each of eight languages, and a question for each of them in other words; and small
# talk and tasks that say all that an answer needs. An embedder that reads one language has another scale for it than for the
# rest: MiniLM's unrelated texts have a cosine of 0.04 in English and of 0.33 to 0.66 in other languages. Those of embedders
# that read many languages differ by 0.03.

_UNITS = 5
"""Units that lie at most between the mean of unrelated texts and that of answers: with MiniLM and English, as many as there are
standard deviations of unrelated texts, nearly."""

_TAIL = 1.15
"""Standard deviations of unrelated texts in a unit: more of them are far from their mean than on a normal curve."""

_ALIKE = 1e-3  # standard deviation of all cosines below which an embedder gives all of the texts one vector


@cache
def _calibration() -> Mapping[str, Any]:
    text = (resources.files("memlayer_core.index") / "calibration.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def calibration_texts(*, of_scales: bool = True) -> list[str]:
    """Return the texts whose vectors `samples_from` needs and, if `of_scales`, `scales_from`."""
    known = _calibration()
    pairs = known["answers"] if of_scales else {"en": known["answers"]["en"]}
    return [*(text for some in pairs.values() for pair in some for text in pair), *known["self_contained"]]


def samples_from(vectors: Sequence[FloatVector]) -> storage_vectors.Samples:
    """Return the samples, of the vectors of `calibration_texts`: English comes first, with its questions behind the answers."""
    known = _calibration()
    asking, rest = 2 * len(known["answers"]["en"]), len(known["self_contained"])
    return storage_vectors.Samples(np.stack(vectors[1:asking:2]), np.stack(vectors[-rest:]))


def scales_from(vectors: Sequence[FloatVector]) -> dict[str, SimilarityScale]:
    """Return the scales by language, and under `OTHER_LANGUAGES` that of the language which the embedder reads best.

    Args:
        vectors: Those of `calibration_texts`, in their order.
    """
    rest, cosines = iter(vectors), list[FloatVector]()
    scales, distances = dict[str, SimilarityScale](), dict[str, float]()
    for language, pairs in _calibration()["answers"].items():
        some = np.stack([next(rest) for pair in pairs for _ in pair])
        cosines.append(near := some[1::2] @ some[::2].T)
        own = np.eye(len(near), dtype=bool)
        mean, answers = float(near[~own].mean()), float(near[own].mean())
        deviation = max(_TAIL * float(near[~own].std()), (answers - mean) / _UNITS, 1e-3)
        scales[language] = SimilarityScale(mean, deviation)
        distances[language] = (answers - mean) / deviation
    if np.std(cosines) < _ALIKE:
        return {seams.OTHER_LANGUAGES: SimilarityScale()}  # these texts do not show what its vectors say
    return {**scales, seams.OTHER_LANGUAGES: scales[max(distances, key=distances.__getitem__)]}


# Finds the nearest vectors in one scope: in the index, or by an exact comparison.

_UNTOLD = 1000  # texts that are compared one by one, since their collection does not have them yet; with more, all are


def index_pays(rt: Runtime, overview: storage_vectors.ScopeStatistics) -> bool:
    """Return whether to ask the index: it is slower for few vectors, and another process may hold it."""
    return rt.index is not None and rt.index.is_held and overview.vectors > rt.settings.exact_scan_limit


def nearest(
    rt: Runtime, reach: Reach, vector: FloatVector, overview: storage_vectors.ScopeStatistics, limit: int
) -> list[Neighbour]:
    """Return the nearest vectors of the index and of texts that it lacks yet.

    By an exact comparison if the index does not pay, or cannot answer.
    """
    found = _found_by_index(rt, reach, vector, overview, limit) if index_pays(rt, overview) else None
    return rt.db.read(compare, rt, reach, vector, limit) if found is None else found


def _found_by_index(
    rt: Runtime, reach: Reach, vector: FloatVector, overview: storage_vectors.ScopeStatistics, limit: int
) -> list[Neighbour] | None:
    assert rt.index is not None  # it pays
    state = rt.db.read(outbox.search_state, reach, overview.shard, _UNTOLD)
    if state is None:
        return None
    names, untold = state
    is_alone = reach.bucket == reach.user_bucket and overview.shard >= rt.shards
    try:
        near = rt.index.nearest(overview.shard, None if is_alone else reach.bucket, vector, limit, names)
    except (errors.IndexUnavailableError, errors.IndexCorruptError) as problem:
        rt.health.down("index", str(problem))
        if isinstance(problem, errors.IndexCorruptError):
            rt.db.write(outbox.condemn, overview.shard, rt.now())
            rt.wake()
        return None
    if near is None:
        rt.db.write(outbox.check, rt.now())
        rt.wake()
        return None
    rt.health.up("index")
    newer = rt.db.read(storage_vectors.columns_of, untold).nearest(vector, limit) if untold else []
    every = {one.key: one for one in [*near, *newer]}.values()
    return sorted(every, key=lambda one: -one.similarity)[:limit]


def compare(
    connection: Connection, rt: Runtime, reach: Reach, vector: FloatVector, limit: int
) -> list[Neighbour]:
    """Return the nearest vectors by an exact comparison."""
    overview = storage_vectors.overview(connection, reach)
    return rt.vectors.columns(connection, reach, overview).nearest(vector, limit)


# Embeds messages in batches, in the background, and copies vectors to the index.
#
# Every step can be repeated with the same result: if a worker dies, its lease ends, and the next worker repeats the
# step. Vectors are committed before Chroma is called, so that no text is embedded twice.


def index(rt: Runtime, jobs: Sequence[storage_jobs.Job]) -> None:
    """Do jobs of kind `"index"`.

    Raises:
        RedactorError: The user's redactor fails. The jobs are tried again.
    """
    keys = [job.subject for job in jobs]
    messages, embedded = embed(rt, keys)
    if wordless := rt.db.read(texts_sql.without_words, keys):
        rt.db.write(texts_sql.add_words, wordless, rt.own_words)
    if messages:
        # First, so that the caller of `flush` gets the event.
        rt.emit(MessagesIndexed(messages=messages, embedded=embedded))
    rt.db.write(storage_jobs.finish, jobs)


def embed(rt: Runtime, keys: Sequence[int]) -> tuple[int, int]:
    """Embed the texts that have no vector, the long ones in passages, and store the vectors.

    Returns:
        How many of the texts have vectors now, and how many texts or passages were embedded.
    """
    tasks = rt.db.read(storage_vectors.index_tasks, keys)
    new = [one for task in tasks if not task.vectors and (one := _as_remembered(rt, task)).text.strip()]
    made: dict[str, FloatVector] = {}
    for some in _batches(rt, new):
        every = dict.fromkeys(passage for one in some for passage in passages(one.text))
        made |= _embed_texts(rt, [passage for passage in every if passage not in made])
        rt.db.write(storage_vectors.store, [_entry_of(one, made) for one in some], rt.now())
    return len(new) + sum(bool(task.vectors) for task in tasks), len(made)


def _embed_texts(rt: Runtime, texts: Sequence[str]) -> dict[str, FloatVector]:
    """Return the vector of each text. The store learns which embedder it has when the first vectors are made."""
    if not texts:
        return {}
    with rt.health.watch("embedder", rt.settings.embedder_timeout):
        vectors = rt.embedder.embed(texts)
    rt.health.up("embedder")
    layout = rt.db.read(storage_vectors.layout)
    if layout.dimension is None:
        scales = layout.scales if layout.embedder == rt.embedder.identity else None
        # If there are none, it is the user's own embedder. Hashed vectors do not tell small talk from questions.
        is_needed = not scales or not rt.embeds_at_once
        measured = rt.embedder.embed(calibration_texts(of_scales=not scales)) if is_needed else []
        samples = None if rt.embeds_at_once else samples_from(measured)
        of = rt.embedder.identity, len(vectors[0]), scales or scales_from(measured), samples
        layout = rt.db.write(storage_vectors.set_embedder, *of)
    check_embedder(layout, rt.embedder.identity, len(vectors[0]))
    return dict(zip(texts, vectors, strict=True))


def _batches(rt: Runtime, tasks: Sequence[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield tasks so that an embedder gets about as many texts at once as there are messages in a batch."""
    some, size = list[IndexEntry](), 0
    for task in tasks:
        if some and size >= rt.settings.index_batch:
            yield some
            some, size = [], 0
        some.append(task)
        size += len(passages(task.text))
    if some:
        yield some


def copy(rt: Runtime, job: storage_jobs.Job, is_stopped: Callable[[], bool]) -> None:
    """Do a job of kind `"copy"`: copy the texts that are marked by now to the index, batch by batch.

    Collections whose deleted vectors are to leave Chroma's files are filled again. A server erases its files itself.

    Args:
        rt: What the memory works with.
        job: The job.
        is_stopped: Returns whether to stop; the job then stays to be done.

    Raises:
        IndexUnavailableError: It cannot be reached.
        IndexCorruptError: A collection is damaged; the next try fills it again.
    """
    index = rt.index
    assert index is not None
    if _waits(rt, job):
        return
    agree(rt)
    if not index.exclusive:
        rt.db.write(outbox.leave)
    elif stale := rt.db.read(outbox.stale):
        _refill(rt, stale)
    few = rt.settings.exact_scan_limit or Constants.exact_scan_limit
    rt.db.write(outbox.separate, few, rt.shards, index.capacity, rt.now())
    which = index.batch, _made_for(rt), rt.db.read(outbox.newest)  # others may write all the time
    while batch := rt.db.write(outbox.begin_batch, job, _lease_end(rt), *which):
        try:
            index.write(batch)
        except errors.IndexCorruptError:
            rt.db.write(outbox.condemn, batch.shard, rt.now())
            raise
        if not rt.db.write(outbox.end_batch, job, batch, _lease_end(rt)) or is_stopped():
            return
    rt.health.up("index")
    rt.db.write(outbox.give_back, job)


def audit(rt: Runtime, job: storage_jobs.Job) -> IndexRebuilt | None:
    """Do a job of kind `"audit"`: compare the index with the journal, or build all of it again. Returns what is filled again."""
    if _waits(rt, job):
        return None
    rebuilt = _reindex(rt) if job.subject else agree(rt, is_thorough=True)
    rt.db.write(outbox.give_back, job)
    return rebuilt


def _waits(rt: Runtime, job: storage_jobs.Job) -> bool:
    """Put a job off if another process writes to the index."""
    if rt.db.write(outbox.take, job, rt.now(), _lease_end(rt)):
        return False
    later = rt.now() + timedelta(seconds=rt.settings.job_backoff)
    rt.db.write(storage_jobs.fail, [job], "another process writes to the index", later, count_attempt=False)
    return True


def agree(rt: Runtime, *, is_thorough: bool = False) -> IndexRebuilt | None:
    """Drop the collections that are not those that the journal knows, and mark their texts. Returns what was dropped.

    Args:
        rt: What the memory works with. No other process writes to the index meanwhile.
        is_thorough: Whether the numbers of their vectors are compared, too.
    """
    every, vectors = set[int](), 0
    while wrong := _wrong(rt, is_thorough=is_thorough) - every:  # where one is damaged, a directory drops all
        every |= wrong
        vectors += _refill(rt, wrong)
    return _tell_rebuilt(rt, every, vectors, "it was not what the journal knows") if every else None


def _wrong(rt: Runtime, *, is_thorough: bool) -> set[int]:
    assert rt.index is not None
    known = rt.db.read(outbox.batches)
    held = rt.index.batches(known, _made_for(rt))
    wrong = {shard for shard, names in known.items() if held.get(shard, "") not in names}
    if is_thorough:
        sizes = rt.db.read(outbox.sizes)
        there = rt.index.sizes(sizes.keys() - wrong)
        wrong |= {shard for shard, number in there.items() if number != sizes[shard]}
    return wrong


def _reindex(rt: Runtime) -> IndexRebuilt:
    """Empty all collections, and mark all texts."""
    shards = rt.db.read(outbox.batches)
    return _tell_rebuilt(rt, shards, _refill(rt, shards), "it was asked for")


def _tell_rebuilt(rt: Runtime, shards: Collection[int], vectors: int, reason: str) -> IndexRebuilt:
    event = IndexRebuilt(tuple(sorted(shards)), vectors, reason)
    rt.emit(event)
    return event


def _refill(rt: Runtime, shards: Collection[int]) -> int:
    assert rt.index is not None
    rt.index.erase(shards)
    return rt.db.write(outbox.refill, shards, rt.now())


def _made_for(rt: Runtime) -> tuple[str, int]:
    layout = rt.db.read(storage_vectors.layout)
    return layout.embedder or "", layout.dimension or 0


def _lease_end(rt: Runtime) -> datetime:
    return rt.now() + timedelta(seconds=rt.settings.lease_seconds)


def check_embedder(layout: storage_vectors.Layout, identity: str, dimension: int | None = None) -> None:
    """Refuse an embedder other than the one that made the store's vectors, or one of another dimension.

    Raises:
        EmbedderMismatchError: They differ; vectors of two models cannot be compared.
    """
    if layout.dimension is not None and layout.embedder != identity:
        raise errors.EmbedderMismatchError(
            f"the store's vectors come from the embedder {layout.embedder!r}, not from {identity!r}",
            hint=(
                f"Open the store with the embedder {layout.embedder!r}, or embed everything again: "
                "`memlayer reindex DIR --embedder NAME`, or `Memory.reembed(…, embedder=…)`."
            ),
        )
    if dimension is not None and layout.dimension != dimension:
        raise errors.EmbedderMismatchError(
            f"the store's vectors have {layout.dimension} dimensions, and those of the embedder {identity!r} {dimension}",
            hint="It is another embedder under the same name: give it a name of its own (an `identity`), or open the store "
            "with the embedder that made its vectors, or embed everything again: `Memory.reembed(…, embedder=…)`.",
        )


def _as_remembered(rt: Runtime, task: IndexEntry) -> IndexEntry:
    """Return a task with the text to embed: its beginning, as it may be remembered."""
    return replace(task, text=rt.own_words(task.buckets[0][1:], task.text[: rt.settings.indexed_characters]))


def _entry_of(task: IndexEntry, vectors: dict[str, FloatVector]) -> IndexEntry:
    parts = tuple(vectors[passage] for passage in passages(task.text))
    return replace(task, vectors=parts, language=language_of(task.text))
