"""The rolling summary of a session's turns that left its window."""

from dataclasses import dataclass, field
from datetime import datetime

from memlayer_core.show import Cell, Mark, Tabular, line_of

BATCH = 20
"""Messages, ten rounds (M04), that must have left a window that moves with every turn before they are summed up together."""


@dataclass(frozen=True, slots=True)
class Summary(Tabular):
    """A summary of a session's turns, from its beginning up to one of them.

    Attributes:
        first: Position of the first message that it covers.
        until: Position of the last message that it covers.
        rounds: Number of rounds that it covers.
        text: The summary.
        tokens: Tokens of the text, by the counter named in `counter`.
        counter: Name of the token counter.
        model: Name of the model that wrote it.
        score: Share of the checks that the model's answer passed, 0 to 1. A summary that failed one is not used.
        faults: What was wrong with all answers about the newest turns that it covers. Then the text is that of the
            summary before, and says nothing of these turns. Empty for a good summary.
        version: Its number in the session; versions only go up.
        replaced_by: Version of the summary that replaced it; None while it is in force.
        created_at: When it was written; None before it is stored.
    """

    first: int = field(repr=False)
    until: int = field(repr=False)
    rounds: int
    text: str
    tokens: int
    counter: str
    model: str
    score: float
    faults: tuple[str, ...] = ()
    version: int = 0
    replaced_by: int | None = None
    created_at: datetime | None = None

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        replaced = None if self.replaced_by is None else Mark(f"replaced by {self.replaced_by}")
        return {
            "version": self.version,
            "rounds": self.rounds,
            "what": self.text,
            "tokens": self.tokens,
            "by": self.model,
            "score": self.score,
            "faults": ", ".join(self.faults),
            "when": self.created_at,
            "state": replaced or Mark("in force", "green"),
        }
