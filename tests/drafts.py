"""Messages as a flow prepares them for the journal."""

from itertools import count
from typing import Any

from memlayer_core.message import SYSTEM_ROLES, Message
from memlayer_core.messages.check import digest
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.storage.terms import index_terms
from memlayer_core.testing import NOON

_NUMBERS = count()


def draft(role: Any, text: str, *, id: str | None = None, tokens: int = 10, **fields: Any) -> PreparedMessage:
    """Make a prepared message."""
    search_text = "" if role in SYSTEM_ROLES else text
    message = Message(role, text, id=id or f"made-{next(_NUMBERS)}", **{"created_at": NOON, **fields})
    return PreparedMessage(
        message,
        has_own_id=id is not None,
        has_own_time="created_at" in fields,
        digest=digest(message),
        tokens=tokens,
        counter="words",
        search_text=search_text,
        terms=index_terms(search_text),
    )


def drafts(*texts: str) -> list[PreparedMessage]:
    """Make prepared messages: the first of a user, then an assistant's and a user's in turn."""
    return [draft("assistant" if place % 2 else "user", text) for place, text in enumerate(texts)]
