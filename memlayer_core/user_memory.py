"""`UserMemory`: a user's memory as text in and text out, for frameworks with a long-term memory of their own."""

from collections.abc import Iterable

from memlayer_core.chat import Chat
from memlayer_core.message import Message
from memlayer_core.messages.rules.check import check_messages
from memlayer_core.messages.rules.render import block, quote_line
from memlayer_core.recall.model import Hits

__all__ = ["UserMemory"]


class UserMemory:
    """The long-term memory of a user: `record` what was said, and `retrieve` what bears on a message.

    A framework that keeps the conversation itself needs no more; the others take a `Chat`. It has the methods of
    `seams.LongTermMemory`, through which another service can stand in for it.

    Args:
        chat: A conversation of the user. What is recorded is stored in its session.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def record(self, messages: Iterable[Message]) -> None:
        """Record messages of the user and the assistant; others, and tool calls, are left out.

        The list may be the whole conversation, again and again: from its first new message on, all are stored. It is durable
        when this returns. Facts are learned, and the words are indexed, in the background.

        Raises:
            MessageTypeError: One of them is no message.
            InvalidMessageError: One of them cannot be stored; nothing was written.
        """
        self.chat.resync(_spoken(messages), replace="nothing")

    async def arecord(self, messages: Iterable[Message]) -> None:
        """Do `record` without blocking the event loop."""
        await self.chat.aresync(_spoken(messages), replace="nothing")

    def retrieve(self, message: Message | str) -> str:
        """Return what is known of the user that bears on a message, as one text; empty if nothing does.

        Args:
            message: The message, or its text. It need not be recorded.
        """
        said = Message("user", message) if isinstance(message, str) else message
        return _text(self.chat.recall(said.text, exclude=[said]))

    async def aretrieve(self, message: Message | str) -> str:
        """Do `retrieve` without blocking the event loop."""
        said = Message("user", message) if isinstance(message, str) else message
        return _text(await self.chat.arecall(said.text, exclude=[said]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.chat!r})"


def _spoken(messages: Iterable[Message]) -> list[Message]:
    checked = check_messages(messages)
    return [
        one
        if not one.tool_calls
        else Message(one.role, one.content, name=one.name, created_at=one.created_at)
        for one in checked
        if one.role in {"user", "assistant"} and one.text.strip()
    ]


def _text(hits: Hits) -> str:
    return block([quote_line(hit.created_at, hit.speaker, hit.text, hit.role) for hit in hits])
