"""What a model saw for an answer, as it can be asked afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from memlayer_core.recall.model import Reason
from memlayer_core.show import Mark, Tabular, View, line_of
from memlayer_core.window.model import COLOURS, Compaction, PieceKind, Placement, token_bar

__all__ = ["ContextTrace", "PieceState", "TracePiece"]

PieceState = Literal["stored", "changed", "gone", "unstored"]
"""`"stored"`: as the model saw it. `"changed"`: it was edited or revised since. `"gone"`: it was deleted, or this user may not
see it any more. `"unstored"`: it never was in the journal, as a temporary message."""


@dataclass(frozen=True, slots=True)
class TracePiece:
    """A piece of a context that a model saw.

    Attributes:
        kind: `"system"`, `"profile"`, `"summary"`, `"recall"`, `"window"` or `"temporary"`.
        tokens: Tokens that it cost.
        message_ids: Ids of the messages or records that it comes from, of those that are still there.
        state: What became of its text.
        score: Its score, if a search found it for this context.
        reasons: Why it was in the context. Their texts say no more than code and number, since words of messages are not stored.
        text: Its text as it is stored now; None if its state is not `"stored"`, and in a list of traces. If `reasons` say that it
            was made smaller, the model saw a part of it.
        created_at: When it was said; None if that is not known.
        speaker: The speaker's name or role; for a record, its type.
    """

    kind: PieceKind
    tokens: int
    message_ids: tuple[str, ...]
    state: PieceState
    score: float | None
    reasons: tuple[Reason, ...]
    text: str | None = None
    created_at: datetime | None = None
    speaker: str = ""


@dataclass(frozen=True, slots=True)
class ContextTrace(Tabular):
    """What a model saw for one answer.

    Attributes:
        id: Its id in the session, such as `"trace-17"`.
        created_at: When the context was built.
        question_id: Id of the user's newest message in it; None if there was none, or it was deleted.
        answer_id: Id of the answer; None if it was deleted.
        tokens: Tokens of the whole context.
        token_limit: The most that it might have.
        placement: Where the recall was put.
        pieces: Its pieces, in order.
        missing: Older pieces of the window that are not in the trace, which may have 16 KiB.
        reasons: What was true of the whole context, as codes and numbers.
        compaction: Turns that left the window for it, and the tokens before and after; None if none did.
    """

    id: str
    created_at: datetime
    question_id: str | None
    answer_id: str | None
    tokens: int
    token_limit: int
    placement: Placement
    pieces: tuple[TracePiece, ...]
    missing: int = 0
    reasons: tuple[Reason, ...] = ()
    compaction: Compaction | None = None

    __repr__ = line_of

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("trace", "when", "question", "answer", "tokens", "pieces", "turns left out"),
            rows=tuple(
                (
                    one.id,
                    one.created_at,
                    one.question_id,
                    one.answer_id,
                    token_bar(one.pieces, one.tokens, one.token_limit),
                    len(one.pieces),
                    one.compaction.turns if one.compaction is not None else None,
                )
                for one in values
            ),
        )

    def _view(self) -> View:
        left = self.compaction
        notes = [Mark(str(reason), "amber") for reason in self.reasons]
        if left is not None:
            said = f"{left.turns:,} turn(s) left the window: {left.tokens_before:,} tokens before, {left.tokens_after:,} after"
            notes.append(Mark(said, "amber"))
        if self.missing:
            notes.append(Mark(f"{self.missing:,} older piece(s) of the window are not in the trace", "amber"))
        return View(
            f"What the model saw: {self.id}, {self.created_at:%Y-%m-%d %H:%M}",
            bar=token_bar(self.pieces, self.tokens, self.token_limit),
            columns=("part", "tokens", "when", "who", "what", "why", "source"),
            rows=tuple(
                (
                    Mark(piece.kind, COLOURS[piece.kind]),
                    piece.tokens,
                    piece.created_at and piece.created_at.date(),
                    piece.speaker,
                    piece.text if piece.text is not None else Mark(piece.state),
                    "; ".join(map(str, piece.reasons)),
                    ", ".join(piece.message_ids),
                )
                for piece in self.pieces
            ),
            notes=tuple(notes),
        )
