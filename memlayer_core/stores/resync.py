"""Following a list that a framework sends again, in SQL: `rules/align.py` says what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from memlayer_core.ports import Draft
from memlayer_core.records.message import Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Synced
from memlayer_core.rules.align import TELLING, Alignment, Said, align, said
from memlayer_core.rules.terms import searchable
from memlayer_core.stores import episodic, lexical, shown, summaries
from memlayer_core.stores.conversation import (
    count_up,
    exchange,
    find_instructions,
    inside,
    instructs,
    locked,
    put,
    take_out,
    within_recall,
)
from memlayer_core.stores.marks import unmark
from memlayer_core.stores.owed import owe
from memlayer_core.stores.revision import begin_at, keep
from memlayer_core.stores.rows import id_digest, key_of, stored_of
from memlayer_core.stores.schema import messages, vectors
from memlayer_core.stores.transcript import LAST, chunks, history, session_from

__all__ = ["move", "resync"]

_PAGE = 64  # messages of a history's end that are always looked at


def resync(
    connection: Connection,
    scope: Scope,
    drafts: Sequence[Draft],
    sent: Sequence[Said],
    now: datetime,
    shards: int,
    fork_id: str,
    *,
    replacing: bool,
) -> Synced:
    """Bring a session to what a list says: see `rules/align.py`.

    Args:
        connection: In a transaction that writes.
        scope: Which session.
        drafts: The list.
        sent: What decides, for each of them, whether it was said before.
        now: The present.
        shards: Collections that users are spread over.
        fork_id: Id of the session for what is superseded.
        replacing: Whether a list that has nothing in common with the history takes its place, and one that
            ends inside it is its end.
    """
    row = locked(connection, scope, now, shards)
    drafts = within_recall(row, drafts)
    past, found = _aligned(connection, scope, row, drafts, sent, ends=replacing)
    in_common = any(past[to].message.role != "system" for to in found.known if to is not None)
    is_the_list = row.messages == len(drafts) and None not in found.known
    if replacing and not in_common and not is_the_list:
        past = history(connection, session_from(row), -1, None)
        at_the_end = tuple((at, None) for at in range(len(drafts)))
        found = Alignment((None,) * len(drafts), at_the_end, superseded=tuple(range(len(past))))
    edited = {at: _in_the_place_of(past[to], drafts[at]) for at, to in found.edited}
    replaced = [past[to] for _, to in found.edited]
    superseded = [past[to] for to in found.superseded]
    leaving = [*superseded, *(past[to] for to in found.repeated)]
    gone = sorted([*superseded, *replaced], key=lambda stored: stored.key)
    keep(connection, row, gone, fork_id, now, shards)
    lost = take_out(connection, scope, row.number, [stored.key for stored in leaving], now)
    for stored, draft in zip(replaced, edited.values(), strict=True):
        exchange(connection, scope, stored.key, draft, now)
    if any(draft.tokens < old.tokens for old, draft in zip(replaced, edited.values(), strict=True)):
        unmark(connection, row.number)
    if any(stored.key == row.instructions for stored in replaced) or any(map(instructs, edited.values())):
        find_instructions(connection, row.number)
    fresh, moved = _placed(row, past, drafts, found)
    move(connection, scope, row, moved, now)
    put(connection, scope, fresh, now)
    if fresh or gone:
        cost = sum(draft.tokens for draft in (*edited.values(), *(draft for _, draft in fresh)))
        cost -= lost + sum(stored.tokens for stored in replaced)
        end = row.next_seq + len(fresh) + len(moved)
        count_up(connection, row.number, end, len(fresh) - len(leaving), cost, now)
    ids = [
        (edited.get(at, draft) if to is None or at in edited else past[to]).message.id or ""
        for at, (to, draft) in enumerate(zip(found.known, drafts, strict=True))
    ]
    new = len(fresh) + len(edited)
    answered = any(one.message.role == "assistant" and one.message.model_visible for _, one in fresh)
    return Synced(tuple(ids), new, len(drafts) - new, len(gone), fork_id if gone else None, answered)


def _aligned(
    connection: Connection,
    scope: Scope,
    row: Any,
    drafts: Sequence[Draft],
    sent: Sequence[Said],
    *,
    ends: bool,
) -> tuple[list[Stored], Alignment]:
    """Compare a list with the history's end, and with what of it stands further back.

    What is read does not grow with the history: a page of its end, and single messages that the database finds.
    Only a list that goes on far back is compared with all that follows from there.
    """
    size = _PAGE + 2 * len(sent)
    newest = select(messages.c.key).where(inside(row.number)).order_by(messages.c.key.desc())
    first = connection.scalar(newest.limit(1).offset(size - 1)) or 0
    page = _read(connection, scope, inside(row.number), messages.c.key >= first)
    if len(page) < size:
        return page, _compared([], page, sent, whole=True, ends=ends)
    named = [id_digest(row.number, draft.message.id or "") for draft in drafts if draft.given_id]
    strays = _in_order(
        _further_back(connection, scope, row, first, messages.c.key, [row.instructions or 0]),
        _further_back(connection, scope, row, first, messages.c.id_digest, named),
    )
    found = _compared(strays, page, sent, whole=False, ends=ends)
    missing = [drafts[at] for at in found.missing]
    texts = {searchable(draft.message.text) for draft in missing} - {""}
    silent = {draft.digest for draft in missing if not searchable(draft.message.text)}
    more = _in_order(
        _further_back(connection, scope, row, first, messages.c.text, sorted(texts)),
        _further_back(connection, scope, row, first, messages.c.digest, sorted(silent)),
    )
    if more and (_spoken(found, sent) or any(len(one.message.text) >= TELLING for one in more)):
        strays = _in_order(strays, more)
        found = _compared(strays, page, sent, whole=False, ends=ends)
    if found.superseded and (places := _spoken(found, sent)) and max(places) < len(strays):
        first = strays[min(places)].key
        strays = strays[: min(places)]
        page = _read(connection, scope, inside(row.number), messages.c.key >= first)
        found = _compared(strays, page, sent, whole=False, ends=ends)
    return [*strays, *page], found


def _compared(
    strays: Sequence[Stored], page: Sequence[Stored], sent: Sequence[Said], *, whole: bool, ends: bool
) -> Alignment:
    past = [said(stored.message, named=True) for stored in (*strays, *page)]
    return align(past, sent, whole=whole, loose=len(strays), ends=ends)


def _spoken(found: Alignment, sent: Sequence[Said]) -> list[int]:
    """Return the places in the past of what is part of the conversation."""
    return [to for to, one in zip(found.known, sent, strict=True) if to is not None and one.spoken]


def _read(connection: Connection, scope: Scope, *where: Any) -> list[Stored]:
    rows = connection.execute(select(messages).where(*where).order_by(messages.c.key))
    return [stored_of(row, scope) for row in rows]


def _further_back(
    connection: Connection, scope: Scope, row: Any, first: int, column: Any, wanted: Sequence[Any]
) -> list[Stored]:
    """Return what has one of the values, as far as it stands before a key."""
    before = inside(row.number), messages.c.key < first
    return [one for some in chunks(wanted) for one in _read(connection, scope, *before, column.in_(some))]


def _in_order(*found: Sequence[Stored]) -> list[Stored]:
    every = {stored.key: stored for some in found for stored in some}
    return [every[key] for key in sorted(every)]


def _placed(
    row: Any, past: Sequence[Stored], drafts: Sequence[Draft], found: Alignment
) -> tuple[list[tuple[int, Draft]], list[tuple[Stored, int]]]:
    """Return what is written under which key, and what of the past moves behind something new to which key."""
    first = min((to for _, to in found.new if to is not None), default=len(past))
    fronts: dict[int, list[Draft]] = {}
    for at, to in found.new:
        fronts.setdefault(len(past) if to is None else to, []).append(drafts[at])
    left = {*found.superseded, *found.repeated}
    order: list[Draft | Stored] = []
    for to in range(first, len(past)):
        order.extend(fronts.get(to, ()))
        if to not in left:
            order.append(past[to])
    order.extend(fronts.get(len(past), ()))
    keyed = [(key_of(row.number, row.next_seq + place), one) for place, one in enumerate(order)]
    fresh = [(key, one) for key, one in keyed if isinstance(one, Draft)]
    return fresh, [(one, key) for key, one in keyed if isinstance(one, Stored)]


def move(
    connection: Connection, scope: Scope, row: Any, moved: Sequence[tuple[Stored, int]], now: datetime
) -> None:
    """Give messages other places, with what they are found by; no model is asked again."""
    if not moved:
        return
    retold = episodic.touched(connection, row.number, [stored.key for stored, _ in moved])
    summaries.outdate(connection, row.number, [stored.key for stored, _ in moved])
    keys = [{"old": stored.key, "new": key} for stored, key in moved]
    for table in (messages, vectors):
        moving = update(table).where(table.c.key == bindparam("old")).values(key=bindparam("new"))
        connection.execute(moving, keys)
    lexical.move(connection, keys)
    shown.move(connection, keys)
    episodic.move(connection, retold, {stored.seq: key & LAST for stored, key in moved})
    episodic.withdraw(connection, scope, retold, now)
    unmark(connection, row.number)
    find_instructions(connection, row.number)
    if moved[0][0].seq < row.begins:
        begins = next((key & LAST for stored, key in moved if stored.seq >= row.begins), moved[-1][1] + 1)
        begin_at(connection, row.number, begins & LAST)
    found = [key for stored, key in moved if stored.message.role != "system" and stored.message.model_visible]
    owe(connection, "unindex", [stored.key for stored, _ in moved], row.namespace, now)
    owe(connection, "index", [] if row.superseded else found, row.namespace, now)


def _in_the_place_of(old: Stored, draft: Draft) -> Draft:
    """Return the words of a draft, under the id and the time of a message where it brings none of its own."""
    message = draft.message
    return replace(
        draft,
        message=replace(
            message,
            id=message.id if draft.given_id else old.message.id,
            created_at=message.created_at if draft.given_time else old.message.created_at,
        ),
    )
