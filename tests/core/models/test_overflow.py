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
    """As OpenAI and Anthropic call it, with what they tell beside the text."""

    def __init__(self, text: str, code: str | None = None, **fields: object) -> None:
        super().__init__(text)
        vars(self).update(fields, **({} if code is None else {"code": code}))


class Answer:
    """The HTTP response behind an error; one that is streamed has no text."""

    def __init__(self, code: str) -> None:
        self.body = {"error": {"code": code}}

    @property
    def text(self) -> str:
        raise RuntimeError("it was not read")


def caused(problem: Exception) -> Exception:
    """Return an error of a framework around one of a provider."""
    outer = RuntimeError("the workflow failed")
    outer.__cause__ = problem
    return outer


WORDS = [
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Error code: 413 - {'type': 'error', 'error': {'type': 'request_too_large', 'message': 'Request exceeds the maximum size'}}",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "Range of input length should be [1, 6000]",
    "The input token count (1234567) exceeds the maximum number of tokens allowed (1048576).",
    "Unable to submit request because the input token count is 1234 but model only supports up to 1000.",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
    "`inputs` must have less than 1024 tokens. Given: 2000",
    "Your request exceeded model token limit: 8192",
    "prompt token count of 70000 exceeds the limit of 64000",
    "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "Trying to keep the first 5000 tokens when context the overflows.",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "Malformed input request: expected maxLength: 50000, actual: 60000, please reformat your input",
    "length of prompt_tokens (9000) must be less than max_seq_len (8192)",
    "Current length is 9000 while limit is 8192",
    "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576",
    "number of input tokens must be no more than 32768, got 40000",
    "max tokens of 4096 exceeded",
    "Total tokens of image and text exceed max message tokens",
    "Client error '413 Payload Too Large' for url 'http://localhost'",
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000.",
    "litellm.ContextWindowExceededError: input_too_long",
]
OTHER_WORDS = [
    "no",
    "Rate limit reached: too many tokens per min (TPM)",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "max_tokens is too large: 200000. This model supports at most 4096 completion tokens",
    "max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for this model",
    "Range of max_tokens should be [1, 8192]",
    "`max_tokens` must be less than or equal to `8192`",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "You exceeded your current quota, please check your plan",
    "Too Many Requests: maximum number of requests exceeded",
    "Post /api/chat: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    "temperature: Input should be less than or equal to 2",
    "top_k: Input should be greater than 0",
    "Request timed out.",
    "Overloaded",
    "messages: roles must alternate between user and assistant",
    "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after",
    "The model `gpt-9` does not exist",
]
TOO_LONG = [
    ContextOverflowError("no"),
    ModelContextError("no", hint="none"),
    BadRequestError("no", "context_length_exceeded"),
    caused(BadRequestError("no", "context_length_exceeded")),
    BadRequestError("no", "1261"),
    BadRequestError("no", status_code=413),
    BadRequestError("Bad Request", status_code=400, response=Answer("exceed_context_size_error")),
    *map(ValueError, WORDS),
]
OTHER = [
    BadRequestError("invalid", "invalid_api_key"),
    BadRequestError("no", status_code=400),
    *map(ValueError, OTHER_WORDS),
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
    scope, reason = Scope("louis", "s"), "the model refused it: ContextOverflowError"
    for tokens, limit in ((9000, 4800), (1000, 600)):
        events: list[Event] = []
        assert retry_limit(events.append, scope, TOO_LONG[0], token_limit=8000, tokens=tokens) == limit
        assert events == [ContextOverflowed(scope.namespace, "s", tokens, limit, reason)]
