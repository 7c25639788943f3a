"""Does owed work in one background thread, from leased job rows: a restart loses none and repeats no effect."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import assert_never

from memlayer_core.drive import BLOCKING, step
from memlayer_core.errors import (
    ConfigurationError,
    EmbedderError,
    EmbedderMismatchError,
    FlushTimeoutError,
    IndexCorruptError,
    IndexUnavailableError,
    MemlayerError,
    StoreUnavailableError,
)
from memlayer_core.events import JobDead, JobFailed, Source
from memlayer_core.flows import index as flows
from memlayer_core.flows.episodic import write_episode
from memlayer_core.flows.sessions import end_idle
from memlayer_core.flows.summarize import summarize
from memlayer_core.ports import World
from memlayer_core.records.job import Backlog, Job, JobKind

__all__ = ["Worker"]

logger = logging.getLogger("memlayer")

_INDEXING: tuple[JobKind, ...] = ("index", "unindex")
_WRITING: tuple[JobKind, ...] = ("summarize", "episode")
_IDLE = 1.0  # seconds between looks for the work of other processes
_LONGEST_BACKOFF = 600.0
_CLOSING = 30.0  # seconds that `close` waits for the batch in hand


class Worker:
    """Runs background jobs for one memory.

    The thread starts at the first work. Only a process that holds the index keeps it up to date: the others leave
    that in the journal, where the holder finds it within a second, and one of them takes over when the
    holder is gone. Any process sums up, and writes episodes. That waits for models, and so comes last, one step at a time.

    Args:
        owner: A name for this worker's leases, unique among all processes.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._world: World | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._wanted = threading.Event()
        self._hurry = threading.Event()
        self._stopping = threading.Event()
        self._rested = threading.Condition()
        self._suspects: set[int] = set()
        self._last_error: str | None = None
        self._adopted = False
        self._evicted: dict[int, int] = {}
        self._accessed: set[int] = set()

    def employ(self, world: World) -> None:
        """Give the worker the world it works in; it looks for work left by earlier processes."""
        self._world = world
        step(end_idle(world, BLOCKING))  # before anybody goes on with one of them
        if world.journal.backlog().queued:
            self.wake()

    def wake(self) -> None:
        """Say that there is work."""
        self._wanted.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._stopping.is_set():
                    self._thread = threading.Thread(target=self._run, name="memlayer-worker", daemon=True)
                    self._thread.start()

    def suspect(self, shard: int) -> None:
        """Say that a shard of the index is damaged."""
        self._suspects.add(shard)
        self.wake()

    def evicted(self, session: int, first: int) -> None:
        """Note that a session's turns before a place left its window; owed off everybody's path."""
        self._evicted[session] = max(first, self._evicted.get(session, 0))
        self.wake()

    def accessed(self, keys: Sequence[int]) -> None:
        """Note that records were recalled; written down off everybody's path."""
        if keys:
            self._accessed.update(keys)
            self.wake()

    def flush(self, timeout: float) -> Backlog:
        """Wait until no work is owed.

        Raises:
            FlushTimeoutError: Some still is after `timeout` seconds.
        """
        assert self._world is not None  # noqa: S101
        deadline = time.monotonic() + timeout
        while True:
            noted = self._noted  # what is written down meanwhile is in the backlog
            backlog = self._world.journal.backlog()
            if not noted and not backlog.queued:
                return backlog
            left = deadline - time.monotonic()
            if left <= 0:
                raise FlushTimeoutError(
                    f"{backlog.queued} job(s) are still owed after {timeout:g} seconds"
                    + (f"; the last failure was: {self._last_error}" if self._last_error else ""),
                    hint="The work goes on in the background. `memory.status()` tells what is in its way.",
                )
            self._hurry.set()
            self.wake()
            with self._rested:
                self._rested.wait(min(left, 0.05))

    @property
    def _noted(self) -> bool:
        return bool(self._suspects or self._evicted or self._accessed)

    def close(self) -> None:
        """Finish the batch in hand, give back the leases, and stop."""
        with self._starting:
            self._stopping.set()
            thread = self._thread
        self._wanted.set()
        self._hurry.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSING)
        if self._world is not None and thread is not None:
            self._world.journal.release(self._owner, self._world.now())

    def _run(self) -> None:
        assert self._world is not None  # noqa: S101
        world = self._world
        while not self._stopping.is_set():
            asked = self._wanted.wait(_IDLE)
            self._wanted.clear()
            if asked:
                self._hurry.wait(world.settings.index_delay)  # messages are given time to gather
                self._hurry.clear()
            try:
                self._write_down(world)
                step(end_idle(world, BLOCKING))
                if asked and not self._stopping.is_set():
                    self._ready(world)
                self._work_off(world)
            except StoreUnavailableError as problem:
                self._last_error = str(problem)
                logger.warning("background work waits: %s", problem)
                self._stopping.wait(_IDLE)
            except Exception as problem:  # one bad row must not end everybody's background work
                self._last_error = str(problem)
                logger.exception("background work cannot go on")
                self._stopping.wait(_LONGEST_BACKOFF / 60)

    def _work_off(self, world: World) -> None:
        """Do jobs until none is due."""
        worked = False
        while not self._stopping.is_set() and self._owed(world):
            jobs = self._leased(world, _INDEXING, world.settings.index_batch) if self._ready(world) else []
            jobs = jobs or self._leased(world, _WRITING, 1)
            if not jobs:
                break
            self._do(world, jobs)
            worked = True
            with self._rested:
                self._rested.notify_all()
        if worked:
            world.journal.tidy()

    def _leased(self, world: World, kinds: Sequence[JobKind], limit: int) -> list[Job]:
        now = world.now()
        until = now + timedelta(seconds=world.settings.lease_seconds)
        return world.journal.lease(kinds, limit, self._owner, now, until)

    def _write_down(self, world: World) -> None:
        """Write down what contexts noted."""
        for session, first in list(self._evicted.items()):
            world.journal.evicted(session, first, world.now())
            if self._evicted.get(session) == first:
                del self._evicted[session]
        if recalled := list(self._accessed):
            world.journal.accessed(recalled, world.now())
            self._accessed.difference_update(recalled)

    def _owed(self, world: World) -> bool:
        return bool(self._suspects) or world.journal.backlog().queued > 0

    def _ready(self, world: World) -> bool:
        """Take hold of the index, and see to it that it holds what it should."""
        if world.index is None:
            self._suspects.clear()
            return True
        try:
            if not world.index.held:
                if not world.index.acquire():
                    return False
                if world.index.exclusive:  # whoever held it before is gone, and did not say goodbye
                    world.journal.reclaim(self._owner, world.now())
                self._adopted = False
            if not self._adopted:
                reason = world.index.repaired or "it did not hold what the journal has"
                step(flows.adopt(world, BLOCKING, reason=reason))
                world.index.repaired = None
                self._adopted = True
            while self._suspects:
                shard = next(iter(self._suspects))
                step(flows.rebuild(world, BLOCKING, [shard], reason="it was damaged"))
                self._suspects.discard(shard)
        except (IndexUnavailableError, IndexCorruptError, ConfigurationError) as problem:
            if not threading.main_thread().is_alive():
                return False  # the interpreter ends: what is owed is done by the next process
            self._last_error = str(problem)
            world.health.down("index", str(problem))
            self._stopping.wait(_IDLE)
            return False
        return True

    def _do(self, world: World, jobs: Sequence[Job]) -> None:
        lost = [job for job in jobs if job.attempts > world.settings.job_attempts]
        for job in lost:  # each attempt ended the process that made it
            self._give_up(world, job, self._last_error or "every attempt ended without a word")
        left = sorted((job for job in jobs if job not in lost), key=lambda job: job.kind)
        for kind, some in groupby(left, key=lambda job: job.kind):
            self._attempt(world, kind, list(some))

    def _attempt(self, world: World, kind: JobKind, jobs: list[Job]) -> None:
        try:
            self._step(world, kind, jobs)
            self._last_error = None
        except (IndexUnavailableError, IndexCorruptError, EmbedderMismatchError) as problem:
            self._last_error = str(problem)  # no job's fault
            source: Source = "embedder" if isinstance(problem, EmbedderMismatchError) else "index"
            world.health.down(source, str(problem))
            if isinstance(problem, IndexCorruptError):
                self._suspects.update(world.journal.shard_of(job.namespace) for job in jobs)
            later = world.now() + timedelta(seconds=world.settings.job_backoff)
            world.journal.fail(jobs, str(problem), later, counted=False)
        except Exception as problem:
            if isinstance(problem, StoreUnavailableError):
                raise
            if len(jobs) > 1:  # one of them may be the cause: the others need not suffer
                for job in jobs:
                    self._attempt(world, kind, [job])
                return
            self._last_error = str(problem)
            if isinstance(problem, EmbedderError):
                world.health.down("embedder", str(problem))
            elif not isinstance(problem, MemlayerError):
                logger.exception("a background job raised")
            self._later(world, jobs, problem)

    @staticmethod
    def _step(world: World, kind: JobKind, jobs: list[Job]) -> None:
        match kind:
            case "index":
                step(flows.index(world, BLOCKING, jobs))
            case "unindex":
                step(flows.unindex(world, BLOCKING, jobs))
            case "summarize":
                for job in jobs:
                    step(summarize(world, BLOCKING, job))
            case "episode":
                for job in jobs:
                    step(write_episode(world, BLOCKING, job))
            case _:
                assert_never(kind)

    def _later(self, world: World, jobs: Sequence[Job], problem: Exception) -> None:
        for job in jobs:
            if job.attempts >= world.settings.job_attempts:
                self._give_up(world, job, str(problem))
                continue
            wait = min(_LONGEST_BACKOFF, world.settings.job_backoff * 2 ** (job.attempts - 1))
            world.journal.fail([job], str(problem), world.now() + timedelta(seconds=wait))
            world.tell(JobFailed(job.kind, job.subject, job.attempts, str(problem)))

    def _give_up(self, world: World, job: Job, error: str) -> None:
        world.journal.fail([job], error, None)
        world.tell(JobDead(job.kind, job.subject, error))
