"""A message that is ready to be written."""

from __future__ import annotations

from dataclasses import dataclass

from memlayer_core.message import Message

__all__ = ["PreparedMessage"]


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A message that is checked, counted and ready to be written.

    Attributes:
        message: The message, with `id` and `created_at` filled.
        has_own_id: Whether the caller gave the id. An id that memlayer made cannot be stored already.
        has_own_time: Whether the caller gave the time. Only such a time replaces a stored one.
        digest: 16 bytes that are equal for messages of equal content, whatever their ids and times.
        tokens: Tokens of the message.
        counter: Name of the token counter.
        search_text: The text that recall finds it by; empty if recall shall not find it.
        terms: Terms of that text for the word index.
    """

    message: Message
    has_own_id: bool
    has_own_time: bool
    digest: bytes
    tokens: int
    counter: str
    search_text: str
    terms: tuple[str, ...]
