"""Returns the whole message behind a preview, at once or in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlayer_core.errors import InvalidMessageError
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.rules.check import at_least_one
from memlayer_core.messages.rules.offload import excerpt, full_text, place_of
from memlayer_core.messages.rules.render import as_prompt
from memlayer_core.messages.sql import transcript
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["reload", "reload_text"]

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
