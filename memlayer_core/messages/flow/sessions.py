"""Whole sessions: list, end, fork, synchronize with a list, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, get_args

from memlayer_core.errors import (
    InputError,
    InvalidMessageError,
    MessageChangedError,
    UnknownMessageError,
)
from memlayer_core.events import MessagesStored, SessionEnded
from memlayer_core.message import Block, Message
from memlayer_core.messages.flow.lists import add_unknown
from memlayer_core.messages.flow.originals import restore_originals
from memlayer_core.messages.flow.remember import draft_of, drafts_of, rewrite
from memlayer_core.messages.model import PreparedMessage, Replace, Session, SyncReport, User
from memlayer_core.messages.rules.align import digest_of
from memlayer_core.messages.rules.check import (
    at_least_one,
    check_message,
    check_whole_number,
    digest,
    identifier,
    index,
)
from memlayer_core.messages.rules.new_message import content_of
from memlayer_core.messages.rules.splice import in_order
from memlayer_core.messages.sql import lifetime, transcript, writes
from memlayer_core.messages.sql import writes as resync_sql
from memlayer_core.messages.sql.users import list_users
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.telemetry import Outcome, traced

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "delete",
    "edit",
    "end",
    "end_idle",
    "fork",
    "history",
    "rename",
    "resync",
    "sessions",
    "users",
    "withdraw",
]

_AT_ONCE = 100  # sessions that are ended in one transaction


async def sessions(
    rt: Runtime, run: Runner, reach: Scope, limit: int, offset: int, *, all_versions: bool
) -> list[Session]:
    """Return a user's sessions, the last used first."""
    at_least_one("limit", limit)
    check_whole_number("offset", offset)
    found = await run(rt.db.read, transcript.list_sessions, reach, limit, offset, superseded=all_versions)
    return ViewList("Sessions", found)


async def users(rt: Runtime, run: Runner, find: str, limit: int, offset: int) -> list[User]:
    """Return the users of a store, the last used first."""
    at_least_one("limit", limit)
    check_whole_number("offset", offset)
    return ViewList("Users", await run(rt.db.read, list_users, find, limit, offset))


async def history(
    rt: Runtime, run: Runner, scope: Scope, offset: int, limit: int | None, *, all_versions: bool = False
) -> list[Message]:
    """Return a session's messages in order, or a part of them; with their versions if `all_versions`."""
    if limit is not None:
        at_least_one("limit", limit)
    index("offset", offset)

    def read(connection: Connection) -> list[Message]:
        session = transcript.find(connection, scope)
        if session is None:
            return []
        if all_versions:
            stored = transcript.history(connection, session, -1, None)
            return in_order(stored, transcript.versions(connection, session))[offset:][:limit]
        if offset < 0:
            newest = transcript.tail(connection, session, None, -offset)
            places = sorted(entry.seq for entry in newest)[:limit]
            return [one.message for one in transcript.read(connection, session, places)]
        return [one.message for one in transcript.history(connection, session, -1, limit, offset)]

    return ViewList("Messages", await run(rt.db.read, read))


async def rename(rt: Runtime, run: Runner, scope: Scope, title: str | None) -> bool:
    """Set or remove a session's title."""
    if title is not None:
        identifier("title", title.strip() if isinstance(title, str) else title)
    return await run(rt.db.write, lifetime.rename, scope, title)


async def end(rt: Runtime, run: Runner, scope: Scope) -> bool:
    """End a session: its window begins anew, and an episode is written."""
    rt.temporaries.clear(scope)
    ended = await run(rt.db.write, lifetime.end, scope, rt.now(), rt.episode_minimum)
    if ended is not None:
        _emit_ended(rt, ended, idle=False)
        rt.wake()
    return ended is not None


async def end_idle(rt: Runtime, run: Runner) -> int:
    """End a batch of sessions that were idle for `Settings.session_idle_days`. Returns how many.

    An episode is written of each. The window stays: a user who comes back finds the last turns.
    """
    days = rt.settings.session_idle_days
    if days is None:
        return 0
    now = rt.now()
    before = now - timedelta(days=days)
    if not await run(rt.db.read, lifetime.is_idle, before):
        return 0
    ended = await run(rt.db.write, lifetime.end_idle, before, _AT_ONCE, now, rt.episode_minimum)
    for session in ended:
        _emit_ended(rt, session, idle=True)
    return len(ended)


def _emit_ended(rt: Runtime, session: Session, *, idle: bool) -> None:
    rt.emit(SessionEnded(session.scope.namespace, session.scope.session_id or "", idle))


@traced("delete_memory", "delete_message", lambda *_: Outcome(1))
async def delete(rt: Runtime, run: Runner, scope: Scope, place: str | int) -> Message:
    """Delete one message, and its entries in both indexes."""
    gone = await run(rt.db.write, writes.delete, scope, _place(place), rt.now())
    rt.wake()
    return gone


async def withdraw(rt: Runtime, run: Runner, scope: Scope, ids: object) -> list[Message]:
    """Remove messages from a session, and keep them as versions."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidMessageError(
            f"`ids` must be a list of ids, got {type(ids).__name__}",
            hint="`chat.history()` has the ids; put a single one in a list.",
        )
    named = list(ids)
    for one in named:
        identifier("id", one)
    if not named:
        return []
    gone = await run(rt.db.write, writes.withdraw, scope, named, rt.now(), rt.shards, rt.new_id())
    if gone:
        rt.wake()
    return gone


@traced("update_memory", "edit", lambda message, *_, **__: Outcome(1, contents=lambda: [message.text]))
async def edit(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    place: str | int,
    content: str | Sequence[Block],
    expected: Message | str | None,
    *,
    erase: bool,
) -> Message:
    """Change a message's content, if the message is still the expected one."""
    said = content_of(content)

    def change(message: Message) -> PreparedMessage:
        if expected is not None and not _is_same(message, expected):
            raise MessageChangedError(
                f"the message {message.id!r} is not the expected one: somebody changed it",
                hint="Read it again with `chat.history()`, then decide.",
            )
        # The framework's dump has the old content.
        return draft_of(rt, check_message(replace(message, content=said, raw=None)))

    check_message(Message("user", said))
    fork_id = None if erase else rt.new_id()
    edited = await run(rt.db.write, writes.edit, scope, _place(place), change, rt.now(), rt.shards, fork_id)
    rt.wake()
    return edited


def _is_same(message: Message, expected: Message | str) -> bool:
    """Tell whether a message is the expected one."""
    if isinstance(expected, str):
        return message.text == expected
    return digest(message) == digest(check_message(expected))


async def fork(
    rt: Runtime, run: Runner, scope: Scope, until: str | int | None, session_id: str | None
) -> Scope:
    """Copy a session, or its beginning, into a new one. Returns the new one's scope."""
    session_id = session_id or rt.new_id()
    target = scope.other_session(session_id)

    def copy(message: Message) -> PreparedMessage:
        return draft_of(rt, message)

    place = None if until is None else _place(until)
    await run(rt.db.write, writes.fork, scope, session_id, place, copy, rt.now(), rt.shards)
    rt.wake()
    return target


def _resynced(report: SyncReport, *_: object, **__: object) -> Outcome:
    counts = {
        "memlayer.messages.unchanged": report.unchanged,
        "memlayer.messages.replaced": report.superseded,
    }
    return Outcome(report.stored + report.superseded, counts)


@traced("upsert_memory", "resync", _resynced)
async def resync(
    rt: Runtime,
    run: Runner,
    scope: Scope,
    messages: object,
    replace: Replace,
    replaceable: Callable[[Message], bool] | None,
    *,
    erase: bool,
) -> SyncReport:
    """Make a session agree with a list."""
    _check_replace(replace, replaceable, erase)
    if replace == "nothing" or erase:
        receipt = await (rewrite if erase else add_unknown)(rt, run, scope, messages)
        return SyncReport(
            receipt.ids, receipt.stored, receipt.unchanged, receipt.replaced, answered=receipt.answered
        )
    synced = await run(_sync, rt, scope, messages, replace == "all", replaceable or _anything)
    if synced.stored or synced.superseded:
        namespace, session_id = scope.namespace, scope.session_id or ""
        rt.emit(MessagesStored(namespace, session_id, synced.stored, synced.unchanged, synced.superseded))
        rt.wake()
    return synced


def _check_replace(replace: object, replaceable: object, erase: object) -> None:
    if replace not in get_args(Replace):
        raise InputError(
            f"`replace` cannot be {replace!r:.80}", hint='Pass `"nothing"`, `"changes"` or `"all"`.'
        )
    if erase and (replace != "all" or replaceable is not None):
        raise InputError(
            '`erase` was given without `replace="all"`, or with `replaceable`',
            hint='`resync(messages, replace="all", erase=True)` makes the session exactly this list.',
        )
    if replaceable is not None and replace == "nothing":
        raise InputError(
            '`replaceable` was given with `replace="nothing"`',
            hint="Leave it out: no message is replaced then.",
        )


def _anything(_: Message) -> bool:
    return True


def _sync(
    rt: Runtime, scope: Scope, messages: object, replace_all: bool, replaceable: Callable[[Message], bool]
) -> SyncReport:
    drafts = drafts_of(rt, restore_originals(rt, scope, messages))
    if not drafts and not replace_all:
        return SyncReport((), stored=0)
    sent = [digest_of(draft.message, with_id=draft.has_own_id) for draft in drafts]  # before the write lock
    synced = rt.db.write(
        resync_sql.resync,
        scope,
        drafts,
        sent,
        rt.now(),
        rt.shards,
        rt.new_id(),
        replace_all=replace_all,
        replaceable=replaceable,
    )
    if synced.answered:
        rt.temporaries.finish_call(scope)
    return synced


def _place(place: object) -> str | int:
    """Return a message's id or place, checked."""
    try:
        if isinstance(place, int):
            check_whole_number("place", place if place >= 0 else -1 - place)
            return place
        identifier("id", place)
    except InputError as problem:
        raise UnknownMessageError(
            f"a message is named by its id or its place: {problem}",
            hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
        ) from None
    return str(place)
