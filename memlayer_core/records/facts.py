"""Facts: what is known of somebody, with its evidence and its two times, and what becomes of a new statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from memlayer_core.message import Role
from memlayer_core.records.model import MODALITIES, USER, Modality, Record, RecordSource
from memlayer_core.show import Colour, Mark, Tabular, View, Viewable, ViewList, line_of

__all__ = [
    "MODALITIES",
    "USER",
    "Add",
    "Candidate",
    "Confirm",
    "Conflict",
    "Decision",
    "End",
    "Evidence",
    "Fact",
    "Finding",
    "FindingKind",
    "LedgerEntry",
    "Merge",
    "Modality",
    "Reject",
    "Statement",
    "Supersede",
    "Why",
]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The words of one message that say a fact.

    Attributes:
        message_id: The message.
        start: Place of the first character in the message's text.
        end: Place after the last character.
        quote: The text between them.
        role: Who said it.
    """

    message_id: str
    start: int
    end: int
    quote: str
    role: Role = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry(Tabular):
    """What became of one statement.

    Attributes:
        outcome: `"stored"`, `"confirmed"`, `"superseded"` (it replaced what was known), `"ended"`, `"merged"`,
            `"conflict"`, `"refused"`, `"quarantined"` (it seems to instruct a model), `"given up"` (its message could not
            be read), `"forgotten"` (its record was deleted, or changed by hand), or `"deleted"` (a record was deleted
            after `Settings.delete_archived_days`). The last two have no words.
        reason: Why, in plain words.
        at: When that was decided.
        said_at: When it was said.
        subject: Of whom it was said.
        key: What it is about.
        value: Its value.
        evidence: The words of the message; None: the application said it.
        record_id: The record that it made, confirmed or ended; None: there is none.
        against: The record that it replaced or is in conflict with; None: there is none.
    """

    outcome: str
    reason: str
    at: datetime
    said_at: datetime
    subject: str | None = None
    key: str | None = None
    value: str | None = None
    evidence: Evidence | None = None
    record_id: str | None = None
    against: str | None = None

    __repr__ = line_of

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("outcome", "said", "about", "value", "quote", "why", "record"),
            rows=tuple(
                (
                    Mark(one.outcome, _OUTCOMES.get(one.outcome, "plain")),
                    one.said_at.date(),
                    " ".join(filter(None, (one.subject if one.subject != USER else "", one.key))),
                    one.value,
                    f"“{one.evidence.quote}”" if one.evidence is not None else None,
                    one.reason,
                    one.record_id,
                )
                for one in values
            ),
        )


_OUTCOMES: Mapping[str, Colour] = {
    "stored": "green",
    "confirmed": "green",
    "superseded": "blue",
    "ended": "blue",
    "merged": "blue",
    "conflict": "amber",
    "quarantined": "red",
    "given up": "red",
}


FindingKind = Literal["junk", "duplicate", "contradiction", "stale", "unverified", "quarantined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Tabular):
    """What a look through a user's records found.

    Attributes:
        kind: `"junk"`: nothing is in it. `"duplicate"`: they say the same. `"contradiction"`: they are in force and cannot
            all be true, or may not be. `"stale"`: it is long ago, its day has passed, or it has expired. `"unverified"`: an
            agent concluded it, and nobody has said it. `"quarantined"`: it seems to instruct a model, and is never told.
        record_ids: The records, the oldest first; none for a statement that became no record.
        reason: Why, in plain words.
    """

    kind: FindingKind
    record_ids: tuple[str, ...]
    reason: str

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("finding", "records", "why"),
            rows=tuple(
                (
                    Mark(one.kind, "red" if one.kind == "quarantined" else "amber"),
                    ", ".join(one.record_ids),
                    one.reason,
                )
                for one in values
            ),
        )


@dataclass(frozen=True, slots=True)
class Why(Viewable):
    """What a record rests on.

    Attributes:
        record: The record.
        statements: What made it, confirmed it and ended it, in the order in which it was said.
        versions: Its earlier versions, the newest first.
        predecessors: The facts that it replaced.
        successor: The record that replaced it, or that it was merged into; None: there is none.
    """

    record: Record
    statements: tuple[LedgerEntry, ...]
    versions: tuple[Record, ...] = ()
    predecessors: tuple[Record, ...] = ()
    successor: Record | None = None

    def _view(self) -> View:
        after = () if self.successor is None else (self.successor,)
        lists = (
            ViewList("Statements, in the order in which they were said", self.statements),
            ViewList("Earlier versions", self.versions),
            ViewList("Facts that it replaced", self.predecessors),
            ViewList("Record that replaced it", after),
        )
        return View(sections=tuple(filter(None, (ViewList("Record", [self.record]), *lists))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing that is said of somebody.

    Attributes:
        subject: `"user"`, a name, or a relation such as `"sister"`.
        category: Category of the key, such as `"identity"`; None: none.
        key: What it is about, such as `"home"`, or `"favorite:colour"`; None: the statement has no key.
        value: The value, such as `"Berlin"`.
        text: The sentence that says it.
        said_at: When it was said.
        modality: Whether it is stated, wanted, planned, denied, or was so in the past.
        confidence: 0 to 1.
        source: Where it comes from.
        valid_from: From when on it holds in the world, or when a plan is due; None: not known.
        valid_until: Until when it held in the world; None: it holds, as far as is known.
        evidence: The words that say it.
    """

    subject: str = USER
    category: str | None = None
    key: str | None = None
    value: str
    text: str
    said_at: datetime
    modality: Modality = "states"
    confidence: float = 1.0
    source: RecordSource = "explicit_user_input"
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Statement):
    """A statement that is remembered.

    Attributes:
        memory_id: Id of its record; None: it is not stored yet.
        mentions: How often it was said.
    """

    memory_id: str | None = None
    mentions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Statement):
    """A statement that an extractor proposes.

    Attributes:
        ends: Whether it says that something holds no longer.
        replaces: The value that it replaces: "switched from X to Y"; None: it names none.
        is_correction: Whether the user corrects what was said before.
        expires_in_days: After how many days it is of no use; None: it does not expire.
        quarantine: Why it is kept and makes no fact: it seems to instruct a model; None: it does not.
    """

    ends: bool = False
    replaces: str | None = None
    is_correction: bool = False
    expires_in_days: int | None = None
    quarantine: str | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """Store a new fact.

    Attributes:
        fact: The fact; if it has a `valid_until`, it is a fact of the past.
        reason: Why, in plain words.
    """

    fact: Fact
    reason: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Store that a fact was said again.

    Attributes:
        before: The fact as it is.
        fact: The fact with its new confidence, mentions and evidence; equal to `before` if nothing changes.
        reason: Why, in plain words.
    """

    before: Fact
    fact: Fact
    reason: str


@dataclass(frozen=True, slots=True)
class Supersede:
    """Store a new fact, and close those that it replaces.

    Attributes:
        facts: The facts to close. None of them is deleted.
        fact: The new fact.
        at: When the old facts ended in the world; None: they were never true.
        reason: Why, in plain words.
    """

    facts: tuple[Fact, ...]
    fact: Fact
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Close facts without a new one.

    Attributes:
        facts: The facts to close.
        at: When they ended in the world; None: they were never true.
        reason: Why, in plain words.
    """

    facts: tuple[Fact, ...]
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Store one fact in place of one that says the same in other words.

    Attributes:
        before: The fact as it is.
        fact: The fact after the merge.
        reason: Why, in plain words.
    """

    before: Fact
    fact: Fact
    reason: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Store a new fact beside those that it contradicts, and mark all of them.

    Attributes:
        facts: The facts that are contradicted. They stay in force.
        fact: The new fact.
        reason: Why, in plain words.
    """

    facts: tuple[Fact, ...]
    fact: Fact
    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Store nothing.

    Attributes:
        candidate: What was proposed.
        reason: Why, in plain words.
    """

    candidate: Candidate
    reason: str


Decision = Add | Confirm | Supersede | End | Merge | Conflict | Reject
