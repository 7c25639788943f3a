"""The window of a conversation in Redis, with nothing else: no database of memlayer's, no index.

Run it: `python examples/redis_store.py`. It needs redis-py (`pip install redis`) and a server at `REDIS_URL`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from redis import Redis

from memlayer_core import MaxRounds, Message, WindowMemory
from memlayer_core.seams import MessageList

REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""  # Redis runs a script as one step: of two writers, the second one gets 0


class RedisStore:
    """A `MessageStore`: each session is a JSON list under one key. The list's text is its version.

    A session without a new message for `seconds` (a week) is deleted.
    """

    def __init__(self, client: Redis, *, prefix: str = "chat:memory:", seconds: int = 7 * 86_400) -> None:
        self.client, self.prefix, self.seconds = client, prefix, seconds
        self.replace = client.register_script(REPLACE)

    def get_messages(self, session_id: str) -> MessageList:
        """Return the session's messages."""
        text = self.client.get(self.prefix + session_id)
        if text is None:
            return MessageList()
        return MessageList([Message.from_json(one) for one in json.loads(text)], text.decode())

    def update_messages(self, session_id: str, messages: Sequence[Message], version: str | None) -> bool:
        """Replace the messages, unless somebody else wrote since they were read."""
        new = json.dumps([message.to_json() for message in messages], ensure_ascii=False)
        return self.replace([self.prefix + session_id], [version or "", new, self.seconds]) == 1

    def delete_messages(self, session_id: str) -> None:
        """Delete the session."""
        self.client.delete(self.prefix + session_id)


if __name__ == "__main__":
    store = RedisStore(Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")))
    chat = WindowMemory(store, f"example:u1001:{os.getpid()}", policy=MaxRounds(2))
    for question in ("My name is Ada.", "I live in Paris.", "Where do I live?"):
        chat.add("user", question)
        prompt = chat.context().messages
        chat.add("assistant", f"(an answer to {len(prompt)} messages)")  # Your model goes here.
    for message in chat.context().messages:
        print(f"{message.role}: {message.text}")
    chat.clear()
