"""Plays a session with a LangChain runnable: a lambda that remembers, a chat model, a lambda that stores."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from memlayer_core.demo.turn import ModelFailedError, Stage, Turn, stopwatch
from memlayer_core.errors import ConfigurationError, MemlayerError
from memlayer_core.records.context import Context

__all__ = ["CALLS", "NAME", "LangChainPlayer", "player", "real_model"]

NAME = "LangChain"
CALLS = "RunnableLambda | chat model, with MemlayerChatMessageHistory"


class LangChainPlayer:
    """Runs `remember | model | store` once for each question."""

    def __init__(self, stage: Stage) -> None:
        scope = stage.chat.scope
        history = import_module("langchain_memlayer").MemlayerChatMessageHistory
        self._stage = stage
        self._history = history(scope.session_id, memory=stage.chat.memory, user_id=scope.user_id)
        self._given: list[BaseMessage] = []
        self._context: Context | None = None
        model: Runnable[Any, Any] = (
            GenericFakeChatModel(messages=iter(stage.replies))
            if stage.model is None
            else real_model(stage.model)
        )
        self._chain = RunnableLambda(self._remember) | model | RunnableLambda(self._store)

    def ask(self, question: str) -> Turn:
        """Put a question to the model, with memory, and store both sides.

        Raises:
            ModelFailedError: The model raised.
        """
        with stopwatch() as taken:
            try:
                answer = self._chain.invoke(question)
            except MemlayerError:
                raise
            except Exception as problem:
                raise ModelFailedError(
                    f"the model {self._stage.model or 'of the script'} raised {type(problem).__name__}: "
                    f"{str(problem)[:500]}",
                    hint="Check its name, its key and the network, or leave out `--model`.",
                ) from problem
        assert self._context is not None  # noqa: S101  (the chain has run)
        received = tuple((message.type, message.text) for message in self._given)
        return Turn(question, answer, received, self._context, taken[0])

    def _remember(self, question: str) -> list[BaseMessage]:
        self._history.add_messages([HumanMessage(question)])
        self._given = self._history.context(token_limit=self._stage.token_limit)
        self._context = self._stage.chat.context(token_limit=self._stage.token_limit)
        return self._given

    def _store(self, answer: AIMessage) -> str:
        self._history.add_messages([answer])
        return str(answer.text)


def player(stage: Stage) -> LangChainPlayer:
    """Return what plays a session here."""
    return LangChainPlayer(stage)


def real_model(name: str) -> BaseChatModel:
    """Make the chat model of a name such as `"openai:gpt-…"`.

    Raises:
        ConfigurationError: There is no such model, or its package or its key is missing.
    """
    try:
        from langchain.chat_models import init_chat_model  # noqa: PLC0415  (not part of langchain-core)

        model = init_chat_model(name)
    except Exception as problem:
        raise ConfigurationError(
            f"the model {name!r} cannot be made: {str(problem)[:500] or type(problem).__name__}",
            hint="Write `--model provider:name`, install the provider's package (such as langchain-openai), "
            "and set its key (such as OPENAI_API_KEY).",
        ) from problem
    assert isinstance(model, BaseChatModel)  # noqa: S101  (only a name with `configurable_fields` gives another)
    return model
