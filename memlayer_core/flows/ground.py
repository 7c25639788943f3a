"""What recall may find for one who asks: the user's own messages and records, and records that others share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from memlayer_core.flows.records import reader_of
from memlayer_core.ports import Journal, World
from memlayer_core.records.candidate import Candidate, Postings
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.record import Reader, Record
from memlayer_core.records.scope import Commons, Scope
from memlayer_core.records.session import Overview
from memlayer_core.records.vector import FloatVector, Neighbour
from memlayer_core.rules.budget import longest, pack
from memlayer_core.rules.excerpt import excerpt
from memlayer_core.rules.rank import Ranked
from memlayer_core.rules.truncate import ELLIPSIS

__all__ = [
    "Ground",
    "allowed",
    "as_told",
    "nearest_first",
    "packed",
    "posted",
    "scanned",
    "survey",
    "weighed",
    "without",
]

_NOTHING = Overview(sessions=0, vectors=0, shard=0, alone=False)


@dataclass(frozen=True, slots=True)
class Ground:
    """What lies within reach of a question, and who asks.

    Attributes:
        reader: Who asks.
        own: What the user has.
        shared: What users of the tenant share with anybody; nothing where a session alone is searched.
    """

    reader: Reader
    own: Overview
    shared: Overview

    @property
    def reach(self) -> Scope:
        """Whose messages may be found."""
        return self.reader.reach

    @property
    def has_records(self) -> bool:
        """Whether there are any records to look through."""
        return self.own.records or self.shared.records

    @property
    def vectors(self) -> int:
        """How many vectors there are to look through."""
        return self.own.vectors + self.shared.vectors

    @property
    def shelves(self) -> list[tuple[Scope | Commons, Overview]]:
        """The places to look in, each with what it holds."""
        shared: list[tuple[Scope | Commons, Overview]] = [(self.reach.commons, self.shared)]
        return [(self.reach, self.own), *(shared if self.shared.records else ())]


def survey(world: World, journal: Journal, reach: Scope, roles: Sequence[str]) -> Ground:
    """Return what lies within reach of somebody's question."""
    shared = _NOTHING if reach.session_id is not None else journal.overview(reach.commons)
    return Ground(reader_of(world, reach, roles), journal.overview(reach), shared)


def posted(journal: Journal, ground: Ground, words: Sequence[str]) -> Postings:
    """Return where words stand, on every shelf."""
    found: dict[str, dict[int, int]] = {}
    for shelf, _ in ground.shelves:
        for word, keys in journal.postings(shelf, words).items():
            found.setdefault(word, {}).update(keys)
    return found


def scanned(journal: Journal, ground: Ground, vector: FloatVector, limit: int) -> list[Neighbour]:
    """Compare a vector with every one, on every shelf."""
    return nearest_first(chain(*(journal.scan(shelf, vector, limit) for shelf, _ in ground.shelves)))


def nearest_first(found: Iterable[Neighbour]) -> list[Neighbour]:
    """Return what several shelves have in one order."""
    return sorted(found, key=lambda neighbour: -neighbour.similarity)


def allowed(
    world: World, ground: Ground, postings: Postings, near: Sequence[Neighbour]
) -> tuple[Postings, list[Neighbour]]:
    """Leave out the records that the reader may not be told of, before anything is weighed or counted."""
    of_records = {key for key in chain(*postings.values(), (one.key for one in near)) if key < 0}
    hidden = of_records - world.journal.visible(ground.reader, of_records) if of_records else of_records
    return without(hidden, postings, near)


def without(
    hidden: Collection[int], postings: Postings, near: Sequence[Neighbour]
) -> tuple[Postings, list[Neighbour]]:
    """Leave out what is not to be found, before anything is weighed or counted."""
    if not hidden:
        return postings, list(near)
    left = {word: {key: n for key, n in keys.items() if key not in hidden} for word, keys in postings.items()}
    return {word: keys for word, keys in left.items() if keys}, [one for one in near if one.key not in hidden]


def weighed(
    world: World, reach: Scope, records: Mapping[int, Record], near: Mapping[int, float], beginning: int
) -> list[Candidate]:
    """Return what recall weighs of records. What is remembered of the user counts as said by the user."""
    return [
        Candidate(
            key,
            "user" if record.owner.namespace == reach.namespace else "record",
            None,
            world.tokens.text(record.text),
            asks=False,
            near=near.get(key),
            beginning=record.text[:beginning],
        )
        for key, record in records.items()
    ]


def packed(
    world: World,
    found: Iterable[tuple[Stored, Ranked]],
    room: int,
    left: int,
    cost: Callable[[Stored], int],
) -> list[tuple[Stored, Ranked]]:
    """Take what fits, the best first; of what is long, the part that bears on the question.

    Args:
        world: Everything.
        found: The best first.
        room: Tokens that all of it may take.
        left: What is left of them.
        cost: Counts the tokens of one as it will be told.
    """
    told: list[tuple[Stored, Ranked]] = []  # as far as there is room for them

    def costs() -> Iterator[int]:
        for stored, ranked in found:
            told.append(_in_short(world, stored, ranked, longest(room)))
            yield cost(told[-1][0])

    return [told[place] for place in pack(costs(), left)]


def _in_short(world: World, stored: Stored, ranked: Ranked, room: int) -> tuple[Stored, Ranked]:
    """Return a turn as it is told where there is room for so many tokens: all of it, or the part that bears on the question."""
    if stored.tokens <= room:
        return stored, ranked
    text, most = stored.message.text, world.settings.indexed_characters
    found_by = text if len(text) <= most else f"{text[:most]} {ELLIPSIS}"  # by nothing behind that
    part = excerpt(found_by, ranked.words, room, world.tokens.text)
    if part == text:  # what costs more, such as an image, is not told
        return replace(stored, tokens=world.tokens.text(text)), ranked
    said = replace(stored.message, content=part, tool_calls=(), raw=None)
    return replace(stored, message=said, tokens=world.tokens.message(said)), ranked._replace(shortened=True)


def as_told(world: World, key: int, record: Record) -> Stored:
    """Return a record as a recalled turn is told: its type stands where a speaker does."""
    said = Message("user", record.text, id=record.memory_id, name=record.type, created_at=record.dated)
    scope = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
    return Stored(key, scope, said, world.tokens.message(said), world.tokens.name)
