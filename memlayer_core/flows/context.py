"""Reads memory: what a model is told for one call. Reading never changes what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.drive import Drive
from memlayer_core.flows.ground import Ground, survey
from memlayer_core.flows.present import Present
from memlayer_core.flows.recall import Answers, ask, best
from memlayer_core.flows.told import evict, told
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Context, Piece, Reason
from memlayer_core.records.message import Beside, Stored
from memlayer_core.records.policy import Limits
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Mark, Session
from memlayer_core.rules.budget import MARGIN, most_that_fit, pack, recall_share
from memlayer_core.rules.policy import Policies, limits
from memlayer_core.rules.rank import telling
from memlayer_core.rules.render import block, line
from memlayer_core.rules.window import size_of

__all__ = ["context"]

_FEW = 8  # the user nearly always spoke within the last so many messages


@dataclass(frozen=True, slots=True)
class _Known:
    """What decides whether anything is to be recalled, and how."""

    session: Session | None
    ground: Ground
    mark: Mark
    question: Stored | None
    stands: bool
    asked: str

    @property
    def first(self) -> int:
        """Where the window begins: behind what was ended, and behind what was left out before."""
        return max(self.mark.first, self.session.begins) if self.session is not None else 0


@dataclass(frozen=True, slots=True)
class _Recalled:
    """What is shown of older talk."""

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    notes: tuple[Reason, ...] = ()
    sources: tuple[int, ...] = ()


async def context(
    world: World,
    drive: Drive,
    scope: Scope,
    query: str | None,
    token_limit: int | None,
    policies: Policies | None,
    roles: Sequence[str] = (),
) -> Context:
    """Put together the newest turns and, from before them, what bears on the query."""
    settings = world.settings
    default = Limits(settings.max_tokens, settings.max_messages, settings.max_rounds)
    allowed = limits(default, policies, token_limit)
    size = size_of(allowed.tokens)
    share = recall_share(allowed.tokens, settings.recall_tokens)
    known = await drive.call(
        world.journal.at_once, lambda journal: _begin(world, journal, scope, query, size, roles)
    )
    waiting = world.temporaries.show(scope)
    asks = bool(share and known.asked and not known.stands and _more_is_known(known, allowed))

    def look(journal: Journal, reserved: int = 0) -> Present:
        return told(world, journal, known.session, waiting, allowed, reserved, known.mark)

    recalled = _Recalled()
    if asks:
        reach = scope.reach()
        answers = await ask(
            world,
            drive,
            known.ground,
            known.asked,
            most_that_fit(share),
            beside=look,
            shown=lambda seen: seen.keys,
        )
        answers = replace(
            answers, ranked=telling(answers.ranked, known.asked, answers.trust, known.ground.vectors)
        )
        seen = answers.beside
        recalled = await drive.call(_recall, world, reach, answers, share)
        if seen.tokens + recalled.tokens > allowed.tokens:  # older turns make room for it
            needed = recalled.tokens
            seen = await drive.call(world.journal.at_once, lambda journal: look(journal, needed))
            room = min(share, allowed.tokens - seen.tokens)
            recalled = await drive.call(_recall, world, reach, replace(answers, beside=seen), room)
    else:
        seen = await drive.call(world.journal.at_once, look)
    if seen.begins is not None and known.session is not None:
        await drive.call(world.journal.move_mark, known.session.number, size, seen.begins)
    world.accessed([key for key in recalled.sources if key < 0])
    world.temporaries.recalled(scope, _beside(world, known, recalled) if asks else None)
    evict(world, known.session, seen, known.first)
    return Context(
        system=tuple(part.message for part in seen.system),
        summary=next((part.message for part in seen.summary), None),
        window=tuple(part.message for part in seen.window),
        temporary=tuple(part.message for part in seen.temporary),
        recall=recalled.text,
        kept={at: part.beside.text for at, part in enumerate(seen.window) if part.beside is not None},
        placement=settings.recall_placement,
        pieces=(
            *(piece for part in seen.system for piece in part.pieces("system")),
            *(piece for part in seen.summary for piece in part.pieces("summary")),
            *recalled.pieces,
            *(piece for part in seen.window for piece in part.pieces("window")),
            *(piece for part in seen.temporary for piece in part.pieces("temporary")),
        ),
        tokens=seen.tokens + recalled.tokens,
        token_limit=allowed.tokens,
        reasons=(*seen.reasons, *recalled.notes),
    )


def _begin(
    world: World, journal: Journal, scope: Scope, query: str | None, size: int, roles: Sequence[str]
) -> _Known:
    """Read what there is, and the newest question unless the caller names one."""
    session = journal.session(scope)
    ground = survey(world, journal, scope.reach(), roles)
    if session is None:
        return _Known(None, ground, Mark(), None, stands=False, asked=query or "")
    question, recalled = _newest_question(journal, session)
    said = question.message.text if question is not None else ""
    return _Known(
        session,
        ground,
        journal.mark(session, size),
        question if query in {None, said} else None,
        stands=recalled and query in {None, said},
        asked=said if query is None else query,
    )


def _newest_question(journal: Journal, session: Session) -> tuple[Stored | None, bool]:
    """Return what the user said last, however many tools ran since, and whether recalled text stands with it."""
    before, page = None, _FEW
    while True:
        entries = journal.tail(session, before, page, session.begins)
        for entry in entries:
            if entry.role == "user" and not entry.hidden:
                return next(iter(journal.read(session, [entry.seq])), None), entry.beside is not None
        if len(entries) < page:
            return None, False
        before, page = entries[-1].seq, 2 * page


def _more_is_known(known: _Known, allowed: Limits) -> bool:
    """Tell whether the user may have said anything that the window does not show."""
    session = known.session
    if session is None or not session.messages:
        return known.ground.own.sessions > 0 or known.ground.has_records
    if (
        known.ground.own.sessions > 1
        or known.ground.has_records
        or known.first
        or (allowed.messages, allowed.rounds) != (None, None)
    ):
        return True
    # Half, because another counter may have counted what was stored.
    return session.tokens > allowed.tokens // 2


def _recall(world: World, reach: Scope, answers: Answers[Present], room: int) -> _Recalled:
    """Take what fits, the best first, and write it down in the order of time."""
    shown = answers.beside
    said = (part.message for part in shown.window)
    found = best(world, reach, answers, most_that_fit(room), shown.keys, said) if room > 0 else []
    if not found:
        return _Recalled(notes=answers.notes)
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
        Piece(
            "recall",
            stored.message.text,
            world.tokens.text(said),
            (stored.message.id or "",),
            stored.message.created_at,
            stored.message.speaker,
            ranked.reasons,
        )
        for said, (stored, ranked) in zip(lines, in_time, strict=True)
    )
    return _Recalled(text, tokens, pieces, answers.notes, tuple(stored.key for stored, _ in in_time))


def _beside(world: World, known: _Known, recalled: _Recalled) -> Beside | None:
    """Return what will stand with the question once a model has answered it."""
    if known.question is None or world.settings.recall_placement != "user":
        return None
    return Beside(known.question.key, recalled.text, recalled.tokens, world.tokens.name, recalled.sources)


def _when(stored: Stored) -> tuple[float, int]:
    moment = stored.message.created_at
    return (moment.timestamp() if moment else 0.0, stored.key)
