"""Recognizes a model's answer that a prompt is longer than it can read, and says how much to try once more with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from memlayer_core.errors import ModelContextError
from memlayer_core.events import ContextOverflowed, Event
from memlayer_core.scope import Scope

__all__ = ["RETRY_SHARE", "is_overflow", "retry_limit"]

RETRY_SHARE = 0.6
"""The share of the token limit, or of the prompt that was refused if it was smaller, that is tried once more with."""

_TOO_LONG = re.compile(
    r"context[ _-]?length|maximum context|context window|prompt is too long|too many (?:input )?tokens"
    r"|input is too long|reduce the length|max_tokens_exceeded",
    re.IGNORECASE,
)
_TOO_OFTEN = re.compile(r"rate.?limit|per (?:min|day|hour)|please wait|throttl", re.IGNORECASE)
_TYPES = frozenset({"ContextOverflowError", "ContextWindowExceededError"})
_CODE = "context_length_exceeded"
_DEPTH = 5  # errors of which one is the cause of the next


def is_overflow(problem: BaseException) -> bool:
    """Tell whether an error says that a prompt is longer than a model can read.

    It is known by its type, as in LangChain and LiteLLM, by its code, as of OpenAI, or by its words; its causes count, too.
    """
    return any(_says_so(one) for one in _causes(problem))


def retry_limit(
    emit: Callable[[Event], None], scope: Scope, problem: Exception, *, token_limit: int, tokens: int
) -> int:
    """Return the token limit to call a model once more with, and emit the event.

    Args:
        emit: Passes the event on.
        scope: The conversation.
        problem: What the model raised. Anything but an overflow is raised again.
        token_limit: The token limit of the call that failed.
        tokens: Tokens of that call.

    Raises:
        Exception: `problem`, if it says anything else.
    """
    if not is_overflow(problem):
        raise problem
    limit = max(1, int(RETRY_SHARE * min(token_limit, tokens)))
    name = type(problem).__name__  # its text may quote a message
    emit(
        ContextOverflowed(
            scope.namespace, scope.session_id or "", tokens, limit, f"the model refused it: {name}"
        )
    )
    return limit


def _causes(problem: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = problem
    for _ in range(_DEPTH):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _says_so(problem: BaseException) -> bool:
    if isinstance(problem, ModelContextError) or _TYPES & {made.__name__ for made in type(problem).__mro__}:
        return True
    text = str(problem)
    return getattr(problem, "code", None) == _CODE or (
        _TOO_LONG.search(text) is not None and _TOO_OFTEN.search(text) is None
    )
