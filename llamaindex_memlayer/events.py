"""Tells LlamaIndex's instrumentation what a memory does: events to its dispatcher, spans around the verbs.

::

    from llama_index.core.instrumentation import get_dispatcher

    get_dispatcher().add_event_handler(...)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events import BaseEvent

from memlayer_core.events import Event
from memlayer_core.records.context import Context
from memlayer_core.records.scope import Scope

__all__ = ["MemoryEvent", "MemoryReadEvent", "forward", "in_span", "tell_read"]

F = TypeVar("F", bound=Callable[..., Any])

dispatcher = get_dispatcher(__name__)


class MemoryEvent(BaseEvent):
    """Something happened in a memory: messages were stored, a summary was written, the index failed.

    What happened in the background, after the turn that caused it, stands in no span.

    Attributes:
        store_id: Which memory.
        kind: The name of its class in `memlayer_core.events`, such as `"Stored"`.
        happening: The value itself. It holds no message.
    """

    store_id: str
    kind: str
    happening: Event

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which handlers know it."""
        return "MemoryEvent"


class MemoryReadEvent(BaseEvent):
    """A model is about to be told something of a memory: how much of what, and why.

    Attributes:
        store_id: Which memory.
        namespace: Whose it is: tenant and user.
        session_id: Which conversation.
        tokens: What everything costs together.
        token_limit: What it was allowed to cost.
        pieces: How many there are of each kind: `"system"`, `"summary"`, `"recall"`, `"window"`, `"temporary"`.
        reasons: What was left out, and what degraded, as codes (`Reason.code`).
    """

    store_id: str
    namespace: str
    session_id: str
    tokens: int
    token_limit: int
    pieces: dict[str, int]
    reasons: list[str]

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which handlers know it."""
        return "MemoryReadEvent"


def forward(store_id: str) -> Callable[[Event], None]:
    """Return a listener that hands a memory's events to the dispatcher."""

    def tell(happening: Event) -> None:
        dispatcher.event(MemoryEvent(store_id=store_id, kind=type(happening).__name__, happening=happening))

    return tell


def tell_read(store_id: str, scope: Scope, context: Context) -> None:
    """Tell the dispatcher what a context is made of."""
    dispatcher.event(
        MemoryReadEvent(
            store_id=store_id,
            namespace=scope.namespace,
            session_id=scope.session_id or "",
            tokens=context.tokens,
            token_limit=context.token_limit,
            pieces=dict(Counter(piece.kind for piece in context.pieces)),
            reasons=[reason.code for reason in context.reasons],
        )
    )


def in_span(verb: F) -> F:
    """Put a span of the dispatcher around a method; its signature stays known to type checkers."""
    return cast("F", dispatcher.span(verb))
