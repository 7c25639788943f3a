"""Reads, writes and searches items: the order of things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

from memlayer_core.errors import EmbedderError, EmbedderMismatchError, InvalidItemError, errors_as, require
from memlayer_core.index.flow import embed, nearest
from memlayer_core.items import check, model, sql
from memlayer_core.message import with_offset
from memlayer_core.messages.check import check_whole_number
from memlayer_core.models.embed import query_vector
from memlayer_core.runtime import Asking, Runtime
from memlayer_core.scope import Folder
from memlayer_core.seams import FloatVector
from memlayer_core.storage import vectors, words as storage_words
from memlayer_core.storage.terms import index_terms, language_of, question_terms, readable

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

Answer = model.Item | list[model.Item] | list[tuple[str, ...]] | None


def batch(
    rt: Runtime, tenant_id: str, ops: Iterable[model.ItemOp], *, omit_expired: bool
) -> Asking[list[Answer]]:
    """Do operations, and return the answer of each: None for writes.

    If one of them is invalid, nothing is done. Reads see the state before the writes. Of several writes to one key the
    last one counts, and all writes are one transaction.
    """
    now = rt.now()
    live_at = now if omit_expired else None
    ready = [(op, _prepare(rt, tenant_id, op, live_at)) for op in check.list_of(model.ItemOp, "ops", ops)]
    answers: list[Answer] = [None] * len(ready)
    changes = {(one.folder.namespace, one.key): one for _, one in ready if isinstance(one, model.Put)}
    if not all(isinstance(one, model.Put) for _, one in ready):
        answers = rt.db.read(lambda snapshot: [one(snapshot) if callable(one) else None for _, one in ready])
    lasting: set[int] = set()
    for place, (op, one) in enumerate(ready):
        if isinstance(op, model.FindItems) and isinstance(one, model.ItemQuery):
            answers[place] = yield from search(rt, one, op)
        if isinstance(op, model.GetItem | model.FindItems) and op.refresh:
            answer: Any = answers[place]
            items = answer if isinstance(answer, list) else [answer]
            lasting.update(item.number for item in items if item is not None and item.ttl is not None)
    if lasting:
        rt.db.write(sql.refresh, sorted(lasting), now)
    if changes:
        rt.db.write(sql.change, list(changes.values()), now)
        rt.wake()
    return answers


def forget(rt: Runtime, tenant_id: str, labels: object = (), *, only_expired: bool = False) -> int:
    """Delete all items in a folder and in the folders inside it, or those that have expired. Returns how many."""
    gone = rt.db.write(sql.forget, check.folder_of(tenant_id, labels), rt.now(), only_expired=only_expired)
    if gone:
        rt.wake()
    return gone


@errors_as(InvalidItemError)
def put_of(rt: Runtime, tenant_id: str, op: model.PutItem) -> model.Put:
    """Prepare an item for the journal.

    Raises:
        InvalidItemError: It cannot be stored.
    """
    check.expiry(op.ttl, rt.now())  # checks it
    value = check.json_of(op.value)
    text, most = check.text_of(value, rt.settings.message_bytes_limit), rt.settings.indexed_characters
    texts = tuple((one, index_terms(one[:most])) for one in check.texts_of(op.value, op.texts))
    folder, key = check.folder_of(tenant_id, op.labels), check.key_of(op.key)
    times = with_offset(op.created_at), with_offset(op.updated_at, "updated_at")
    return model.Put(folder, key, text, texts, op.ttl, *times)


def _prepare(
    rt: Runtime, tenant_id: str, op: model.ItemOp, live_at: datetime | None
) -> model.Put | model.ItemQuery | Callable[[Connection], Answer]:
    """Check an operation. Returns what it writes, what it searches with a text, or how it reads."""
    match op:
        case model.GetItem():
            folder, key = check.folder_of(tenant_id, op.labels), check.key_of(op.key)
            return lambda connection: sql.get(connection, folder, key, live_at)
        case model.PutItem():
            return put_of(rt, tenant_id, op)
        case model.DropItem():
            return model.Put(check.folder_of(tenant_id, op.labels), check.key_of(op.key), None)
        case model.FindItems():
            check_whole_number("limit", op.limit)
            check_whole_number("offset", op.offset)
            hint = "Leave it out for the last ones put."
            require(isinstance(op.query, str | None), "query", "a text", op.query, hint, InvalidItemError)
            folder = check.folder_of(tenant_id, op.labels)
            query = model.ItemQuery(folder, check.conditions_of(op.filter), live_at)
            if op.query and op.query.strip():
                return query
            return lambda connection: sql.find(connection, query, op.limit, op.offset)
        case model.ListFolders():
            for pattern in check.list_of(model.Pattern, "patterns", op.patterns):
                check.folder_of(tenant_id, check.check_end(pattern).labels)  # checks the labels
            check.folder_page([], op)
            top = check.folder_of(tenant_id, check.literal_start(op.patterns))
            return lambda connection: check.folder_page(sql.list_folders(connection, top, live_at), op)
        case _:
            assert_never(op)


_FOLDERS = 16  # most folders inside a searched one whose nearest texts are asked for
_MORE = 50  # texts that are asked for beyond those that are wanted, since filters choose among them

_Shelves = Sequence[tuple[Folder, vectors.ScopeStatistics]]
"""Folders, each with the numbers of its vectors."""


def search(rt: Runtime, item_query: model.ItemQuery, request: model.FindItems) -> Asking[list[model.Item]]:
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
    cosines = {} if vector is None else _nearest(rt, shelves, vector, request.offset + request.limit + _MORE)
    return rt.db.read(_rank, item_query, request, vector, cosines)


def _shelves(connection: Connection, item_query: model.ItemQuery, limit: int | None = None) -> _Shelves:
    folders = sql.list_folders(connection, item_query.folder, item_query.live_at, limit)
    return [(folder, vectors.overview(connection, folder)) for folder in folders]


def _nearest(rt: Runtime, shelves: _Shelves, vector: FloatVector, limit: int) -> Mapping[int, float]:
    """Return the cosines of the nearest texts of each folder; none where there are many folders, or few texts."""
    near: dict[int, float] = {}
    if len(shelves) > _FOLDERS or sum(overview.texts for _, overview in shelves) <= limit:
        return near
    for folder, overview in shelves:
        near.update(nearest(rt, folder, vector, overview, limit))
    return near


def _rank(
    connection: Connection,
    item_query: model.ItemQuery,
    request: model.FindItems,
    vector: FloatVector | None,
    cosines: Mapping[int, float],
) -> list[model.Item]:
    """Return a page of items by the cosines of their nearest texts, and by words where a text has no vector.

    Where too few of these match, the texts of all items are compared exactly.
    """
    shares = _shares(connection, item_query, request.query or "")
    pairs = sql.texts(connection, item_query, [*cosines, *shares])
    worth = check.scores(pairs, cosines, shares)
    if not cosines or len(worth) < request.offset + request.limit:
        pairs = sql.texts(connection, item_query)
        if vector is not None:
            columns = vectors.columns_of(connection, [key for _, key in pairs if key is not None])
            cosines = dict(zip(columns.keys.tolist(), columns.cosines(vector).tolist(), strict=True))
        worth = check.scores(pairs, cosines, shares)
    order = sorted(dict(pairs), key=lambda number: (number not in worth, -worth.get(number, 0)))
    page = order[request.offset : request.offset + request.limit]
    found = sql.find_by_number(connection, item_query, page)
    return [replace(found[number], score=worth.get(number)) for number in page if number in found]


def _shares(connection: Connection, item_query: model.ItemQuery, query: str) -> Mapping[int, float]:
    """Return for each text without a vector its share of the query's words; stop words do not count."""
    lost = sql.waiting(connection, item_query, None)
    if not lost:
        return {}
    words = question_terms(readable(query), [language_of(readable(query))]) or question_terms(readable(query))
    shelves = _shelves(connection, item_query)
    places = [(folder, [storage_words.owner(overview.number)]) for folder, overview in shelves]
    return check.by_words(words, storage_words.postings(connection, places, words, set(lost)), len(lost))
