"""What flows ask of a journal that keeps a session as a plain list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from memlayer_core.records.draft import Draft
from memlayer_core.records.message import Receipt, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Part, Session

__all__ = ["ListJournal"]


class ListJournal(Protocol):
    """The journal's part for lists. Every method is one transaction."""

    def session_ids(self, tenant_id: str, user_id: str | None, agent_id: str | None) -> list[str]:
        """Return the ids of a user's sessions with messages, the first begun first; None: of those without a user."""
        ...

    def listed(self, session: Session, part: Part | None, limit: int | None, offset: int) -> list[Stored]:
        """Return a session's messages, or those of a part of it, in their order."""
        ...

    def counted(self, session: Session, part: Part | None) -> int:
        """Return how many messages a session has, or a part of it."""
        ...

    def take(
        self, scope: Scope, part: Part | None, first: int, count: int | None, now: datetime
    ) -> list[Stored]:
        """Delete messages from a place of a list on (-1: the last), all or `count` of them. Returns them."""
        ...

    def archive(self, scope: Scope, count: int, now: datetime, least: int | None) -> list[Stored]:
        """Let working memory begin behind its oldest messages, and owe an episode as `end` does. Returns them."""
        ...

    def insert(self, scope: Scope, drafts: Sequence[Draft], now: datetime, place: int | None) -> Receipt:
        """Put messages in front of the one at a place; None: behind the archived ones, as some of them."""
        ...

    def hear(self, scope: Scope, drafts: Sequence[Draft], now: datetime) -> Receipt:
        """Store at the end what of a list was not heard yet; nothing is taken back."""
        ...

    def replace(
        self, scope: Scope, drafts: Sequence[Draft], now: datetime, fork_id: str, part: Part
    ) -> Receipt:
        """Make a session exactly these messages, all of one part; what has to leave goes to session `fork_id`."""
        ...
