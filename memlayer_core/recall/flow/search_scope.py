"""What a reader may find: their own messages and records, and the records that others share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memlayer_core.errors import RedactorError
from memlayer_core.items.model import Item
from memlayer_core.items.rules.filters import conditions_of
from memlayer_core.items.rules.items import whole_text
from memlayer_core.items.sql.reads import find_by_key
from memlayer_core.items.sql.users import searched_folders
from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.sql import transcript
from memlayer_core.recall.model import RecallFilter
from memlayer_core.recall.rules.pack import excerpt, longest_turn, pack
from memlayer_core.recall.rules.rank import LONG, ScoredCandidate
from memlayer_core.recall.sql.candidates import Beginning, matching_keys, overview
from memlayer_core.records.flow import reader_of
from memlayer_core.records.model import TYPES, Reader, Record
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.records.sql import rows as record_rows
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Folder, Scope, SharedScope
from memlayer_core.storage.scores import Candidate, is_item, is_message, is_record
from memlayer_core.storage.statistics import ScopeStatistics
from memlayer_core.storage.truncate import ELLIPSIS

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = [
    "SearchScope",
    "as_told",
    "eligible_keys",
    "fit_into_budget",
    "item_candidates",
    "message_of_item",
    "message_of_record",
    "print_of",
    "prints_now",
    "record_candidates",
    "search_scope",
    "search_scope_of",
    "shorten",
]


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The reader, and what a search covers.

    Attributes:
        reader: The user who asks.
        own: Statistics of the user's own data.
        shared: Statistics of the records that users of the tenant share; empty if only one session is searched.
        folders: Folders with items of the user, each with its statistics.
    """

    reader: Reader
    own: ScopeStatistics
    shared: ScopeStatistics
    folders: Sequence[tuple[Folder, ScopeStatistics]] = ()

    @property
    def reach(self) -> Scope:
        """The scope whose messages may be found."""
        return self.reader.reach

    @property
    def has_records(self) -> bool:
        """Whether there are records to search."""
        return self.own.records or self.shared.records

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to search."""
        return not (self.own.sessions or self.has_records or self.folders)

    @property
    def vectors(self) -> int:
        """How many vectors there are to search."""
        return sum(statistics.vectors for _, statistics in self._every)

    @property
    def texts(self) -> int:
        """How many texts with vectors there are to search."""
        return sum(statistics.texts for _, statistics in self._every)

    @property
    def places(self) -> list[tuple[Scope | SharedScope | Folder, ScopeStatistics]]:
        """The scopes to search, each with its statistics."""
        return [one for one in self._every if one[1] is not self.shared or self.shared.records]

    @property
    def _every(self) -> list[tuple[Scope | SharedScope | Folder, ScopeStatistics]]:
        return [(self.reach, self.own), (self.reach.commons, self.shared), *self.folders]

    @property
    def word_owners(self) -> list[tuple[Scope | Folder, Sequence[str]]]:
        """The scope, with the tokens that words are filed under: of the user, and of what others share with them.

        No other words are looked up, so a record that the reader may not see takes no other one's place.
        """
        reach = self.reach
        places: list[tuple[Scope | Folder, Sequence[str]]] = [(reach, [reach.user_lane])]
        if self.shared.records:
            labels = record_rows.grantees(reach, self.reader.roles)
            places.append((reach, [reach.commons.user_lane, *labels]))
        return places + [(folder, [folder.user_lane]) for folder, _ in self.folders]


def search_scope_of(connection: Connection, rt: Runtime, reach: Scope, roles: Sequence[str]) -> SearchScope:
    """Return the reader and what they may find."""
    return search_scope(connection, reader_of(rt, reach, roles), overview(connection, reach))


def search_scope(connection: Connection, reader: Reader, begin: Beginning) -> SearchScope:
    """Return what a reader may find.

    Args:
        connection: On the snapshot of the search.
        reader: The user who asks.
        begin: What was read at the beginning.
    """
    reach = reader.reach
    own = searched_folders(connection, reach.tenant_id, reach.user_id) if begin.has_folders else ()
    return SearchScope(reader, begin.own, begin.shared, own)


def eligible_keys(
    connection: Connection, search_scope: SearchScope, recall_filter: RecallFilter | None
) -> frozenset[int] | None:
    """Return the keys of the reader's messages and records that pass a checked filter; None without a filter."""
    if recall_filter is None:
        return None
    wanted, keys = set(recall_filter.kinds), set[int]()
    if not recall_filter.tags and (not wanted or "message" in wanted):
        conditions = conditions_of(recall_filter.metadata)
        keys |= matching_keys(connection, search_scope.reach, recall_filter, conditions)
    types = set() if "record" in wanted else wanted.intersection(TYPES)
    of_records = not (recall_filter.speakers or recall_filter.metadata) and (
        not wanted or "record" in wanted or types
    )
    if search_scope.has_records and of_records:
        keys |= record_reads.matching_keys(
            connection,
            search_scope.reader,
            types,
            recall_filter.tags,
            recall_filter.sessions,
            recall_filter.since,
            recall_filter.until,
        )
    return frozenset(keys)


def record_candidates(
    rt: Runtime, reach: Scope, records: Mapping[int, Record], cosines: Mapping[int, float], beginning: int
) -> list[Candidate]:
    """Return records as candidates. A record that the user stated counts as said by the user."""
    return [
        Candidate(
            key,
            "user" if record.owner.namespace == reach.namespace and not record.is_inferred else "record",
            None,
            rt.tokens.text(record.text) if len(record.text) > LONG else 0,  # only a long one's tokens count
            is_question=False,
            similarity=cosines.get(key),
            beginning=record.text[:beginning],
        )
        for key, record in records.items()
    ]


def item_candidates(
    rt: Runtime, items: Mapping[int, Item], cosines: Mapping[int, float], beginning: int
) -> list[Candidate]:
    """Return items as candidates: like records that nobody stated."""
    return [
        Candidate(
            key,
            "record",
            None,
            rt.tokens.text(text) if len(text := whole_text(item.value)) > LONG else 0,
            is_question=False,
            similarity=cosines.get(key),
            beginning=text[:beginning],
        )
        for key, item in items.items()
    ]


def fit_into_budget(
    rt: Runtime,
    candidates: Iterable[tuple[StoredMessage, ScoredCandidate]],
    budget: int,
    rest: int,
    cost: Callable[[StoredMessage], int],
) -> list[tuple[StoredMessage, ScoredCandidate]]:
    """Choose what fits into a budget, the best first; long texts are replaced by an excerpt.

    Args:
        rt: What the memory works with.
        candidates: The best first.
        budget: Tokens for all of it; one turn may take a part of that.
        rest: Tokens of the budget that are still free.
        cost: Counts the tokens of one as the model will see it.
    """
    told: list[tuple[StoredMessage, ScoredCandidate]] = []  # as far as there is room for them

    def costs() -> Iterator[int]:
        for stored, ranked in candidates:
            told.append(shorten(rt, stored, ranked, longest_turn(budget)))
            yield cost(told[-1][0])

    return [told[place] for place in pack(costs(), rest)]


def shorten(
    rt: Runtime, turn: StoredMessage, candidate: ScoredCandidate, budget: int
) -> tuple[StoredMessage, ScoredCandidate]:
    """Return the whole turn if it fits into the budget, else the excerpt that bears on the question."""
    text, most = turn.message.text, rt.settings.indexed_characters
    if turn.tokens <= budget:
        return turn, candidate
    found_by = text if len(text) <= most else f"{text[:most]} {ELLIPSIS}"  # the rest is not indexed
    part = excerpt(found_by, candidate.words, budget, rt.tokens.text, candidate.part_cosines)
    if part == text:  # the text fits, only an image or the like does not
        return replace(turn, tokens=rt.tokens.text(text)), candidate
    said = replace(turn.message, content=part, tool_calls=(), raw=None)
    return replace(turn, message=said, tokens=rt.tokens.message(said)), candidate._replace(is_excerpt=True)


def as_told(rt: Runtime, turn: StoredMessage) -> StoredMessage | None:
    """Return a message or record as it is told: redacted; None if it is not told.

    What the user's redactor cannot read is not.
    """
    text = turn.message.text
    try:
        left = rt.redact(text)
    except RedactorError:
        return None
    if left == text:
        return turn
    said = replace(turn.message, content=left, tool_calls=(), raw=None)
    return replace(turn, message=said, tokens=rt.tokens.message(said))


def print_of(turn: StoredMessage) -> int:
    """Return a number that tells in this process whether a text is told as it was."""
    said = turn.message
    return hash((said.speaker, said.created_at, said.text))


def prints_now(
    connection: Connection, rt: Runtime, search_scope: SearchScope, keys: Iterable[int]
) -> dict[int, int]:
    """Return what `print_of` tells of messages, records and items by their keys, of those that the reader is told now."""
    reach, reader = search_scope.reach, search_scope.reader
    folders = [folder for folder, _ in search_scope.folders]
    some, of_records, of_items = (sorted(filter(kind, keys)) for kind in (is_message, is_record, is_item))
    found = transcript.find_messages(connection, reach, some)
    records = record_reads.find_records(connection, reader, of_records) if of_records else {}
    items = find_by_key(connection, folders, of_items, rt.now())
    found += [message_of_record(rt, key, record) for key, record in records.items()]
    found += [message_of_item(rt, reach, key, item) for key, item in items.items()]
    return {told.key: print_of(told) for one in found if (told := as_told(rt, one)) is not None}


def message_of_record(rt: Runtime, key: int, record: Record) -> StoredMessage:
    """Return a record as a message; its type stands for the speaker's name."""
    said = Message("user", record.text, id=record.memory_id, name=record.type, created_at=record.date)
    scope = Scope(record.user_id, record.session_id, record.agent_id, record.tenant_id)
    return StoredMessage(key, scope, said, rt.tokens.message(said), rt.tokens.name)


def message_of_item(rt: Runtime, reach: Scope, key: int, item: Item) -> StoredMessage:
    """Return an item as a message; its folder and key stand for an id, and "item" for the speaker's name."""
    said = Message("user", whole_text(item.value), id=item.address, name="item", created_at=item.updated_at)
    return StoredMessage(key, reach, said, rt.tokens.message(said), rt.tokens.name)
