"""Reads memory: what a model is told for one call. Reading never changes what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.drive import Drive
from memlayer_core.flows.recall import Answers, ask, best
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Context, Piece, PieceKind, Reason
from memlayer_core.records.message import Entry, Stored
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Overview, Session
from memlayer_core.rules.budget import MARGIN, most_that_fit, pack, recall_share
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.render import block, line
from memlayer_core.rules.window import Window, enough, first_page, window

__all__ = ["context"]

_NOTHING = Window((), (), 0, ())
_KEPT = (Reason("leading_system", "the session's own instructions are always shown"),)
_FEW = 8  # the user nearly always spoke within the last so many messages
_RECENT = (Reason("recent", "one of the newest whole turns"),)


@dataclass(frozen=True, slots=True)
class _Known:
    """What decides whether anything is to be recalled, and how."""

    session: Session | None
    overview: Overview
    asked: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of the present session that is shown."""

    window: Window
    leading: tuple[Stored, ...]
    shown: tuple[Stored, ...]


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
    known = await drive.call(world.journal.at_once, lambda journal: _begin(journal, scope, query))

    def look(journal: Journal) -> _Seen:
        return _look(world, journal, known.session, limit, share)

    recalled = _Recalled("", 0, (), ())
    if share and known.asked and _more_is_known(known, limit - share):
        reach = scope.reach()
        answers = await ask(
            world, drive, reach, known.asked, known.overview, most_that_fit(share), beside=look
        )
        seen = answers.beside
        recalled = await drive.call(_recall, world, reach, answers, min(share, limit - seen.window.tokens))
    else:
        seen = await drive.call(world.journal.at_once, look)
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


def _begin(journal: Journal, scope: Scope, query: str | None) -> _Known:
    """Read what there is, and the newest question unless the caller names one."""
    session = journal.session(scope)
    asked = query if query is not None else _newest_question(journal, session) if session else ""
    return _Known(session, journal.overview(scope.reach()), asked)


def _newest_question(journal: Journal, session: Session) -> str:
    """Return what the user said last, however many tools ran since."""
    before, page = None, _FEW
    while True:
        entries = journal.tail(session, before, page)
        for entry in entries:
            if entry.role == "user":
                return next((stored.message.text for stored in journal.read(session, [entry.seq])), "")
        if len(entries) < page:
            return ""
        before, page = entries[-1].seq, 2 * page


def _look(world: World, journal: Journal, session: Session | None, limit: int, reserved: int) -> _Seen:
    """Read as much of the session's end as fits, never more than a page beyond it."""
    if session is None or not session.messages:
        return _Seen(_NOTHING, (), ())
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
        chosen,
        tuple(stored for stored in messages if stored.seq in kept),
        tuple(stored for stored in messages if stored.seq not in kept),
    )


def _recounted(world: World, journal: Journal, session: Session, entries: Sequence[Entry]) -> list[Entry]:
    """Count again what another counter counted when it was stored."""
    stale = [entry.seq for entry in entries if entry.counter != world.tokens.name]
    if not stale:
        return list(entries)
    counts = {stored.seq: world.tokens.message(stored.message) for stored in journal.read(session, stale)}
    return [replace(entry, tokens=counts.get(entry.seq, entry.tokens)) for entry in entries]


def _more_is_known(known: _Known, room: int) -> bool:
    """Tell whether the user may have said anything that the window does not show."""
    here = known.session.messages if known.session is not None else 0
    spent = known.session.tokens if known.session is not None else 0
    # Half, because another counter may have counted what was stored.
    return known.overview.sessions > (1 if here else 0) or spent > room // 2


def _recall(world: World, reach: Scope, answers: Answers[_Seen], room: int) -> _Recalled:
    """Take what fits, the best first, and write it down in the order of time."""
    seen = answers.beside
    shown = {stored.key for stored in (*seen.leading, *seen.shown)}
    found = best(world, reach, answers, most_that_fit(room), shown) if room > 0 else []
    if not found:
        return _Recalled("", 0, (), answers.notes)
    expected = (stored.tokens + MARGIN for stored, _ in found)
    chosen = [found[place] for place in pack(expected, room - world.tokens.text(block([""])))]
    while True:
        in_time = sorted(chosen, key=lambda item: _when(item[0]))
        lines = [line(stored) for stored, _ in in_time]
        text = block(lines)
        tokens = world.tokens.text(text) if text else 0
        if tokens <= room:
            break
        chosen.pop()  # its date and name cost more than expected, or another counter counted it
    pieces = tuple(
        _piece("recall", stored, world.tokens.text(said), ranked.reasons)
        for said, (stored, ranked) in zip(lines, in_time, strict=True)
    )
    return _Recalled(text, tokens, pieces, answers.notes)


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
