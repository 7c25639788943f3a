"""Plays a session with LlamaIndex's `SimpleChatEngine` and a model that recites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.custom import CustomLLM

from memlayer_core.demo.turn import Stage, Turn, stopwatch
from memlayer_core.records.context import Context

__all__ = ["CALLS", "NAME", "LlamaIndexPlayer", "ScriptedLLM", "player"]

NAME = "LlamaIndex"
CALLS = "SimpleChatEngine with MemlayerMemory"


class ScriptedLLM(CustomLLM):
    """A chat model that recites its replies, whatever it is told."""

    _replies: list[str] = PrivateAttr()
    _hear: Callable[[Sequence[ChatMessage]], None] = PrivateAttr()

    def __init__(self, replies: Sequence[str], hear: Callable[[Sequence[ChatMessage]], None]) -> None:
        super().__init__()
        self._replies = list(replies)
        self._hear = hear

    @classmethod
    def class_name(cls) -> str:
        """Return the name that the framework shows."""
        return "scripted"

    @property
    def metadata(self) -> LLMMetadata:
        """Say that this is a chat model."""
        return LLMMetadata(is_chat_model=True, model_name="scripted")

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:  # noqa: ARG002
        """Recite the next reply."""
        self._hear(messages)
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=self._replies.pop(0)))

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:  # noqa: ARG002
        """Recite the next reply."""
        return CompletionResponse(text=self._replies.pop(0))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Recite the next reply at once."""
        yield self.complete(prompt, formatted, **kwargs)


class LlamaIndexPlayer:
    """Chats through an engine whose memory is ours."""

    def __init__(self, stage: Stage) -> None:
        scope = stage.chat.scope
        self._memory = import_module("llamaindex_memlayer").MemlayerMemory.from_defaults(
            memory=stage.chat.memory,
            user_id=scope.user_id,
            session_id=scope.session_id,
            token_limit=stage.token_limit,
        )
        self._given: Sequence[ChatMessage] = ()
        self._context: Context | None = None
        self._engine = SimpleChatEngine.from_defaults(
            llm=ScriptedLLM(stage.replies, self._hear), memory=self._memory
        )

    def ask(self, question: str) -> Turn:
        """Put a question to the model, with memory, and store both sides."""
        with stopwatch() as taken:
            answer = self._engine.chat(question)
        assert self._context is not None  # noqa: S101  (the model has been asked)
        received = tuple((message.role.value, message.content or "") for message in self._given)
        return Turn(question, answer.response, received, self._context, taken[0])

    def _hear(self, messages: Sequence[ChatMessage]) -> None:
        self._given = messages
        self._context = self._memory.context()


def player(stage: Stage) -> LlamaIndexPlayer:
    """Return what plays a session here."""
    return LlamaIndexPlayer(stage)
