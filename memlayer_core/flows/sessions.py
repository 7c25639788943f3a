"""Sessions as a whole: how they end, fork, follow a framework's list, and are forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from memlayer_core.drive import Drive
from memlayer_core.errors import (
    InputError,
    MessageChangedError,
    UnknownMessageError,
)
from memlayer_core.events import SessionEnded
from memlayer_core.events import Stored as StoredEvent
from memlayer_core.flows.episodic import least_of
from memlayer_core.flows.remember import draft_of, drafts_of
from memlayer_core.flows.said import as_said
from memlayer_core.ports import Draft, Journal, World
from memlayer_core.records.message import Block, Message
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Forgotten, Session, Synced
from memlayer_core.rules.check import at_least_one, checked, digest, identifier, whole

__all__ = ["delete", "edit", "end", "end_idle", "forget", "fork", "history", "rename", "resync"]

_AT_ONCE = 100  # sessions that are ended in one transaction


async def history(world: World, drive: Drive, scope: Scope, offset: int, limit: int | None) -> list[Message]:
    """Return a session's messages in their order, or a part of them."""
    if limit is not None:
        at_least_one("limit", limit)
    whole("offset", offset)

    def read(journal: Journal) -> list[Message]:
        session = journal.session(scope)
        found = journal.history(session, -1, limit, offset) if session is not None else []
        return [stored.message for stored in found]

    return await drive.call(world.journal.at_once, read)


async def rename(world: World, drive: Drive, scope: Scope, title: str | None) -> bool:
    """Give a session a title, or take it away."""
    if title is not None:
        identifier("title", title.strip() if isinstance(title, str) else title)
    return await drive.call(world.journal.rename, scope, title)


async def end(world: World, drive: Drive, scope: Scope) -> bool:
    """End a session: what a model is told begins anew, and what was said is remembered as an episode."""
    world.temporaries.clear(scope)
    ended = await drive.call(world.journal.end, scope, world.now(), least_of(world))
    if ended is not None:
        _tell_ended(world, ended, idle=False)
        world.wake()
    return ended is not None


async def end_idle(world: World, drive: Drive) -> int:
    """End sessions that have been idle for as long as the settings say, a batch of them. Returns how many."""
    days = world.settings.session_idle_days
    if days is None:
        return 0
    now = world.now()
    before = now - timedelta(days=days)
    ended = await drive.call(world.journal.end_idle, before, _AT_ONCE, now, least_of(world))
    for session in ended:
        world.temporaries.clear(session.scope)
        _tell_ended(world, session, idle=True)
    return len(ended)


def _tell_ended(world: World, session: Session, *, idle: bool) -> None:
    world.tell(SessionEnded(session.scope.namespace, session.scope.session_id or "", idle))


async def forget(world: World, drive: Drive, reach: Scope) -> Forgotten:
    """Delete everything of a user, or of a user with one agent."""
    world.temporaries.forget(reach)
    gone = await drive.call(world.journal.forget, reach, world.now())
    if gone.sessions:
        world.wake()
    return gone


async def delete(world: World, drive: Drive, scope: Scope, place: str | int) -> Message:
    """Delete one message, and what it can be found by."""
    gone = await drive.call(world.journal.delete, scope, _place(place), world.now())
    world.wake()
    return gone


async def edit(
    world: World,
    drive: Drive,
    scope: Scope,
    place: str | int,
    content: str | tuple[Block, ...],
    expected: Message | str | None,
) -> Message:
    """Change what a message says, if it still says what is expected."""

    def change(message: Message) -> Draft:
        if expected is not None and not _is_same(message, expected):
            raise MessageChangedError(
                f"the message {message.id!r} is not what was expected: somebody changed it",
                hint="Read it again with `chat.history()`, and decide anew.",
            )
        # The framework's dump holds the old words.
        return draft_of(world, checked(replace(message, content=content, raw=None)))

    checked(Message("user", content))
    edited = await drive.call(world.journal.edit, scope, _place(place), change, world.now())
    world.wake()
    return edited


def _is_same(message: Message, expected: Message | str) -> bool:
    if isinstance(expected, str):
        return message.text == expected
    return digest(message) == digest(checked(expected))


async def fork(world: World, drive: Drive, scope: Scope, until: str | int | None, session_id: str) -> Scope:
    """Copy a session, or its beginning, into a new one. Returns the new one's scope."""
    target = scope.beside(session_id)

    def copy(message: Message) -> Draft:
        return draft_of(world, message)

    place = None if until is None else _place(until)
    await drive.call(world.journal.fork, scope, session_id, place, copy, world.now())
    world.wake()
    return target


async def resync(world: World, drive: Drive, scope: Scope, messages: object, *, replacing: bool) -> Synced:
    """Bring a session to what a framework's list says."""
    synced = await drive.call(_sync, world, scope, messages, replacing)
    if synced.stored or synced.superseded:
        namespace, session_id = scope.namespace, scope.session_id or ""
        world.tell(StoredEvent(namespace, session_id, synced.stored, synced.unchanged, synced.superseded))
        world.wake()
    return synced


def _sync(world: World, scope: Scope, messages: object, replacing: bool) -> Synced:
    drafts = drafts_of(world, as_said(world, scope, messages))
    if not drafts and not replacing:
        return Synced((), stored=0)
    synced = world.journal.resync(scope, drafts, world.now(), world.new_id(), replacing=replacing)
    if synced.answered:
        world.temporaries.answered(scope)
    return synced


def _place(place: object) -> str | int:
    """Return what names a message, if anything can be stored under it."""
    try:
        if isinstance(place, int):
            whole("place", place if place >= 0 else -1 - place)
            return place
        identifier("id", place)
    except InputError as problem:
        raise UnknownMessageError(
            f"a message is named by its id or its place: {problem}",
            hint="`chat.history()` has the ids; a place counts from 0, or from -1 backwards.",
        ) from None
    return str(place)
