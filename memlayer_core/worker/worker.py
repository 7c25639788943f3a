"""The worker: one background thread that leases jobs and does them. A restart loses no job and repeats no effect."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import assert_never

from memlayer_core.errors import (
    EmbedderError,
    EmbedderMismatchError,
    IndexCorruptError,
    IndexUnavailableError,
    MemlayerError,
    StoreUnavailableError,
    in_short,
)
from memlayer_core.events import JobDead, JobFailed, Source
from memlayer_core.index import flow as flows
from memlayer_core.messages.flow.sessions import end_idle
from memlayer_core.records.flow import learn
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.runner import SYNC, step
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.job_queue import LONGEST_BACKOFF, Backlog, Job, JobKind, backoff
from memlayer_core.storage.keys import shard_of
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.flow.episodes import write_episode
from memlayer_core.summaries.flow.summarize import summarize
from memlayer_core.window.flow.long_term import record
from memlayer_core.worker.bell import Bell
from memlayer_core.worker.flush import wait_until_done
from memlayer_core.worker.index_keeper import UNSOUND, IndexKeeper
from memlayer_core.worker.maintain import enqueue_daily, maintain_daily
from memlayer_core.worker.upkeep import ErasureDelayError, erase

__all__ = ["Worker"]

logger = logging.getLogger("memlayer")

_INDEXING: tuple[JobKind, ...] = ("index", "unindex")
_WRITING: tuple[JobKind, ...] = ("summarize", "episode", "maintain", "record")
_UPKEEP: tuple[JobKind, ...] = ("compact", "audit")
_REMOVED = 1000  # removals in one batch: embedded Chroma writes to the disk 8 times for any number of them
_REST = 4  # after a batch of removals, the worker waits this many times as long as the batch took
_COMPACTED = 256  # shards in one batch: the largest number of shards
_GATHERING = 10.0  # seconds, at least, that Chroma's files contain deleted vectors
_SHARE = 20  # after erasing Chroma's files, the worker waits this many times as long as that took
_ERASURE_SHARE = 100  # the same for the journal's files, which cost as much as the store is large
_IDLE = 1.0  # seconds between two looks for jobs of other processes
_RECOVERY = 10.0  # seconds before background work is tried again after an unexpected error
_LATER = 10  # an erasure that a reader held back is tried after so many times the usual wait: writers wait meanwhile
_CLOSING = 5.0  # seconds that `close` waits for the current batch; then its leases are given back


class Worker:
    """Runs background jobs for one memory.

    The thread starts at the first job. Only the process that holds the vector index does index jobs; it finds jobs of
    other processes within a second. If it ends, another process takes the index. Every process erases deleted data and
    writes summaries and episodes, and maintains the store once a day. This comes last, one at a time: models take long.

    Args:
        owner: Name for this worker's leases, unique among all processes.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._rt: Runtime | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._wake = Bell()
        self._hurry = Bell()
        self._stopping = threading.Event()
        self._flushing: set[Bell] = set()
        self._keeper = IndexKeeper(owner)
        self._last_error: str | None = None
        self._removals_rest_until = 0.0
        self._gathering = _GATHERING
        self._evicted: dict[int, int] = {}
        self._accessed: set[int] = set()
        self._erasures_rest_until = 0.0
        self._looked_at: datetime | None = None

    def employ(self, rt: Runtime) -> None:
        """Give the worker its runtime. It starts if earlier processes left jobs."""
        self._rt = rt
        step(end_idle(rt, SYNC))  # before anybody continues an idle session: its episode ends before that
        self._look_at_clock(rt)
        if rt.db.read(job_queue.has_jobs):
            self.wake()

    def _look_at_clock(self, rt: Runtime) -> None:
        """Queue the daily job if a day is over; once an hour, or when the clock was set, it is looked up."""
        now = rt.now()
        if self._looked_at is None or abs(now - self._looked_at) >= timedelta(hours=1):
            self._looked_at = now
            enqueue_daily(rt)

    def wake(self) -> None:
        """Wake the worker, since there is a job."""
        self._wake.ring()
        if not self._started:
            with self._starting:
                if not self._started and not self._stopping.is_set():
                    self._thread = threading.Thread(target=self._run, name="memlayer-worker", daemon=True)
                    self._thread.start()

    @property
    def _started(self) -> bool:
        """Whether the thread runs. A thread whose start was interrupted does not."""
        return self._thread is not None and self._thread.ident is not None

    def note_damage(self, shard: int) -> None:
        """Note that a shard of the index is damaged."""
        self._keeper.suspects.add(shard)
        self.wake()

    def note_eviction(self, session: int, first: int) -> None:
        """Note that a session's turns before a place left its window. The worker queues the summary later."""
        self._evicted[session] = max(first, self._evicted.get(session, 0))
        self.wake()

    def note_recall(self, keys: Sequence[int]) -> None:
        """Note that records were recalled. The worker writes that to the journal later."""
        if keys:
            self._accessed.update(keys)
            self.wake()

    def flush(self, timeout: float | None) -> Backlog:
        """Wait until no job is queued, as `wait_until_done` does."""
        assert self._rt is not None
        pause = Bell()
        self._flushing.add(pause)
        try:
            return wait_until_done(
                self._rt,
                timeout,
                has_notes=lambda: self._has_notes,
                ring=self._ring,
                last_error=lambda: self._last_error,
                pause=pause,
            )
        finally:
            self._flushing.discard(pause)

    def _ring(self) -> None:
        self._hurry.ring()
        self.wake()

    @property
    def _has_notes(self) -> bool:
        return bool(self._keeper.suspects or self._evicted or self._accessed)

    def close(self) -> None:
        """Finish the current batch, give back the leases, and stop."""
        with self._starting:
            self._stopping.set()
            thread = self._thread if self._started else None
        self._wake.ring()
        self._hurry.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSING)
        if self._rt is not None and thread is not None:
            with suppress(StoreUnavailableError):  # then the leases end by themselves
                self._rt.db.write(job_queue.release, self._owner, self._rt.now())

    def _run(self) -> None:
        assert self._rt is not None
        rt = self._rt
        while not self._stopping.is_set():
            asked = self._wake.wait(_IDLE)
            if asked:
                self._hurry.wait(rt.settings.index_delay)  # more messages may come, for one batch
            try:
                rt.db.check_file()
            except StoreUnavailableError as problem:
                self._leave(rt, problem)
                return
            try:
                if self._keeper.watch(rt):
                    self.wake()
                self._write_down(rt)
                step(end_idle(rt, SYNC))
                self._look_at_clock(rt)
                if asked and not self._stopping.is_set():
                    self._ready(rt)
                self._work_off(rt)
                rt.health.up("worker")
            except StoreUnavailableError as problem:
                self._last_error = in_short(problem)
                rt.health.down("worker", in_short(problem))
                self._stopping.wait(_IDLE)
            except Exception as problem:  # noqa: BLE001  (one bad row must not end all background work)
                self._last_error = in_short(problem)
                rt.health.down("worker", in_short(problem))
                _log("background work cannot go on", problem)
                self._stopping.wait(_RECOVERY)

    def _leave(self, rt: Runtime, problem: StoreUnavailableError) -> None:
        """Stop writing: the files at the store's path are not this store any more."""
        self._last_error = in_short(problem)
        rt.health.down("journal", in_short(problem))
        if rt.index is not None:
            rt.index.close()

    def _work_off(self, rt: Runtime) -> None:
        """Do jobs until none is ready.

        Texts that come while a batch is done that is not full wait for the next batch: many small ones cost more.
        """
        worked = rested = False
        while not self._stopping.is_set() and self._has_jobs(rt, besides=_INDEXING if rested else ()):
            jobs = self._next(rt, _UPKEEP if rested else _INDEXING) if self._ready(rt) else []
            if not jobs and (self._flushing or time.monotonic() >= self._erasures_rest_until):
                jobs = self._lease(rt, ["erase"], 1)
            jobs = jobs or self._lease(rt, _WRITING, 1)
            if not jobs:
                break
            if jobs[0].kind in _INDEXING and len(jobs) < rt.settings.index_batch and not self._flushing:
                rested = True
            self._do(rt, jobs)
            worked = True
            for pause in list(self._flushing):
                pause.ring()
        if worked:
            rt.db.tidy()

    def _next(self, rt: Runtime, kinds: Sequence[JobKind]) -> list[Job]:
        """Lease jobs for the index. Removals come in large batches with pauses, as each batch costs about the same."""
        if kinds is _INDEXING:
            resting = not self._flushing and time.monotonic() < self._removals_rest_until
            jobs = self._lease(rt, kinds[:1] if resting else kinds, rt.settings.index_batch)
            if any(job.kind == "unindex" for job in jobs):
                jobs += self._lease(rt, ["unindex"], _REMOVED)
            if jobs:
                return jobs
        return self._lease(rt, _UPKEEP, _COMPACTED)

    def _lease(self, rt: Runtime, kinds: Sequence[JobKind], limit: int) -> list[Job]:
        now = rt.now()
        until = now + timedelta(seconds=rt.settings.lease_seconds)
        return rt.db.write(job_queue.lease, kinds, limit, self._owner, now, until)

    def _write_down(self, rt: Runtime) -> None:
        """Write notes of evictions and recalls to the journal."""
        for session, first in list(self._evicted.items()):
            if not rt.db.read(summaries.is_queued, session, first):
                rt.db.write(summaries.queue_summary, session, first, rt.now())
            if self._evicted.get(session) == first:
                del self._evicted[session]
        if recalled := list(self._accessed):
            rt.db.write(record_writes.note_recall, recalled, rt.now())
            self._accessed.difference_update(recalled)

    def _ready(self, rt: Runtime) -> bool:
        """Make the index ready. Returns False if it is not available at the moment."""
        ready = self._keeper.ready(rt)
        if self._keeper.problem is not None:
            self._last_error = in_short(self._keeper.problem)
            self._stopping.wait(_IDLE)
        return ready

    def _has_jobs(self, rt: Runtime, besides: Sequence[JobKind]) -> bool:
        return bool(self._keeper.suspects) or rt.db.read(job_queue.has_jobs, besides)

    def _do(self, rt: Runtime, jobs: Sequence[Job]) -> None:
        lost = [job for job in jobs if job.attempts > rt.settings.job_attempts]
        for job in lost:  # each attempt ended with its process
            self._give_up(rt, job, self._last_error or "every attempt ended with its process")
        left = sorted((job for job in jobs if job not in lost), key=lambda job: job.kind)
        for kind, some in groupby(left, key=lambda job: job.kind):
            self._attempt(rt, kind, list(some))

    def _attempt(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        try:
            self._step(rt, kind, jobs)
            self._last_error = None
        except (IndexUnavailableError, IndexCorruptError, EmbedderMismatchError) as problem:
            self._last_error = in_short(problem)  # no job's fault
            source: Source = "embedder" if isinstance(problem, EmbedderMismatchError) else "index"
            rt.health.down(source, in_short(problem))
            if isinstance(problem, IndexCorruptError):
                self._keeper.suspects.update(
                    shard_of(job.namespace, rt.shards) for job in jobs if job.namespace
                )
            later = rt.now() + timedelta(seconds=backoff(rt.settings.job_backoff, 1))
            rt.db.write(job_queue.fail, jobs, in_short(problem), later, count_attempt=False)
        except ErasureDelayError as problem:
            self._last_error = str(problem)
            rt.health.down("erasure", str(problem))
            later = rt.now() + _LATER * timedelta(seconds=rt.settings.job_backoff)
            rt.db.write(job_queue.fail, jobs, str(problem), later, count_attempt=False)
        except Exception as problem:
            if isinstance(problem, StoreUnavailableError):
                raise
            if len(jobs) > 1:  # one of them may be the cause: try each alone
                for job in jobs:
                    self._attempt(rt, kind, [job])
                return
            self._last_error = in_short(problem)
            if isinstance(problem, EmbedderError):
                rt.health.down("embedder", in_short(problem))
            elif not isinstance(problem, MemlayerError):
                _log("a background job raised", problem)
            self._later(rt, jobs, problem)

    def _step(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        began = time.monotonic()
        match kind:
            case "index":
                step(learn(rt, SYNC, [job.subject for job in jobs]))
                step(flows.index(rt, SYNC, jobs))
            case "unindex":
                step(flows.unindex(rt, SYNC, jobs, rt.now() + timedelta(seconds=self._gathering)))
                self._removals_rest_until = time.monotonic() + _REST * (time.monotonic() - began)
            case "compact":
                step(flows.compact(rt, SYNC, jobs))
                self._gathering = min(LONGEST_BACKOFF, max(_GATHERING, _SHARE * (time.monotonic() - began)))
            case "audit":
                step(flows.audit(rt, SYNC, jobs, reason=UNSOUND))
            case "summarize" | "episode" | "record":
                write = {"summarize": summarize, "episode": write_episode, "record": record}[kind]
                source: Source = "long-term memory" if kind == "record" else "summarizer"
                for job in jobs:
                    with rt.health.watch(source, rt.settings.lease_seconds):
                        step(write(rt, SYNC, job))
            case "maintain":
                step(maintain_daily(rt, SYNC, jobs))
            case "erase":
                for job in jobs:
                    step(erase(rt, SYNC, job, self._stopping.wait))
                self._erasures_rest_until = time.monotonic() + _ERASURE_SHARE * (time.monotonic() - began)
            case _:
                assert_never(kind)

    def _later(self, rt: Runtime, jobs: Sequence[Job], problem: Exception) -> None:
        for job in jobs:
            if job.attempts >= rt.settings.job_attempts:
                self._give_up(rt, job, in_short(problem))
                continue
            wait = backoff(rt.settings.job_backoff, job.attempts)
            rt.db.write(job_queue.fail, [job], in_short(problem), rt.now() + timedelta(seconds=wait))
            rt.emit(JobFailed(job.kind, job.subject, job.attempts, in_short(problem)))

    def _give_up(self, rt: Runtime, job: Job, error: str) -> None:
        rt.db.write(job_queue.fail, [job], error, None)
        rt.emit(JobDead(job.kind, job.subject, error))


def _log(text: str, problem: Exception) -> None:
    """Log an error of another library with its traceback, but without its text, which may quote a message."""
    logger.error("%s: %s\n%s", text, in_short(problem), "".join(traceback.format_tb(problem.__traceback__)))
