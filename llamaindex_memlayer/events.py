"""Connects a memory to LlamaIndex's instrumentation: events for its dispatcher, spans around the methods.

::

    from llama_index.core.instrumentation import get_dispatcher

    get_dispatcher().add_event_handler(...)
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events import BaseEvent

from memlayer_core import Context, Scope
from memlayer_core.events import Event

C = TypeVar("C", bound=type)

dispatcher = get_dispatcher(__name__)


class MemoryEvent(BaseEvent):
    """Something happened in a memory: messages were stored, a summary was written, the index failed.

    Events of background work belong to no span.

    Attributes:
        store_id: The id of the memory's store.
        kind: The name of its class in `memlayer_core.events`, such as `"MessagesStored"`.
        event: The event itself. It contains no message.
    """

    store_id: str
    kind: str
    event: Event

    @classmethod
    def class_name(cls) -> str:
        """Return the event's name for handlers."""
        return "MemoryEvent"


class MemoryReadEvent(BaseEvent):
    """A context was read for a model: how many tokens and pieces, and why.

    Attributes:
        store_id: The id of the memory's store.
        namespace: A digest of tenant and user.
        session_id: The session.
        tokens: Tokens of the whole context.
        token_limit: The context's token limit.
        pieces: Number of pieces of each kind (`Piece.kind`), such as `"summary"` or `"recall"`.
        reasons: Codes (`Reason.code`) of what was left out, and of what did not work.
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
        """Return the event's name for handlers."""
        return "MemoryReadEvent"


def forward(store_id: str) -> Callable[[Event], None]:
    """Return a listener that sends a memory's events to the dispatcher."""

    def emit(event: Event) -> None:
        dispatcher.event(MemoryEvent(store_id=store_id, kind=type(event).__name__, event=event))

    return emit


def emit_read(store_id: str, scope: Scope, context: Context) -> None:
    """Send the dispatcher a summary of a context."""
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


def with_spans(*verbs: str) -> Callable[[C], C]:
    """Put a span of the dispatcher around each of these verbs of a class, and around its async twin."""

    def decorate(cls: C) -> C:
        for verb in (*verbs, *(f"a{verb}" for verb in verbs)):
            setattr(cls, verb, dispatcher.span(getattr(cls, verb)))
        return cls

    return decorate
