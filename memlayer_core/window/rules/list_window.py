"""Decides the window of a list of messages, and what a list becomes when messages are added.

A list has no index and no recall: a message store of the user's own holds it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from memlayer_core.errors import InvalidLimitError
from memlayer_core.message import Entry, Message, Receipt
from memlayer_core.messages.rules.check import check_messages, digest
from memlayer_core.messages.rules.render import as_prompt
from memlayer_core.policy import Limits
from memlayer_core.recall.model import Reason
from memlayer_core.settings import Settings
from memlayer_core.storage.truncate import truncate_message
from memlayer_core.window.model import Context, Piece, PieceKind
from memlayer_core.window.rules.window import window

__all__ = [
    "INSTRUCTIONS",
    "PENDING",
    "RECENT",
    "Addition",
    "ListWindow",
    "add_to_list",
    "additions",
    "check_instructions",
    "list_window",
    "prompt_of",
]

INSTRUCTIONS = Reason("instructions", "the session's newest system message is always shown")
RECENT = Reason("recent", "one of the newest whole turns")
PENDING = Reason("pending", "it is stored with the answer")


class Addition(NamedTuple):
    """A checked message that shall be added to a list.

    Attributes:
        message: With `id` and `created_at` filled.
        own_id: Whether the caller gave the id.
        own_time: Whether the caller gave the time. Only such a time replaces an earlier one.
        digest: Equal for messages of equal content.
    """

    message: Message
    own_id: bool
    own_time: bool
    digest: bytes


@dataclass(frozen=True, slots=True)
class ListWindow:
    """The window of a list.

    Attributes:
        context: What a model sees.
        messages: The list without the turns that left the window. The system message in force stays.
    """

    context: Context
    messages: tuple[Message, ...]


def check_instructions(tokens: int, limit: int) -> None:
    """Check that a system message leaves space for other messages.

    Raises:
        InvalidLimitError: It alone costs more than the limit.
    """
    if tokens > limit:
        raise InvalidLimitError(
            f"the system message alone needs {tokens} tokens, of {limit} for everything",
            hint="Shorten the system message, or pass a larger `token_limit` (`Settings.max_tokens`).",
        )


def prompt_of(
    message: Message, settings: Settings, truncate_with: Callable[[str, int], str], *, is_question: bool
) -> tuple[Message, tuple[Reason, ...]]:
    """Return a message of a window for a prompt, and how it was changed.

    The newest question stays whole; others are truncated if a setting says so.
    """
    whole = as_prompt(message)
    if is_question or not settings.truncate_messages:
        return whole, ()
    shorter = truncate_message(whole, settings.truncate_characters, truncate_with)
    if shorter is whole:
        return whole, ()
    said = f"at most {settings.truncate_characters} characters of it"
    # Without its id: if the copy is stored, it must not replace the whole message.
    return replace(shorter, id=None), (Reason("truncated", said),)


def additions(
    messages: object, now: datetime, new_id: Callable[[], str], bytes_limit: int
) -> tuple[Addition, ...]:
    """Check messages, and give an id and a time to those that have none.

    Raises:
        MessageTypeError: One of them is no message.
        InvalidMessageError: One of them cannot be stored.
    """
    return tuple(
        Addition(
            replace(message, id=message.id or new_id(), created_at=message.created_at or now),
            message.id is not None,
            message.created_at is not None,
            digest(message, bytes_limit=bytes_limit),
        )
        for message in check_messages(messages)
    )


def add_to_list(present: Sequence[Message], new: Sequence[Addition]) -> tuple[list[Message], Receipt]:
    """Return a list with new messages at its end.

    A message of an id that the list has replaces that message, unless they are equal. A system message that is equal
    to the one in force is not added.
    """
    every = list(present)
    places = {message.id: at for at, message in enumerate(every)}
    in_force = _in_force(every)
    ids: list[str] = []
    stored = unchanged = replaced = 0
    answered = False
    for message, own_id, own_time, content in new:
        at = places.get(message.id)
        if at is None and not own_id and in_force is not None and _is_instruction(message):
            at = in_force if digest(every[in_force]) == content else None
        ids.append((message.id if at is None else every[at].id) or "")
        if at is None:
            places[message.id] = len(every)
            every.append(message)
            in_force = len(every) - 1 if _is_instruction(message) else in_force
            stored += 1
            answered |= message.role == "assistant" and message.model_visible
        elif digest(every[at]) == content and not (own_time and message.created_at != every[at].created_at):
            unchanged += 1
        else:
            every[at] = message if own_time else replace(message, created_at=every[at].created_at)
            replaced += 1
    return every, Receipt(tuple(ids), stored, unchanged, replaced, answered)


def list_window(
    messages: Sequence[Message],
    limits: Limits,
    settings: Settings,
    count: Callable[[Message], int],
    truncate_with: Callable[[str, int], str],
    *,
    pending: Sequence[Message] = (),
) -> ListWindow:
    """Choose the newest whole turns of a list that keep the limits, as `Chat.context` does.

    Args:
        messages: The list.
        limits: What the window keeps within.
        settings: Whether messages are truncated, and how far a window moves.
        count: Counts the tokens of a message.
        truncate_with: Shortens a text to a number of characters.
        pending: Messages that follow the list in the context.

    Raises:
        InvalidLimitError: The system message alone costs more than the limit.
    """
    every = (*messages, *pending)
    visible = [at for at, message in enumerate(every) if message.model_visible]
    in_force = _in_force(every)
    question = next((at for at in reversed(visible) if every[at].role == "user"), None)

    def show(at: int, kind: PieceKind, reason: Reason) -> tuple[Message, Piece]:
        whole = kind == "system" or at == question or at >= len(messages)
        shown, notes = prompt_of(every[at], settings, truncate_with, is_question=whole)
        ids, when = (every[at].id or "",), shown.created_at
        return shown, Piece(kind, shown.text, count(shown), ids, when, shown.speaker, (reason, *notes))

    system = [] if in_force is None else [show(in_force, "system", INSTRUCTIONS)]
    overhead = sum(piece.tokens for _, piece in system)
    check_instructions(overhead, limits.tokens)
    parts = {
        at: show(at, "window", RECENT if at < len(messages) else PENDING)
        for at in visible
        if every[at].role != "system"
    }
    entries = [
        Entry(
            at,
            message.role,
            piece.tokens,
            tuple(call.id for call in message.tool_calls),
            message.tool_call_id,
        )
        for at, (message, piece) in parts.items()
    ]
    chosen = window(entries, limits, overhead=overhead, compact_to=settings.compact_to)
    places = [entry.seq for entry in chosen.entries]
    leaves = chosen.moves or any(reason.code == "not_recent" for reason in chosen.reasons)
    first = places[0] if leaves else 0
    return ListWindow(
        Context(
            system=tuple(message for message, _ in system),
            summary=None,
            window=tuple(parts[at][0] for at in places if at < len(messages)),
            temporary=(),
            recall="",
            placement=settings.recall_placement,
            pieces=(*(piece for _, piece in system), *(parts[at][1] for at in places)),
            tokens=overhead + chosen.tokens,
            token_limit=limits.tokens,
            reasons=chosen.reasons,
            pending=tuple(parts[at][0] for at in places if at >= len(messages)),
        ),
        tuple(message for at, message in enumerate(messages) if at >= first or at == in_force),
    )


def _is_instruction(message: Message) -> bool:
    return message.role == "system" and message.model_visible


def _in_force(messages: Sequence[Message]) -> int | None:
    """Return the place of the newest system message that a model sees."""
    return next((at for at in reversed(range(len(messages))) if _is_instruction(messages[at])), None)
