"""The part of the journal that keeps a session as a plain list: which function runs in which transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memlayer_core.ports import Draft
from memlayer_core.records.message import Receipt, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Part, Session
from memlayer_core.stores import listing
from memlayer_core.stores.database import Database

__all__ = ["SqlListJournal"]


class SqlListJournal:
    """Implements `memlayer_core.list_ports.ListJournal` on SQLite and PostgreSQL."""

    _db: Database
    _shards: int

    def session_ids(self, tenant_id: str, user_id: str | None, agent_id: str | None) -> list[str]:
        """Return the ids of a user's sessions with messages, the first begun first; None: of those without a user."""
        return self._db.read(lambda c: listing.session_ids(c, tenant_id, user_id, agent_id))

    def listed(self, session: Session, part: Part | None, limit: int | None, offset: int) -> list[Stored]:
        """Return a session's messages, or those of a part of it, in their order."""
        return self._db.read(lambda c: listing.listed(c, session, part, limit, offset))

    def counted(self, session: Session, part: Part | None) -> int:
        """Return how many messages a session has, or a part of it."""
        return self._db.read(lambda c: listing.counted(c, session, part))

    def take(
        self, scope: Scope, part: Part | None, first: int, count: int | None, now: datetime
    ) -> list[Stored]:
        """Delete messages from a place of a list on (-1: the last), all or `count` of them. Returns them."""
        return self._db.write(lambda c: listing.take(c, scope, part, first, count, now))

    def archive(self, scope: Scope, count: int, now: datetime, least: int | None) -> list[Stored]:
        """Let working memory begin behind its oldest messages, and owe an episode as `end` does. Returns them."""
        return self._db.write(lambda c: listing.archive(c, scope, count, now, least))

    def insert(self, scope: Scope, drafts: Sequence[Draft], now: datetime, place: int | None) -> Receipt:
        """Put messages in front of the one at a place; None: behind the archived ones, as some of them."""
        return self._db.write(lambda c: listing.insert(c, scope, drafts, now, self._shards, place))

    def hear(self, scope: Scope, drafts: Sequence[Draft], now: datetime) -> Receipt:
        """Store at the end what of a list was not heard yet; nothing is taken back."""
        return self._db.write(lambda c: listing.hear(c, scope, drafts, now, self._shards))

    def replace(
        self, scope: Scope, drafts: Sequence[Draft], now: datetime, fork_id: str, part: Part
    ) -> Receipt:
        """Make a session exactly these messages, all of one part; what has to leave goes to session `fork_id`."""
        return self._db.write(lambda c: listing.replace(c, scope, drafts, now, self._shards, fork_id, part))
