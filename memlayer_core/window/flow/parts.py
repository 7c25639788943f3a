"""What a context is made of, before it is one: messages as the model sees them, with their keys in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memlayer_core.message import Message
from memlayer_core.messages.model import WindowStart
from memlayer_core.recall.model import Reason
from memlayer_core.window.model import Compaction, Piece, PieceKind

__all__ = ["Part", "WindowView"]


class Part(NamedTuple):
    """A message as the model sees it.

    Attributes:
        message: A copy if it is shortened or merged with its neighbour.
        keys: Keys of the stored messages that it contains; none for a pending message. Of a summary, its version.
        ids: Their ids.
        tokens: What it costs.
        reasons: Why it is in the context, and how it was changed.
    """

    message: Message
    keys: tuple[int, ...]
    ids: tuple[str, ...]
    tokens: int
    reasons: tuple[Reason, ...]

    def piece(self, kind: PieceKind) -> Piece:
        """Return it as a piece of a context."""
        said = self.message
        return Piece(kind, said.text, self.tokens, self.ids, said.created_at, said.speaker, self.reasons)


@dataclass(frozen=True, slots=True)
class WindowView:
    """The part of a session that is in a context.

    Attributes:
        system: The instructions in force.
        window: The newest turns.
        temporary: The temporary messages.
        new_first: Place of the new window start if turns had to be left out, else None.
        reasons: What was left out or shortened, and why.
        summary: The summary of the turns before the window.
        summary_first: Place where it begins; None: there is none.
        summary_end: The place behind the last message that is summed up.
        next_start: Place where the window will begin when it has to move; None while that is far off.
        start: The new window start to store, if it changed.
        profile: The user's profile.
        compaction: What became of the window, if turns had to be left out.
    """

    system: tuple[Part, ...] = ()
    window: tuple[Part, ...] = ()
    temporary: tuple[Part, ...] = ()
    new_first: int | None = None
    reasons: tuple[Reason, ...] = ()
    summary: tuple[Part, ...] = ()
    summary_first: int | None = None
    summary_end: int = 0
    next_start: int | None = None
    start: WindowStart | None = None
    profile: tuple[Part, ...] = ()
    compaction: Compaction | None = None

    @property
    def tokens(self) -> int:
        """The tokens of all of it."""
        parts = (*self.system, *self.profile, *self.summary, *self.window, *self.temporary)
        return sum(part.tokens for part in parts)

    @property
    def pieces(self) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """The pieces in front of the recall, and those behind it."""
        before = (*_pieces("system", self.system), *_pieces("profile", self.profile))
        behind = (*_pieces("window", self.window), *_pieces("temporary", self.temporary))
        return (*before, *_pieces("summary", self.summary)), behind

    @property
    def keys(self) -> set[int]:
        """Keys of all stored messages and records in it."""
        return set[int]().union(*(part.keys for part in (*self.system, *self.profile, *self.window)))


def _pieces(kind: PieceKind, parts: Sequence[Part]) -> list[Piece]:
    return [part.piece(kind) for part in parts]
