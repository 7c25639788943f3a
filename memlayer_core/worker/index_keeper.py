"""Acquires the vector index, and compares it with the journal."""

from __future__ import annotations

import threading

from memlayer_core.errors import (
    IndexCorruptError,
    IndexUnavailableError,
    MemlayerError,
    in_short,
)
from memlayer_core.index import flow as flows
from memlayer_core.runner import SYNC, step
from memlayer_core.runtime import Runtime
from memlayer_core.seams import VectorIndex
from memlayer_core.storage import job_queue

__all__ = ["UNSOUND", "IndexKeeper"]

UNSOUND = "it did not hold what the journal has"


class IndexKeeper:
    """Keeps the vector index of one memory complete, for its worker.

    Args:
        owner: The worker's name, for its leases.

    Attributes:
        suspects: Shards that may be damaged.
        adopted: Whether the index was compared with the journal since it was acquired.
        problem: Why `ready` failed the last time; None if it did not.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.suspects: set[int] = set()
        self.adopted = False
        self.problem: MemlayerError | None = None

    def watch(self, rt: Runtime) -> bool:
        """Close an index whose files were removed. It is then acquired and filled again at the same place.

        Returns:
            Whether it was closed.
        """
        if rt.index is not None and not rt.index.still_there():
            rt.health.down("index", "its files were removed or replaced while they were open")
            rt.index.close()
            return True
        return False

    def ready(self, rt: Runtime) -> bool:
        """Acquire the index, and repair it if needed. Returns False if it is not available."""
        self.problem = None
        if rt.index is None:
            self.suspects.clear()
            return True
        try:
            if not rt.index.held:
                if not rt.index.acquire():
                    return False
                if rt.index.exclusive:  # the process that held it died, and its leases with it
                    rt.db.write(job_queue.reclaim, self._owner, rt.now())
                self.adopted = False
            if rt.index.repaired or not self.adopted:
                self._adopt(rt, rt.index)
            while self.suspects:
                shard = next(iter(self.suspects))
                step(flows.rebuild(rt, SYNC, [shard], reason="it was damaged"))
                self.suspects.discard(shard)
        except (IndexUnavailableError, IndexCorruptError) as problem:
            if not threading.main_thread().is_alive():
                return False  # the interpreter ends: the next process does the jobs that are left
            self.problem = problem
            rt.health.down("index", in_short(problem))
            return False
        return True

    def _adopt(self, rt: Runtime, index: VectorIndex) -> None:
        """Compare the index with the journal and repair it; on a server, by a job that one process does."""
        if index.exclusive:
            step(flows.adopt(rt, SYNC, reason=index.repaired or UNSOUND))
        else:
            rt.db.write(job_queue.enqueue_once, "audit", [0], rt.now())
        index.repaired = None
        self.adopted = True
