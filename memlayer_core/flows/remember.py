"""Writes messages: no model, no embedding, one transaction, at a cost that no history changes."""

from __future__ import annotations

from dataclasses import replace

from memlayer_core.drive import Drive
from memlayer_core.events import Stored as StoredEvent
from memlayer_core.ports import Draft, World
from memlayer_core.records.message import Message, Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import checked_all, digest
from memlayer_core.rules.terms import terms

__all__ = ["clear", "remember", "rewrite"]


async def remember(world: World, drive: Drive, scope: Scope, messages: object) -> Receipt:
    """Check messages, store them at the end of a session, and let the worker know."""
    receipt = await drive.call(_append, world, scope, messages)
    _told(world, scope, receipt)
    return receipt


async def rewrite(world: World, drive: Drive, scope: Scope, messages: object) -> Receipt:
    """Check messages, make them the whole session, and let the worker know."""
    receipt = await drive.call(_rewrite, world, scope, messages)
    _told(world, scope, receipt)
    return receipt


async def clear(world: World, drive: Drive, scope: Scope) -> int:
    """Delete a session's messages."""
    gone = await drive.call(world.journal.clear, scope, world.now())
    if gone:
        world.wake()
    return gone


def _append(world: World, scope: Scope, messages: object) -> Receipt:
    drafts = _drafts(world, messages)
    return world.journal.append(scope, drafts, world.now()) if drafts else Receipt((), stored=0)


def _rewrite(world: World, scope: Scope, messages: object) -> Receipt:
    return world.journal.rewrite(scope, _drafts(world, messages), world.now())


def _drafts(world: World, messages: object) -> list[Draft]:
    """Check and count every message before the first one is written."""
    return [_draft(world, message) for message in checked_all(messages)]


def _draft(world: World, message: Message) -> Draft:
    searched = "" if message.role == "system" else message.text[: world.settings.indexed_characters].strip()
    return Draft(
        message=replace(
            message, id=message.id or world.new_id(), created_at=message.created_at or world.now()
        ),
        given_id=message.id is not None,
        given_time=message.created_at is not None,
        digest=digest(message, bytes_limit=world.settings.message_bytes_limit),
        tokens=world.tokens.message(message),
        counter=world.tokens.name,
        searched=searched,
        terms=terms(f"{message.name or ''} {searched}") if searched else (),
    )


def _told(world: World, scope: Scope, receipt: Receipt) -> None:
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
