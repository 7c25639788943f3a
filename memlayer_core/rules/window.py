"""Decides which turns of the present conversation a model is shown, and what is made smaller for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal

from memlayer_core.records.context import Reason
from memlayer_core.records.message import Entry
from memlayer_core.records.policy import Limits
from memlayer_core.rules.turns import Turn, presentable, turns

__all__ = [
    "COMPRESS_TO",
    "Shape",
    "Shrink",
    "Window",
    "enough",
    "first_page",
    "reduced",
    "size_of",
    "window",
]

PREVIEW_TOKENS = 160
"""What a preview with the words around it may cost; a preview that costs more is shortened."""

AHEAD = 0.75
"""The part of the room from which on the next cut is prepared: what is recalled for one question, the most that comes
at once beside the question, takes a quarter of a context at the most."""

COMPRESS_TO = 0.3
"""The part of its length that a message of the current round keeps when it is compressed."""

Shrink = Literal["offload", "compress"]
"""`"offload"`: a preview stands for it. `"compress"`: it keeps a part of its length."""


@dataclass(frozen=True, slots=True)
class Shape:
    """When and how messages are made smaller, before a turn is left out.

    Attributes:
        large: Characters beyond which a message is offloaded.
        last_keep: Newest messages that are made smaller only when nothing older helps.
        run: So many tool messages in a row are a tool run.
        run_tokens: Tokens that a tool run must cost to be worth compressing.
    """

    large: int = 5 * 1024
    last_keep: int = 50
    run: int = 6
    run_tokens: int = 5000


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a session that is shown.

    Attributes:
        shown: Whole turns up to the newest message, in order.
        shrunk: Which of them are made smaller, by their places, and how.
        merged: Whether neighbours of one speaker are shown as one message.
        tokens: What they cost at the most, made smaller as `shrunk` says.
        moved: Whether turns were left out to keep the limit of tokens: the window then begins anew, with
            room to grow.
        ahead: Place where it is going to begin when it has to move; None while that is far off.
        reasons: What was left out or made smaller, and why.
    """

    shown: tuple[Entry, ...] = ()
    shrunk: Mapping[int, Shrink] = field(default_factory=dict)
    merged: bool = False
    tokens: int = 0
    moved: bool = False
    ahead: int | None = None
    reasons: tuple[Reason, ...] = ()


def window(
    entries: Sequence[Entry],
    limits: Limits,
    *,
    spent: int = 0,
    reserved: int = 0,
    compact_to: float = 0.8,
    stops: Collection[int] = (),
    shape: Shape | None = None,
) -> Window:
    """Choose the newest whole turns that keep the limits.

    While everything fits, everything is shown. When it does not, it is made smaller step by step, and the
    first step that is enough is the last: neighbours of one speaker are merged; old tool runs are
    compressed; large messages are offloaded, old ones first; the oldest turns are left out until at most
    `compact_to` of the room is taken; large messages of the newest turn are offloaded; that turn is
    compressed. The newest turn that a user speaks in is never left out, its question never made smaller: a
    model without the question can answer nothing.

    Args:
        entries: The session's last messages in their order, without system messages and hidden ones.
        limits: What is to be kept.
        spent: Tokens of what is shown in any case.
        reserved: Tokens that older turns may not take; the newest turn may.
        compact_to: How much of the room may be taken once turns had to be left out.
        stops: Places where the window had better begin then, if one is about there: what lies before one is
            summed up, and what lies behind it is not.
        shape: How messages are made smaller; None: they are not.
    """
    hard = max(0, limits.tokens - spent)
    room = hard - reserved
    recent, reasons = _recent(turns(entries), limits)
    draft = _Draft(recent, shape)
    draft.make_older_smaller(room)
    target = math.floor(room * compact_to)
    dropped = draft.cut(room, target, stops) if draft.tokens > room else 0
    ahead = draft.ahead(room, target)
    if dropped:
        down = f"down to {draft.left(dropped) / max(1, room):.0%} of the room"
        reasons.append(Reason("compacted", f"the oldest {dropped} turn(s) left out, {down}"))
        draft = _Draft(recent[dropped:], shape)  # what stays is shown as next time, when it is all there is
        draft.make_older_smaller(room)
    draft.make_current_smaller(hard)
    return draft.finished(hard, reasons, moved=dropped > 0, ahead=ahead)


class _Draft:
    """A window in the making."""

    def __init__(self, groups: Sequence[Turn], shape: Shape | None) -> None:
        self._shape = shape
        self._costs = {entry.seq: entry.cost for turn in groups for entry in turn.entries}
        self._groups = groups
        self._current = max((at for at, turn in enumerate(groups) if turn.asked), default=0)
        self._shrunk: dict[int, Shrink] = {}
        self._merged = False
        self._reasons: list[Reason] = []

    @property
    def tokens(self) -> int:
        return sum(self._costs.values())

    def make_older_smaller(self, room: int) -> None:
        """Make smaller what lies before the newest turn, as far as it has to be."""
        shape = self._shape
        if shape is None or self.tokens <= room:
            return
        older = [entry for turn in self._groups[: self._current] for entry in turn.entries]
        newer = sum(len(turn.entries) for turn in self._groups[self._current :])
        old = older[: max(0, len(older) + newer - shape.last_keep)]
        pairs = sum(one.role == other.role != "tool" and not one.calls for one, other in pairwise(older))
        if pairs:
            self._merged = True
            self._say("merged", f"{pairs} message(s) shown as one with what the same speaker said before")
        runs = [
            entry
            for among_tools, run in groupby(old, key=lambda entry: bool(entry.calls) or entry.role == "tool")
            for entry in _worth(list(run), among_tools, shape)
        ]
        steps: tuple[tuple[str, str, Sequence[Entry]], ...] = (
            ("tool_runs_compressed", "tool message(s) of old tool runs compressed", runs),
            ("offloaded", "large old message(s) offloaded", _large(old, shape)),
            ("offloaded", "large message(s) offloaded", _large(older, shape)),
        )
        for code, said, candidates in steps:
            self._shrink(candidates, "offload", code, said)
            if self.tokens <= room:
                return

    def left(self, dropped: int) -> int:
        """Return what the turns cost without the oldest ones."""
        return sum(self._costs[entry.seq] for turn in self._groups[dropped:] for entry in turn.entries)

    def cut(self, room: int, target: int, stops: Collection[int]) -> int:
        """Return how many of the oldest turns are left out.

        Up to a stop, where one frees at least half of what is to be freed, and leaves at least half of what
        is to stay.
        """
        at_stops = [
            first
            for first, (before, turn) in enumerate(pairwise(self._groups[: self._current + 1]), 1)
            if any(before.entries[-1].seq < stop <= turn.entries[0].seq for stop in stops)
            and target <= 2 * self.left(first) <= target + room
        ]
        nearest = min(at_stops, key=lambda first: abs(self.left(first) - target), default=None)
        return nearest if nearest is not None else self._beyond(target)

    def ahead(self, room: int, target: int) -> int | None:
        """Return where the window will begin when all room is taken, if that is near.

        What comes until then is not known, but how much of it there can be.
        """
        if not AHEAD * room < self.tokens <= room:
            return None
        first = self._beyond(target - (room - self.tokens))
        return self._groups[first].entries[0].seq if first else None

    def _beyond(self, target: int) -> int:
        """Return how many of the oldest turns are too many; the newest that a user speaks in is not."""
        total = self.tokens
        for first, turn in enumerate(self._groups[: self._current]):
            if total <= target:
                return first
            total -= sum(self._costs[entry.seq] for entry in turn.entries)
        return self._current

    def make_current_smaller(self, hard: int) -> None:
        """Make smaller what the newest turn holds beside the question, as far as it has to be.

        The oldest first: what a tool has just answered is what the model asked for.
        """
        shape = self._shape
        if shape is None or self.tokens <= hard:
            return
        said = [entry for turn in self._groups for entry in turn.entries if entry.role != "user"]
        offloaded = "large message(s) of the current round offloaded"
        self._shrink(_large(said, shape), "offload", "current_round_offloaded", offloaded, hard)
        compressed = f"message(s) of the current round compressed to {COMPRESS_TO:.0%}"
        self._shrink(said, "compress", "current_round_compressed", compressed, hard)

    def finished(self, hard: int, reasons: Sequence[Reason], *, moved: bool, ahead: int | None) -> Window:
        """Return the window, without what a provider would refuse."""
        shown, left = presentable([entry for turn in self._groups for entry in turn.entries])
        if left:
            self._say(
                "incomplete_tools",
                f"{len(left)} message(s) left out: a tool call without its result, or the reverse",
            )
        tokens = sum(self._costs[entry.seq] for entry in shown)
        if tokens > hard:
            self._say(
                "newest_turn_over_limit",
                f"the newest turn alone needs {tokens} of {hard} tokens and is never dropped",
            )
        here = {entry.seq for entry in shown}
        shrunk = {seq: how for seq, how in self._shrunk.items() if seq in here}
        return Window(shown, shrunk, self._merged, tokens, moved, ahead, (*reasons, *self._reasons))

    def _shrink(self, entries: Sequence[Entry], how: Shrink, code: str, said: str, room: int = -1) -> None:
        """Make them smaller, in their order, until no more than `room` is taken."""
        total, count = self.tokens, 0
        for entry in entries:
            if total <= room:
                break
            saved = entry.tokens - reduced(entry, how)
            if entry.seq not in self._shrunk and saved > 0:
                self._shrunk[entry.seq] = how
                self._costs[entry.seq] -= saved
                total -= saved
                count += 1
        if count:
            self._say(code, f"{count} {said}")

    def _say(self, code: str, text: str) -> None:
        self._reasons.append(Reason(code, text))


def reduced(entry: Entry, how: Shrink) -> int:
    """Return the tokens that a message may cost when it is made smaller."""
    part = math.ceil(entry.tokens * COMPRESS_TO) if how == "compress" else 0
    return max(PREVIEW_TOKENS, entry.least, part)


def _recent(groups: Sequence[Turn], limits: Limits) -> tuple[Sequence[Turn], list[Reason]]:
    """Return the turns that the numbers of rounds and messages allow, the newest one in any case."""
    first = current = max((at for at, turn in enumerate(groups) if turn.asked), default=0)
    count = sum(len(turn.entries) for turn in groups[first:])
    while first > 0:
        count += len(groups[first - 1].entries)
        if limits.messages is not None and count > limits.messages:
            break
        if limits.rounds is not None and (current - first + 2 > limits.rounds):
            break
        first -= 1
    reasons: list[Reason] = []
    if first:
        kept = [f"{limits.messages} messages"] if limits.messages is not None else []
        kept += [f"{limits.rounds} rounds"] if limits.rounds is not None else []
        reasons.append(Reason("not_recent", f"{first} turn(s) left out: at most {' and '.join(kept)}"))
    newest = sum(len(turn.entries) for turn in groups[current:])
    if limits.messages is not None and newest > limits.messages:
        said = (
            f"the newest turn alone has {newest} messages, of {limits.messages} allowed, and is never dropped"
        )
        reasons.append(Reason("newest_turn_over_messages", said))
    return groups[first:], reasons


def _large(entries: Sequence[Entry], shape: Shape) -> list[Entry]:
    return [entry for entry in entries if entry.characters > shape.large]


def _worth(run: list[Entry], among_tools: bool, shape: Shape) -> list[Entry]:
    """Return what may be compressed of neighbours: all of a tool run that is long and costly enough."""
    costly = sum(entry.tokens for entry in run) >= shape.run_tokens
    return run if among_tools and len(run) >= shape.run and costly else []


def enough(newest_first: Sequence[Entry], limits: Limits, shape: Shape | None = None) -> bool:
    """Tell whether these last entries hold all that a window within `limits` can show.

    They do when they cost more than the limit even if they are made smaller, and what lies beyond it holds
    the beginning of a turn: a turn is then whole, or too large for the window anyway. They do as well when
    there are more of them, or as many rounds, as may be shown, the newest question among them.
    """
    spent = rounds = 0
    for place, entry in enumerate(newest_first):
        small = shape is not None and (entry.characters > shape.large or entry.role == "tool" or entry.calls)
        spent += (min(entry.tokens, PREVIEW_TOKENS) if small else entry.tokens) + (entry.beside or 0)
        rounds += entry.role == "user"
        if spent > limits.tokens and (entry.role == "user" or place > _LONGEST_TURN):
            return True
        if rounds and limits.messages is not None and place >= limits.messages:
            return True
        if limits.rounds is not None and rounds >= limits.rounds:
            return True
    return False


_LONGEST_TURN = 4000
"""Messages of a turn that are looked at: a session in which no user speaks is one endless turn."""
_USUAL_ROUND = 4
"""Messages: a question, a tool call with its result, an answer."""


def first_page(messages: int, tokens: int, limits: Limits) -> int:
    """Return how many last entries to read at first, so that one read is nearly always enough.

    Args:
        messages: Messages of the session.
        tokens: What they cost together.
        limits: What the window keeps within.
    """
    mean = max(1.0, tokens / max(1, messages))
    expected = [
        1.3 * limits.tokens / mean,
        limits.messages if limits.messages is not None else math.inf,
        _USUAL_ROUND * limits.rounds if limits.rounds is not None else math.inf,
    ]
    return max(16, min(2000, int(min(expected)) + 8))


def size_of(tokens: int) -> int:
    """Return the number under which a window's beginning is kept: one for limits within a quarter."""
    return round(math.log(tokens) / math.log(1.25))
