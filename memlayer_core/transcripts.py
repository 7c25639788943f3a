"""Conversations as plain lists under their keys: what a framework's chat store is made of.

A chat store knows no windows and no recall. It sets, adds, deletes and counts, and may call older messages archived:
they lie before the place where our working memory begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from memlayer_core.drive import Drive, both
from memlayer_core.flows import lists as flows
from memlayer_core.flows.remember import remember
from memlayer_core.records.message import Message, Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Part

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["Transcripts"]


class Transcripts:
    """The conversations of one user, each under its session id. Each verb has an async twin with an `a` in front.

    Cheap, and holds no state of its own. Every verb is one transaction.

    Args:
        memory: Where they are kept.
        user_id: Whose; None: each of them stands alone, and is recalled into no other.
        tenant_id: Users of different tenants are different users.
        agent_id: Only conversations with this agent; None: those without one.

    Raises:
        InvalidScopeError: An id is empty or cannot be stored.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
    ) -> None:
        self.memory = memory
        self.user_id = user_id
        self.tenant_id = tenant_id
        self.agent_id = agent_id
        self.scope_of("anything")  # checks the ids

    def scope_of(self, key: str) -> Scope:
        """Return which session a key names.

        Raises:
            InvalidScopeError: The key is empty or cannot be stored.
        """
        return Scope.of_session(key, user_id=self.user_id, tenant_id=self.tenant_id, agent_id=self.agent_id)

    async def _keys(self, drive: Drive) -> list[str]:
        """Return the keys under which there are messages, in the order in which they were begun."""
        world = self.memory._world()  # noqa: SLF001
        return await flows.keys(world, drive, self.tenant_id, self.user_id, self.agent_id)

    keys, akeys = both(_keys)

    async def _messages(
        self, drive: Drive, key: str, *, part: Part | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Message]:
        """Return the messages under a key, the oldest first; none where there is nothing.

        Args:
            key: Which conversation.
            part: `"active"` or `"archived"`; both if left out.
            limit: How many at the most.
            offset: How many to pass over.
        """
        world = self.memory._world()  # noqa: SLF001
        return await flows.listed(world, drive, self.scope_of(key), part, limit, offset)

    messages, amessages = both(_messages)

    async def _count(self, drive: Drive, key: str, *, part: Part | None = None) -> int:
        """Return how many messages there are under a key."""
        return await flows.count(self.memory._world(), drive, self.scope_of(key), part)  # noqa: SLF001

    count, acount = both(_count)

    async def _add(
        self, drive: Drive, key: str, messages: Iterable[Message], *, part: Part = "active"
    ) -> Receipt:
        """Store messages at the end of a part: all of them, or none. No messages change nothing.

        Raises:
            InvalidMessageError: One of them cannot be stored.
        """
        world, scope = self.memory._world(), self.scope_of(key)  # noqa: SLF001
        if part == "archived":
            return await flows.insert(world, drive, scope, messages, None)
        return await remember(world, drive, scope, messages, verbatim=True)

    add, aadd = both(_add)

    async def _insert(self, drive: Drive, key: str, place: int, messages: Iterable[Message]) -> Receipt:
        """Put messages in front of the one at a place, as a list's `insert` does.

        What stands behind it is given new places: this costs as much as there is of that.

        Args:
            key: Which conversation.
            place: From 0, or below zero from the end; beyond either end, that end.
            messages: What is put there.

        Raises:
            InvalidMessageError: One of them cannot be stored, or is there already by its id.
        """
        world = self.memory._world()  # noqa: SLF001
        return await flows.insert(world, drive, self.scope_of(key), messages, place)

    insert, ainsert = both(_insert)

    async def _set(
        self, drive: Drive, key: str, messages: Iterable[Message], *, part: Part = "active"
    ) -> Receipt:
        """Make the conversation exactly these messages, all of one part.

        What they take the place of is kept in a session of its own (`Session.superseded`) and no longer recalled;
        what was there before and comes in the same order is not written again.

        Raises:
            InvalidMessageError: One of them cannot be stored; nothing was changed.
        """
        return await flows.replace(self.memory._world(), drive, self.scope_of(key), messages, part)  # noqa: SLF001

    set, aset = both(_set)

    async def _take(
        self, drive: Drive, key: str, first: int = 0, count: int | None = None, *, part: Part | None = None
    ) -> list[Message]:
        """Delete messages, and what they can be found by. Returns them; none where there are none.

        Args:
            key: Which conversation.
            first: The place of the first one; below zero, counted from the end.
            count: How many at the most; all from there on if left out.
            part: What is counted in and deleted from; both if left out.
        """
        world = self.memory._world()  # noqa: SLF001
        return await flows.take(world, drive, self.scope_of(key), part, first, count)

    take, atake = both(_take)

    async def _archive(self, drive: Drive, key: str, count: int) -> list[Message]:
        """Archive the oldest active messages, which stay in the history and are recalled. Returns them.

        Four and more of them are remembered as an episode, in the background, as those of an ended session are.
        """
        return await flows.archive(self.memory._world(), drive, self.scope_of(key), count)  # noqa: SLF001

    archive, aarchive = both(_archive)
