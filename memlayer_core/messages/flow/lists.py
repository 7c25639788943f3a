"""Sessions as plain lists of messages, as the chat stores of frameworks use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlayer_core.message import Message, Receipt, StoredMessage
from memlayer_core.messages.flow.originals import restore_originals
from memlayer_core.messages.flow.remember import announce, drafts_of, remember
from memlayer_core.messages.model import Part
from memlayer_core.messages.rules.check import check_whole_number, index
from memlayer_core.messages.sql import message_lists, transcript
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["add", "add_unknown", "archive", "count", "insert", "keys", "list_messages", "replace", "take"]


async def keys(
    rt: Runtime, run: Runner, tenant_id: str, user_id: str | None, agent_id: str | None
) -> list[str]:
    """Return the ids of sessions with messages, the oldest session first."""
    return await run(rt.db.read, message_lists.session_ids, tenant_id, user_id, agent_id)


async def list_messages(
    rt: Runtime, run: Runner, scope: Scope, part: Part | None, limit: int | None, offset: int
) -> list[Message]:
    """Return a session's messages, or those of a part of it."""
    if limit is not None:
        check_whole_number("limit", limit)
    check_whole_number("offset", offset)

    def read(connection: Connection) -> list[Message]:
        session = transcript.find(connection, scope)
        found = (
            message_lists.list_messages(connection, session, part, limit, offset)
            if session is not None
            else []
        )
        return _messages(found)

    return await run(rt.db.read, read)


async def count(rt: Runtime, run: Runner, scope: Scope, part: Part | None) -> int:
    """Return how many messages a session has, or a part of it."""

    def read(connection: Connection) -> int:
        session = transcript.find(connection, scope)
        return message_lists.count(connection, session, part) if session is not None else 0

    return await run(rt.db.read, read)


async def add(rt: Runtime, run: Runner, scope: Scope, messages: object, part: Part) -> Receipt:
    """Store messages at the end of a part."""
    if part == "archived":
        return await insert(rt, run, scope, messages, None)
    return await remember(rt, run, scope, messages, verbatim=True)


@traced("create_memory", "insert", lambda receipt, *_: Outcome(receipt.stored))
async def insert(rt: Runtime, run: Runner, scope: Scope, messages: object, place: int | None) -> Receipt:
    """Insert messages at a place of a session; None: at the end of the archived part."""
    if place is not None:
        index("place", place)

    def write() -> Receipt:
        drafts = drafts_of(rt, restore_originals(rt, scope, messages, one_is_new=True))
        if not drafts:
            return Receipt((), stored=0)
        return rt.db.write(message_lists.insert, scope, drafts, rt.now(), rt.shards, place)

    receipt = await run(write)
    announce(rt, scope, receipt)
    return receipt


async def add_unknown(rt: Runtime, run: Runner, scope: Scope, messages: object) -> Receipt:
    """Store the messages of a list that the session does not have yet."""

    def write() -> Receipt:
        drafts = drafts_of(rt, restore_originals(rt, scope, messages))
        if not drafts:
            return Receipt((), stored=0)
        return rt.db.write(message_lists.hear, scope, drafts, rt.now(), rt.shards, rt.new_id())

    receipt = await run(write)
    announce(rt, scope, receipt)
    return receipt


@traced("upsert_memory", "replace", lambda receipt, *_: Outcome(receipt.stored))
async def replace(rt: Runtime, run: Runner, scope: Scope, messages: object, part: Part) -> Receipt:
    """Make a session exactly these messages; the others become versions."""

    def write() -> Receipt:
        drafts = drafts_of(rt, restore_originals(rt, scope, messages))
        return rt.db.write(message_lists.replace, scope, drafts, rt.now(), rt.shards, rt.new_id(), part)

    receipt = await run(write)
    announce(rt, scope, receipt)
    rt.wake()  # the old messages have to leave the index
    return receipt


@traced("delete_memory", "take", lambda messages, *_: Outcome(len(messages)))
async def take(
    rt: Runtime, run: Runner, scope: Scope, part: Part | None, first: int, limit: int | None
) -> list[Message]:
    """Delete up to `limit` messages from a place on; None: all of them. Returns them."""
    index("first", first)
    if limit is not None:
        check_whole_number("count", limit)
    if part is None and first == 0 and limit is None:
        rt.temporaries.clear(scope)
    gone = await run(rt.db.write, message_lists.take, scope, part, first, limit, rt.now())
    if gone:
        rt.wake()
    return _messages(gone)


async def archive(rt: Runtime, run: Runner, scope: Scope, limit: int) -> list[Message]:
    """Archive the oldest active messages. Returns them."""
    check_whole_number("count", limit)
    done = await run(rt.db.write, message_lists.archive, scope, limit, rt.now(), rt.episode_minimum)
    if done:
        rt.wake()
    return _messages(done)


def _messages(messages: list[StoredMessage]) -> list[Message]:
    return [stored.message for stored in messages]
