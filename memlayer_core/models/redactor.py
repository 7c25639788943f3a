"""Calls the redactor: memlayer's own, or a function of the user's that may fail."""

from __future__ import annotations

from memlayer_core.errors import RedactorError
from memlayer_core.events import Health
from memlayer_core.seams import Redactor

__all__ = ["CheckedRedactor"]


class CheckedRedactor:
    """A redactor of the user's. Where it fails, there is an error and a problem, and never the text itself.

    Args:
        redactor: The redactor.
        health: Is told when it fails, and when it works again.
    """

    def __init__(self, redactor: Redactor, health: Health) -> None:
        self._redactor, self._health = redactor, health

    def __call__(self, text: str, /) -> str:
        """Return the text as it may be remembered.

        Raises:
            RedactorError: The redactor raised, or returned no text.
        """
        if not text:
            return text
        try:
            left: object = self._redactor(text)
        except Exception as problem:
            raise self._failure(f"it raised {type(problem).__name__}") from problem
        if not isinstance(left, str):
            raise self._failure(f"it returned {type(left).__name__}, and no text")
        self._health.up("redactor")
        return left

    def _failure(self, reason: str) -> RedactorError:
        self._health.down(
            "redactor", f"{reason}; what it should redact is neither remembered, nor indexed, nor told"
        )
        return RedactorError(
            f"the redactor failed: {reason}; what it should have redacted was not written",
            hint="Correct the function that was passed as `redactor`, and call again.",
        )
