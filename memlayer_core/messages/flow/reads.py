"""Reads of a session: the whole message behind a preview, and what a person sees of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlayer_core.messages.sql import transcript
from memlayer_core.scope import Scope
from memlayer_core.show import View

if TYPE_CHECKING:
    from memlayer_core.storage.database import Database
from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.rules.check import at_least_one
from memlayer_core.messages.rules.offload import excerpt, full_text, place_of
from memlayer_core.messages.rules.render import as_prompt
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["reload", "reload_text", "session_view"]


def session_view(db: Database, scope: Scope, last: int) -> View | None:
    """Return the view of a session with its last messages; None if there is no such session."""
    session = db.read(transcript.find, scope)
    if session is None:
        return None
    newest = db.read(transcript.tail, session, None, last)
    stored = db.read(transcript.read, session, [entry.seq for entry in newest])
    return View(
        f"Session {scope.session_id!r} of {scope.user_id!r}: {session.messages:,} message(s), "
        f"{session.tokens:,} tokens; the last {len(stored):,}:",
        columns=("date", "who", "tok.", "what"),
        rows=tuple(
            (
                item.message.created_at,
                item.message.speaker,
                item.tokens,
                item.message.label,
            )
            for item in stored
        ),
    )


_OF_THE_LIMIT = 4  # a part takes a quarter of the token limit, so that it fits with the rest


async def reload(rt: Runtime, run: Runner, scope: Scope, preview_id: str) -> Message:
    """Return all of a message that a preview stands for."""
    place = place_of(preview_id)
    stored = await run(rt.db.read, _at, scope, place)
    if stored is None:
        raise InvalidMessageError(
            f"this session has no message {preview_id!r}",
            hint="The id of an offloaded message is valid in its own session only, until the message is deleted.",
        )
    return stored.message


async def reload_text(
    rt: Runtime, run: Runner, scope: Scope, preview_id: str, offset: int, token_limit: int | None
) -> str:
    """Return the text that a preview stands for, in parts if it is long."""
    limit = rt.settings.max_tokens if token_limit is None else token_limit
    at_least_one("token_limit", limit)
    text = full_text(as_prompt(await reload(rt, run, scope, preview_id)))
    tokens = max(1, limit // _OF_THE_LIMIT)
    return await run(excerpt, text, preview_id, offset, tokens=tokens, count=rt.tokens.text)


def _at(connection: Connection, scope: Scope, place: int) -> StoredMessage | None:
    session = transcript.find(connection, scope)
    found = transcript.read(connection, session, [place]) if session is not None else []
    return next((stored for stored in found if stored.message.model_visible), None)
