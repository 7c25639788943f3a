"""The worker: it leases jobs in the background and does them. A restart loses no job and repeats no effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from memlayer_core.errors import StoreUnavailableError, in_short
from memlayer_core.extraction.flow import begin, queue
from memlayer_core.index import flow as flows
from memlayer_core.messages.flow.sessions import end_idle
from memlayer_core.records.sql import writes as record_writes
from memlayer_core.runner import SYNC, step
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import LONGEST_BACKOFF, Backlog, Job, JobKind
from memlayer_core.summaries import sql as summaries
from memlayer_core.worker.bell import Bell
from memlayer_core.worker.flush import wait_until_done
from memlayer_core.worker.index_keeper import UNSOUND, IndexKeeper
from memlayer_core.worker.job_runner import JobRunner, log_error
from memlayer_core.worker.maintain import enqueue_daily, maintain_daily
from memlayer_core.worker.model_threads import ModelThreads
from memlayer_core.worker.upkeep import erase

__all__ = ["Worker"]

_INDEXING: tuple[JobKind, ...] = ("index", "upsert", "unindex")
_UPKEEP: tuple[JobKind, ...] = ("compact", "audit")
_GATHERED = 1000  # upserts or removals in one batch: embedded Chroma writes to the disk 8 times for any number of them
_REST = 4  # after a batch of removals, the worker waits this many times as long as the batch took
_COMPACTED = 256  # shards in one batch: the largest number of shards
_GATHERING = 10.0  # seconds, at least, that Chroma's files contain deleted vectors
_SHARE = 20  # after erasing Chroma's files, the worker waits this many times as long as that took
_ERASURE_SHARE = 100  # the same for the journal's files, which cost as much as the store is large
_IDLE = 1.0  # seconds between two looks for jobs of other processes
_RECOVERY = 10.0  # seconds before background work is tried again after an unexpected error
_CLOSING = 5.0  # seconds that `close` waits for the current batch; then its leases are given back


class Worker:
    """Runs background jobs for one memory.

    The thread starts at the first job. Only the process that holds the vector index does index jobs; it finds jobs of
    other processes within a second. If it ends, another process takes the index. Every process erases deleted data and
    maintains the store once a day. What calls language models has threads of its own: nothing else waits for a model.

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
        self._jobs = JobRunner(owner, self._step, self._keeper.suspects)
        self._models = ModelThreads(owner, self._stopping, self._done)
        self._removals_rest_until = 0.0
        self._gathering = _GATHERING
        self._accessed: set[int] = set()
        self._erasures_rest_until = 0.0
        self._looked_at: datetime | None = None

    def employ(self, rt: Runtime) -> None:
        """Give the worker its runtime. It starts if earlier processes left jobs."""
        self._rt = rt
        step(end_idle(rt, SYNC))  # before anybody continues an idle session: its episode ends before that
        self._look_at_clock(rt)
        begin(rt)
        if rt.db.read(job_queue.has_jobs) or self._owes_summaries:
            self.wake()

    def _look_at_clock(self, rt: Runtime) -> None:
        """Queue the daily job if a day is over; once an hour, or when the clock was set, it is looked up."""
        now = rt.now()
        if self._looked_at is None or abs(now - self._looked_at) >= timedelta(hours=1):
            self._looked_at = now
            enqueue_daily(rt)

    def wake(self) -> None:
        """Wake the worker, since there is a job. One without a runtime, of a store that is only looked at, does nothing."""
        if self._rt is None:
            return
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
                last_error=lambda: self._models.last_error or self._jobs.last_error,
                pause=pause,
            )
        finally:
            self._flushing.discard(pause)

    def _ring(self) -> None:
        self._hurry.ring()
        self.wake()

    @property
    def _has_notes(self) -> bool:
        return bool(self._keeper.suspects or self._accessed) or self._owes_summaries

    @property
    def _owes_summaries(self) -> bool:
        return (
            self._rt is not None and self._rt.summarizer is not None and self._rt.db.read(summaries.is_owed)
        )

    def close(self) -> None:
        """Finish the current batch, give back the leases, and stop."""
        with self._starting:
            self._stopping.set()
            thread = self._thread if self._started else None
        self._wake.ring()
        self._hurry.ring()
        until = time.monotonic() + _CLOSING
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSING)
        self._models.join(until)
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
                self._jobs.last_error = in_short(problem)
                rt.health.down("worker", in_short(problem))
                self._stopping.wait(_IDLE)
            except Exception as problem:  # noqa: BLE001  (one bad row must not end all background work)
                self._jobs.last_error = in_short(problem)
                rt.health.down("worker", in_short(problem))
                log_error("background work cannot go on", problem)
                self._stopping.wait(_RECOVERY)

    def _leave(self, rt: Runtime, problem: StoreUnavailableError) -> None:
        """Stop writing: the files at the store's path are not this store any more."""
        self._jobs.last_error = in_short(problem)
        rt.health.down("journal", in_short(problem))
        if rt.index is not None:
            rt.index.close()

    def _work_off(self, rt: Runtime) -> None:
        """Do jobs until none is ready.

        Texts that come while a batch is done that is not full wait for the next batch: many small ones cost more.
        """
        worked = rested = False
        self._models.start(rt)
        looked = time.monotonic()
        while not self._stopping.is_set() and (rested or self._has_jobs(rt)):
            ready = self._ready(rt)
            jobs = self._next(rt) if ready and not rested else []
            if not (jobs := jobs or self._upkeep(rt, ready)):
                break
            if jobs[0].kind in _INDEXING and len(jobs) < rt.settings.index_batch and not self._flushing:
                rested = True
            self._jobs.do(rt, jobs)
            worked = True
            self._done()
            if time.monotonic() - looked >= _IDLE:
                self._models.start(rt)
                looked = time.monotonic()
        if worked:
            rt.db.tidy()

    def _done(self) -> None:
        """Tell who waits in `flush` that jobs are done."""
        for pause in list(self._flushing):
            pause.ring()

    def _next(self, rt: Runtime) -> list[Job]:
        """Lease texts to index, and what Chroma waits for: in large batches, as each batch costs about the same."""
        resting = not self._flushing and time.monotonic() < self._removals_rest_until
        jobs = self._jobs.lease(rt, _INDEXING[:1], rt.settings.index_batch)
        return jobs + self._jobs.lease(rt, _INDEXING[1:2] if resting else _INDEXING[1:], _GATHERED)

    def _upkeep(self, rt: Runtime, ready: bool) -> list[Job]:
        """Lease the oldest other job; of those for the index none unless it is ready."""
        kinds: list[JobKind] = [*_UPKEEP, "maintain"] if ready else ["maintain"]
        if self._flushing or time.monotonic() >= self._erasures_rest_until:
            kinds.append("erase")
        jobs = self._jobs.lease(rt, kinds, 1)
        if jobs and jobs[0].kind == "compact":
            jobs += self._jobs.lease(rt, ["compact"], _COMPACTED - 1)
        return jobs

    def _write_down(self, rt: Runtime) -> None:
        """Write notes of recalls to the journal, and queue what sessions owe."""
        if self._owes_summaries:
            rt.db.write(summaries.enqueue_owed, rt.now())
        if recalled := list(self._accessed):
            rt.db.write(record_writes.note_recall, recalled, rt.now())
            self._accessed.difference_update(recalled)

    def _ready(self, rt: Runtime) -> bool:
        """Make the index ready. Returns False if it is not available at the moment."""
        ready = self._keeper.ready(rt)
        if self._keeper.problem is not None:
            self._jobs.last_error = in_short(self._keeper.problem)
            self._stopping.wait(_IDLE)
        return ready

    def _has_jobs(self, rt: Runtime) -> bool:
        return bool(self._keeper.suspects) or rt.db.read(job_queue.has_jobs)

    def _step(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        began = time.monotonic()
        match kind:
            case "index":
                keys = [job.subject for job in jobs]
                step(queue(rt, SYNC, keys))
                step(flows.index(rt, SYNC, jobs))
            case "upsert":
                step(flows.upsert(rt, SYNC, jobs))
            case "unindex":
                step(flows.unindex(rt, SYNC, jobs, rt.now() + timedelta(seconds=self._gathering)))
                self._removals_rest_until = time.monotonic() + _REST * (time.monotonic() - began)
            case "compact":
                step(flows.compact(rt, SYNC, jobs))
                self._gathering = min(LONGEST_BACKOFF, max(_GATHERING, _SHARE * (time.monotonic() - began)))
            case "audit":
                step(flows.audit(rt, SYNC, jobs, reason=UNSOUND))
            case "maintain":
                step(maintain_daily(rt, SYNC, jobs))
            case "erase":
                for job in jobs:
                    step(erase(rt, SYNC, job, self._stopping.wait))
                self._erasures_rest_until = time.monotonic() + _ERASURE_SHARE * (time.monotonic() - began)
            case "summarize" | "episode" | "learn" | "record":
                raise AssertionError(f"{kind} is a job of the model threads")
