"""Calls a language model: one of LangChain, one of LlamaIndex, or a function.

Models of frameworks are recognised by their methods: nothing of a framework is imported.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError
from memlayer_core.models.overflow import is_overflow
from memlayer_core.seams import Reply

__all__ = ["LanguageModel", "language_model"]

_INTERNAL = {"tags": ["nostream"], "metadata": {"lc_source": "memlayer"}}
"""LangGraph shows a call with this tag in no user's stream; traces show where it comes from."""


class LanguageModel:
    """A model that answers a prompt with a text.

    Args:
        name: The model's name in summaries and errors.
        ask: Function of instructions and a text.
        own: Whether it is the user's own function. Its answers are checked less than those of a model.
    """

    def __init__(self, name: str, ask: Callable[[str, str], Reply], *, own: bool = False) -> None:
        self.name = name
        self.own = own
        self._ask = ask

    def ask(self, instructions: str, text: str) -> Reply:
        """Send a prompt to the model, and wait for the answer.

        Raises:
            ModelContextError: The prompt is longer than the model can read.
            ModelError: It did not answer: it is not reachable, is overloaded, or refused the call.
        """
        try:
            return self._ask(instructions, text)
        except Exception as problem:
            error_type = type(
                problem
            ).__name__  # what it said may quote a message, or a key: only the cause tells
            if is_overflow(problem):
                raise ModelContextError(
                    f"{self.name} cannot read so long a prompt: {error_type}",
                    hint="It is asked again with half of it.",
                ) from problem
            raise ModelError(
                f"{self.name} did not answer: {error_type}",
                hint="It is asked again later; `memory.status()` shows the problem.",
            ) from problem


def language_model(model: Any) -> LanguageModel | None:
    """Return the language model for a memory's `summarizer`.

    Args:
        model: None for no model; a LangChain chat model or LLM; a LlamaIndex LLM; or a function of a prompt, blocking
            or async, that returns a text. A function of two arguments gets the instructions and the text separately.

    Raises:
        ConfigurationError: It is none of these.
    """
    if model is None or isinstance(model, LanguageModel):
        return model
    if isinstance(model, type | str):
        raise ConfigurationError(
            f"a summariser must be a model, not {model!r}",
            hint='Pass a made model: `init_chat_model("openai:gpt-5-mini")`, a LlamaIndex `LLM`, or a function.',
        )
    if hasattr(model, "invoke") and hasattr(model, "ainvoke"):
        return LanguageModel(_name(model), lambda instructions, text: _langchain(model, instructions, text))
    if hasattr(model, "complete") and hasattr(model, "acomplete"):
        return LanguageModel(_name(model), lambda instructions, text: _llamaindex(model, instructions, text))
    if callable(model):
        return LanguageModel(_name(model), _function(model), own=True)
    raise ConfigurationError(
        f"a summariser must be a model or a function, got {type(model).__name__}",
        hint="A LangChain chat model, a LlamaIndex `LLM`, or a function of a prompt that returns a text.",
    )


def _name(model: Any) -> str:
    for attribute in ("model_name", "model", "model_id", "deployment_name"):
        found = getattr(model, attribute, None)
        if isinstance(found, str) and found:
            return f"{type(model).__name__}:{found}"
    return getattr(model, "__qualname__", None) or type(model).__name__


def _langchain(model: Any, instructions: str, text: str) -> Reply:
    answer = model.invoke([("system", instructions), ("human", text)], config=_INTERNAL)
    if isinstance(answer, str):
        return Reply(answer)
    usage = getattr(answer, "usage_metadata", None) or {}
    said = answer.text
    return Reply(said() if callable(said) and not isinstance(said, str) else str(said), *_counts(usage))


def _counts(usage: Any) -> tuple[int | None, int | None]:
    return usage.get("input_tokens"), usage.get("output_tokens")


def _llamaindex(model: Any, instructions: str, text: str) -> Reply:
    prompt = f"{instructions}\n\n{text}"
    try:
        answer = model.complete(prompt)
    except NotImplementedError:  # some have the async half alone
        answer = asyncio.run(model.acomplete(prompt))
    usage = {**(answer.additional_kwargs or {}), **_raw_usage(answer.raw)}
    return Reply(
        answer.text or "",
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )


def _raw_usage(raw: Any) -> dict[str, Any]:
    usage = raw.get("usage") if isinstance(raw, dict) else getattr(raw, "usage", None)
    if isinstance(usage, dict):
        return usage
    return {name: value for name, value in vars(usage).items() if isinstance(value, int)} if usage else {}


def _function(function: Callable[..., Any]) -> Callable[[str, str], Reply]:
    try:
        taken = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
            and parameter.default is parameter.empty
        ]
    except (TypeError, ValueError):
        taken = []
    apart = len(taken) == 2  # noqa: PLR2004  (instructions and text)

    def ask(instructions: str, text: str) -> Reply:
        answer = function(instructions, text) if apart else function(f"{instructions}\n\n{text}")
        if inspect.isawaitable(answer):
            answer = asyncio.run(_await(answer))
        if not isinstance(answer, str):
            raise TypeError(f"it returned {type(answer).__name__} and no text")
        return Reply(answer)

    return ask


async def _await(answer: Any) -> Any:
    return await answer
