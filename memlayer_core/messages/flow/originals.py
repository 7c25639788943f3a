"""Recognizes copies from a context among messages to store, and puts the originals in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memlayer_core.message import Message
from memlayer_core.messages.rules.check import check_messages
from memlayer_core.messages.rules.offload import full_text, parse_preview
from memlayer_core.messages.rules.render import as_prompt, has_escapes, split_blocks
from memlayer_core.messages.sql import transcript
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["restore_originals"]

_LOOKED_AT = 400  # newest messages that are searched for the original of a message without an id


def restore_originals(
    rt: Runtime, scope: Scope, messages: object, *, one_is_new: bool = False
) -> list[Message]:
    """Check messages, and return the originals: without blocks of ours, and whole.

    An agent that runs on a context has the context's messages in its list, and the caller stores that list. A recall
    that memlayer added is no part of a message. A preview or an escaped text stands for a message that is stored
    already. What only looks like ours stays, because somebody wrote it: a message is a copy if it has the original's
    id or answers the same tool call, or if a context of this process showed exactly this text.

    Args:
        rt: What the memory works with.
        scope: The session.
        messages: Messages, unchecked.
        one_is_new: Whether a message that comes alone and without an id was said just now, whatever it looks like.
    """
    checked = check_messages(messages)
    if one_is_new and len(checked) == 1 and checked[0].id is None and checked[0].tool_call_id is None:
        left = _without_our_blocks(rt, scope, checked[0])
        return checked if left is None else [left]
    originals_by_id = _of_unknown_blocks(rt, scope, checked)
    plain = [
        left
        for message in checked
        if (left := _without_our_blocks(rt, scope, message, originals_by_id)) is not None
    ]
    previews = {
        at: found
        for at, message in enumerate(plain)
        if (found := parse_preview(message)) is not None and _may_be_copy(rt, scope, message)
    }
    escaped = [
        at
        for at, message in enumerate(plain)
        if at not in previews and has_escapes(message) and _may_be_copy(rt, scope, message)
    ]
    if not previews and not escaped:
        return plain
    places = [place for place, _, _ in previews.values()]
    ids = [message.id for at in escaped if (message := plain[at]).id is not None]
    originals = rt.db.read(_messages_at, scope, places, ids if escaped else None)
    named = {message.id for message in plain}  # each original is in a list once
    for at, (place, head, length) in previews.items():
        original = originals.get(place)
        if original is None or not _is_of(plain[at], original, named):
            continue  # somebody wrote what looks like a preview
        whole_one = as_prompt(original)
        exact = rt.settings.truncate_messages or length == f"{len(full_text(whole_one)):,}"
        if exact and whole_one.text.startswith(head):
            plain[at] = original
            named.add(original.id)
    if escaped:
        _unescape(plain, escaped, originals, named)
    return plain


def _may_be_copy(rt: Runtime, scope: Scope, message: Message) -> bool:
    """Tell whether a message can be compared with an original: by its id, its call, or since we showed its text."""
    named = message.id is not None or message.tool_call_id is not None
    return named or rt.temporaries.is_ours(scope, "", full_text(message))


def _unescape(
    messages: list[Message], places: Sequence[int], originals: Mapping[int, Message], ids: set[str | None]
) -> None:
    """Put originals in the places of their escaped copies."""
    by_words: dict[tuple[object, ...], list[Message]] = {}
    for _, original in sorted(originals.items()):
        shown = as_prompt(original)
        if shown is not original:
            by_words.setdefault(_words(shown), []).append(original)
    for at in places:
        same = by_words.get(_words(messages[at]), ())
        found = next((original for original in same if _is_of(messages[at], original, ids)), None)
        if found is not None:
            messages[at] = found
            ids.add(found.id)


def _is_of(copy: Message, original: Message, ids: set[str | None]) -> bool:
    """Tell whether a message may be a copy of another.

    Role and call are equal, and so is the id. A copy without an id has an original that is not in the list by its id.
    """
    same = (copy.role, copy.tool_call_id) == (original.role, original.tool_call_id)
    return same and (copy.id == original.id or (copy.id is None and original.id not in ids))


def _without_our_blocks(
    rt: Runtime, scope: Scope, message: Message, by_id: Mapping[str | None, Message] | None = None
) -> Message | None:
    """Return a message without its blocks if all of them are ours; else the message itself.

    They are ours if a context of this process added them, or if the message of this id is stored without them.
    """
    blocks, left = split_blocks(message)
    theirs = "" if left is None else left.text
    original = (by_id or {}).get(message.id)
    same = left is not None and original is not None and original.text == theirs
    ours = same or all(rt.temporaries.is_ours(scope, block, theirs) for block in blocks)
    return left if ours else message


def _of_unknown_blocks(rt: Runtime, scope: Scope, messages: Sequence[Message]) -> dict[str | None, Message]:
    """Return the stored messages, by id, of those that have blocks which no context of this process added."""
    ids = [
        one.id
        for one in messages
        if one.id is not None and split_blocks(one)[0] and _without_our_blocks(rt, scope, one) is one
    ]
    found = rt.db.read(_messages_at, scope, (), ids) if ids else {}
    return {one.id: one for one in found.values()}


def _messages_at(
    connection: Connection, scope: Scope, places: Sequence[int], ids: Sequence[str] | None
) -> dict[int, Message]:
    """Return messages by place: those at the places and, if ids are given, those of the ids and the newest."""
    session = transcript.find(connection, scope)
    if session is None:
        return {}
    wanted = set(places)
    if ids is not None:
        wanted |= set(transcript.places(connection, session, ids).values()) if ids else set()
        wanted |= {entry.seq for entry in transcript.tail(connection, session, None, _LOOKED_AT)}
    found = transcript.read(connection, session, sorted(wanted))
    return {stored.seq: stored.message for stored in found}


def _words(message: Message) -> tuple[object, ...]:
    return message.role, message.text, tuple(call.arguments for call in message.tool_calls)
