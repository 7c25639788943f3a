"""Applies to the memory what was removed or edited in an agent's state between two runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from langchain_core.messages import BaseMessage

from langchain_memlayer.messages import is_summary, to_core
from langchain_memlayer.snapshot import Change, ThreadSnapshot, contains, removed_ids
from langchain_memlayer.summarizer import is_own_summary
from langchain_memlayer.threads import Thread
from memlayer_core.integration import Runner

__all__ = ["apply_changes", "may_be_trimming", "warn_of_summaries"]

logger = logging.getLogger("memlayer")


def may_be_trimming(messages: Sequence[BaseMessage], previous: ThreadSnapshot) -> bool:
    """Tell whether missing messages may have been trimmed in a run that did not end, instead of removed after it."""
    has_summary = any(is_summary(message) and not contains(previous, message) for message in messages)
    return previous["active"] and (previous["trims"] or has_summary)


async def apply_changes(
    run: Runner, chat: Thread, messages: Sequence[BaseMessage], previous: ThreadSnapshot, change: Change
) -> None:
    """Apply to the memory what was removed and edited between two runs.

    If no message of the last ended run is left, everything was removed, also the messages that older runs had trimmed.
    """
    history = await run.verb(chat.history, chat.ahistory)
    if previous["active"] and chat.was_trimmed(history):
        return
    stored_ids = [message.id or "" for message in history]
    thread_ids = {message.id for message in messages}
    missing = [one for one in stored_ids if one not in thread_ids]
    if change.remainder or previous["active"]:
        missing = removed_ids(change.removals, missing)
    await run.verb(chat.withdraw, chat.awithdraw, missing)
    edits = [to_core(one) for one in change.edits if one.id in {*stored_ids}]
    await run.verb(chat.add_messages, chat.aadd_messages, chat.with_lineage(edits), verbatim=True)


def warn_of_summaries(messages: Sequence[BaseMessage], snapshot: ThreadSnapshot | None) -> None:
    """Warn once in a process that LangChain's own summaries cost money and are not used.

    Summaries in the snapshot are ignored: another process may have written them.
    """
    for message in messages:
        if (
            is_summary(message)
            and not (snapshot is not None and contains(snapshot, message))
            and not is_own_summary(message)
        ):
            _warn_of_summary()


@cache
def _warn_of_summary() -> None:
    """Warn once in a process."""
    logger.warning(
        "a `SummarizationMiddleware` together with `MemlayerMiddleware` pays for summaries that no model sees: the "
        "memory has its own. Leave it out, or give it `summarizer=create_summarizer(memory)`"
    )
