"""Embeds messages in batches, finds the nearest vectors in one scope, and builds the index again from stored vectors."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from memlayer_core import seams
from memlayer_core.errors import (
    EmbedderError,
    EmbedderLoadingError,
    EmbedderMismatchError,
    IndexCorruptError,
    IndexUnavailableError,
)
from memlayer_core.events import IndexRebuilt, MessagesIndexed
from memlayer_core.runtime import Asking, Runtime, ask
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.seams import FloatVector, IndexEntry, IndexTask, Neighbour, SimilarityScale, VectorIndex
from memlayer_core.storage import jobs as storage_jobs
from memlayer_core.storage import texts as texts_sql
from memlayer_core.storage import vectors as storage_vectors
from memlayer_core.storage import words as storage_words
from memlayer_core.storage.jobs import Job
from memlayer_core.storage.statements import shard_of
from memlayer_core.storage.terms import language_of, parts, searchable
from memlayer_core.storage.vectors import Embedding, Layout, ScopeStatistics, hash_of
from memlayer_core.storage.words import Postings

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection


# Measures the scale of an embedder's cosines: what unrelated texts get, and what a question and its answer get.
#
# `calibration.json` has twelve sentences in each of eight languages, and a question for each of them in other words. An
# embedder that reads one language has another scale for it than for the rest: MiniLM's unrelated texts have a cosine of 0.04
# in English and of 0.33 to 0.66 elsewhere. Those of embedders that read many languages differ by 0.03.

_UNITS = 5
"""Units that lie at most between the mean of unrelated texts and that of answers: with MiniLM and English, as many as there are
standard deviations of unrelated texts, nearly."""

_TAIL = 1.15
"""Standard deviations of unrelated texts in a unit: more of them are far from their mean than on a normal curve."""

_ALIKE = 1e-3  # standard deviation of all cosines below which an embedder gives all of the texts one vector


@cache
def _calibration() -> Mapping[str, Sequence[tuple[str, str]]]:
    file = resources.files("memlayer_core.index") / "calibration.json"
    return {
        language: [(sentence, question) for sentence, question in pairs]
        for language, pairs in json.loads(file.read_text(encoding="utf-8")).items()
    }


def calibration_texts() -> list[str]:
    """Return the texts whose vectors `scales_from` needs."""
    return [text for pairs in _calibration().values() for pair in pairs for text in pair]


def scales_from(vectors: Sequence[FloatVector]) -> dict[str, SimilarityScale]:
    """Return the scales by language, and under `OTHER_LANGUAGES` that of the language which the embedder reads best.

    Args:
        vectors: Those of `calibration_texts`, in their order.
    """
    rest = iter(vectors)
    others: dict[str, list[float]] = {}
    answers: dict[str, list[float]] = {}
    for language, pairs in _calibration().items():
        some = np.stack([next(rest) for pair in pairs for _ in pair])
        near = some[1::2] @ some[::2].T
        own = np.eye(len(near), dtype=bool)
        others[language], answers[language] = near[~own].tolist(), near[own].tolist()
    if np.std([one for some in others.values() for one in some]) < _ALIKE:
        return {
            seams.OTHER_LANGUAGES: SimilarityScale()
        }  # its vectors say something that these texts do not show
    scales = {language: _scale(some, answers[language]) for language, some in others.items()}
    distances = {
        language: (np.mean(answers[language]) - one.mean) / one.deviation for language, one in scales.items()
    }
    return {**scales, seams.OTHER_LANGUAGES: scales[max(distances, key=distances.__getitem__)]}


def _scale(others: Sequence[float], answers: Sequence[float]) -> SimilarityScale:
    mean = float(np.mean(others))
    distance = float(np.mean(answers)) - mean
    return SimilarityScale(mean, max(_TAIL * float(np.std(others)), distance / _UNITS, 1e-3))


# Finds the nearest vectors in one scope: in the index, or by an exact comparison; and the postings of words.


def query_vector(rt: Runtime, query: str) -> Asking[tuple[FloatVector | None, str | None]]:
    """Return the query's vector; or None, and what is wrong with the embedder."""
    try:
        awaiting = None if rt.embeds_here else rt.embedder.aembed_query
        vector = yield ask(rt.embedder.embed_query, awaiting, searchable(query))
    except EmbedderError as problem:
        return None, _failure(rt, problem)
    rt.health.up("embedder")
    return vector, None


def vector_at_once(rt: Runtime, query: str) -> tuple[FloatVector | None, str | None] | None:
    """Return the same without waiting for anything outside of this process; None if that cannot be done."""
    try:
        vector = rt.vector_at_once(searchable(query))
    except EmbedderError as problem:
        return None, _failure(rt, problem)
    if vector is None:
        return None
    rt.health.up("embedder")
    return vector, None


def _failure(rt: Runtime, problem: EmbedderError) -> str:
    if not isinstance(problem, EmbedderLoadingError):
        rt.health.down("embedder", str(problem))
    return str(problem)


def postings_of(
    connection: Connection,
    places: Iterable[tuple[Scope | Folder, Sequence[str]]],
    words: Sequence[str],
    among: Collection[int] | None = None,
) -> Postings:
    """Return the postings of words in scopes or folders, each with the tokens to search with.

    Args:
        connection: In a transaction.
        places: The scopes or folders.
        words: Words, as the index files them.
        among: Keys of the only rows that are searched. None: all.
    """
    found: dict[str, dict[int, int]] = {}
    for reach, owners in places:
        for word, keys in storage_words.postings(connection, reach, words, owners, among).items():
            found.setdefault(word, {}).update(keys)
    return found


def index_pays(rt: Runtime, overview: ScopeStatistics) -> bool:
    """Tell whether to ask the index: it is slower for few vectors, and another process may hold it."""
    if rt.index is None or not overview.is_indexed or overview.vectors <= rt.settings.exact_scan_limit:
        return False
    if not rt.index.held:
        rt.wake()  # the worker takes it if nobody holds it
    return rt.index.serves(overview.shard)


def nearest(
    rt: Runtime,
    reach: Scope | SharedScope | Folder,
    vector: FloatVector,
    overview: ScopeStatistics,
    limit: int,
) -> list[Neighbour]:
    """Return the nearest vectors from the index, or by an exact comparison if the index cannot answer."""
    assert rt.index is not None  # it pays
    lane: str | None = reach.lane
    if lane == reach.user_lane and rt.db.read(storage_vectors.is_alone, reach.namespace, overview.shard):
        lane = None
    try:
        near = rt.index.nearest(overview.shard, lane, vector, limit)
    except IndexUnavailableError as problem:
        if rt.index.serves(overview.shard):  # else somebody began to fill it a moment ago
            rt.health.down("index", str(problem))
    except IndexCorruptError as problem:
        rt.health.down("index", str(problem))
        rt.note_damage(overview.shard)
    else:
        rt.health.up("index")
        return near
    return rt.db.read(compare, rt, reach, vector, limit)


def compare(
    connection: Connection,
    rt: Runtime,
    reach: Scope | SharedScope | Folder,
    vector: FloatVector,
    limit: int,
) -> list[Neighbour]:
    """Return the nearest vectors by an exact comparison."""
    overview = storage_vectors.overview(connection, reach)
    return rt.vectors.columns(connection, reach, overview).nearest(vector, limit)


# Embeds and indexes messages in batches, in the background; and rebuilds the index from stored vectors.
#
# Every step can be repeated with the same result: if a worker dies, its lease ends, and the next worker repeats the
# step. Vectors are committed before Chroma is called, so that no text is embedded twice.

_REFILED = 256  # vectors read and written at once when a shard is built again
_FIRST = -(2**63)  # below every key
_PROBES = 2  # vectors at either end of a shard with which it is tested
_JUDGED = 3  # attempts to test a shard while others change it; after that it counts as sound


def index(rt: Runtime, jobs: Sequence[Job]) -> int:
    """Do jobs of kind `"index"`. Returns how many texts were embedded, or parts of them.

    Chroma gets the vectors of those users alone who have more than half of 20,000.

    Raises:
        RedactorError: The user's redactor fails. The jobs are tried again.
    """
    keys = [job.subject for job in jobs]
    filings, embedded = embed(rt, keys)
    if wordless := rt.db.read(texts_sql.without_words, keys):
        rt.db.write(texts_sql.add_words, wordless, rt.own_words)
    if rt.index is not None:
        names = {job.namespace for job in jobs}
        known, large = rt.db.read(storage_vectors.namespaces_of, names, _few(rt))
        if large:
            rt.db.write(storage_vectors.add_to_content, large, rt.now())
        if known:
            theirs = {job.subject for job in jobs if job.namespace in known}
            _add(rt, [filing for filing in filings if filing.key in theirs])
            rt.health.up("index")
    if filings:
        # First, so that who flushes has heard it.
        rt.emit(MessagesIndexed(messages=len(filings), embedded=embedded))
    rt.db.write(storage_jobs.finish, jobs)
    return embedded


def embedding_of(rt: Runtime, text: str, words: str, speaker: str) -> Embedding | None:
    """Return the vectors of a text that is not stored yet; None if that takes time, or if a model waits for the index job.

    Args:
        rt: What the memory works with.
        text: The whole text.
        words: What of it may be remembered.
        speaker: The first letter of the role, and the name.
    """
    if not rt.embeds_at_once or rt.extractor is not None:
        return None
    vectors = tuple(rt.embedder.embed(parts(words)))
    return Embedding(vectors, hash_of(text), speaker, language_of(words), rt.embedder.identity, _few(rt))


def _few(rt: Runtime) -> int:
    """Return up to how many vectors of a user stay out of Chroma."""
    return rt.settings.exact_scan_limit // 2


def upsert(rt: Runtime, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"upsert"`: copy vectors to Chroma."""
    if rt.index is not None:
        _copy(rt, jobs)
        rt.health.up("index")
    rt.db.write(storage_jobs.finish, jobs)


def embed(rt: Runtime, keys: Sequence[int]) -> tuple[list[IndexEntry], int]:
    """Embed the texts that have no vector, the long ones in parts, and store the vectors.

    Returns:
        All entries, and how many texts or parts were embedded.
    """
    found = [_redacted(rt, task) for task in rt.db.read(storage_vectors.index_tasks, keys)]
    wanted = [waiting for waiting in found if waiting.text.strip()]
    made: dict[str, FloatVector] = {}
    filings = list[IndexEntry]()
    for some in _batches(rt, wanted):
        every = dict.fromkeys(part for one in some if not one.vectors for part in parts(one.text))
        texts = [part for part in every if part not in made]
        made |= _embed_texts(rt, texts)
        entries = [_entry_of(one, made) for one in some]
        new = [entry for entry, one in zip(entries, some, strict=True) if not one.vectors]
        if new:
            rt.db.write(storage_vectors.store, new, rt.now())
        filings += entries
    return filings, len(made)


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
        scales = scales or _measured(rt)
        layout = rt.db.write(storage_vectors.set_embedder, rt.embedder.identity, len(vectors[0]), scales)
    check_embedder(layout, rt.embedder.identity, len(vectors[0]))
    return dict(zip(texts, vectors, strict=True))


def _batches(rt: Runtime, tasks: Sequence[IndexTask]) -> Iterator[list[IndexTask]]:
    """Yield tasks so that an embedder gets about as many texts at once as there are messages in a batch."""
    some, size = list[IndexTask](), 0
    for task in tasks:
        if some and size >= rt.settings.index_batch:
            yield some
            some, size = [], 0
        some.append(task)
        size += 0 if task.vectors else len(parts(task.text))
    if some:
        yield some


def _measured(rt: Runtime) -> Mapping[str, SimilarityScale]:
    """Return the scales of the embedder's cosines, which nobody knows: it is the user's own."""
    return scales_from(rt.embedder.embed(calibration_texts()))


def unindex(rt: Runtime, jobs: Sequence[Job], erase_at: datetime) -> None:
    """Do jobs of kind `"unindex"`: remove deleted messages from the index, and request its compaction.

    Args:
        rt: What the memory works with.
        jobs: The jobs.
        erase_at: When Chroma's files are to be cleared of them.
    """
    if rt.index is not None:
        shards: dict[int, list[int]] = {}
        for job in jobs:
            shards.setdefault(shard_of(job.namespace, rt.shards), []).append(job.subject)
        for shard, keys in shards.items():
            rt.index.remove(shard, keys)
        # A text that was edited has its new vectors by now, or gets them by a job that waits.
        _copy(rt, jobs)
        if rt.index.exclusive:  # a server's files are its own business
            rt.db.write(storage_jobs.enqueue_once, "compact", list(shards), erase_at)
    rt.db.write(storage_jobs.finish, jobs)


def compact(rt: Runtime, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"compact"`: rebuild shards, so that deleted content leaves Chroma's files."""
    if rt.index is not None:
        _refill(rt, sorted({job.subject for job in jobs}))
    rt.db.write(storage_jobs.finish, jobs)


def audit(rt: Runtime, jobs: Sequence[Job], *, reason: str) -> None:
    """Do jobs of kind `"audit"`: make the index agree with the journal."""
    adopt(rt, reason=reason)
    rt.db.write(storage_jobs.finish, jobs)


def adopt(rt: Runtime, *, reason: str) -> list[int]:
    """Compare the index with the journal, and repair the differences. Returns the repaired shards.

    Others may write meanwhile, so a shard that looks wrong is checked again, and missing entries are added. Only a
    damaged shard is emptied.
    """
    if rt.index is None:
        return []
    changed: list[int] = []
    damaged: list[int] = []
    new = rt.db.read(storage_vectors.large_namespaces, _few(rt))  # the limit may be lower than it was
    if new:
        rt.db.write(storage_vectors.add_to_content, new, rt.now())
    lacking = {shard_of(namespace, rt.shards) for namespace in new}
    samples = rt.db.read(storage_vectors.samples, rt.shards, _PROBES)
    for shard in sorted(lacking.union(rt.index.audit(samples))):
        try:
            if shard not in lacking and _agrees(rt, shard):
                continue
            if _repair(rt, shard, reason):
                changed.append(shard)
            sound = _finds(rt, shard)
        except IndexCorruptError:
            sound = False
        if not sound:
            damaged.append(shard)
    rebuild(rt, damaged, reason=reason)
    rt.health.up("index")
    return sorted({*changed, *damaged})


def _agrees(rt: Runtime, shard: int) -> bool:
    assert rt.index is not None
    samples = rt.db.read(storage_vectors.samples, rt.shards, _PROBES, shard)
    return not rt.index.audit(samples)


def _finds(rt: Runtime, shard: int) -> bool:
    """Tell whether a shard finds its own entries, while others may add and remove some.

    It must find what was in the journal before and after the test.
    """
    assert rt.index is not None
    (sample,) = rt.db.read(storage_vectors.samples, rt.shards, _PROBES, shard)
    for _ in range(_JUDGED):
        asked = replace(sample, vectors=0, max_vectors=sys.maxsize)
        if not rt.index.audit([asked]):
            return True
        (after,) = rt.db.read(storage_vectors.samples, rt.shards, _PROBES, shard)
        same = {(probe.key, probe.text_hash, probe.lanes) for probe in after.probes}
        stayed = [probe for probe in asked.probes if (probe.key, probe.text_hash, probe.lanes) in same]
        if len(stayed) == len(asked.probes):
            return False
        sample = replace(sample, probes=tuple(stayed))
    return True


def _repair(rt: Runtime, shard: int, reason: str) -> bool:
    """Add the entries that a shard lacks, and remove those that the journal lacks. Returns whether there were any.

    The shard is listed before the journal is read. No key is used twice, so an entry that the journal does not have
    then was deleted.
    """
    assert rt.index is not None
    added = 0
    held = dict(rt.index.keys(shard))
    with _hide_meanwhile(rt, rt.index, [shard]):
        for filings in _pages(rt, shard):
            wrong = [one for one in filings if held.get(one.key) != len(one.vectors)]
            rt.index.remove(shard, [one.key for one in wrong if one.key in held])
            added += _add(rt, wrong)
            for one in filings:
                held.pop(one.key, None)
        gone = held.keys() - rt.db.read(storage_vectors.existing_keys, sorted(held))
        rt.index.remove(shard, sorted(gone))
    if added:
        rt.emit(IndexRebuilt((shard,), added, reason))
    return bool(added or gone)


def rebuild(rt: Runtime, shards: Sequence[int], *, reason: str) -> int:
    """Rebuild shards of the index from the journal's vectors, without a model. Returns the number of vectors."""
    if rt.index is None or not shards:
        return 0
    refiled = _refill(rt, shards)
    if refiled:
        rt.emit(IndexRebuilt(tuple(shards), refiled, reason))
    rt.health.up("index")
    return refiled


def _refill(rt: Runtime, shards: Sequence[int]) -> int:
    """Erase shards, also from the disk, and add the journal's vectors again."""
    assert rt.index is not None
    refiled = 0
    with _hide_meanwhile(rt, rt.index, shards):
        rt.index.erase(shards)
        for shard in shards:
            for filings in _pages(rt, shard):
                refiled += _add(rt, filings)
    return refiled


@contextmanager
def _hide_meanwhile(rt: Runtime, index: VectorIndex, shards: Sequence[int]) -> Iterator[None]:
    """Hide shards, so that searches compare exactly meanwhile. After an error the worker rebuilds them."""
    hidden, whole = [], False
    try:
        for shard in shards:
            hidden.append(shard)
            index.hide(shard)
        yield
        whole = True
    finally:
        for shard in hidden:
            index.show(shard, whole=whole)
            if not whole:
                rt.note_damage(shard)


def _pages(rt: Runtime, shard: int) -> Iterator[list[IndexEntry]]:
    """Yield the journal's vectors of a shard, page by page."""
    after = _FIRST
    while filings := rt.db.read(storage_vectors.content_entries, shard, after, _REFILED):
        yield filings
        after = filings[-1].key


def _copy(rt: Runtime, jobs: Sequence[Job]) -> None:
    """Add the vectors that the texts of jobs have by now."""
    _add(rt, rt.db.read(storage_vectors.entries_of, [job.subject for job in jobs]))


def _add(rt: Runtime, entries: Sequence[IndexEntry]) -> int:
    """Add vectors to the index, but none of texts that were deleted meanwhile. Returns the number of vectors."""
    assert rt.index is not None
    if entries:
        rt.index.upsert(entries)
        _remove_deleted(rt, entries)
    return sum(len(entry.vectors) for entry in entries)


def check_embedder(layout: Layout, identity: str, dimension: int | None = None) -> None:
    """Refuse an embedder other than the one that made the store's vectors, or one of another dimension.

    Raises:
        EmbedderMismatchError: They differ; vectors of two models cannot be compared.
    """
    if layout.dimension is not None and layout.embedder != identity:
        raise EmbedderMismatchError(
            f"the store's vectors come from the embedder {layout.embedder!r}, not from {identity!r}",
            hint=(
                f"Open the store with the embedder {layout.embedder!r}, or embed everything again: "
                "`memlayer reindex DIR --embedder NAME`, or `Memory.open(…, reembed=True)`."
            ),
        )
    if dimension is not None and layout.dimension != dimension:
        raise EmbedderMismatchError(
            f"the store's vectors have {layout.dimension} dimensions, and those of the embedder {identity!r} {dimension}",
            hint="It is another embedder under the same name: give it a name of its own (an `identity`), or open the store "
            "with the embedder that made its vectors, or embed everything again: `Memory.open(…, reembed=True)`.",
        )


def _remove_deleted(rt: Runtime, entries: Sequence[IndexEntry]) -> None:
    """Remove entries that were deleted from the journal while they were added."""
    if rt.index is None:
        return
    still = rt.db.read(texts_sql.existing_keys, [filing.key for filing in entries])
    for filing in entries:
        if filing.key not in still:
            rt.index.remove(filing.shard, [filing.key])


def _redacted(rt: Runtime, task: IndexTask) -> IndexTask:
    """Return a task with the text to embed: its beginning, as it may be remembered."""
    if task.vectors:
        return task
    return replace(task, text=rt.own_words(task.lanes[0][1:], task.text[: rt.settings.indexed_characters]))


def _entry_of(task: IndexTask, vectors: dict[str, FloatVector]) -> IndexEntry:
    first, *others = task.vectors or [vectors[part] for part in parts(task.text)]
    language = language_of(task.text)
    return IndexEntry(
        task.key, task.shard, task.lanes, first, task.text_hash, tuple(others), task.speaker, language
    )
