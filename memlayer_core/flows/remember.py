"""Writes messages: no model, no embedding, one transaction, at a cost that no history changes."""

from __future__ import annotations

from dataclasses import replace

from memlayer_core.drive import Drive
from memlayer_core.errors import InvalidScopeError, MessageTypeError
from memlayer_core.events import Stored as StoredEvent
from memlayer_core.events import TemporaryGivenUp
from memlayer_core.flows.said import as_said
from memlayer_core.ports import Draft, World
from memlayer_core.records.context import Context
from memlayer_core.records.message import Message, Receipt, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import checked_all, digest
from memlayer_core.rules.terms import filed

__all__ = ["add_temporary", "announce", "clear", "draft_of", "drafts_of", "remember", "rewrite", "unplaced"]


async def remember(
    world: World,
    drive: Drive,
    scope: Scope,
    messages: object,
    *,
    verbatim: bool = False,
    told: Context | None = None,
) -> Receipt:
    """Check messages, store them at the end of a session, and let the worker know.

    Args:
        world: Everything.
        drive: How to get things done.
        scope: Which session.
        messages: What was said.
        verbatim: Store a system message even where it says what the one in force says.
        told: What the model was told that answers in them.
    """
    if told is not None and not isinstance(told, Context):
        raise MessageTypeError(
            f"`told` must be a context, got {type(told).__name__}",
            hint="Pass what `context` of the same chat returned, or leave it out.",
        )
    if told is not None and told.scope != scope:
        raise InvalidScopeError(
            "`told` is a context of another conversation, and nothing of it may stand in this one",
            hint="Pass what `context` of the same chat returned.",
        )
    receipt = await drive.call(_append, world, scope, messages, verbatim, told)
    announce(world, scope, receipt)
    return receipt


async def rewrite(world: World, drive: Drive, scope: Scope, messages: object) -> Receipt:
    """Check messages, make them the whole session, and let the worker know."""
    receipt = await drive.call(_rewrite, world, scope, messages)
    announce(world, scope, receipt)
    return receipt


async def add_temporary(world: World, drive: Drive, scope: Scope, messages: object) -> None:
    """Check messages, and show them to the model until it has answered; they are never stored."""
    for draft in await drive.call(drafts_of, world, messages):
        given_up = world.temporaries.add(unplaced(scope, draft))
        if given_up:
            whose = given_up[0].scope
            world.tell(TemporaryGivenUp(whose.namespace, whose.session_id or "", len(given_up)))


async def clear(world: World, drive: Drive, scope: Scope) -> int:
    """Delete a session's messages."""
    world.temporaries.clear(scope)
    gone = await drive.call(world.journal.clear, scope, world.now())
    if gone:
        world.wake()
    return gone


def _append(world: World, scope: Scope, messages: object, verbatim: bool, told: Context | None) -> Receipt:
    drafts = drafts_of(world, as_said(world, scope, messages))
    if not drafts:
        return Receipt((), stored=0)
    beside = world.temporaries.standing(scope) if told is None else told.beside
    receipt = world.journal.append(scope, drafts, world.now(), verbatim=verbatim, beside=beside)
    if receipt.answered:
        world.temporaries.answered(scope)
    return receipt


def _rewrite(world: World, scope: Scope, messages: object) -> Receipt:
    return world.journal.rewrite(scope, drafts_of(world, as_said(world, scope, messages)), world.now())


def unplaced(scope: Scope, draft: Draft) -> Stored:
    """Return a message that is told before it has a place in the history, or without one."""
    return Stored(0, scope, draft.message, draft.tokens, draft.counter)


def drafts_of(world: World, messages: object) -> list[Draft]:
    """Check and count every message before the first one is written."""
    return [draft_of(world, message) for message in checked_all(messages)]


def draft_of(world: World, message: Message) -> Draft:
    """Count a message that was checked, and make it ready to be written."""
    told = message.model_visible and message.role != "system"
    searched = message.text[: world.settings.indexed_characters].strip() if told else ""
    created_at = message.created_at or world.now()
    return Draft(
        message=replace(message, id=message.id or world.new_id(), created_at=created_at),
        given_id=message.id is not None,
        given_time=message.created_at is not None,
        digest=digest(message, bytes_limit=world.settings.message_bytes_limit),
        tokens=world.tokens.message(message) if message.model_visible else 0,
        counter=world.tokens.name,
        searched=searched,
        terms=filed(searched, message.name, created_at, own=message.role == "user") if searched else (),
    )


def announce(world: World, scope: Scope, receipt: Receipt) -> None:
    """Tell what was stored, and let the worker know."""
    if receipt.stored or receipt.replaced:
        world.tell(
            StoredEvent(
                scope.namespace,
                scope.session_id or "",
                receipt.stored,
                receipt.unchanged,
                receipt.replaced,
            )
        )
        world.wake()
