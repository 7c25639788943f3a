"""Asks a language model for a text: one of LangChain, one of LlamaIndex, or any function.

Models of frameworks are known by their methods: nothing of a framework is imported before its model is here.
Only background work asks, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any

from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError
from memlayer_core.records.summary import Reply

__all__ = ["LanguageModel", "language_model"]

_TOO_LONG = re.compile(
    r"context[ _-]?length|maximum context|context window|prompt is too long|too many (?:input )?tokens"
    r"|input is too long|reduce the length|max_tokens_exceeded",
    re.IGNORECASE,
)
_SECRET = re.compile(r"(?i)(\bsk-|\bbearer\s+|\bapi[ _-]?key\b[^\w]{1,4})[\w.*-]+")
_SHOWN = 300
_INTERNAL = {"tags": ["nostream"], "metadata": {"lc_source": "memlayer"}}
"""LangGraph shows a call with this tag in no user's stream; traces show where it comes from."""


class LanguageModel:
    """A model that answers a prompt with a text.

    Args:
        name: What it is called in records and errors.
        ask: Takes instructions and a text.
    """

    def __init__(self, name: str, ask: Callable[[str, str], Reply]) -> None:
        self.name = name
        self._ask = ask

    def ask(self, instructions: str, text: str) -> Reply:
        """Ask, and wait for the answer.

        Raises:
            ModelContextError: The prompt is longer than the model can read.
            ModelError: It did not answer: it is away, overloaded, or refused the call.
        """
        try:
            return self._ask(instructions, text)
        except Exception as problem:
            told = _SECRET.sub(r"\1…", f"{type(problem).__name__}: {problem}")[:_SHOWN]
            if isinstance(problem, ModelContextError) or _TOO_LONG.search(str(problem)):
                raise ModelContextError(
                    f"{self.name} cannot read so long a prompt: {told}",
                    hint="It is asked again with half of it.",
                ) from problem
            raise ModelError(
                f"{self.name} did not answer: {told}",
                hint="It is asked again later; `memory.status()` tells.",
            ) from problem


def language_model(given: Any) -> LanguageModel | None:
    """Return what asks the model that a memory was given.

    Args:
        given: None for no model; a LangChain chat model or LLM; a LlamaIndex LLM; or a function of a prompt,
            blocking or async, that returns a text. A function of two arguments is given the instructions and
            the text apart.

    Raises:
        ConfigurationError: It is none of these.
    """
    if given is None or isinstance(given, LanguageModel):
        return given
    if isinstance(given, type | str):
        raise ConfigurationError(
            f"a summariser must be a model, not {given!r}",
            hint='Pass a made model: `init_chat_model("openai:gpt-5-mini")`, a LlamaIndex `LLM`, or a function.',
        )
    if hasattr(given, "invoke") and hasattr(given, "ainvoke"):
        return LanguageModel(_name(given), lambda instructions, text: _langchain(given, instructions, text))
    if hasattr(given, "complete") and hasattr(given, "acomplete"):
        return LanguageModel(_name(given), lambda instructions, text: _llamaindex(given, instructions, text))
    if callable(given):
        return LanguageModel(_name(given), _function(given))
    raise ConfigurationError(
        f"a summariser must be a model or a function, got {type(given).__name__}",
        hint="A LangChain chat model, a LlamaIndex `LLM`, or a function of a prompt that returns a text.",
    )


def _name(given: Any) -> str:
    for attribute in ("model_name", "model", "model_id", "deployment_name"):
        found = getattr(given, attribute, None)
        if isinstance(found, str) and found:
            return f"{type(given).__name__}:{found}"
    return getattr(given, "__qualname__", None) or type(given).__name__


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


def _function(given: Callable[..., Any]) -> Callable[[str, str], Reply]:
    try:
        taken = [
            parameter
            for parameter in inspect.signature(given).parameters.values()
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
            and parameter.default is parameter.empty
        ]
    except (TypeError, ValueError):
        taken = []
    apart = len(taken) == 2  # noqa: PLR2004  (instructions and text)

    def ask(instructions: str, text: str) -> Reply:
        answer = given(instructions, text) if apart else given(f"{instructions}\n\n{text}")
        if inspect.isawaitable(answer):
            answer = asyncio.run(_awaited(answer))
        if not isinstance(answer, str):
            raise TypeError(f"it returned {type(answer).__name__} and no text")
        return Reply(answer)

    return ask


async def _awaited(answer: Any) -> Any:
    return await answer
