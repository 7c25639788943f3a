"""Shows a session: its totals and its last messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlayer_core.messages.sql import transcript
from memlayer_core.scope import Scope
from memlayer_core.show import View

if TYPE_CHECKING:
    from memlayer_core.storage.database import Database

__all__ = ["session_view"]


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
                item.message.text
                or ", ".join(f"calls {call.name}({call.arguments})" for call in item.message.tool_calls)
                or "(no text)",
            )
            for item in stored
        ),
    )
