"""Leases jobs and does them: what fails is tried again later, and given up after too many attempts."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import groupby

from memlayer_core.errors import (
    EmbedderError,
    EmbedderMismatchError,
    IndexCorruptError,
    IndexUnavailableError,
    MemlayerError,
    ModelError,
    StoreUnavailableError,
    in_short,
)
from memlayer_core.events import JobDead, JobFailed, Source
from memlayer_core.runtime import Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import Job, JobKind, backoff
from memlayer_core.storage.keys import shard_of
from memlayer_core.worker.upkeep import ErasureDelayError

__all__ = ["JobRunner", "log_error"]

logger = logging.getLogger("memlayer")

_LATER = 10  # an erasure that a reader held back is tried after so many times the usual wait: writers wait meanwhile


class JobRunner:
    """Leases jobs and does them, for one thread of the worker or several.

    Args:
        owner: The worker's name, for its leases.
        step: Does jobs of one kind.
        suspects: Shards of the index that may be damaged; those of a failed job are added.

    Attributes:
        last_error: Why the last attempt failed; None if it did not.
    """

    def __init__(
        self, owner: str, step: Callable[[Runtime, JobKind, list[Job]], None], suspects: set[int]
    ) -> None:
        self._owner, self._step, self._suspects = owner, step, suspects
        self.last_error: str | None = None

    def lease(
        self,
        rt: Runtime,
        kinds: Sequence[JobKind],
        limit: int,
        seconds: float = 0.0,
        subjects: tuple[int, int] | None = None,
    ) -> list[Job]:
        """Lease the oldest jobs that are due, for so many seconds more than a lease usually has. See `job_queue.lease`."""
        now = rt.now()
        until = now + timedelta(seconds=rt.settings.lease_seconds + seconds)
        if not rt.db.read(job_queue.is_due, kinds, now, until):
            return []
        return rt.db.write(job_queue.lease, kinds, limit, self._owner, now, until, subjects)

    def do(self, rt: Runtime, jobs: Sequence[Job]) -> None:
        """Do jobs, those of one kind together; each alone where they fail together."""
        lost = [job for job in jobs if job.attempts > rt.settings.job_attempts]
        for job in lost:  # each attempt ended with its process
            self._give_up(rt, job, self.last_error or "every attempt ended with its process")
        left = sorted((job for job in jobs if job not in lost), key=lambda job: job.kind)
        for kind, some in groupby(left, key=lambda job: job.kind):
            self._attempt(rt, kind, list(some))

    def _attempt(self, rt: Runtime, kind: JobKind, jobs: list[Job]) -> None:
        try:
            with rt.telemetry.job(kind, len(jobs)):
                self._step(rt, kind, jobs)
            self.last_error = None
        except (IndexUnavailableError, IndexCorruptError, EmbedderMismatchError) as problem:
            self._postpone(rt, jobs, problem)
        except ErasureDelayError as problem:
            self.last_error = str(problem)
            rt.health.down("erasure", str(problem))
            later = rt.now() + _LATER * timedelta(seconds=rt.settings.job_backoff)
            rt.db.write(job_queue.fail, jobs, str(problem), later, count_attempt=False)
        except Exception as problem:
            if isinstance(problem, StoreUnavailableError):
                raise
            if len(jobs) > 1 and not isinstance(
                problem, ModelError
            ):  # one of them may be the cause: try each alone
                for job in jobs:
                    self._attempt(rt, kind, [job])
                return
            self.last_error = in_short(problem)
            if isinstance(problem, EmbedderError):
                rt.health.down("embedder", in_short(problem))
            elif not isinstance(problem, MemlayerError):
                log_error("a background job raised", problem)
            self._later(rt, jobs, problem)

    def _postpone(self, rt: Runtime, jobs: Sequence[Job], problem: MemlayerError) -> None:
        """Try jobs again later that failed by no fault of theirs."""
        if not threading.main_thread().is_alive():
            return  # the interpreter ends: the next process does the jobs
        self.last_error = in_short(problem)  # no job's fault
        source: Source = "embedder" if isinstance(problem, EmbedderMismatchError) else "index"
        rt.health.down(source, in_short(problem))
        if isinstance(problem, IndexCorruptError):
            self._suspects.update(shard_of(job.namespace, rt.shards) for job in jobs if job.namespace)
        later = rt.now() + timedelta(seconds=backoff(rt.settings.job_backoff, 1))
        rt.db.write(job_queue.fail, jobs, in_short(problem), later, count_attempt=False)

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


def log_error(text: str, problem: Exception) -> None:
    """Log an error of another library with its traceback, but without its text, which may quote a message."""
    frames = "".join(traceback.format_tb(problem.__traceback__))
    logger.error("%s: %s\n%s", text, in_short(problem), frames)
