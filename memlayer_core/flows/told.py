"""Reads what stands for the session's older turns, and the newest turns beside it.

A prompt is cheap as long as it begins like the one before. So a window and the summaries before it change together: the
turns that will have to leave are summed up while they are still shown, and what was written waits until they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.flows.present import Part, Present, present
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Reason
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.policy import Limits
from memlayer_core.records.session import Mark, Session
from memlayer_core.records.summary import Summary
from memlayer_core.rules.budget import recall_share
from memlayer_core.rules.render import summary_block

__all__ = ["evict", "told"]

_PLACE = 0xFFFF_FFFF
_LOOKED_AT = 400  # messages between a summary and the window, for one that neither tells


@dataclass(frozen=True, slots=True)
class _Shown:
    """The summaries that are shown, as one text."""

    part: Part | None = None
    versions: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return _cost(self.part)


@dataclass(frozen=True, slots=True)
class _Known:
    """What stands for the session's older turns.

    Attributes:
        now: The summaries in force.
        standing: Those that stand before the window as long as it begins where it does.
        late: Whether these are the ones in force because the older ones do not reach the window.
    """

    now: Sequence[Summary] = ()
    standing: Sequence[Summary] = ()
    late: bool = False

    @property
    def version(self) -> int:
        """The version as of which `now` is in force."""
        return max((one.version for one in self.now), default=0)

    @property
    def behind(self) -> int:
        """The place behind what is summed up."""
        return _behind(self.now)

    @property
    def stops(self) -> tuple[int, ...]:
        """Places between two summaries, or behind the last one."""
        return tuple(one.until_seq + 1 for one in self.now)


def told(
    world: World,
    journal: Journal,
    session: Session | None,
    waiting: Sequence[Stored],
    limits: Limits,
    reserved: int,
    mark: Mark,
    saying: Sequence[Stored] = (),
    profile: Part | None = None,
) -> Present:
    """Read the newest turns, and the summaries of what lies before them; what is shown is not told twice.

    Args:
        world: Everything.
        journal: On one snapshot.
        session: None before the first message.
        waiting: Temporary messages.
        limits: What is to be kept.
        reserved: Tokens that older turns may not take.
        mark: Where the window begins, before which nothing is read, and what stands before it.
        saying: What is being said, and not stored yet.
        profile: What is told of the user, unless the newest turn needs the room.
    """
    first = max(mark.first, session.begins) if session is not None else 0
    known = _known(world, journal, session, limits, mark)
    left, view = known, known.standing
    shown = _before(world, view, first, limits)
    while True:
        seen = present(
            world,
            journal,
            session,
            waiting,
            limits,
            reserved,
            first,
            spent=shown.tokens + _cost(profile),
            stops=left.stops,
            saying=saying,
        )
        if seen.moved_to is not None:
            view = left.now
        wanted = _before(world, view, _begins(seen, first), limits)
        grows = wanted.versions != shown.versions
        beside = _cost(profile)
        if (shown.part or profile) is not None and seen.tokens + shown.tokens + beside > limits.tokens:
            # The newest turn goes before everything.
            left, view, wanted, profile = _Known(), (), _Shown(), None
        elif not grows or seen.tokens + reserved + wanted.tokens + beside <= limits.tokens:
            break
        shown = wanted
    begins = None
    if seen.moved_to is not None:
        begins = Mark(seen.moved_to, known.version)
    elif known.late:
        begins = Mark(first, known.version)
    return replace(
        seen,
        profile=(profile,) if profile is not None else (),
        summary=(wanted.part,) if wanted.part is not None else (),
        summarized_to=known.behind,
        begins=begins,
    )


def _cost(part: Part | None) -> int:
    return part.tokens if part is not None else 0


def evict(world: World, session: Session | None, seen: Present, first: int) -> None:
    """Let what lies before the window be summed up, and what will leave it next, if that is worth it.

    A window that keeps a limit of tokens moves in large steps, and each is summed up ahead of time. One that keeps a
    number of messages or rounds moves with every turn: some turns are waited for.
    """
    if world.evicted is None or session is None or session.superseded:
        return
    begins = _begins(seen, first)
    behind = max(seen.summarized_to, session.begins)
    stepped = seen.moved_to is not None or first > behind
    if seen.ahead is not None and behind <= begins:
        world.evicted(session.number, seen.ahead)
    elif begins > behind and (stepped or begins - behind >= world.settings.summary_batch):
        world.evicted(session.number, begins)


def _known(world: World, journal: Journal, session: Session | None, limits: Limits, mark: Mark) -> _Known:
    """Return the summaries in force, and those that were when the window was given its beginning.

    Newer ones stand before a window that slides from turn to turn, and before one that moved before they were ready.
    """
    if session is None or not session.summary_version or world.evicted is None:
        return _Known()
    now = _of(session, journal.summaries(session))
    if limits.slides or all(one.version <= mark.version for one in now):
        return _Known(now, now)
    then = _of(session, journal.summaries(session, as_of=mark.version))
    behind = max(_behind(then), session.begins)
    late = behind < _behind(now) and _untold(journal, session, behind, mark.first)
    return _Known(now, now if late else then, late)


def _of(session: Session, found: Sequence[Summary]) -> list[Summary]:
    return [one for one in found if one.first_seq >= session.begins]


def _behind(told: Sequence[Summary]) -> int:
    return told[-1].until_seq + 1 if told else 0


def _untold(journal: Journal, session: Session, behind: int, first: int) -> bool:
    """Tell whether a model may be told anything of what lies between a summary and the window."""
    if behind >= first:
        return False
    between = journal.tail(session, first, min(first - behind, _LOOKED_AT), behind)
    return any(entry.role != "system" and not entry.hidden for entry in between)


def _begins(seen: Present, first: int) -> int:
    at = seen.moved_to if seen.moved_to is not None else first
    return next((part.keys[0] & _PLACE for part in seen.window if part.keys), at)


def _before(world: World, known: Sequence[Summary], begins: int, limits: Limits) -> _Shown:
    """Return the summaries that begin before the window, as many of the newest as there is room for."""
    wanted = [one for one in known if one.first_seq < begins]
    room = recall_share(limits.tokens, world.settings.summary_tokens)
    while wanted:
        message = Message("user", summary_block([one.text for one in wanted]))
        tokens = world.tokens.message(message)
        if tokens <= room:
            reasons = tuple(_reason(one) for one in wanted)
            if wanted[0] is not known[0]:
                left = sum(one.first_seq < wanted[0].first_seq for one in known)
                reasons += (
                    Reason(
                        "summaries_left_out", f"{left} older summaries left out: {room} tokens are for all"
                    ),
                )
            return _Shown(Part(message, (), (), tokens, reasons), tuple(one.version for one in wanted))
        wanted = wanted[1:]
    return _Shown()


def _reason(summary: Summary) -> Reason:
    kind = "overview" if summary.level else "episode"
    by = f"by {summary.model}" if summary.method == "model" else "extracted"
    said = f"version {summary.version}, {kind} of messages {summary.first_seq} to {summary.until_seq}"
    return Reason("summary", f"{said}, {by}, score {summary.score:.2f}")
