"""The worker: does jobs in the background, calls language models in separate threads, and maintains the store each day."""

import logging
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from queue import Empty, SimpleQueue

from memlayer_core import errors
from memlayer_core.events import IndexRebuilt, JobDead, JobFailed, ProblemSource, StoreMaintained
from memlayer_core.facts import reads as records_reads, writes as records_writes
from memlayer_core.facts.extract import AT_ONCE, FactTask, begin, extract, queue
from memlayer_core.index import flow as index_flow
from memlayer_core.message import with_offset
from memlayer_core.messages.flow import end_idle
from memlayer_core.runtime import Runtime
from memlayer_core.storage import jobs as storage_jobs, outbox
from memlayer_core.storage.jobs import Backlog, Job, JobKind, Stretch, backoff
from memlayer_core.storage.statements import LAST
from memlayer_core.storage.vectors import layout
from memlayer_core.summaries import sql as summaries
from memlayer_core.summaries.flow import summarize, write_episode
from memlayer_core.window.context import record


class Bell:
    """Wakes one thread. Several rings before that thread waits wake it once.

    `threading.Event` is not safe here, since it is written in Python: a thread that is interrupted inside `set` may hold
    its lock for ever.
    """

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the thread that waits, or the next one."""
        if self._rung.empty():
            self._rung.put(None)

    def wait(self, timeout: float) -> bool:
        """Wait for a ring, at most `timeout` seconds. Returns whether it rang."""
        try:
            self._rung.get(timeout=timeout)
        except Empty:
            return False
        return True


# Waits for background work, and shows how much is left if somebody can see it.

_PATIENCE = 60.0  # seconds without any progress before the waiting ends
_SHOWN_AFTER = 1.0  # seconds after which a progress bar appears
_LOOK = 0.05  # seconds between two checks
_MANY = float("inf")


def _doers(rt: Runtime) -> dict[JobKind, object]:
    """Return what does the kinds of jobs that not every process can do; None: another process does them."""
    doers: dict[JobKind, object] = {"summarize": rt.summarizer, "episode": rt.summarizer}
    doers |= {"learn": rt.extractor, "record": rt.long_term}
    return doers | dict.fromkeys(_OF_INDEX, rt.index)


def _of_others(rt: Runtime) -> list[JobKind]:
    """Return the kinds of jobs that this process leaves to others."""
    return [kind for kind, doer in _doers(rt).items() if doer is None]


def _timeout_error(
    rt: Runtime, backlog: Backlog, seconds: float, last_error: str | None, *, in_all: bool
) -> errors.FlushTimeoutError:
    counts, others = rt.db.read(storage_jobs.count_kinds).items(), _of_others(rt)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts if kind not in others)
    waits = f" ({kinds})" if kinds else ""
    when = f"after {seconds:g} seconds" if in_all else f"and none was done for {seconds:g} seconds"
    cause = f"; the last failure was: {last_error}" if last_error else ""
    left = f"{backlog.queued:,} job(s) are left{waits}" if backlog.queued else "work is left"
    return errors.FlushTimeoutError(
        f"{left} {when}{cause}",
        hint="The work goes on as long as a process has the memory open, and in the next one. `memory.admin.status()` shows its "
        "problems.",
    )


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many jobs are left, on a terminal or in a notebook."""
    watched = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if not watched:
        yield lambda _: None
        return
    from tqdm import tqdm  # only if somebody can see it

    with tqdm(desc="memlayer: background jobs", delay=_SHOWN_AFTER, unit="job", leave=False) as bar:

        def show(queued: int) -> None:
            bar.total = max(bar.total or 0, bar.n, queued)
            bar.update(bar.total - queued - bar.n)

        yield show


# Erases deleted content.


class ErasureDelayError(errors.RetryableError):
    """An erasure cannot be finished yet, because a reader holds the journal's log."""


def erase(rt: Runtime, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"erase"`: erase deleted rows from the journal's files, where nothing finds them even before.

    Raises:
        ErasureDelayError: Only the log is left, because a reader holds it.
    """
    if not rt.db.tidy(whole=True):
        raise ErasureDelayError(
            "deleted content is still in the journal's log, because a reader holds it",
            hint="End the long transaction that reads the journal.",
        )
    rt.health.up("erasure")
    rt.db.write(storage_jobs.finish, jobs)


# Who has a lease: a process of this machine, which may have died.


def owner_name() -> str:
    """Return a name for the leases of this process, unique among all: machine, number and start of the process, and a UUID."""
    machine, pid = _machine(), os.getpid()
    return f"{machine}/{pid}/{_start_of(pid) if machine else ''}/{uuid.uuid4().hex[:12]}"


def is_dead(owner: str) -> bool:
    """Return whether the process of an owner is known to have died. Nothing is known about processes of other machines."""
    machine, *rest = owner.split("/")
    if not machine or machine != _machine():
        return False
    pid, start, _ = rest
    try:
        os.kill(int(pid), 0)
        return _start_of(int(pid)) != start
    except OSError as problem:  # a process of another user may not be asked
        return isinstance(problem, ProcessLookupError)


def _machine() -> str:
    """Return a name of this machine, and of the part in which process numbers are unique; "" on systems other than Linux."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _start_of(pid: int) -> str:
    """Return when a process started; "gone" if it has ended and only its entry is left."""
    known = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return "gone" if known[0] in "ZX" else known[19]


# The daily maintenance: reports what is archived, and deletes what the settings say.

_TOLD = timedelta(days=90)  # how long `memory.ledger` shows a call
_PAGE = 500  # records or entries of one transaction, so that others can write in between


def maintain(rt: Runtime, now: datetime | None = None) -> StoreMaintained:
    """Delete what the settings say, and return what was done. Doing it again changes nothing.

    Args:
        rt: What the memory works with.
        now: The moment that counts; None: the present.
    """
    moment, settings, deleted = with_offset(now, "now") or rt.now(), rt.settings, 0
    if settings.delete_archived_days is not None:
        which = (settings, moment, settings.delete_archived_days, _PAGE, rt.now())
        deleted = _page_by_page(rt, records_writes.delete_archived, *which)
    entries = _page_by_page(rt, records_reads.prune_outcomes, moment - _TOLD, _PAGE)
    faded, expired = rt.db.read(records_writes.count_archived, rt.settings, moment)
    done = StoreMaintained(moment, archived=faded, expired=expired, deleted=deleted, entries=entries)
    if done.deleted:
        rt.wake()
    rt.emit(done)
    return done


def enqueue_daily(rt: Runtime) -> None:
    """Queue a job of kind `"maintain"` if a day is over. All processes together queue one."""
    now = rt.now()
    if rt.db.read(storage_jobs.is_day_over, now):
        rt.db.write(storage_jobs.enqueue_daily, now)


def _page_by_page(rt: Runtime, delete: Callable[..., int], *which: object) -> int:
    """Delete until nothing is left, and return how much was deleted."""
    gone = 0
    while more := rt.db.write(delete, *which):
        gone += more
    return gone


# The worker: it leases jobs in the background and does them. A restart loses no job and repeats no effect.

logger = logging.getLogger("memlayer")

_OF_INDEX: tuple[JobKind, ...] = ("audit", "copy")
_CAUSES: dict[type[errors.MemlayerError], tuple[ProblemSource, int]] = {
    errors.IndexUnavailableError: ("index", 1),
    errors.IndexCorruptError: ("index", 1),
    errors.EmbedderMismatchError: ("embedder", 1),
    ErasureDelayError: ("erasure", 10),  # much later, since writers wait while it runs
}
"""What holds up a job that did not cause the problem, and how many times longer than usual it waits."""
_COPIES = 60.0  # seconds that vectors wait for others, since one write of many costs Chroma little more
_ERASURE_SHARE = 100  # after erasing the journal's files, the worker waits as many times as long as that took
_IDLE = 1.0  # seconds between two checks for jobs of other processes
_RECOVERY = 10.0  # seconds before background work is tried again after an unexpected error
_CLOSING = 5.0  # seconds that `close` waits for the current batch; then its leases are given back
_MODELS = "memlayer-models"  # the name of the threads that call language models


class Worker:
    """Runs background jobs for one memory. A job that fails is tried again later, and given up after too many attempts.

    The thread starts at the first job. Only the process that holds the vector index writes to it; it finds jobs of
    other processes within a second. If it ends, another process takes the index. Every process embeds texts, erases
    deleted data, and maintains the store once a day. Jobs that call language models have threads of their own, at most
    `Settings.model_concurrency`, which start when such a job is due: nothing else waits for a model.

    Args:
        owner: Name for this worker's leases, unique among all processes.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._rt: Runtime  # `employ` gives it, before there is any work
        self._thread: threading.Thread | None = None
        self._model_threads: set[threading.Thread] = set()
        self._starting = threading.Lock()
        self._wake = Bell()
        self._hurry = Bell()
        self._stopping = threading.Event()
        self._flushing: set[Bell] = set()
        self._failures: dict[str, str] = {}  # why the last attempt of a thread failed, by its name
        self._damage: errors.JournalCorruptError | None = None
        self._rebuilt: list[IndexRebuilt] = []
        self._copies_at = time.monotonic() + _COPIES
        self._models_rest_until = self._erasures_rest_until = self._takes_over_at = 0.0
        self._looked_at: datetime | None = None

    def employ(self, rt: Runtime) -> None:
        """Give the worker its runtime. It starts if earlier processes left jobs, or if a large user may need the index."""
        self._rt = rt
        end_idle(rt)  # before an idle session goes on, so that its episode ends before the new messages
        self._look_at_clock(rt)
        begin(rt)
        if rt.index is not None and rt.db.read(outbox.has_large, rt.settings.exact_scan_limit):
            rt.db.write(outbox.check, rt.now())
        if rt.db.read(storage_jobs.has_jobs) or self._owes_summaries:
            self.wake()

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
        """Whether the thread runs. If its start was interrupted, it does not run."""
        return self._thread is not None and self._thread.ident is not None

    def flush(self, timeout: float | None) -> Backlog:
        """Wait until no job is queued. Returns the backlog.

        Args:
            timeout: Maximum number of seconds to wait; None: as long as the number of jobs, or of texts that are missing in
                the index, gets smaller.

        Raises:
            FlushTimeoutError: Jobs are left after that time, or there was no progress for a minute.
            JournalCorruptError: A job met damage in the journal.
            StoreUnavailableError: The store was removed while it was open.
        """
        pause = Bell()
        self._flushing.add(pause)
        try:
            with _progress() as show:
                return self._wait(self._rt, timeout, pause, show)
        finally:
            self._flushing.discard(pause)

    def _wait(self, rt: Runtime, timeout: float | None, pause: Bell, show: Callable[[int], None]) -> Backlog:
        others = _of_others(rt)
        patience = _PATIENCE if timeout is None else timeout
        deadline = time.monotonic() + patience
        fewest = lacks = _MANY  # jobs, and texts since there were so few
        until = rt.db.read(outbox.newest)
        while True:
            if self._stopping.is_set():
                raise errors.StoreClosedError(
                    "this memory was closed before its background work was done",
                    hint="The next process that opens it does the rest; call `flush` before `close`.",
                )
            if self._damage is not None:  # it would only be met again
                raise self._damage
            # Notes are read first: those that become jobs now are in the backlog.
            is_noted = rt.accesses or self._owes_summaries or (self._started and not rt.at_work.is_set())
            now = rt.now()
            backlog = rt.db.read(storage_jobs.backlog, others, now)
            is_done = not (is_noted or backlog.queued)
            if is_done and (rt.index is None or not rt.db.write(outbox.owe, now, until, at_once=True)):
                return backlog
            left = rt.db.read(outbox.count, until)  # one job copies all texts that the index lacks
            if timeout is None and (backlog.queued < fewest or left < lacks):
                lacks = _MANY if backlog.queued < fewest else left
                fewest, deadline = min(fewest, backlog.queued), time.monotonic() + patience
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                failure = self._failures.get(_MODELS) or next(iter(self._failures.values()), None)
                raise _timeout_error(rt, backlog, patience, failure, in_all=timeout is not None)
            show(backlog.queued)
            rt.db.check_file()
            if not rt.db.read(storage_jobs.is_hurried, now):
                rt.db.write(storage_jobs.hurry, now)
            self._hurry.ring()
            self.wake()
            pause.wait(min(seconds, _LOOK))

    def audit(self, *, anew: bool) -> list[IndexRebuilt]:
        """Compare the index with the journal, or build all of it again, and wait until it is complete. Returns what was rebuilt.

        If another process holds the index, nothing is done. Another process on the same server may do it for this one.
        """
        rt = self._rt
        if rt.index is None or not rt.index.acquire():
            return []
        self._rebuilt = []
        rt.db.write(storage_jobs.enqueue_once, "audit", [int(anew)], rt.now())
        self.flush(None)
        return self._rebuilt

    def close(self) -> None:
        """Finish the current batch, give back the leases, and stop."""
        with self._starting:
            self._stopping.set()
            threads = [self._thread] if self._thread is not None and self._started else []
        self._wake.ring()
        self._hurry.ring()
        until = time.monotonic() + _CLOSING
        for thread in (*threads, *self._model_threads.copy()):
            thread.join(max(0.0, until - time.monotonic()))
        if threads:
            with suppress(errors.StoreUnavailableError):  # then the leases expire
                self._rt.db.write(storage_jobs.release, [self._owner], self._rt.now(), discount=1)

    # The worker's own thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            asked = self._wake.wait(_IDLE)
            rt = self._rt
            if asked:
                self._hurry.wait(rt.settings.index_delay)  # more messages may come, for one batch
            try:
                rt.db.check_file()
            except errors.StoreUnavailableError as problem:
                # The files at the store's path do not belong to this store any more.
                self._note(rt, "journal", problem)
                if rt.index is not None:
                    rt.index.close()
                rt.at_work.set()
                return
            try:
                self._look(rt)
                self._work_off(rt)
                rt.health.up("worker")
            except BaseException as problem:  # noqa: BLE001  (nothing may end all background work)
                self._stopping.wait(self._excuse(rt, "background work cannot go on", problem))
            if not rt.at_work.is_set():
                rt.at_work.set()
                self._done()

    def _excuse(self, rt: Runtime, text: str, problem: BaseException) -> float:
        """Note why a thread cannot go on. Returns the seconds after which it tries again."""
        self._note(rt, "worker", problem)
        if isinstance(problem, errors.StoreUnavailableError):
            return _IDLE
        log_error(text, problem)
        return _RECOVERY

    def _look(self, rt: Runtime) -> None:
        """Look at what brings work without a job, and queue it."""
        if rt.index is not None and not rt.index.still_there():
            # It is acquired and filled again at the same place.
            rt.health.down("index", "its files were removed or replaced while they were open")
            rt.index.close()
            rt.db.write(outbox.check, rt.now())
        self._take_over(rt)
        if self._owes_summaries:
            rt.db.write(summaries.enqueue_owed, rt.now())
        if recalled := list(rt.accesses):
            rt.db.write(records_writes.note_recall, recalled, rt.now())
            rt.accesses.difference_update(recalled)
        end_idle(rt)
        self._look_at_clock(rt)
        if rt.index is not None and time.monotonic() >= self._copies_at:
            self._copies_at = time.monotonic() + _COPIES
            rt.db.write(outbox.owe, rt.now())

    def _take_over(self, rt: Runtime) -> None:
        """End the leases of processes of this machine that died. This is checked once a second."""
        if time.monotonic() < self._takes_over_at:
            return
        self._takes_over_at = time.monotonic() + _IDLE
        if dead := list(filter(is_dead, rt.db.read(storage_jobs.owners, rt.now()))):
            rt.db.write(storage_jobs.release, dead, rt.now())

    def _look_at_clock(self, rt: Runtime) -> None:
        """Queue the daily job if a day is over. This is checked once an hour, and when the clock was set."""
        now = rt.now()
        if self._looked_at is None or abs(now - self._looked_at) >= timedelta(hours=1):
            self._looked_at = now
            enqueue_daily(rt)

    @property
    def _owes_summaries(self) -> bool:
        rt = self._rt
        return rt.summarizer is not None and rt.db.read(summaries.is_owed)

    def _work_off(self, rt: Runtime) -> None:
        """Do jobs until none is ready.

        If a batch is not full, texts that come while it is done wait for the next batch: many small batches cost more.
        """
        worked = rested = False
        while not self._stopping.is_set() and (rested or rt.db.read(storage_jobs.has_jobs)):
            self._start_models(rt)
            most = rt.settings.index_batch
            jobs = [] if rested else self._lease(rt, ["index"], most, is_ready=self._has_embedder)
            if not (jobs := jobs or self._upkeep(rt)):
                break
            if jobs[0].kind == "index" and len(jobs) < most and not self._flushing:
                rested = True
            self._do(rt, jobs)
            worked = True
            self._done()
        if worked:
            rt.db.tidy()

    def _done(self) -> None:
        """Wake the callers that wait in `flush`, since jobs are done, or none is left."""
        for pause in list(self._flushing):
            pause.ring()

    def _upkeep(self, rt: Runtime) -> list[Job]:
        """Lease the oldest other job. Jobs for the index need the index: this process must have it, or get it."""
        kinds: list[JobKind] = ["maintain"]
        if self._flushing or time.monotonic() >= self._erasures_rest_until:
            kinds.append("erase")
        return self._lease(rt, kinds, 1) or self._lease(rt, _OF_INDEX, 1, is_ready=self._has_index)

    def _has_embedder(self, rt: Runtime) -> bool:
        """Return whether this process has the embedder of the store. If not, another process has it, and does the work."""
        try:
            index_flow.check_embedder(rt.db.read(layout), rt.embedder.identity)
        except errors.EmbedderMismatchError as problem:
            self._note(rt, "embedder", problem)
            return False
        return True

    def _has_index(self, rt: Runtime) -> bool:
        """Acquire the index, if there is one. Returns False if it is not available at the moment."""
        if rt.index is None:
            return False
        try:
            return rt.index.acquire()
        except errors.IndexUnavailableError as problem:
            self._note(rt, "index", problem)
            self._stopping.wait(_IDLE)
            return False

    # The threads that call language models.

    def _start_models(self, rt: Runtime) -> None:
        """Start threads while jobs for models are due."""
        most = rt.settings.model_concurrency
        while len(self._model_threads) < most and time.monotonic() >= self._models_rest_until:
            jobs = self._lease_for_models(rt)
            if not jobs or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._ask_models, args=(rt, jobs), name=_MODELS, daemon=True)
            self._model_threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # there are too many threads
                self._model_threads.discard(thread)
                raise

    def _ask_models(self, rt: Runtime, jobs: list[Job]) -> None:
        try:
            while jobs and not self._stopping.is_set():
                self._do(rt, jobs)
                self._done()
                jobs = self._lease_for_models(rt)
        except BaseException as problem:  # noqa: BLE001  (nothing may end all work with models)
            self._excuse(rt, "work with models cannot go on", problem)
            self._models_rest_until = time.monotonic() + _RECOVERY
        finally:
            self._model_threads.discard(threading.current_thread())
            rt.wake()  # a job may have come since the last look

    def _lease_for_models(self, rt: Runtime) -> list[Job]:
        """Lease a job; for one of kind "learn", also the others of its session that are due."""
        seconds, most = rt.settings.model_timeout, rt.settings.extraction_turns
        kinds = [kind for kind, doer in _doers(rt).items() if doer is not None and kind not in _OF_INDEX]
        jobs = self._lease(rt, kinds, 1, seconds)
        if jobs and jobs[0].kind == "learn" and most > 1:
            whole = rt.db.read(storage_jobs.stretch_of, [jobs[0].subject])._replace(first=0, last=LAST)
            jobs += self._lease(rt, ["learn"], most - 1, seconds, whole)
        return jobs

    def _summarize(self, rt: Runtime, job: Job) -> None:
        if not rt.settings.extraction_with_summaries:
            summarize(rt, job)
            return
        facts = FactTask(rt, lambda keys: self._lease_all(rt, keys))
        try:
            summarize(rt, job, facts.ask)
        finally:
            facts.finish()

    def _lease_all(self, rt: Runtime, keys: Sequence[int]) -> list[Job]:
        """Lease the jobs of kind "learn" that wait for messages from the first to the last key, due or not."""
        stretch, now = rt.db.read(storage_jobs.stretch_of, keys), rt.now()
        rt.db.write(storage_jobs.gather, stretch, lambda _: now)
        return self._lease(rt, ["learn"], AT_ONCE, rt.settings.model_timeout, stretch)

    # One job, or several of one kind, in any of these threads.

    def _lease(
        self,
        rt: Runtime,
        kinds: Sequence[JobKind],
        limit: int,
        seconds: float = 0.0,
        stretch: Stretch | None = None,
        is_ready: Callable[[Runtime], bool] = lambda _: True,
    ) -> list[Job]:
        """Lease the oldest jobs that are due, if they can be done. The lease is longer than usual by `seconds`."""
        now = rt.now()
        until = now + timedelta(seconds=rt.settings.lease_seconds + seconds)
        if not rt.db.read(storage_jobs.is_due, kinds, now, until) or not is_ready(rt):
            return []
        return rt.db.write(storage_jobs.lease, kinds, limit, self._owner, now, until, stretch)

    def _do(self, rt: Runtime, jobs: Sequence[Job]) -> None:
        """Do jobs of one kind. If they fail together, each is tried alone."""
        lost = [job for job in jobs if job.attempts > rt.settings.job_attempts]
        for job in lost:
            self._fail(rt, job, "every attempt ended with its process")
        if left := [job for job in jobs if job not in lost]:
            self._attempt(rt, left)

    def _attempt(self, rt: Runtime, jobs: list[Job]) -> None:
        kind = jobs[0].kind
        try:
            with rt.telemetry.job(kind, len(jobs)):
                self._step(rt, kind, jobs)
            self._failures.pop(threading.current_thread().name, None)
        except tuple(_CAUSES) as problem:
            self._postpone(rt, jobs, problem)
        except BaseException as problem:  # a library's code may raise what is no `Exception`
            if isinstance(problem, errors.StoreUnavailableError):
                raise
            if len(jobs) > 1 and not isinstance(problem, errors.ModelError):
                for job in jobs:  # one of them may be the cause: try each alone
                    self._attempt(rt, [job])
                return
            reason = self._remember(problem)
            if isinstance(problem, errors.EmbedderError):
                rt.health.down("embedder", reason)
            elif not isinstance(problem, errors.MemlayerError):
                log_error("a background job raised", problem)
            for job in jobs:
                self._fail(rt, job, reason)

    def _step(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        """Do jobs of one kind. Those of kind "index" and "learn" may be several, others come one at a time."""
        match kind:
            case "index":
                queue(rt, [job.subject for job in jobs])
                index_flow.index(rt, jobs)
            case "copy":
                index_flow.copy(rt, jobs[0], self._stopping.is_set)
            case "audit":
                rebuilt = index_flow.audit(rt, jobs[0])
                self._rebuilt += [rebuilt] if rebuilt is not None else []
            case "maintain":
                maintain(rt)
                rt.db.write(storage_jobs.finish, jobs)
            case "erase":
                began = time.monotonic()
                erase(rt, jobs)
                self._erasures_rest_until = time.monotonic() + _ERASURE_SHARE * (time.monotonic() - began)
            case _:
                self._step_with_model(rt, kind, jobs)

    def _step_with_model(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        if kind == "learn":
            with rt.health.watch("learning", rt.settings.lease_seconds):
                extract(rt, jobs)
            return
        write = {"summarize": self._summarize, "episode": write_episode, "record": record}[kind]
        source: ProblemSource = "long-term memory" if kind == "record" else "summarizer"
        with rt.health.watch(source, rt.settings.lease_seconds):
            write(rt, jobs[0])

    def _postpone(self, rt: Runtime, jobs: Sequence[Job], problem: errors.MemlayerError) -> None:
        """Try jobs again later whose failure had another cause."""
        if not threading.main_thread().is_alive():
            return  # the interpreter ends: the next process does the jobs
        source, times = _CAUSES[type(problem)]
        self._note(rt, source, problem)
        later = rt.now() + times * timedelta(seconds=backoff(rt.settings.job_backoff, 1))
        rt.db.write(storage_jobs.fail, jobs, errors.in_short(problem), later, count_attempt=False)

    def _note(self, rt: Runtime, source: ProblemSource, problem: BaseException) -> None:
        """Remember, for `status` and `flush`, why jobs wait that did not cause the problem."""
        rt.health.down(source, self._remember(problem))

    def _remember(self, problem: BaseException) -> str:
        """Remember, for `flush`, why the last attempt of this thread failed. Returns it in short."""
        if isinstance(problem, errors.JournalCorruptError):
            self._damage = problem
        reason = self._failures[threading.current_thread().name] = errors.in_short(problem)
        return reason

    def _fail(self, rt: Runtime, job: Job, reason: str) -> None:
        """Try a job again later; after too many attempts, give it up."""
        is_last = job.attempts >= rt.settings.job_attempts
        pause = timedelta(seconds=backoff(rt.settings.job_backoff, job.attempts))
        rt.db.write(storage_jobs.fail, [job], reason, None if is_last else rt.now() + pause)
        failed = JobFailed(job.kind, job.subject, job.attempts, reason)
        rt.emit(JobDead(job.kind, job.subject, reason) if is_last else failed)


def log_error(text: str, problem: BaseException) -> None:
    """Log an error of another library with its traceback, but without its text, which may quote a message."""
    trace = "".join(traceback.format_tb(problem.__traceback__))
    logger.error("%s: %s\n%s", text, errors.in_short(problem), trace)
