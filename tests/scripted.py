"""LlamaIndex's own scripted model with a record of what it was told, and what else its tests share."""

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory as FrameworkMemory
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import PrivateAttr

from memlayer_core.models.hashing import HashingEmbedder

__all__ = ["Counting", "Library", "Scripted", "answers", "said", "speaking", "takes_any_store"]

takes_any_store = pytest.mark.skipif(
    "chat_store" not in inspect.signature(FrameworkMemory.from_defaults).parameters,
    reason="this version of the framework's `Memory` takes its own store alone",
)


class Scripted(MockFunctionCallingLLM):
    """A chat model that answers with what a function makes of its messages."""

    _told: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Scripted"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    @property
    def told(self) -> list[list[ChatMessage]]:
        """What it was told, call by call."""
        return self._told

    @property
    def last_chat_messages(self) -> list[ChatMessage]:
        return self._told[-1]

    def _note(self, messages: Sequence[ChatMessage]) -> None:
        self._told.append([message.model_copy(deep=True) for message in messages])

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._note(messages)
        return super().chat(messages)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Generator[ChatResponse]:
        self._note(messages)
        return super().stream_chat(messages)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self.chat(messages)

    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> AsyncGenerator[ChatResponse]:
        self._note(messages)
        return await super().astream_chat(messages)


class Counting(BaseEmbedding):
    """An embedding that notes the questions that it is asked, by blocking and by awaiting callers."""

    _asked: list[str] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[str]:
        return self._asked

    def _get_text_embedding(self, text: str) -> list[float]:
        return HashingEmbedder().embed([text])[0].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        self._asked.append(query)
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Library(BaseRetriever):
    """Finds the same page whatever is asked."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Riga lies on the Daugava."), score=1.0)]


def speaking(reply: Callable[[Sequence[ChatMessage]], ChatMessage]) -> Scripted:
    """Return a model that answers with what `reply` makes of its messages."""
    return Scripted(response_generator=lambda messages, **_: reply(messages))


def answers(text: str) -> Scripted:
    """Return a model that always says the same."""
    return speaking(lambda _: ChatMessage(text, role="assistant"))


def said(messages: Sequence[ChatMessage]) -> list[tuple[str, str | None]]:
    """Return who said what."""
    return [(message.role.value, message.content) for message in messages]
