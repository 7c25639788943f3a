"""Decides what a context leaves to be written with its answer: the recall to pin, and the trace."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from memlayer_core.message import AnswerNote, PinnedText, TraceDraft
from memlayer_core.messages.rules.traces import Code, KeptPiece, TraceBody, body_of, check_of
from memlayer_core.recall.model import Reason
from memlayer_core.window.model import Context, Piece

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
    pieces = [_kept(piece) for piece in context.pieces]
    reasons = _codes(context.reasons)
    said = TraceBody(context.tokens, context.token_limit, context.placement, reasons, pieces)
    body, unsaved = body_of(said, session)
    left = context.compaction
    compaction = (left.turns, left.tokens_before, left.tokens_after) if left is not None else None
    return AnswerNote(recall, TraceDraft(session, _question(context), body, unsaved, compaction, now, traces))


def _kept(piece: Piece) -> KeptPiece:
    """Return a piece without its text."""
    stays = piece.kind == "recall" and any(reason.code == "kept" for reason in piece.reasons)
    sources = piece.sources if piece.kind != "temporary" else ()
    keys = tuple(key for key, _ in sources if key)
    return KeptPiece(
        piece.kind,
        piece.tokens,
        keys,
        () if stays else _checks(piece),
        _codes(piece.reasons),
        piece.score,
        next((digest for key, digest in sources if digest and not key), None),
        stays,
    )


def _checks(piece: Piece) -> tuple[int, ...]:
    """Return a check of each message that a piece comes from."""
    if piece.kind not in {"system", "window", "recall"}:
        return ()
    named = zip(piece.sources, piece.message_ids, strict=False)  # no source: another service found it
    return tuple(check_of(digest, one) for (key, digest), one in named if key > 0)


def _codes(reasons: Iterable[Reason]) -> tuple[Code, ...]:
    return tuple((reason.code, reason.value) for reason in reasons)


def _question(context: Context) -> int:
    """Return the key of the newest question in a context; 0 if it is not stored."""
    said = (*context.window, *context.pending)
    turns = zip(said, (piece for piece in context.pieces if piece.kind == "window"), strict=True)
    asked = next((piece for message, piece in reversed([*turns]) if message.role == "user"), None)
    return asked.sources[-1][0] if asked is not None else 0
