"""Reads memory: what a model is told for one call. Reading never changes what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.drive import Drive
from memlayer_core.flows.ground import Ground, packed, survey
from memlayer_core.flows.present import Part, Present
from memlayer_core.flows.profile import profile
from memlayer_core.flows.recall import Answers, ask, best
from memlayer_core.flows.remember import drafts_of, unplaced
from memlayer_core.flows.told import evict, told
from memlayer_core.ports import Draft, Journal, World
from memlayer_core.records.context import Context, Piece, Placement, Reason
from memlayer_core.records.message import Beside, Stored
from memlayer_core.records.policy import Limits
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Mark, Session
from memlayer_core.rules.budget import MARGIN, most_that_fit, recall_share
from memlayer_core.rules.policy import Policies, limits, placed_where
from memlayer_core.rules.rank import worth_telling
from memlayer_core.rules.render import block, in_front, line
from memlayer_core.rules.saying import unsaid
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
    new: Sequence[Stored] = ()
    profile: Part | None = None

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
    placement: Placement | None = None,
    saying: object = (),
) -> Context:
    """Put together the newest turns and, from before them, what bears on the query.

    Args:
        world: Everything.
        drive: How to get things done.
        scope: Which session.
        query: What to recall for; None: what is being asked.
        token_limit: Tokens of the whole.
        policies: What else is to be kept.
        roles: The roles in which the user asks.
        placement: Where recalled text stands; None: where the setting says.
        saying: Messages that are being said, and are not stored yet.
    """
    settings = world.settings
    placed = placed_where(placement, settings.recall_placement)
    default = Limits(settings.max_tokens, settings.max_messages, settings.max_rounds)
    allowed = limits(default, policies, token_limit)
    size = size_of(allowed.tokens)
    share = recall_share(allowed.tokens, settings.recall_tokens)
    drafts = await drive.call(drafts_of, world, saying) if saying else []
    known = await drive.call(
        world.journal.at_once, lambda journal: _begin(world, journal, scope, query, allowed, roles, drafts)
    )
    waiting = world.temporaries.show(scope)
    asks = bool(share and known.asked and not known.stands and _more_is_known(known, allowed))

    def look(journal: Journal, reserved: int = 0) -> Present:
        return told(
            world, journal, known.session, waiting, allowed, reserved, known.mark, known.new, known.profile
        )

    async def found(reserved: int) -> Answers[Present]:
        answers = await ask(
            world,
            drive,
            known.ground,
            known.asked,
            most_that_fit(share),
            beside=lambda journal: look(journal, reserved),
            shown=lambda seen: seen.keys,
        )
        telling = worth_telling(answers.ranked, known.asked, answers.trust, known.ground.vectors)
        return replace(answers, ranked=telling)

    recalled = _Recalled()
    if asks:
        reach = scope.reach()
        answers = await found(0)
        recalled = await drive.call(_recall, world, reach, answers, share)
        if answers.beside.tokens + recalled.tokens > allowed.tokens:
            # Older turns make room for it, and may then be what is recalled.
            answers = await found(recalled.tokens)
            room = min(share, allowed.tokens - answers.beside.tokens)
            recalled = await drive.call(_recall, world, reach, answers, room)
        seen = answers.beside
    else:
        seen = await drive.call(world.journal.at_once, look)
    if seen.begins is not None and known.session is not None:
        await drive.call(world.journal.move_mark, known.session.number, size, seen.begins)
    world.accessed([key for key in recalled.sources if key < 0])
    beside = _beside(world, known, recalled) if asks and placed == "user" else None
    if not known.new:
        world.temporaries.recalled(scope, beside)
    evict(world, known.session, seen, known.first)
    return Context(
        system=tuple(part.message for part in seen.system),
        profile=next((part.message for part in seen.profile), None),
        summary=next((part.message for part in seen.summary), None),
        window=tuple(part.message for part in seen.window if part.keys),
        saying=tuple(part.message for part in seen.window if not part.keys),
        temporary=tuple(part.message for part in seen.temporary),
        recall=recalled.text,
        kept={at: part.beside.text for at, part in enumerate(seen.window) if part.beside is not None},
        placement=placed,
        pieces=(
            *(piece for part in seen.system for piece in part.pieces("system")),
            *(piece for part in seen.profile for piece in part.pieces("profile")),
            *(piece for part in seen.summary for piece in part.pieces("summary")),
            *recalled.pieces,
            *(piece for part in seen.window for piece in part.pieces("window")),
            *(piece for part in seen.temporary for piece in part.pieces("temporary")),
        ),
        tokens=seen.tokens + recalled.tokens,
        token_limit=allowed.tokens,
        reasons=(*seen.reasons, *recalled.notes),
        beside=beside,
        scope=scope,
    )


def _begin(
    world: World,
    journal: Journal,
    scope: Scope,
    query: str | None,
    allowed: Limits,
    roles: Sequence[str],
    drafts: Sequence[Draft],
) -> _Known:
    """Read what there is, and the newest question unless the caller names one."""
    session = journal.session(scope)
    ground = survey(world, journal, scope.reach(), roles)
    new: Sequence[Stored] = [unplaced(scope, draft) for draft in drafts]
    named = [draft.message.id or "" for draft in drafts if draft.given_id]
    if session is not None and named:
        new = unsaid(new, journal.places(session, named), session.next_seq)
    asking = (one for one in reversed(new) if one.message.role == "user" and one.message.model_visible)
    question, recalled = next(asking, None), False
    if question is None and session is not None:
        question, recalled = _newest_question(journal, session)
    said = question.message.text if question is not None else ""
    return _Known(
        session,
        ground,
        journal.mark(session, size_of(allowed.tokens)) if session is not None else Mark(),
        question if query in {None, said} else None,
        stands=recalled and query in {None, said},
        asked=said if query is None else query,
        new=new,
        profile=profile(world, journal, ground, allowed.tokens) if query != "" else None,
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
    return session.tokens + sum(one.tokens for one in known.new) > allowed.tokens // 2


def _recall(world: World, reach: Scope, answers: Answers[Present], room: int) -> _Recalled:
    """Take what fits, the best first, and write it down in the order of time."""
    shown = answers.beside
    said = (part.message for part in shown.window)
    found = best(world, reach, answers, most_that_fit(room), said) if room > 0 else []
    if not found:
        return _Recalled(notes=answers.notes)
    left = room - world.tokens.text(in_front(block([""])))
    chosen = packed(world, found, room, left, lambda stored: stored.tokens + MARGIN)
    while True:
        in_time = sorted(chosen, key=lambda item: _when(item[0]))
        lines = [line(stored) for stored, _ in in_time]
        text = block(lines)
        tokens = world.tokens.text(in_front(text)) if text else 0
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
    if known.question is None:
        return None
    return Beside(known.question.key, recalled.text, recalled.tokens, world.tokens.name, recalled.sources)


def _when(stored: Stored) -> tuple[float, int]:
    moment = stored.message.created_at
    return (moment.timestamp() if moment else 0.0, stored.key)
