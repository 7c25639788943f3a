"""What changes a conversation, or a copy of it: edits, forks, ends, and lists that a framework sends again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memlayer_core.drive import Drive, both
from memlayer_core.flows import sessions as flows
from memlayer_core.flows.lists import hear
from memlayer_core.records.message import Block, Message, Receipt
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Synced
from memlayer_core.rules.check import blocks

if TYPE_CHECKING:
    from memlayer_core.chat import Chat
    from memlayer_core.memory import Memory

__all__ = ["Revisions"]


class Revisions:
    """The part of a `Chat` that changes what was said before."""

    memory: Memory
    scope: Scope
    roles: tuple[str, ...]

    async def _history(self, drive: Drive, offset: int = 0, limit: int | None = None) -> list[Message]:
        """Return what was said in this session, as it went in. The list is yours.

        Args:
            offset: Messages to pass over, from the first one on.
            limit: How many at the most; all of them if left out.
        """
        return await flows.history(self.memory._world(), drive, self.scope, offset, limit)  # noqa: SLF001

    history, ahistory = both(_history)

    async def _resync(self, drive: Drive, messages: Iterable[Message], *, replace: bool = False) -> Synced:
        """Follow a list that a framework keeps itself and sends again and again, in one transaction.

        What the list adds is stored; what it left out, at the front or in between, stays. Where it says
        something else than the history, the history's messages are kept in a session of their own
        (`Session.superseded`), which is not recalled. Sending the same list again changes nothing. Only the
        end of a long history is read.

        Args:
            messages: The list. Ids help, and are not needed: a message whose id the session knows is that
                message, whatever it says, and stays at its place there; others are known by their words.
            replace: What a list without what the history ends in means. `True`: that is the conversation now. What
                the history has behind the list's end is kept apart, and all of it where nothing is in common.
                `False`: it is a part of the conversation; one that has nothing in common comes behind it.

        Raises:
            MessageTypeError: Something in it is no message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
        """
        world = self.memory._world()  # noqa: SLF001
        return await flows.resync(world, drive, self.scope, messages, replacing=replace)

    resync, aresync = both(_resync)

    async def _add_unheard(self, drive: Drive, messages: Iterable[Message]) -> Receipt:
        """Store what of a list is new, if you are shown the list again and again and know no more of it.

        The list may begin anywhere in the history, and anything may stand in between. From the first message on that
        is not there in that order, all is new: it comes to the end. Nothing is ever taken back, as `resync` does it.

        Args:
            messages: The list. Messages are known by what they say and hold, without ids.

        Raises:
            MessageTypeError: Something in it is no message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
        """
        return await hear(self.memory._world(), drive, self.scope, messages)  # noqa: SLF001

    add_unheard, aadd_unheard = both(_add_unheard)

    async def _edit(
        self,
        drive: Drive,
        id: str | int,  # noqa: A002  (the field's name in both frameworks)
        content: str | Sequence[Block],
        *,
        expected: Message | str | None = None,
    ) -> Message:
        """Change what a message says; its id, its time and its place stay.

        Args:
            id: The message's id, or its place in the history: 0 is the first, -1 the last.
            content: Text, or content blocks.
            expected: The message, or its text, as you saw it last: nothing is changed if it says something
                else by now.

        Returns:
            The message as it is now.

        Raises:
            UnknownMessageError: The session does not have it.
            MessageChangedError: It is not what was expected.
            InvalidMessageError: The content cannot be stored.
        """
        said = content if isinstance(content, str) else blocks(content)
        return await flows.edit(self.memory._world(), drive, self.scope, id, said, expected)  # noqa: SLF001

    edit, aedit = both(_edit)

    async def _delete_message(self, drive: Drive, id: str | int) -> Message:  # noqa: A002
        """Delete one message, and what it can be found by.

        Args:
            id: The message's id, or its place in the history: 0 is the first, -1 the last.

        Returns:
            The message as it was.

        Raises:
            UnknownMessageError: The session does not have it.
        """
        return await flows.delete(self.memory._world(), drive, self.scope, id)  # noqa: SLF001

    delete_message, adelete_message = both(_delete_message)

    async def _fork(
        self, drive: Drive, *, until: str | int | None = None, session_id: str | None = None
    ) -> Chat:
        """Copy this session into a new one of the same user, to go on differently there. This one stays.

        Args:
            until: Id or place of the last message to copy; all of them if left out.
            session_id: Id of the new session; a UUID if left out.

        Raises:
            UnknownMessageError: The session does not have that message, or there is no such session.
            InvalidScopeError: The new session exists already.
        """
        world = self.memory._world()  # noqa: SLF001
        scope = await flows.fork(world, drive, self.scope, until, session_id or str(uuid.uuid4()))
        return self.memory.chat_of(scope, roles=self.roles)

    fork, afork = both(_fork)

    async def _end(self, drive: Drive) -> bool:
        """End the session: its next context begins anew, with the system message in force.

        What was said since it began is remembered as one record of type `"episodic"`, in the background.
        The history and what is recalled of it stay. The next message opens it again. A session that was idle
        for `Settings.session_idle_days` (7) ends by itself.

        Returns:
            Whether there was anything to end.
        """
        return await flows.end(self.memory._world(), drive, self.scope)  # noqa: SLF001

    end, aend = both(_end)

    async def _rename(self, drive: Drive, title: str | None) -> bool:
        """Give the session a title; None takes it away. Returns whether there is such a session.

        Raises:
            InvalidMessageError: It is no text, or an empty one.
        """
        return await flows.rename(self.memory._world(), drive, self.scope, title)  # noqa: SLF001

    rename, arename = both(_rename)

    def set_memory(self, memory: Memory) -> None:
        """Go on in another memory, in the session of the same id. What was said so far stays where it is.

        Raises:
            ConfigurationError: It is no `Memory`.
            StoreClosedError: It is closed.
        """
        from memlayer_core.memory import memory_of  # noqa: PLC0415  (it knows chats, and so this)

        memory_of(memory)._world()  # noqa: SLF001
        self.memory = memory
