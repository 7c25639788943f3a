"""A message that is ready to be written."""

from __future__ import annotations

from dataclasses import dataclass

from memlayer_core.records.message import Message

__all__ = ["Draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that is checked, counted and ready to be written.

    Attributes:
        message: With `id` and `created_at` filled.
        given_id: Whether the caller named the id; one that memlayer made cannot be stored already.
        given_time: Whether the caller named the time; only then it can correct a stored one.
        digest: 16 bytes that are equal for messages of equal content, whatever their id and time.
        tokens: What it costs.
        counter: Name of the counter that says so.
        searched: The text that recall finds it by; empty for what recall leaves alone.
        terms: Words of that text for the lexical index.
    """

    message: Message
    given_id: bool
    given_time: bool
    digest: bytes
    tokens: int
    counter: str
    searched: str
    terms: tuple[str, ...]
