"""Writes messages in one transaction, without a model; the cost does not grow with the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import RedactorError
from memlayer_core.events import MessagesStored, TemporaryDropped
from memlayer_core.message import Message, Receipt, StoredMessage
from memlayer_core.messages.flow.originals import restore_originals
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.messages.rules.check import check_messages, digest
from memlayer_core.messages.rules.render import as_prompt
from memlayer_core.messages.sql import lifetime, message_lists, transcript, writes
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.storage import job_queue
from memlayer_core.storage.terms import index_terms
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "add_temporary",
    "announce",
    "clear",
    "draft_of",
    "drafts_of",
    "message_of_draft",
    "remember",
    "rewrite",
]


def _added(receipt: Receipt, scope: Scope, messages: object, *_: object, **__: object) -> Outcome:
    listed = messages if isinstance(messages, Sequence) else ()  # another iterable is read by now
    counts = {
        "memlayer.messages.unchanged": receipt.unchanged,
        "memlayer.messages.replaced": receipt.replaced,
    }
    return Outcome(receipt.stored, counts, contents=lambda: [message.text for message in listed])


@traced("create_memory", "add", _added)
async def remember(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    messages: object,
    *,
    verbatim: bool = False,
) -> Receipt:
    """Check messages, store them at the end of a session, and wake the worker.

    Args:
        rt: What the memory works with.
        run: Blocks or awaits.
        scope: Which session.
        messages: The messages.
        verbatim: Store a system message even if it equals the one in force.
    """
    receipt = await run(_append, rt, scope, messages, verbatim)
    announce(rt, scope, receipt)
    return receipt


async def rewrite(rt: Runtime, run: Runner, scope: Scope, messages: object) -> Receipt:
    """Check messages, make them the whole session, and wake the worker."""
    receipt = await run(_rewrite, rt, scope, messages)
    announce(rt, scope, receipt)
    return receipt


async def add_temporary(rt: Runtime, run: Runner, scope: Scope, messages: object) -> None:
    """Check temporary messages, and add them to contexts until the model has answered."""
    every = [messages] if isinstance(messages, Message) else messages
    for draft in await run(drafts_of, rt, every):
        given_up = rt.temporaries.add(message_of_draft(scope, draft))
        if given_up:
            whose = given_up[0].scope
            rt.emit(TemporaryDropped(whose.namespace, whose.session_id or "", len(given_up)))


@traced("delete_memory", "clear", lambda count, *_: Outcome(count))
async def clear(rt: Runtime, run: Runner, scope: Scope) -> int:
    """Delete a session's messages."""
    rt.temporaries.clear(scope)
    gone = await run(rt.db.write, lifetime.clear, scope, rt.now())
    rt.wake()
    return gone


def _append(rt: Runtime, scope: Scope, messages: object, verbatim: bool) -> Receipt:
    drafts = drafts_of(rt, restore_originals(rt, scope, messages, one_is_new=True))
    if not drafts:
        return Receipt((), stored=0)
    write = writes.append if rt.long_term is None else partial(_append_round, rt)
    receipt = rt.db.write(
        write,
        scope,
        drafts,
        rt.now(),
        rt.shards,
        rt.new_id(),
        verbatim=verbatim,
    )
    if receipt.answered:
        rt.temporaries.finish_call(scope)
    return receipt


def _append_round(
    rt: Runtime,
    connection: Connection,
    scope: Scope,
    drafts: Sequence[PreparedMessage],
    *args: Any,
    **more: Any,
) -> Receipt:
    """Append messages, and queue the round that they end for the other long-term memory."""
    receipt = writes.append(connection, scope, drafts, *args, **more)
    answers = [one.message.id or "" for one in drafts if _is_answer(one.message)]
    if answers and receipt.answered:
        keys = transcript.keys_of(connection, scope, answers)
        job_queue.enqueue(connection, "record", keys, scope.namespace, rt.now())
    return receipt


def _is_answer(message: Message) -> bool:
    """Tell whether a message ends a round: a model's answer that calls no tool."""
    return message.role == "assistant" and message.model_visible and not message.tool_calls


def _rewrite(rt: Runtime, scope: Scope, messages: object) -> Receipt:
    drafts = drafts_of(rt, restore_originals(rt, scope, messages))
    return rt.db.write(message_lists.replace, scope, drafts, rt.now(), rt.shards)


def message_of_draft(scope: Scope, draft: PreparedMessage) -> StoredMessage:
    """Return a message that has no place in the history."""
    return StoredMessage(0, scope, draft.message, draft.tokens, draft.counter, draft.digest)


def drafts_of(rt: Runtime, messages: object) -> list[PreparedMessage]:
    """Check and count messages, before the first one is written."""
    return [draft_of(rt, message) for message in check_messages(messages)]


def draft_of(rt: Runtime, message: Message) -> PreparedMessage:
    """Prepare a checked message for the journal.

    Where the user's redactor fails, its words are indexed by the index job, which waits until it works.
    """
    spoken = message.model_visible and message.role != "system"
    searched = message.text[: rt.settings.indexed_characters].strip() if spoken else ""
    created_at = message.created_at or rt.now()
    terms: tuple[str, ...] | None = ()
    try:
        if words := rt.redact(searched):
            terms = index_terms(words, message.name, created_at, by_user=message.role == "user")
    except RedactorError:
        terms = None
    return PreparedMessage(
        message=replace(message, id=message.id or rt.new_id(), created_at=created_at),
        has_own_id=message.id is not None,
        has_own_time=message.created_at is not None,
        digest=digest(message, bytes_limit=rt.settings.message_bytes_limit),
        tokens=rt.tokens.message(as_prompt(message)) if message.model_visible else 0,
        counter=rt.tokens.name,
        search_text=searched,
        terms=terms,
    )


def announce(rt: Runtime, scope: Scope, receipt: Receipt) -> None:
    """Emit what was stored, and wake the worker."""
    if receipt.stored or receipt.replaced:
        rt.emit(
            MessagesStored(
                scope.namespace,
                scope.session_id or "",
                receipt.stored,
                receipt.unchanged,
                receipt.replaced,
            )
        )
        rt.wake()
