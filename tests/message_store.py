"""A message store for tests."""

import threading
import uuid
from collections.abc import Sequence

from memlayer_core import Message
from memlayer_core.seams import MessageList


class DictStore:
    """A message store in memory, which records every call."""

    def __init__(self) -> None:
        self.lists: dict[str, MessageList] = {}
        self.calls: list[tuple[str, list[str]]] = []
        self._lock = threading.Lock()

    def get_messages(self, session_id: str) -> MessageList:
        return self.lists.get(session_id, MessageList())

    def update_messages(self, session_id: str, messages: Sequence[Message], version: str | None) -> bool:
        with self._lock:
            if self.get_messages(session_id).version != version:
                return False
            self.lists[session_id] = MessageList(tuple(messages), uuid.uuid4().hex)
            self.calls.append(("update", [message.text for message in messages]))
            return True

    def delete_messages(self, session_id: str) -> None:
        self.lists.pop(session_id, None)
        self.calls.append(("delete", []))
