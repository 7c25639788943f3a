"""What a search finds, with reasons; and the recall that stays with a question."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Literal

from memlayer_core.facts.model import Record
from memlayer_core.items.model import Item
from memlayer_core.message import JSON, Role
from memlayer_core.show import Cell, Tabular, View, Viewable, line_of, table_of


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is in a context or a result, or why it was left out.

    Attributes:
        code: A stable code for programs, such as `"newest_turn_over_limit"`.
        text: The same as a sentence for people.
        value: The number in it, if it has one: a part of a score, how many turns were left out.
    """

    code: str
    text: str
    value: float | None = None

    def __str__(self) -> str:
        """Return the text for people."""
        return self.text


@dataclass(frozen=True, slots=True)
class RecallFilter:
    """Which messages and records a search, a recall or a context may find.

    Every given condition must hold; with any condition, no items are found. What does not pass takes no place in the
    result: the search works as if it were not stored.

    Attributes:
        kinds: `"message"`, `"record"` (of any type), or types of records, such as `"preference"`. Empty: all.
        tags: Only records with all of these tags; messages have none.
        speakers: Only messages of these speakers: names, or roles such as `"assistant"`. Records have none.
        sessions: Only messages of the sessions with these ids, and records that come from there.
        since: Only what was said or happened at this moment or later. A moment without a time zone is taken as UTC.
        until: Only what was said or happened before this moment.
        metadata: Conditions on the `metadata` of messages: `{"project": "apollo"}`, `{"user": {"team": "red"}}`,
            `{"score": {"$gte": 3}}`; operators are `$eq`, `$ne`, `$gt`, `$gte`, `$lt` and `$lte`. Records have none.
    """

    _: KW_ONLY
    kinds: Sequence[str] = ()
    tags: Sequence[str] = ()
    speakers: Sequence[str] = ()
    sessions: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit(Tabular):
    """A message, a record or an item that a search found.

    Attributes:
        text: The text of the message or record.
        score: Larger is better. Compare scores of one search only.
        kind: `"message"`, `"record"`, or `"item"`: a value in a namespace that is declared to be the user's.
        message_ids: Ids of the messages that it comes from; empty for a record or an item.
        session_id: Id of its session; empty if it is not known.
        speaker: The speaker's name, or the role if there is no name. For a record, its type; for an item, `"item"`.
        created_at: When it was said, or when it happened.
        tokens: Tokens that it costs in a context.
        reasons: Why it was found, by each part of the search.
        record: The record that was found; None for anything else.
        role: The speaker's role; `"user"` for a record or an item.
        item: The item that was found; None for anything else.
        changed_at: When something that the message says changed, as facts that rest on it tell; None: it still holds, as
            far as is known.
    """

    text: str
    score: float
    kind: Literal["message", "record", "item"]
    message_ids: tuple[str, ...]
    session_id: str
    speaker: str
    created_at: datetime
    tokens: int
    reasons: tuple[Reason, ...]
    record: Record | None = None
    role: Role = "user"
    item: Item | None = None
    changed_at: datetime | None = None

    __repr__ = line_of

    def _row(self) -> dict[str, Cell]:
        record = None if self.record is None else self.record.memory_id
        return {
            "score": self.score,
            "when": self.created_at.date(),
            "who": self.speaker,
            "what": self.text,
            "why": "; ".join(map(str, self.reasons)),
            "where": record or (self.session_id if self.item is None else self.item.address),
        }


class Hits(Viewable, tuple[Hit, ...]):
    """A tuple of hits, the best first. Jupyter shows it as a table."""

    __slots__ = ()

    def _view(self) -> View:
        return table_of(self, f"Hits: {len(self):,}") if self else View("Nothing was found.")
