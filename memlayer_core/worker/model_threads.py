"""Does the jobs that call language models in threads of their own: nothing else waits for a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from memlayer_core.errors import StoreUnavailableError, in_short
from memlayer_core.events import Source
from memlayer_core.extraction.flow import AT_ONCE, FactTask, extract
from memlayer_core.runner import SYNC, Runner, step
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import Job, JobKind
from memlayer_core.storage.keys import LAST, key_of, session_of
from memlayer_core.summaries.flow import summarize, write_episode
from memlayer_core.window.flow.long_term import record
from memlayer_core.worker.job_runner import JobRunner, log_error

__all__ = ["ModelThreads"]

_RECOVERY = 10.0  # seconds before a thread is started again after an unexpected error


class ModelThreads:
    """The threads that call language models, `Settings.model_concurrency` at the most.

    A thread starts when a job is due, and ends when none is.

    Args:
        owner: The worker's name, for its leases.
        stop: Is set when the worker stops.
        notify: Is called after each job.
    """

    def __init__(self, owner: str, stop: threading.Event, notify: Callable[[], None]) -> None:
        self._jobs = JobRunner(owner, self._step, set())
        self._stop, self._notify = stop, notify
        self._threads: set[threading.Thread] = set()
        self._rests_until = 0.0

    @property
    def last_error(self) -> str | None:
        """Why the last attempt failed; None if it did not."""
        return self._jobs.last_error

    def start(self, rt: Runtime) -> None:
        """Start threads while jobs are due. Only the worker's own thread calls it."""
        while len(self._threads) < rt.settings.model_concurrency and time.monotonic() >= self._rests_until:
            jobs = self._lease(rt)
            if not jobs or self._stop.is_set():
                return
            thread = threading.Thread(target=self._run, args=(rt, jobs), name="memlayer-models", daemon=True)
            self._threads.add(thread)
            thread.start()

    def join(self, until: float) -> None:
        """Wait for the threads until a moment of `time.monotonic()`."""
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _run(self, rt: Runtime, jobs: Sequence[Job]) -> None:
        try:
            while jobs and not self._stop.is_set():
                self._jobs.do(rt, jobs)
                self._notify()
                jobs = self._lease(rt)
        except StoreUnavailableError as problem:
            self._jobs.last_error = in_short(problem)
            self._rests_until = time.monotonic() + _RECOVERY
        except Exception as problem:  # noqa: BLE001  (one bad row must not end all work with models)
            self._jobs.last_error = in_short(problem)
            rt.health.down("worker", in_short(problem))
            log_error("work with models cannot go on", problem)
            self._rests_until = time.monotonic() + _RECOVERY
        finally:
            self._threads.discard(threading.current_thread())
            rt.wake()  # a job may have come since the last look

    def _lease(self, rt: Runtime) -> list[Job]:
        """Lease a job; with one of kind "learn", the others of its session that are due."""
        seconds, most = rt.settings.model_timeout, rt.settings.extraction_turns
        kinds: list[JobKind] = []  # of the others, another process has the model, or the service
        kinds += ["summarize", "episode"] if rt.summarizer is not None else []
        kinds += ["learn"] if rt.extractor is not None else []
        kinds += ["record"] if rt.long_term is not None else []
        jobs = self._jobs.lease(rt, kinds, 1, seconds)
        if jobs and jobs[0].kind == "learn" and most > 1:
            session = session_of(jobs[0].subject)
            inside = key_of(session, 0), key_of(session, LAST)
            jobs += self._jobs.lease(rt, ["learn"], most - 1, seconds, inside)
        return jobs

    def _step(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        if kind == "learn":
            with rt.health.watch("learning", rt.settings.lease_seconds):
                step(extract(rt, SYNC, jobs))
            return
        write = {"summarize": self._summarize, "episode": write_episode, "record": record}[kind]
        source: Source = "long-term memory" if kind == "record" else "summarizer"
        for job in jobs:
            with rt.health.watch(source, rt.settings.lease_seconds):
                step(write(rt, SYNC, job))

    async def _summarize(self, rt: Runtime, run: Runner, job: Job) -> None:
        if not rt.settings.extraction_with_summaries:
            await summarize(rt, run, job)
            return
        facts = FactTask(rt, lambda keys: self._lease_all(rt, keys))
        try:
            await summarize(rt, run, job, facts.ask)
        finally:
            facts.finish()

    def _lease_all(self, rt: Runtime, keys: Sequence[int]) -> list[Job]:
        """Lease the jobs of kind "learn" that wait for messages from the first to the last key, due or not."""
        inside, now = (keys[0], keys[-1]), rt.now()
        rt.db.write(job_queue.gather, "learn", inside, 1, now, now)
        return self._jobs.lease(rt, ["learn"], AT_ONCE, rt.settings.model_timeout, inside)
