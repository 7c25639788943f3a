"""LlamaIndex's own scripted model with a record of what it was told, and an embedding that counts its questions."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic import PrivateAttr

__all__ = ["Counting", "Scripted", "answers", "said", "speaking"]


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
        return [1.0 + byte for byte in hashlib.sha256(text.encode()).digest()]

    def _get_query_embedding(self, query: str) -> list[float]:
        self._asked.append(query)
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def speaking(reply: Callable[[Sequence[ChatMessage]], ChatMessage]) -> Scripted:
    """Return a model that answers with what `reply` makes of its messages."""
    return Scripted(response_generator=lambda messages, **_: reply(messages))


def answers(text: str) -> Scripted:
    """Return a model that always says the same."""
    return speaking(lambda _: ChatMessage(text, role="assistant"))


def said(messages: Sequence[ChatMessage]) -> list[tuple[str, str | None]]:
    """Return who said what."""
    return [(message.role.value, message.content) for message in messages]
