"""Conversations as plain lists of messages under keys, for the chat stores of frameworks.

A chat store has no windows and no recall. It sets, adds, deletes and counts messages, and archives older ones:
archived messages are those before working memory begins.
"""

from collections.abc import Iterable

from memlayer_core.memory import Memory
from memlayer_core.message import Message, Receipt
from memlayer_core.messages.flow import lists
from memlayer_core.messages.model import Part
from memlayer_core.runner import ASYNC, SYNC, step
from memlayer_core.scope import Scope

__all__ = ["Transcripts"]


class Transcripts:
    """The conversations of one user, each under its session id. Each blocking verb has an async one with an `a` in front.

    It has no state of its own, so it is cheap to make. Every verb is one transaction.

    Args:
        memory: The memory that stores them.
        user_id: The user; None: conversations without a user, which recall never connects.
        tenant_id: The user's tenant. Equal user ids of different tenants are different users.
        agent_id: Only conversations with this agent; None: only those without an agent.

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
        """Return the scope of the session under a key.

        Raises:
            InvalidScopeError: The key is empty or cannot be stored.
        """
        return Scope.of_session(key, user_id=self.user_id, tenant_id=self.tenant_id, agent_id=self.agent_id)

    def keys(self) -> list[str]:
        """Return the keys of all conversations that have messages, the oldest conversation first."""
        return step(lists.keys(self.memory.runtime, SYNC, self.tenant_id, self.user_id, self.agent_id))

    async def akeys(self) -> list[str]:
        """Do `keys` without blocking the event loop."""
        return await self.memory.runtime.threads.read(
            lists.keys(self.memory.runtime, ASYNC, self.tenant_id, self.user_id, self.agent_id)
        )

    def messages(
        self, key: str, *, part: Part | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Message]:
        """Return the messages under a key, the oldest first; an empty list if there are none.

        Args:
            key: Key of the conversation.
            part: `"active"` or `"archived"`; both if left out.
            limit: How many messages at the most.
            offset: How many messages to skip.
        """
        return step(lists.list_messages(self.memory.runtime, SYNC, self.scope_of(key), part, limit, offset))

    async def amessages(
        self, key: str, *, part: Part | None = None, limit: int | None = None, offset: int = 0
    ) -> list[Message]:
        """Do `messages` without blocking the event loop."""
        return await self.memory.runtime.threads.read(
            lists.list_messages(self.memory.runtime, ASYNC, self.scope_of(key), part, limit, offset)
        )

    def count(self, key: str, *, part: Part | None = None) -> int:
        """Return how many messages there are under a key."""
        return step(lists.count(self.memory.runtime, SYNC, self.scope_of(key), part))

    async def acount(self, key: str, *, part: Part | None = None) -> int:
        """Do `count` without blocking the event loop."""
        return await self.memory.runtime.threads.read(
            lists.count(self.memory.runtime, ASYNC, self.scope_of(key), part)
        )

    def add(self, key: str, messages: Iterable[Message], *, part: Part = "active") -> Receipt:
        """Store messages at the end of a part: all of them, or none.

        Raises:
            InvalidMessageError: One of them cannot be stored.
        """
        return step(lists.add(self.memory.runtime, SYNC, self.scope_of(key), messages, part))

    async def aadd(self, key: str, messages: Iterable[Message], *, part: Part = "active") -> Receipt:
        """Do `add` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            lists.add(self.memory.runtime, ASYNC, self.scope_of(key), messages, part)
        )

    def insert(self, key: str, place: int, messages: Iterable[Message]) -> Receipt:
        """Insert messages in front of the message at a place, as a list's `insert` does.

        All messages behind that place get new places, so the cost grows with their number.

        Args:
            key: Key of the conversation.
            place: The place, from 0; below zero, counted from the end. A place beyond an end means that end.
            messages: The messages to insert.

        Raises:
            InvalidMessageError: One of them cannot be stored, or its id is in the conversation already.
        """
        return step(lists.insert(self.memory.runtime, SYNC, self.scope_of(key), messages, place))

    async def ainsert(self, key: str, place: int, messages: Iterable[Message]) -> Receipt:
        """Do `insert` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            lists.insert(self.memory.runtime, ASYNC, self.scope_of(key), messages, place)
        )

    def set(self, key: str, messages: Iterable[Message], *, part: Part = "active") -> Receipt:
        """Make the conversation consist of exactly these messages, all of them in one part.

        Replaced messages stay in a session of their own (`Session.superseded`), and are not recalled any more.
        Messages that are there already, in the same order, are not written again.

        Raises:
            InvalidMessageError: One of them cannot be stored; nothing was changed.
        """
        return step(lists.replace(self.memory.runtime, SYNC, self.scope_of(key), messages, part))

    async def aset(self, key: str, messages: Iterable[Message], *, part: Part = "active") -> Receipt:
        """Do `set` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            lists.replace(self.memory.runtime, ASYNC, self.scope_of(key), messages, part)
        )

    def take(
        self, key: str, first: int = 0, count: int | None = None, *, part: Part | None = None
    ) -> list[Message]:
        """Delete messages for good, with everything that finds them. Returns them.

        Args:
            key: Key of the conversation.
            first: Place of the first message; below zero, counted from the end.
            count: How many messages at the most; all from `first` on if left out.
            part: The part that is counted in and deleted from; both if left out.
        """
        return step(lists.take(self.memory.runtime, SYNC, self.scope_of(key), part, first, count))

    async def atake(
        self, key: str, first: int = 0, count: int | None = None, *, part: Part | None = None
    ) -> list[Message]:
        """Do `take` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            lists.take(self.memory.runtime, ASYNC, self.scope_of(key), part, first, count)
        )

    def archive(self, key: str, count: int) -> list[Message]:
        """Archive the oldest active messages. They stay in the history and are recalled. Returns them.

        If there are `Settings.episode_messages` (4) or more, an episode about them is written in the background, as for
        an ended session.
        """
        return step(lists.archive(self.memory.runtime, SYNC, self.scope_of(key), count))

    async def aarchive(self, key: str, count: int) -> list[Message]:
        """Do `archive` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            lists.archive(self.memory.runtime, ASYNC, self.scope_of(key), count)
        )
