"""A LlamaIndex chat engine that remembers its user in every session.

Run it: `python examples/llamaindex_chat_engine.py`. No key and no network is needed: the model is scripted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import CustomLLM

from llamaindex_memlayer import MemlayerMemory
from memlayer_core import Memory


class ScriptedModel(CustomLLM):
    """Answers from its messages alone. Your model goes here: `OpenAI(model="gpt-5-mini")`."""

    @property
    def metadata(self) -> LLMMetadata:
        """Say that this is a chat model."""
        return LLMMetadata(is_chat_model=True)

    def chat(self, messages: Sequence[ChatMessage], **_: Any) -> ChatResponse:
        """Answer."""
        context = " ".join(message.content or "" for message in messages)
        text = "To nuts." if "allergic to nuts" in context else "You did not tell me."
        if "What" not in (messages[-1].content or ""):
            text = "Good to know."
        return ChatResponse(message=ChatMessage(role="assistant", content=text))

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        """Complete nothing: a chat engine does not ask for it."""
        raise NotImplementedError

    stream_complete = complete


def ask(memory: Memory, session: str, question: str) -> None:
    """Ask an engine whose memory is this session of the user."""
    remembered = MemlayerMemory.from_defaults(memory, user_id="louis", session_id=session, token_limit=3000)
    engine = SimpleChatEngine.from_defaults(llm=ScriptedModel(), memory=remembered)
    print(f"[{session}] user: {question}")
    print(f"[{session}] engine: {engine.chat(question)}")


with Memory.in_memory() as memory:  # Memory.open("./memory") keeps it on disk
    ask(memory, "in-may", "I moved to Tokyo, and I am allergic to nuts.")
    ask(memory, "today", "What am I allergic to?")
    print("Stored:", [message.text for message in memory.chat(user_id="louis", session_id="today").history()])
