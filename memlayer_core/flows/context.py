"""Reads memory: what a model is told for one call. Reading never changes what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memlayer_core.drive import Drive
from memlayer_core.flows.recall import Found, find
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Context, Piece, PieceKind, Reason
from memlayer_core.records.message import Entry, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Overview, Session
from memlayer_core.rules.budget import most_that_fit, pack, recall_share
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.render import block, line
from memlayer_core.rules.window import Window, enough, first_page, window

__all__ = ["context"]

_NOTHING = Window((), (), 0, ())
_KEPT = (Reason("leading_system", "the session's own instructions are always shown"),)
_RECENT = (Reason("recent", "one of the newest whole turns"),)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of the present session that is shown."""

    session: Session | None
    window: Window
    leading: tuple[Stored, ...]
    shown: tuple[Stored, ...]
    overview: Overview


@dataclass(frozen=True, slots=True)
class _Recalled:
    """What is shown of older talk."""

    text: str
    tokens: int
    pieces: tuple[Piece, ...]
    notes: tuple[Reason, ...]


async def context(
    world: World, drive: Drive, scope: Scope, query: str | None, token_limit: int | None
) -> Context:
    """Put together the newest turns and, from before them, what bears on the query."""
    limit = world.settings.max_tokens if token_limit is None else token_limit
    at_least_one("token_limit", limit)
    share = recall_share(limit, world.settings.recall_tokens)
    seen = await drive.call(world.journal.at_once, lambda journal: _look(world, journal, scope, limit, share))
    asked = query if query is not None else _newest_question(seen.shown)
    room = min(share, limit - seen.window.tokens)
    recalled = _Recalled("", 0, (), ())
    if room > 0 and asked and _more_is_known(seen):
        shown = {stored.key for stored in (*seen.leading, *seen.shown)}
        found = await find(world, drive, scope.reach(), asked, seen.overview, most_that_fit(room), shown)
        recalled = await drive.call(_choose, world, found, room)
    return Context(
        system=tuple(stored.message for stored in seen.leading),
        summary=None,
        window=tuple(stored.message for stored in seen.shown),
        recall=recalled.text,
        placement=world.settings.recall_placement,
        pieces=(
            *_pieces("system", seen.leading, seen.window.leading, _KEPT),
            *recalled.pieces,
            *_pieces("window", seen.shown, seen.window.shown, _RECENT),
        ),
        tokens=seen.window.tokens + recalled.tokens,
        token_limit=limit,
        reasons=(*seen.window.reasons, *recalled.notes),
    )


def _look(world: World, journal: Journal, scope: Scope, limit: int, reserved: int) -> _Seen:
    """Read as much of the session's end as fits, never more than a page beyond it."""
    overview = journal.overview(scope.reach())
    session = journal.session(scope)
    if session is None or not session.messages:
        return _Seen(session, _NOTHING, (), (), overview)
    leading = _recounted(world, journal, session, journal.leading(session))
    first = leading[-1].seq + 1 if leading else 0
    page = first_page(session.messages, session.tokens, limit)
    newest: list[Entry] = []
    while True:
        before = newest[-1].seq if newest else None
        entries = journal.tail(session, before, page)
        newest.extend(_recounted(world, journal, session, [entry for entry in entries if entry.seq >= first]))
        if len(entries) < page or entries[-1].seq <= first or enough(newest, limit):
            break
        page *= 2
    chosen = window(leading, newest, limit, reserved=reserved)
    messages = journal.read(session, [entry.seq for entry in (*chosen.leading, *chosen.shown)])
    kept = {entry.seq for entry in chosen.leading}
    return _Seen(
        session,
        chosen,
        tuple(stored for stored in messages if stored.seq in kept),
        tuple(stored for stored in messages if stored.seq not in kept),
        overview,
    )


def _recounted(world: World, journal: Journal, session: Session, entries: Sequence[Entry]) -> list[Entry]:
    """Count again what another counter counted when it was stored."""
    stale = [entry.seq for entry in entries if entry.counter != world.tokens.name]
    if not stale:
        return list(entries)
    counts = {stored.seq: world.tokens.message(stored.message) for stored in journal.read(session, stale)}
    return [replace(entry, tokens=counts.get(entry.seq, entry.tokens)) for entry in entries]


def _newest_question(shown: Sequence[Stored]) -> str:
    return next((stored.message.text for stored in reversed(shown) if stored.message.role == "user"), "")


def _more_is_known(seen: _Seen) -> bool:
    """Tell whether the user has said anything that is not shown already."""
    shown = len(seen.leading) + len(seen.shown)
    here = seen.session.messages if seen.session is not None else 0
    return here > shown or seen.overview.sessions > (1 if here else 0)


def _choose(world: World, found: Found, room: int) -> _Recalled:
    """Take what fits, the best first, and write it down in the order of time."""
    lines: list[str] = []
    costs: list[int] = []

    def priced() -> Iterator[int]:
        for stored, _ in found.ranked:
            lines.append(line(stored))
            costs.append(world.tokens.text(lines[-1]) + 1)
            yield costs[-1]

    places = pack(priced(), room - world.tokens.text(block([""])))
    while True:
        in_time = sorted(places, key=lambda place: _when(found.ranked[place][0]))
        text = block([lines[place] for place in in_time])
        tokens = world.tokens.text(text) if text else 0
        if tokens <= room:
            break
        places.pop()  # a counter whose parts cost less than the whole
    pieces = tuple(
        _piece("recall", found.ranked[place][0], costs[place], found.ranked[place][1].reasons)
        for place in in_time
    )
    return _Recalled(text, tokens, pieces, found.notes)


def _when(stored: Stored) -> tuple[float, int]:
    moment = stored.message.created_at
    return (moment.timestamp() if moment else 0.0, stored.key)


def _pieces(
    kind: PieceKind, messages: Sequence[Stored], entries: Sequence[Entry], reasons: tuple[Reason, ...]
) -> list[Piece]:
    costs = {entry.seq: entry.tokens for entry in entries}
    return [_piece(kind, stored, costs.get(stored.seq, stored.tokens), reasons) for stored in messages]


def _piece(kind: PieceKind, stored: Stored, tokens: int, reasons: tuple[Reason, ...]) -> Piece:
    message = stored.message
    return Piece(
        kind, message.text, tokens, (message.id or "",), message.created_at, message.speaker, reasons
    )
