"""What a provider says of a prompt that is too long is recognized, and nothing else is."""

from __future__ import annotations

import pytest

from memlayer_core.errors import ModelContextError
from memlayer_core.events import ContextOverflowed, Event
from memlayer_core.models.llm import is_overflow, retry_limit
from memlayer_core.scope import Scope


class ContextOverflowError(Exception):
    """As LangChain calls it."""


class BadRequestError(Exception):
    """As OpenAI calls it."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code


def caused(problem: Exception) -> Exception:
    """Return an error of a framework around one of a provider."""
    outer = RuntimeError("the workflow failed")
    outer.__cause__ = problem
    return outer


TOO_LONG = [
    ContextOverflowError("no"),
    ModelContextError("no", hint="none"),
    BadRequestError("no", "context_length_exceeded"),
    BadRequestError("This model's maximum context length is 8192 tokens, however you requested 9000 tokens"),
    ValueError("prompt is too long: 210000 tokens > 200000 maximum"),
    ValueError("ValidationException: Input is too long for requested model."),
    ValueError("Your input exceeds the context window of this model."),
    ValueError("the request exceeds the available context size, context length 4096"),
    caused(BadRequestError("no", "context_length_exceeded")),
]
OTHER = [
    ValueError("no"),
    BadRequestError("invalid", "invalid_api_key"),
    ValueError("Rate limit reached: too many tokens per min (TPM)"),
    ValueError("ThrottlingException: Too many tokens, please wait before trying again."),
]


@pytest.mark.requirement("A23")
@pytest.mark.parametrize("problem", TOO_LONG, ids=str)
def test_a_prompt_that_is_too_long_is_recognized(problem) -> None:
    assert is_overflow(problem)


@pytest.mark.parametrize("problem", OTHER, ids=str)
def test_nothing_else_is_taken_for_it(problem) -> None:
    assert not is_overflow(problem)
    with pytest.raises(type(problem)):
        retry_limit(lambda _: None, Scope("louis"), problem, token_limit=100, tokens=100)


@pytest.mark.requirement("A23")
def test_sixty_percent_are_tried_of_the_limit_or_of_what_was_refused() -> None:
    events: list[Event] = []
    scope = Scope("louis", "s")
    for tokens, limit in ((9000, 4800), (1000, 600)):
        found = retry_limit(events.append, scope, TOO_LONG[0], token_limit=8000, tokens=tokens)
        assert found == limit
    reason = "the model refused it: ContextOverflowError"
    assert events == [
        ContextOverflowed(scope.namespace, "s", 9000, 4800, reason),
        ContextOverflowed(scope.namespace, "s", 1000, 600, reason),
    ]
