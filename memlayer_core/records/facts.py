"""Facts: what is known of somebody, the words that it rests on, and what became of each attempt to learn something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from memlayer_core.message import Role
from memlayer_core.records.model import Record
from memlayer_core.show import Colour, Mark, Tabular, View, Viewable, ViewList, line_of

EvidenceKind = Literal["said", "confirmed", "ended"]
Task = Literal["learn", "record", "correct", "forget", "summarize", "maintain"]
Outcome = Literal["stored", "nothing", "refused", "gave up", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Tabular):
    """The words of one message that a record rests on.

    Attributes:
        message_id: The message.
        session_id: Its session.
        start: Place of the first character in the message's text.
        end: Place after the last character.
        quote: The text between them, as the redactor leaves it.
        role: Who said it.
        kind: `"said"`: it made the record. `"confirmed"`: it says the same again. `"ended"`: it says that it holds no longer.
        said_at: When it was said.
        model: The name of the model that read it; "agent" if an agent quoted it.
    """

    message_id: str
    session_id: str | None = None
    start: int
    end: int
    quote: str = ""
    role: Role = "user"
    kind: EvidenceKind = "said"
    said_at: datetime | None = None
    model: str | None = None

    __repr__ = line_of

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("said", "what it did", "quote", "read by", "message"),
            rows=tuple(
                (one.said_at and one.said_at.date(), one.kind, f"“{one.quote}”", one.model, one.message_id)
                for one in values
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry(Tabular):
    """What one call of a model or of an agent's tool did.

    Attributes:
        task: `"learn"`: a model read messages. `"record"`, `"correct"` or `"forget"`: an agent's tool. `"summarize"`: a model
            summed up turns. `"maintain"`: what time asks for.
        outcome: `"stored"`, `"nothing"` (there was nothing to store), `"refused"`, `"gave up"` (the answer could not be read,
            or a limit was reached), or `"deleted"`.
        reason: Why, in plain words.
        at: When.
        session_id: The session; None: it is about none.
        record_ids: The records that it made, changed or deleted.
        refusals: For each statement that made no record, why.
        model: The name of the model; None: there was none.
    """

    task: Task
    outcome: Outcome
    at: datetime
    reason: str = ""
    session_id: str | None = None
    record_ids: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    model: str | None = None

    __repr__ = line_of

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("when", "task", "outcome", "why", "records", "model"),
            rows=tuple(
                (
                    f"{one.at:%Y-%m-%d %H:%M}",
                    one.task,
                    Mark(one.outcome, _COLOURS[one.outcome]),
                    "; ".join(filter(None, (one.reason, *one.refusals))),
                    ", ".join(one.record_ids),
                    one.model,
                )
                for one in values
            ),
        )


_COLOURS: Mapping[Outcome, Colour] = {
    "stored": "green",
    "nothing": "plain",
    "refused": "amber",
    "gave up": "red",
    "deleted": "blue",
}


@dataclass(frozen=True, slots=True)
class Why(Viewable):
    """What a record rests on.

    Attributes:
        record: The record.
        evidence: The words that made it, confirmed it and ended it, in the order in which they were said; none if the
            application stored it.
        versions: Its earlier versions, the newest first.
        predecessors: The facts that it replaced.
        successor: The record that replaced it, or that it was merged into; None: there is none.
    """

    record: Record
    evidence: tuple[Evidence, ...] = ()
    versions: tuple[Record, ...] = ()
    predecessors: tuple[Record, ...] = ()
    successor: Record | None = None

    def _view(self) -> View:
        after = () if self.successor is None else (self.successor,)
        lists = (
            ViewList("Words that it rests on, in the order in which they were said", self.evidence),
            ViewList("Earlier versions", self.versions),
            ViewList("Facts that it replaced", self.predecessors),
            ViewList("Record that replaced it", after),
        )
        return View(sections=tuple(filter(None, (ViewList("Record", [self.record]), *lists))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Something that is said of somebody.

    Attributes:
        record: The record that it would make; it has no id yet.
        quotes: The words that say it: for each the key of its message, and the places of its first character and behind its last.
        ends: Whether it says that something holds no longer.
        targets: Ids of the records that it ends or replaces, where it names them.
        is_correction: Whether it says that these were never true.
    """

    record: Record
    quotes: tuple[tuple[int, int, int], ...] = ()
    ends: bool = False
    targets: tuple[str, ...] = ()
    is_correction: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a statement.

    Attributes:
        kind: `"add"`: it is a new fact; with a `until`, one of the past. `"confirm"`: the one old fact is said again.
            `"replace"`: it takes the place of the old facts. `"end"`: the old facts end. `"conflict"`: it is stored beside
            the old facts, since nothing decides between them. `"refuse"`: nothing is stored.
        reason: Why, in plain words.
        old: The facts that it is about.
        until: When the old facts, or the new one of the past, ended in the world; None: they were never true, or it holds.
    """

    kind: Literal["add", "confirm", "replace", "end", "conflict", "refuse"]
    reason: str
    old: tuple[Record, ...] = ()
    until: datetime | None = None
