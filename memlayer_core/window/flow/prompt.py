"""Reads the window of a session and the summary of the turns before it.

A provider caches a prompt that begins like the one before. So the window and the summary before it change together:
turns are summed up while they are still in the window, and the summary is used only when they leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memlayer_core.message import Message, StoredMessage
from memlayer_core.messages.model import Session, WindowStart, beginning
from memlayer_core.messages.rules.render import summary_block
from memlayer_core.messages.sql import transcript
from memlayer_core.policy import Limits, quarter_at_most
from memlayer_core.recall.model import Reason
from memlayer_core.runtime import Runtime
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.summaries.model import BATCH, Summary
from memlayer_core.window.flow.entries import Page
from memlayer_core.window.flow.parts import Part, WindowView
from memlayer_core.window.flow.window_view import read_window

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["ask_summaries", "due_place", "first_of", "read_view"]

_PLACE = 0xFFFF_FFFF
_LOOKED_AT = 400  # messages between the summaries and the window that are checked for a gap


@dataclass(frozen=True, slots=True)
class _SummaryPart:
    """The summary in a context. `first` is the place where it begins."""

    part: Part | None = None
    version: int = 0
    first: int | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def tokens(self) -> int:
        return _cost(self.part)


@dataclass(frozen=True, slots=True)
class _Summaries:
    """The summaries of a session's older turns.

    Attributes:
        now: The summary in force.
        before_window: The one that belongs to the present window start.
        overdue: Whether `now` replaces it because it does not reach the window.
    """

    now: Summary | None = None
    before_window: Summary | None = None
    overdue: bool = False

    @property
    def version(self) -> int:
        """The version of `now`."""
        return self.now.version if self.now is not None else 0

    @property
    def behind(self) -> int:
        """The place behind the last message that is summed up."""
        return _behind(self.now)


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
    """Read the newest turns and the summary of what lies before them.

    Args:
        connection: On one snapshot.
        rt: What the memory works with.
        session: None before the first message.
        temporary: Temporary messages.
        limits: What the window keeps within.
        reserve: Tokens that older turns leave free.
        window_start: Where the window begins, and the version of the summary before it.
        page: The session's last page from there on.
        pending: Messages that are not stored yet.
        profile: The profile; left out if the newest turn needs the tokens.
        recall_tokens: Tokens of a recall that stays.
    """
    first = max(window_start.first, session.memory_start) if session is not None else 0
    known = _summaries_of(connection, session, limits, window_start)
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
            stops=(left.behind,) if left.now is not None else (),
            pending=pending,
        )
        if seen.new_first is not None:
            view = left.now
        wanted = _before(rt, view, first_of(seen, first), limits)
        grows = wanted.version != shown.version
        beside = _cost(profile) + recall_tokens
        if (shown.part or profile) is not None and seen.tokens + shown.tokens + beside > limits.tokens:
            # The newest turn has precedence over everything.
            outranked += _omissions(shown, profile)
            left, view, wanted, profile = _Summaries(), None, _SummaryPart(), None
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


def _omissions(summary: _SummaryPart, profile: Part | None) -> tuple[Reason, ...]:
    """Return why summary and profile are left out."""
    said = "left out: the newest turn needs the room"
    missing = [Reason("summary_left_out", f"the summary {said}")] if summary.part is not None else []
    if profile is not None:
        missing.append(Reason("profile_left_out", f"{len(profile.keys)} record(s) of the profile {said}"))
    return tuple(missing)


def _cost(part: Part | None) -> int:
    return part.tokens if part is not None else 0


def due_place(session: Session, view: WindowView, first: int) -> int | None:
    """Return the place before which turns have left the window, or will leave it next, if it is to be noted: there are enough.

    A window with a token limit moves in large steps, and each step is summed up ahead of time. One with a limit of
    messages or rounds moves with every turn; it is summed up when `BATCH` messages have left it.
    """
    if session.superseded:
        return None
    begins = first_of(view, first)
    known = max(view.summary_end, session.memory_start, session.summary_due)
    stepped = view.new_first is not None or first > known
    if view.next_start is not None and known <= begins:
        return view.next_start
    return begins if begins > known and (stepped or begins - known >= BATCH) else None


def ask_summaries(connection: Connection, session: Session) -> None:
    """Send to a server ahead of need what a view reads first, besides the newest messages."""
    if session.summary_version:
        summaries_sql.ask(connection, session.number)
    if session.instructions is not None:
        transcript.ask(connection, session, session.instructions & _PLACE)


def _summaries_of(
    connection: Connection, session: Session | None, limits: Limits, window_start: WindowStart
) -> _Summaries:
    """Return the summary in force now, and the one in force when the window got its start.

    The newer one is used if the window slides from turn to turn, or if it moved before that was ready.
    """
    if session is None or not session.summary_version:
        return _Summaries()
    now = summaries_sql.in_force(connection, session)
    if now is None or limits.slides or now.version <= window_start.version:
        return _Summaries(now, now)
    then = summaries_sql.as_of(connection, session, window_start.version)
    behind = max(_behind(then), session.memory_start)
    late = behind < _behind(now) and _has_gap(connection, session, behind, window_start.first)
    return _Summaries(now, now if late else then, late)


def _behind(summary: Summary | None) -> int:
    return summary.until_seq + 1 if summary is not None else 0


def _has_gap(connection: Connection, session: Session, behind: int, first: int) -> bool:
    """Tell whether visible messages lie between the summary and the window."""
    if behind >= first:
        return False
    between = transcript.tail(connection, session, first, min(first - behind, _LOOKED_AT), behind)
    return any(entry.role != "system" and not entry.hidden for entry in between)


def first_of(view: WindowView, first: int) -> int:
    """Return the place of the first turn in the window; without one, the window start."""
    at = view.new_first if view.new_first is not None else first
    return next((part.keys[0] & _PLACE for part in view.window if part.keys), at)


def _before(rt: Runtime, summary: Summary | None, begins: int, limits: Limits) -> _SummaryPart:
    """Return the summary before the window; its beginning, if all of it does not fit."""
    if summary is None or summary.first_seq >= begins:
        return _SummaryPart()
    room = quarter_at_most(limits.tokens, rt.settings.summary_tokens)
    text, reasons = summary.text, [_reason(summary)]
    while len(text) > 1:
        message = Message("user", summary_block(text))
        tokens = rt.tokens.message(message)
        if tokens <= room:
            part = Part(message, (summary.version,), (), tokens, tuple(reasons))
            return _SummaryPart(part, summary.version, summary.first_seq)
        reasons = [_reason(summary), Reason("summary_shortened", f"its beginning, within {room} tokens")]
        text = beginning(text, max(1, min(len(text) - 1, len(text) * room // tokens)))
    said = f"not a word of it fits into {room} tokens" if summary.text else "it was refused"
    return _SummaryPart(notes=(Reason("summary_left_out", f"there is no summary: {said}"),))


def _reason(summary: Summary) -> Reason:
    said = (
        f"version {summary.version}, messages {summary.first_seq} to {summary.until_seq}, by {summary.model}"
    )
    left = f"; nothing of the last ones: {', '.join(summary.faults)}" if summary.faults else ""
    return Reason("summary", f"{said}, score {summary.score:.2f}{left}", summary.score)
