"""Another service remembers the user: it stands in for memlayer's recall, in every adapter.

Run it: `python examples/other_memory.py`. It is offline: a class with a list plays the service.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlayer_core import Memory, Message, Scope, Settings


class Service:
    """Plays the client of a service, such as mem0's: `add` and `search` for one user id."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def add(self, user_id: str, texts: list[str]) -> None:
        """Remember texts of a user."""
        self.texts.setdefault(user_id, []).extend(texts)

    def search(self, user_id: str, query: str) -> list[str]:
        """Return texts of a user that share a word with the query."""
        words = set(query.lower().strip("?").split())
        return [text for text in self.texts.get(user_id, []) if words & set(text.lower().split())]


class UserOfService:
    """A `LongTermMemory`: what the service knows of one user. Both methods may be async, too."""

    def __init__(self, client: Service, scope: Scope) -> None:
        self.client, self.user_id = client, f"{scope.tenant_id}/{scope.user_id}"

    def record(self, messages: Sequence[Message], /) -> None:
        """Pass on what the user said."""
        self.client.add(self.user_id, [one.text for one in messages if one.role == "user"])

    def retrieve(self, message: Message, /) -> str:
        """Return what bears on a message, one thing a line."""
        return "\n".join(self.client.search(self.user_id, message.text))


if __name__ == "__main__":
    client = Service()
    settings = Settings()  # the service learns, and not memlayer
    with Memory.in_memory(
        settings=settings, long_term_memory=lambda scope: UserOfService(client, scope)
    ) as memory:
        monday = memory.chat(user_id="ada", session_id="monday")
        monday.add("user", "My parrot is called Coco.")
        monday.add("assistant", "A fine name.")  # Your model goes here.
        memory.flush()  # a round is recorded in the background
        for user_id in ("ada", "bob"):
            friday = memory.chat(user_id=user_id, session_id="friday")
            friday.add("user", "How is my parrot called?")
            print(f"{user_id}'s model reads:\n{friday.context().messages[-1].text}\n")
