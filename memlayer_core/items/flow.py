"""Reads, writes and searches items: the order of things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

from memlayer_core.errors import EmbedderError, EmbedderMismatchError, InvalidItemError
from memlayer_core.index.flow import compare, embed, index_pays, nearest, postings_of, query_vector
from memlayer_core.items import check, sql
from memlayer_core.items.model import (
    Change,
    DropItem,
    FindItems,
    GetItem,
    Item,
    ItemDeletion,
    ItemOp,
    ItemQuery,
    ListFolders,
    Put,
    PutItem,
)
from memlayer_core.messages.check import check_whole_number
from memlayer_core.runtime import Asking, Runtime
from memlayer_core.scope import Folder
from memlayer_core.seams import FloatVector
from memlayer_core.storage import vectors, words as storage_words
from memlayer_core.storage.terms import index_terms, language_of, question_terms, readable

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

Answer = Item | list[Item] | list[tuple[str, ...]] | None


def batch(rt: Runtime, tenant_id: str, ops: Iterable[ItemOp], *, omit_expired: bool) -> Asking[list[Answer]]:
    """Do operations, and return the answer of each: None for writes.

    If one of them is invalid, nothing is done. Reads see the state before the writes. Of several writes to one key the
    last one counts, and all writes are one transaction.
    """
    now = rt.now()
    live_at = now if omit_expired else None
    ready = [(op, _target(rt, tenant_id, op, live_at)) for op in ops]
    answers: list[Answer] = [None] * len(ready)
    writes = [one for _, one in ready if isinstance(one, Put | ItemDeletion)]
    if len(writes) < len(ready):
        answers = rt.db.read(lambda snapshot: [_read(snapshot, *one, live_at) for one in ready])
        for place, (op, one) in enumerate(ready):
            if isinstance(op, FindItems) and isinstance(one, ItemQuery) and _asks(op):
                answers[place] = yield from search(rt, one, op)
        lasting = _numbers_to_refresh([op for op, _ in ready], answers)
        if lasting:
            rt.db.write(sql.refresh, lasting, now)
    changes: dict[tuple[str, str], Change] = {(one.folder.namespace, one.key): one for one in writes}
    if changes:
        rt.db.write(sql.change, list(changes.values()), now, rt.shards)
        rt.wake()
    return answers


def sweep(rt: Runtime, tenant_id: str) -> int:
    """Delete a tenant's items that have expired. Returns how many."""
    swept = rt.db.write(sql.sweep, check.folder_of(tenant_id, ()), rt.now())
    if swept:
        rt.wake()
    return swept


def forget(rt: Runtime, tenant_id: str, labels: object) -> int:
    """Delete all items in a folder and in the folders inside it. Returns how many."""
    gone = rt.db.write(sql.forget, check.folder_of(tenant_id, labels), rt.now())
    if gone:
        rt.wake()
    return gone


def put_of(rt: Runtime, tenant_id: str, op: PutItem) -> Put:
    """Prepare an item for the journal.

    Raises:
        InvalidItemError: It cannot be stored.
    """
    check.expiry(op.ttl, rt.now())  # checks it
    value = check.value_to_json(op.value, rt.settings.message_bytes_limit)
    texts = check.texts_of(op.value, op.texts)
    return Put(
        check.folder_of(tenant_id, op.labels),
        check.key_of(op.key),
        value,
        tuple((text, index_terms(text[: rt.settings.indexed_characters])) for text in texts),
        op.ttl,
    )


def _target(
    rt: Runtime, tenant_id: str, op: ItemOp, live_at: datetime | None
) -> Folder | ItemQuery | Put | ItemDeletion:
    """Check an operation. Returns where it reads, or what it writes."""
    match op:
        case GetItem():
            check.key_of(op.key)
            return check.folder_of(tenant_id, op.labels)
        case PutItem():
            return put_of(rt, tenant_id, op)
        case DropItem():
            return ItemDeletion(check.folder_of(tenant_id, op.labels), check.key_of(op.key))
        case FindItems():
            check_whole_number("limit", op.limit)
            check_whole_number("offset", op.offset)
            if op.query is not None and not isinstance(op.query, str):
                raise InvalidItemError(
                    f"`query` must be a text, got {op.query!r:.80}",
                    hint="Leave it out for the last ones put.",
                )
            return ItemQuery(check.folder_of(tenant_id, op.labels), check.conditions_of(op.filter), live_at)
        case ListFolders():
            for pattern in op.patterns:
                check.folder_of(tenant_id, check.check_end(pattern).labels)  # checks the labels
            check.folder_page([], op)
            return check.folder_of(tenant_id, check.literal_start(op.patterns))
        case _:
            assert_never(op)


def _read(connection: Connection, op: ItemOp, target: object, live_at: datetime | None) -> Answer:
    match op, target:
        case GetItem() as get, Folder() as folder:
            return sql.get(connection, folder, get.key, live_at)
        case FindItems() as request, ItemQuery() as query if not _asks(request):
            return sql.find(connection, query, request.limit, request.offset)
        case ListFolders() as request, Folder() as top:
            found = (folder.labels for folder in sql.list_folders(connection, top, live_at))
            return check.folder_page(found, request)
        case _:
            return None


def _asks(request: FindItems) -> bool:
    return bool(request.query and request.query.strip())


def _numbers_to_refresh(ops: Sequence[ItemOp], answers: Sequence[Any]) -> list[int]:
    """Return the numbers of items whose time to live restarts because they were read."""
    found: set[int] = set()
    for op, answer in zip(ops, answers, strict=True):
        if answer and isinstance(op, GetItem | FindItems) and op.refresh:
            items = [answer] if isinstance(answer, Item) else answer
            found.update(item.number for item in items if item.ttl is not None)
    return sorted(found)


_FOLDERS = 16  # most folders inside a searched one whose nearest texts are asked for
_MORE = 50  # texts that are asked for beyond those that are wanted, since filters choose among them

_Shelves = Sequence[tuple[Folder, vectors.ScopeStatistics]]
"""Folders, each with the numbers of its vectors."""


def search(rt: Runtime, item_query: ItemQuery, request: FindItems) -> Asking[list[Item]]:
    """Return the items that match a query, the best first; those without a score come last.

    Vectors are compared exactly, and by the index in folders that have very many.
    """
    if waiting := rt.db.read(sql.waiting, item_query, rt.settings.index_batch):
        try:
            embed(rt, waiting)
        except (EmbedderError, EmbedderMismatchError) as problem:  # words find them meanwhile
            rt.health.down("embedder", str(problem))
    shelves = rt.db.read(_shelves, item_query, _FOLDERS + 1)
    vector: FloatVector | None = None
    if any(overview.texts for _, overview in shelves):
        vector, _ = yield from query_vector(rt, request.query or "")
    return _nearest(rt, item_query, request, vector, shelves) or rt.db.read(
        _compare, rt, item_query, request, vector
    )


def _shelves(connection: Connection, item_query: ItemQuery, limit: int | None = None) -> _Shelves:
    folders = sql.list_folders(connection, item_query.folder, item_query.live_at, limit)
    return [(folder, vectors.overview(connection, folder)) for folder in folders]


def _shares(
    connection: Connection, item_query: ItemQuery, request: FindItems, shelves: _Shelves, total: int
) -> Mapping[int, float]:
    """Return for each text without a vector its share of the query's words; stop words do not count."""
    lost = set(sql.waiting(connection, item_query, None))
    if not lost:
        return {}
    query = readable(request.query or "")
    words = question_terms(query, [language_of(query)]) or question_terms(query)
    places = [(folder, [storage_words.owner(overview.number)]) for folder, overview in shelves]
    shares = check.by_words(words, postings_of(connection, places, words), total)
    return {key: share for key, share in shares.items() if key in lost}


def _nearest(
    rt: Runtime, item_query: ItemQuery, request: FindItems, vector: FloatVector | None, shelves: _Shelves
) -> list[Item] | None:
    """Return items by the nearest texts of each folder, and by words those that have no vector.

    None if that could miss some: there are many folders, few texts, or too few of the nearest match.
    """
    wanted = request.offset + request.limit
    most, texts = wanted + _MORE, sum(overview.texts for _, overview in shelves)
    if vector is None or len(shelves) > _FOLDERS or texts <= most:
        return None
    near: dict[int, float] = {}
    for folder, overview in shelves:
        if index_pays(rt, overview):
            found = nearest(rt, folder, vector, overview, most)
        else:
            found = rt.db.read(compare, rt, folder, vector, most)
        near |= dict(found)

    def read(connection: Connection) -> list[Item] | None:
        shares = _shares(connection, item_query, request, shelves, texts)
        pairs = sql.texts_of(connection, item_query, list({*near, *shares}))
        scored = check.scores(pairs, near, shares)
        if len(scored) < wanted:
            return None
        return _page(connection, item_query, request, check.order(scored, scored), scored)

    return rt.db.read(read)


def _compare(
    connection: Connection, rt: Runtime, item_query: ItemQuery, request: FindItems, vector: FloatVector | None
) -> list[Item]:
    """Return items by an exact comparison: of vectors, and of words for texts without a vector."""
    every = sql.texts(connection, item_query)
    pairs = [(number, key) for number, key in every if key is not None]
    near: dict[int, float] = {}
    if vector is not None:
        columns = vectors.columns_of(connection, [key for _, key in pairs])
        near = dict(zip(columns.keys.tolist(), columns.cosines(vector).tolist(), strict=True))
    shares = _shares(connection, item_query, request, _shelves(connection, item_query), len(pairs))
    scored = check.scores(pairs, near, shares)
    return _page(
        connection, item_query, request, check.order((number for number, _ in every), scored), scored
    )


def _page(
    connection: Connection,
    item_query: ItemQuery,
    request: FindItems,
    numbers: Sequence[int],
    item_scores: Mapping[int, float],
) -> list[Item]:
    page = numbers[request.offset : request.offset + request.limit]
    found = sql.find_by_number(connection, item_query, page)
    return [replace(found[number], score=item_scores.get(number)) for number in page if number in found]
