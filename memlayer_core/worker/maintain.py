"""What time asks for, once a day: tells what is archived, and deletes what the settings say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from memlayer_core.events import StoreMaintained
from memlayer_core.messages.rules.check import in_utc
from memlayer_core.records.sql import outcomes, upkeep
from memlayer_core.runner import Runner
from memlayer_core.runtime import Journal, Runtime
from memlayer_core.storage import job_queue
from memlayer_core.storage.jobs import Job

_TOLD = timedelta(days=90)  # how long `memory.ledger` tells of a call
_PAGE = 500  # records or entries of one transaction, so that others can write in between


async def maintain(rt: Runtime, run: Runner, now: datetime | None = None) -> StoreMaintained:
    """Delete what the settings say, and return what was done. To do it again changes nothing.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        now: The moment that counts; None: the present.
    """
    done = await maintain_journal(rt, run, now)
    if done.deleted:
        rt.wake()
    rt.emit(done)
    return done


async def maintain_journal(journal: Journal, run: Runner, now: datetime | None = None) -> StoreMaintained:
    """Do `maintain` in the journal alone. What is left to erase from the index and the files is queued."""
    moment = in_utc(now, "now") or journal.now()
    deleted = await _delete_archived(journal, run, moment)
    entries = await _prune_outcomes(journal, run, moment)
    faded, expired = await run(journal.db.read, upkeep.count_archived, journal.settings, moment)
    return StoreMaintained(moment, archived=faded, expired=expired, deleted=deleted, entries=entries)


async def maintain_daily(rt: Runtime, run: Runner, jobs: Sequence[Job]) -> None:
    """Do jobs of kind `"maintain"`."""
    await maintain(rt, run)
    await run(rt.db.write, job_queue.finish, jobs)


def enqueue_daily(rt: Runtime) -> None:
    """Queue a job of kind `"maintain"` if a day is over. All processes together queue one."""
    now = rt.now()
    if rt.db.read(job_queue.is_day_over, "maintain", now):
        rt.db.write(job_queue.enqueue_daily, "maintain", now)


async def _delete_archived(rt: Journal, run: Runner, at: datetime) -> int:
    settings, days, deleted = rt.settings, rt.settings.delete_archived_days, 0
    if days is None:
        return 0
    while found := await run(rt.db.read, upkeep.find_archived, settings, at, days, _PAGE):
        before = deleted
        for owner, ordinals in found:
            deleted += await run(
                rt.db.write, upkeep.delete_archived, settings, at, days, owner, ordinals, rt.now()
            )
        if deleted == before:  # all were used meanwhile
            break
    return deleted


async def _prune_outcomes(rt: Journal, run: Runner, moment: datetime) -> int:
    gone = 0
    while more := await run(rt.db.write, outcomes.prune, moment - _TOLD, _PAGE):
        gone += more
    return gone
