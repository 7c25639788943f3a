"""Decides what a context leaves to be written with its answer: the recall to pin, and the trace."""

from __future__ import annotations

from datetime import datetime

from memlayer_core.message import AnswerNote, PinnedText, TraceDraft
from memlayer_core.messages.rules.traces import body_of
from memlayer_core.window.model import Context

__all__ = ["note_to"]


def note_to(
    context: Context, recall: PinnedText | None, session: int, now: datetime, traces: int
) -> AnswerNote:
    """Return what is written with the answer to a context.

    Args:
        context: The context, complete but for its note.
        recall: The recall to pin to the question.
        session: Number of the session; 0: it has no messages.
        now: When the context was built.
        traces: Traces that the session may have; 0: none is written.
    """
    if not traces:
        return AnswerNote(recall)
    head = {"t": context.tokens, "l": context.token_limit, "p": context.placement}
    body, pending = body_of(context.pieces, session, head, context.reasons)
    left = context.compaction
    compaction = (left.turns, left.tokens_before, left.tokens_after) if left is not None else None
    return AnswerNote(recall, TraceDraft(session, _question(context), body, pending, compaction, now, traces))


def _question(context: Context) -> int:
    """Return the key of the newest question in a context; 0 if it is not stored."""
    turns = reversed([piece for piece in context.pieces if piece.kind == "window"])
    said = reversed((*context.window, *context.pending))
    asked = next((piece for message, piece in zip(said, turns, strict=True) if message.role == "user"), None)
    return asked.sources[-1][0] if asked is not None else 0
