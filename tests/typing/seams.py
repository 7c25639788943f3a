"""What a user brings: functions and classes of their own. Nothing here is run: type checkers read it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from memlayer_core import Context, Memory, Message, Scope, WindowMemory
from memlayer_core.seams import MessageList, Portion, Reply


def embed(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text))] for text in texts]


def embed_to_array(texts: list[str]) -> NDArray[np.float32]:
    return np.ones((len(texts), 8), dtype=np.float32)


class Vectors:
    """An embedder that embeds questions in another way than texts."""

    identity = "mine-1"

    def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        return [np.ones(8, dtype=np.float32) for _ in texts]

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return np.ones(8, dtype=np.float32)

    async def aembed_query(self, text: str) -> NDArray[np.float32]:
        return self.embed_query(text)


def answer(prompt: str) -> str:
    return prompt[:100]


async def answer_later(prompt: str) -> str:
    return prompt[:100]


def answer_apart(instructions: str, text: str) -> str:
    return instructions[:1] + text[:100]


class Model:
    """A language model that can be held to a schema, and tells what it read."""

    name = "mine"
    own = False

    def ask(self, instructions: str, text: str, schema: type[BaseModel] | None = None) -> Reply:
        return Reply(text[:100], tokens_in=10, tokens_out=2)


def rank(query: str, texts: list[str]) -> list[float]:
    return [float(query in text) for text in texts]


async def rank_later(query: str, texts: list[str]) -> list[float]:
    return rank(query, texts)


def redact(text: str) -> str:
    return text.replace("secret", "[redacted]")


def count(text: str) -> int:
    return len(text.split())


class Elsewhere:
    """Another service's memory of one user."""

    def __init__(self, scope: Scope) -> None:
        self.user = scope.user_id

    async def record(self, messages: Sequence[Message]) -> None:
        print(self.user, len(messages))

    def retrieve(self, message: Message) -> str:
        return f"{self.user} asked: {message.text}"


class EvenRounds:
    def allows(self, portion: Portion) -> bool:
        return portion.rounds <= 6 and portion.tokens < 2000


class InADict:
    """A store for the newest messages."""

    def __init__(self) -> None:
        self.lists: dict[str, MessageList] = {}

    def get_messages(self, session_id: str) -> MessageList:
        return self.lists.get(session_id, MessageList())

    def update_messages(self, session_id: str, messages: Sequence[Message], version: str | None) -> bool:
        self.lists[session_id] = MessageList(messages, "1" if version is None else f"{version}1")
        return True

    def delete_messages(self, session_id: str) -> None:
        self.lists.pop(session_id, None)


Memory.open("mine", embedder=embed, summarizer=answer, extractor=answer_later, reranker=rank, redactor=redact)
Memory.open("./memory", embedder=Vectors(), summarizer=Model(), extractor=Model())
Memory.open(Path("memory"), embedder="minilm", tokenizer="gpt-5")
Memory.open("./memory", embedder="multilingual", model=str.upper, tokenizer=str.split)
Memory.in_memory(embedder=embed_to_array, tokenizer=count, summarizer=answer_apart, reranker=rank_later)
memory = Memory.in_memory(long_term_memory=Elsewhere, truncate_with=lambda text, size: text[:size])
Memory.in_memory(reranker=lambda query, texts: [1.0 for _ in texts], extractor=lambda prompt: prompt)
memory.chat(user_id="ada").context(policy=EvenRounds())

window = WindowMemory(InADict(), "monday", policy={"max_rounds": 4}, tokenizer="estimate")
window.add("user", "Hello")
seen: Context = window.context()
