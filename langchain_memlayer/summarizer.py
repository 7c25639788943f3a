"""memlayer's summaries for agents that are shortened by LangChain's own middleware."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from langchain_core.messages import AnyMessage

from langchain_memlayer import needs
from langchain_memlayer.messages import is_summary, to_core
from memlayer_core import Memory, Message
from memlayer_core.errors import ConfigurationError
from memlayer_core.integration import memory_of

with needs("langchain", "create_summarizer"):
    from langchain.agents.middleware import SummarizationMiddleware


_PREFACE = "Here is a summary of the conversation to date:"
"""LangChain's middleware puts this in front of a summary."""


def create_summarizer(memory: Memory, *, token_limit: int | None = None) -> Callable[[list[AnyMessage]], str]:
    """Return a function that writes the summaries of a stock `SummarizationMiddleware`, from langchain 1.4.5 on.

    ::

        SummarizationMiddleware(
            model,
            trigger=("tokens", 4000),
            summarizer=create_summarizer(memory),
            trim_tokens_to_summarize=None,
        )

    The memory's model writes them: `Memory.open(…, model=model)`. A summary is checked, and requested once more if it
    is bad. The previous summary is part of the input. Nothing is stored except the model's costs (`memory.admin.costs()`).

    With `trim_tokens_to_summarize=None` all messages are summarized; by default the middleware keeps the last 4,000
    tokens of them, and drops the rest. Messages that exceed the model's input limit are summarized in parts.

    An async agent calls the function in a thread.

    Args:
        memory: The memory whose model and settings are used.
        token_limit: Token limit of a summary; `Settings.summary_tokens` (600) by default.

    Raises:
        ConfigurationError: `memory` is not a `Memory` or has no model, or langchain is older: its middleware would
            ignore the function.
        InvalidLimitError: On a summary: `token_limit` is below one.
        ModelError: On a summary: the model does not answer, or neither answer can be used. The agent's run ends with it,
            and no message is lost.
    """
    if memory_of(memory).runtime.summarizer is None:
        raise ConfigurationError(
            "the memory has no model that sums up", hint="`Memory.open(…, model=model)` names one."
        )
    if "summarizer" not in inspect.signature(SummarizationMiddleware).parameters:
        raise ConfigurationError(
            "the installed langchain's `SummarizationMiddleware` takes no `summarizer`, and would ignore it",
            hint="pip install -U 'langchain>=1.4.5', or use `MemlayerMiddleware` instead.",
        )

    def memlayer_summarizer(messages: list[AnyMessage]) -> str:
        previous, rest = _split_summaries(messages)
        return memory.summarize(rest, previous=previous, token_limit=token_limit)

    return memlayer_summarizer


def _split_summaries(messages: Sequence[AnyMessage]) -> tuple[str, list[Message]]:
    """Separate previous summaries, which have the user's role, from the other messages."""
    earlier = [message.text.removeprefix(_PREFACE).strip() for message in messages if is_summary(message)]
    return "\n".join(earlier), [to_core(message) for message in messages if not is_summary(message)]
