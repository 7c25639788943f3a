"""memlayer's summaries for agents that are shortened by LangChain's own middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from langchain_core.messages import AnyMessage

from langchain_memlayer.messages import sums_up, to_core
from memlayer_core.errors import ConfigurationError, MissingExtraError
from memlayer_core.memory import Memory, memory_of
from memlayer_core.records.message import Message

try:
    from langchain.agents.middleware import SummarizationMiddleware
except ImportError as problem:
    raise MissingExtraError(
        f"create_summarizer needs langchain, which cannot be imported: {problem}",
        hint="pip install 'memlayer-core[langchain]'",
    ) from problem

__all__ = ["create_summarizer"]

_PREFACE = "Here is a summary of the conversation to date:"
"""What LangChain's middleware puts in front of a summary when it tells it."""


def create_summarizer(memory: Memory, *, token_limit: int | None = None) -> Callable[[list[AnyMessage]], str]:
    """Return a function that writes the summaries of a stock `SummarizationMiddleware`, from langchain 1.4.5 on.

    ::

        SummarizationMiddleware(
            model,
            trigger=("tokens", 4000),
            summarizer=create_summarizer(memory),
            trim_tokens_to_summarize=None,
        )

    The memory's summariser writes them: `Memory.open(…, summarizer=model)`, or sentences that were said. What a model
    writes is judged, and asked for again if it is bad; extracts stand in for a model that does not answer, and never a
    placeholder. The summary so far is told on. Nothing is stored but what the model was paid (`memory.costs()`).

    With `trim_tokens_to_summarize=None` everything is summed up; the middleware's default keeps the last 4,000
    tokens of it, and drops the rest. What is longer than a model is given at once is summed up in parts.

    An agent that is awaited calls it in a thread.

    Args:
        memory: Whose summariser writes, and how: its settings hold.
        token_limit: Tokens of a summary; `Settings.summary_tokens` (600) if left out.

    Raises:
        ConfigurationError: `memory` is no `Memory`, or langchain is older: its middleware would pass it over silently.
        InvalidLimitError: On a summary: `token_limit` is below one.
    """
    memory_of(memory)
    if "summarizer" not in inspect.signature(SummarizationMiddleware).parameters:
        raise ConfigurationError(
            "the installed langchain's `SummarizationMiddleware` takes no `summarizer`, and would pass it over",
            hint="pip install -U 'langchain>=1.4.5', or let `MemlayerMiddleware` take its place.",
        )

    def memlayer_summarizer(messages: list[AnyMessage]) -> str:
        previous, said = _parted(messages)
        return memory.summarize(said, previous=previous, token_limit=token_limit)

    return memlayer_summarizer


def _parted(messages: Sequence[AnyMessage]) -> tuple[str, list[Message]]:
    """Tell the summaries so far, which stand where the user speaks, from what was said."""
    earlier = [message.text.removeprefix(_PREFACE).strip() for message in messages if sums_up(message)]
    return "\n".join(earlier), [to_core(message) for message in messages if not sums_up(message)]
