"""Reads the window of a session and the summaries of the turns before it.

A provider caches a prompt that begins like the one before. So the window and the summaries before it change together:
turns are summarized while they are still in the window, and the summary is used only when they leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.model import Session, WindowStart
from memlayer_core.messages.rules.render import summary_block
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import Limits, quarter_at_most
from memlayer_core.recall.model import Reason
from memlayer_core.runtime import Runtime
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.summaries.model import Summary
from memlayer_core.summaries.rules.extract import extract
from memlayer_core.summaries.rules.prompt import lines_of_summary
from memlayer_core.window.flow.entries import Page
from memlayer_core.window.flow.parts import Part, WindowView
from memlayer_core.window.flow.window_view import read_window

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["ask_summaries", "evict", "first_of", "read_view"]

_PLACE = 0xFFFF_FFFF
_LOOKED_AT = 400  # messages between the summaries and the window that are checked for a gap


@dataclass(frozen=True, slots=True)
class _SummaryPart:
    """The summaries in a context, as one text. `first` is where the oldest one begins that is no overview."""

    part: Part | None = None
    versions: tuple[int, ...] = ()
    first: int | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def tokens(self) -> int:
        return _cost(self.part)


@dataclass(frozen=True, slots=True)
class _Summaries:
    """The summaries of a session's older turns.

    Attributes:
        now: The summaries in force.
        before_window: The summaries that belong to the present window start.
        overdue: Whether `now` replaces them because they do not reach the window.
    """

    now: Sequence[Summary] = ()
    before_window: Sequence[Summary] = ()
    overdue: bool = False

    @property
    def version(self) -> int:
        """The newest version in `now`."""
        return max((one.version for one in self.now), default=0)

    @property
    def behind(self) -> int:
        """The place behind the last message that is summarized."""
        return _behind(self.now)

    @property
    def stops(self) -> tuple[int, ...]:
        """Places between two summaries, or behind the last one."""
        return tuple(one.until_seq + 1 for one in self.now)


def read_view(
    connection: Connection,
    rt: Runtime,
    session: Session | None,
    temporary: Sequence[StoredMessage],
    limits: Limits,
    reserve: int,
    window_start: WindowStart,
    page: Page,
    pending: Sequence[StoredMessage] = (),
    profile: Part | None = None,
    recall_tokens: int = 0,
) -> WindowView:
    """Read the newest turns and the summaries of what lies before them.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        session: None before the first message.
        temporary: Temporary messages.
        limits: What the window keeps within.
        reserve: Tokens that older turns leave free.
        window_start: Where the window begins, and the version of the summaries before it.
        page: The session's last page from there on.
        pending: Messages that are not stored yet.
        profile: The profile; left out if the newest turn needs the tokens.
        recall_tokens: Tokens of a recall that stays.
    """
    first = max(window_start.first, session.memory_start) if session is not None else 0
    known = _summaries_of(connection, rt, session, limits, window_start)
    left, view = known, known.before_window
    outranked: tuple[Reason, ...] = ()
    shown = _before(rt, view, first, limits)
    while True:
        seen = read_window(
            connection,
            rt,
            session,
            temporary,
            limits,
            reserve,
            first,
            page,
            overhead=shown.tokens + _cost(profile) + recall_tokens,
            stops=left.stops,
            pending=pending,
        )
        if seen.new_first is not None:
            view = left.now
        wanted = _before(rt, view, first_of(seen, first), limits)
        grows = wanted.versions != shown.versions
        beside = _cost(profile) + recall_tokens
        if (shown.part or profile) is not None and seen.tokens + shown.tokens + beside > limits.tokens:
            # The newest turn has precedence over everything.
            outranked += _omissions(shown, profile)
            left, view, wanted, profile = _Summaries(), (), _SummaryPart(), None
        elif not grows or seen.tokens + reserve + wanted.tokens + beside <= limits.tokens:
            break
        shown = wanted
    begins = None
    if seen.new_first is not None:
        begins = WindowStart(seen.new_first, known.version)
    elif known.overdue:
        begins = WindowStart(first, known.version)
    return replace(
        seen,
        reasons=(*seen.reasons, *wanted.notes, *outranked),
        profile=(profile,) if profile is not None else (),
        summary=(wanted.part,) if wanted.part is not None else (),
        summary_first=wanted.first,
        summary_end=known.behind,
        start=begins,
    )


def _omissions(summaries: _SummaryPart, profile: Part | None) -> tuple[Reason, ...]:
    """Return why summaries and profile are left out."""
    said = "left out: the newest turn needs the room"
    missing = [Reason("summaries_left_out", f"all summaries {said}")] if summaries.part is not None else []
    if profile is not None:
        missing.append(Reason("profile_left_out", f"{len(profile.keys)} record(s) of the profile {said}"))
    return tuple(missing)


def _cost(part: Part | None) -> int:
    return part.tokens if part is not None else 0


def evict(rt: Runtime, session: Session | None, view: WindowView, first: int) -> None:
    """Request summaries of turns that left the window, or will leave it next, if there are enough.

    A window with a token limit moves in large steps, and each step is summarized ahead of time. One with a limit of
    messages or rounds moves with every turn; it is summarized when `Settings.summary_batch` messages have left it.
    """
    if rt.note_eviction is None or session is None or session.superseded:
        return
    begins = first_of(view, first)
    behind = max(view.summary_end, session.memory_start)
    stepped = view.new_first is not None or first > behind
    if view.next_start is not None and behind <= begins:
        rt.note_eviction(session.number, view.next_start)
    elif begins > behind and (stepped or begins - behind >= rt.settings.summary_batch):
        rt.note_eviction(session.number, begins)


def ask_summaries(connection: Connection, session: Session) -> None:
    """Send to a server ahead of need what a view reads first, besides the newest messages."""
    if session.summary_version:
        summaries_sql.ask(connection, session.number)
    if session.instructions is not None:
        transcript.ask(connection, session, session.instructions & _PLACE)


def _summaries_of(
    connection: Connection, rt: Runtime, session: Session | None, limits: Limits, window_start: WindowStart
) -> _Summaries:
    """Return the summaries in force now, and those in force when the window got its start.

    The newer ones are used if the window slides from turn to turn, or if it moved before they were ready.
    """
    if session is None or not session.summary_version or rt.note_eviction is None:
        return _Summaries()
    now = _of(session, summaries_sql.in_force(connection, session.number))
    if limits.slides or all(one.version <= window_start.version for one in now):
        return _Summaries(now, now)
    then = _of(session, summaries_sql.as_of(connection, session.number, window_start.version))
    behind = max(_behind(then), session.memory_start)
    late = behind < _behind(now) and _has_gap(connection, session, behind, window_start.first)
    return _Summaries(now, now if late else then, late)


def _of(session: Session, summaries: Sequence[Summary]) -> list[Summary]:
    return [one for one in summaries if one.first_seq >= session.memory_start]


def _behind(summaries: Sequence[Summary]) -> int:
    return summaries[-1].until_seq + 1 if summaries else 0


def _has_gap(connection: Connection, session: Session, behind: int, first: int) -> bool:
    """Tell whether visible messages lie between the summaries and the window."""
    if behind >= first:
        return False
    between = transcript.tail(connection, session, first, min(first - behind, _LOOKED_AT), behind)
    return any(entry.role != "system" and not entry.hidden for entry in between)


def first_of(view: WindowView, first: int) -> int:
    """Return the place of the first turn in the window; without one, the window start."""
    at = view.new_first if view.new_first is not None else first
    return next((part.keys[0] & _PLACE for part in view.window if part.keys), at)


def _before(rt: Runtime, summaries: Sequence[Summary], begins: int, limits: Limits) -> _SummaryPart:
    """Return as many of the newest summaries before the window as fit.

    If the newest one alone does not fit, its most informative sentences stand for it.
    """
    before = [one for one in summaries if one.first_seq < begins]
    wanted = [one for one in before if one.text.strip()]
    if not wanted:
        said = "the messages that left the window have no text, and their summary is left out"
        return _SummaryPart(notes=(Reason("summary_empty", said),) if before else ())
    room = quarter_at_most(limits.tokens, rt.settings.summary_tokens)
    for first in range(len(wanted)):
        shown = wanted[first:]
        message = Message("user", summary_block([one.text for one in shown]))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            reasons = (*map(_reason, shown), *_left_out(first, room))
            versions = tuple(one.version for one in shown)
            begins_at = next((one.first_seq for one in shown if not one.level), None)
            return _SummaryPart(Part(message, versions, (), tokens, reasons), versions, begins_at)
    newest, older = wanted[-1], _left_out(len(wanted) - 1, room)
    shorter = _shorten(rt, newest.text, room)
    if shorter is None:
        said = f"no sentence of the summaries fits into {room} tokens"
        return _SummaryPart(notes=(Reason("summaries_left_out", said),))
    message, tokens = shorter
    short = Reason("summary_shortened", f"its most informative sentences, within {room} tokens")
    versions = (newest.version,)
    return _SummaryPart(Part(message, versions, (), tokens, (_reason(newest), short, *older)), versions)


def _shorten(rt: Runtime, text: str, budget: int) -> tuple[Message, int] | None:
    """Return a message of the most informative sentences of a summary that fit, and its tokens."""
    left = budget - rt.tokens.message(Message("user", summary_block([""])))
    while left > 0 and (chosen := extract(lines_of_summary(text), left, rt.tokens.text).text):
        message = Message("user", summary_block([chosen]))
        tokens = rt.tokens.message(message)
        if tokens <= budget:
            return message, tokens
        left -= tokens - budget
    return None


def _left_out(older: int, budget: int) -> tuple[Reason, ...]:
    said = f"{older} older summaries left out: {budget} tokens are for all"
    return (Reason("summaries_left_out", said, older),) if older else ()


def _reason(summary: Summary) -> Reason:
    kind = "overview" if summary.level else "summary"
    by = f"by {summary.model}" if summary.method == "model" else "extracted"
    said = f"version {summary.version}, {kind} of messages {summary.first_seq} to {summary.until_seq}"
    held = f"; held against what the model answered: {', '.join(summary.faults)}" if summary.faults else ""
    return Reason("summary", f"{said}, {by}, score {summary.score:.2f}{held}", summary.score)
