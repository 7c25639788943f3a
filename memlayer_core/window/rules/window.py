"""Decides which turns are in a window, and which messages are shortened."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, groupby, pairwise
from typing import Literal

from memlayer_core.message import Entry
from memlayer_core.messages.rules.turns import Turn, presentable, turns
from memlayer_core.policy import Limits, Portion
from memlayer_core.recall.model import Reason
from memlayer_core.window.model import Compaction

__all__ = [
    "COMPRESS_TO",
    "Shape",
    "Shrink",
    "Window",
    "enough",
    "first_page",
    "reduced_tokens",
    "window",
]

PREVIEW_TOKENS = 160
"""Tokens that a preview with its note may cost; a preview that costs more is shortened."""

AHEAD = 0.75
"""The share of the limit from which on the next move is prepared. A recall, the most that comes at once, takes a
quarter of a context at most."""

COMPRESS_TO = 0.3
"""The share of its length that a message of the current round keeps when it is compressed."""

Shrink = Literal["offload", "compress"]
"""`"offload"`: a preview replaces the message. `"compress"`: the message keeps a part of its length."""


@dataclass(frozen=True, slots=True)
class Shape:
    """When and how messages are shortened, before a turn is left out.

    Attributes:
        large: Characters beyond which a message is offloaded.
        last_keep: Newest messages that are shortened only if nothing older helps.
        run: Tool messages in a row that make a tool run.
        run_tokens: Tokens from which on a tool run is compressed.
    """

    large: int = 5 * 1024
    last_keep: int = 50
    run: int = 6
    run_tokens: int = 5000


@dataclass(frozen=True, slots=True)
class Window:
    """The choice of entries for a context.

    Attributes:
        entries: Whole turns up to the newest message, in order.
        reductions: How entries are shortened, by place.
        merges: Whether old neighbours of one speaker are merged.
        tokens: The most tokens that they cost, with the reductions.
        compaction: What was left out because of the token limit; the window then has a new start, with room to grow.
        next_start: Place where the window will begin when it has to move; None while that is far off.
        reasons: What was left out or shortened, and why.
    """

    entries: tuple[Entry, ...] = ()
    reductions: Mapping[int, Shrink] = field(default_factory=dict)
    merges: bool = False
    tokens: int = 0
    compaction: Compaction | None = None
    next_start: int | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the window has a new start."""
        return self.compaction is not None


def window(
    entries: Sequence[Entry],
    limits: Limits,
    *,
    overhead: int = 0,
    reserve: int = 0,
    compact_to: float = 0.8,
    stops: Collection[int] = (),
    shape: Shape | None = None,
) -> Window:
    """Choose the newest whole turns that keep the limits.

    If not everything fits, these steps are taken until it does: neighbours of one speaker are merged; old tool runs
    are compressed; large messages are offloaded, old ones first; the oldest turns are left out until at most
    `compact_to` of the limit is used; large messages of the newest turn are offloaded; that turn is compressed. The
    newest turn with a user's message is never left out, and its question is never shortened.

    Args:
        entries: The session's last messages in order, without system messages and hidden ones.
        limits: What the window keeps within.
        overhead: Tokens of the other parts of the context.
        reserve: Tokens that older turns leave free; the newest turn may use them.
        compact_to: The share of the limit that may be used once turns had to be left out.
        stops: Places where the window should begin then, if one is near: the ends of summaries.
        shape: How messages are shortened; None: they are not.
    """
    hard = max(0, limits.tokens - overhead)
    room = hard - reserve
    recent, reasons = _recent(turns(entries), limits)
    draft = _Draft(recent, shape)
    whole = draft.tokens
    draft.make_older_smaller(room)
    target = math.floor(room * compact_to)
    dropped = draft.turns_to_drop(room, target, stops) if draft.tokens > room else 0
    ahead = draft.next_start(room, target)
    if dropped:
        down = f"down to {draft.tokens_without(dropped) / max(1, room):.0%} of the room"
        reasons.append(Reason("compacted", f"the oldest {dropped} turn(s) left out, {down}", dropped))
        draft = _Draft(recent[dropped:], shape)  # shortened as next time, when these turns are all there is
        draft.make_older_smaller(room)
    draft.make_current_smaller(hard)
    made = draft.result(hard, reasons, next_start=ahead)
    return replace(made, compaction=Compaction(dropped, whole, made.tokens)) if dropped else made


class _Draft:
    """A window in the making."""

    def __init__(self, groups: Sequence[Turn], shape: Shape | None) -> None:
        self._shape = shape
        self._costs = {entry.seq: entry.tokens for turn in groups for entry in turn.entries}
        self._groups = groups
        self._current = max((at for at, turn in enumerate(groups) if turn.has_question), default=0)
        self._shrunk: dict[int, Shrink] = {}
        self._merged = False
        self._reasons: list[Reason] = []

    @property
    def tokens(self) -> int:
        return sum(self._costs.values())

    def make_older_smaller(self, budget: int) -> None:
        """Shorten messages before the newest turn, as far as necessary."""
        shape = self._shape
        if shape is None or self.tokens <= budget:
            return
        older = [entry for turn in self._groups[: self._current] for entry in turn.entries]
        newer = sum(len(turn.entries) for turn in self._groups[self._current :])
        old = older[: max(0, len(older) + newer - shape.last_keep)]
        pairs = sum(one.role == other.role != "tool" and not one.calls for one, other in pairwise(older))
        if pairs:
            self._merged = True
            self._say("merged", f"{pairs} message(s) shown as one with what the same speaker said before")
        # A result without its call is never in a window.
        called = dropwhile(lambda entry: entry.role == "tool", old)
        runs = [
            entry
            for among_tools, run in groupby(
                called, key=lambda entry: bool(entry.calls) or entry.role == "tool"
            )
            for entry in _compressible(list(run), among_tools, shape)
        ]
        steps: tuple[tuple[str, str, Sequence[Entry]], ...] = (
            ("tool_runs_compressed", "tool message(s) of old tool runs compressed", runs),
            ("offloaded", "large old message(s) offloaded", _large(old, shape)),
            ("offloaded", "large message(s) offloaded", _large(older, shape)),
        )
        for code, said, candidates in steps:
            self._shrink(candidates, "offload", code, said)
            if self.tokens <= budget:
                return

    def tokens_without(self, turns: int) -> int:
        """Return the tokens without the oldest turns."""
        return sum(self._costs[entry.seq] for turn in self._groups[turns:] for entry in turn.entries)

    def turns_to_drop(self, budget: int, target: int, stops: Collection[int]) -> int:
        """Return how many of the oldest turns to leave out.

        A stop is preferred if it frees at least half of what has to be freed, and leaves at least half of what should
        stay.
        """
        at_stops = [
            first
            for first, (before, turn) in enumerate(pairwise(self._groups[: self._current + 1]), 1)
            if any(before.entries[-1].seq < stop <= turn.entries[0].seq for stop in stops)
            and target <= 2 * self.tokens_without(first) <= target + budget
        ]
        nearest = min(at_stops, key=lambda first: abs(self.tokens_without(first) - target), default=None)
        return nearest if nearest is not None else self._beyond(target)

    def next_start(self, budget: int, target: int) -> int | None:
        """Return where the window will begin when the limit is reached, if that is near.

        It is known how many tokens may still come until then.
        """
        if not AHEAD * budget < self.tokens <= budget:
            return None
        first = self._beyond(target - (budget - self.tokens))
        return self._groups[first].entries[0].seq if first else None

    def _beyond(self, target: int) -> int:
        """Return how many of the oldest turns exceed the target; the newest with a user's message never does."""
        total = self.tokens
        for first, turn in enumerate(self._groups[: self._current]):
            if total <= target:
                return first
            total -= sum(self._costs[entry.seq] for entry in turn.entries)
        return self._current

    def make_current_smaller(self, hard: int) -> None:
        """Shorten the newest turn without its question, as far as necessary, the oldest messages first.

        The model needs the newest tool results most.
        """
        shape = self._shape
        if shape is None or self.tokens <= hard:
            return
        said = [entry for turn in self._groups for entry in turn.entries if entry.role != "user"]
        offloaded = "large message(s) of the current round offloaded"
        self._shrink(_large(said, shape), "offload", "current_round_offloaded", offloaded, hard)
        compressed = f"message(s) of the current round compressed to {COMPRESS_TO:.0%}"
        self._shrink(said, "compress", "current_round_compressed", compressed, hard)

    def result(self, hard: int, reasons: Sequence[Reason], *, next_start: int | None) -> Window:
        """Return the window, without messages that a provider would refuse."""
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
        return Window(shown, shrunk, self._merged, tokens, None, next_start, (*reasons, *self._reasons))

    def _shrink(
        self, entries: Sequence[Entry], method: Shrink, code: str, text: str, budget: int = -1
    ) -> None:
        """Shorten entries, in order, until they cost no more than `budget`."""
        total, count = self.tokens, 0
        for entry in entries:
            if total <= budget:
                break
            saved = entry.tokens - reduced_tokens(entry, method)
            if entry.seq not in self._shrunk and saved > 0:
                self._shrunk[entry.seq] = method
                self._costs[entry.seq] -= saved
                total -= saved
                count += 1
        if count:
            self._say(code, f"{count} {text}")

    def _say(self, code: str, text: str) -> None:
        self._reasons.append(Reason(code, text))


def reduced_tokens(entry: Entry, method: Shrink) -> int:
    """Return the tokens that a shortened message may cost."""
    part = math.ceil(entry.tokens * COMPRESS_TO) if method == "compress" else 0
    return max(PREVIEW_TOKENS, entry.min_tokens, part)


def _recent(groups: Sequence[Turn], limits: Limits) -> tuple[Sequence[Turn], list[Reason]]:
    """Return the turns that the policies allow, the newest one in any case."""
    if not limits.policies:
        return groups, []
    first = current = max((at for at, turn in enumerate(groups) if turn.has_question), default=0)
    newest = portion = _enlarge(Portion(0, 0, 0), *groups[current:])
    while first > 0 and limits.allow(portion := _enlarge(portion, groups[first - 1])):
        first -= 1
    reasons: list[Reason] = []
    if first:
        rules = " and ".join(map(str, limits.policies))
        reasons.append(Reason("not_recent", f"{first} turn(s) left out by {rules}", first))
    if not limits.allow(newest):
        said = (
            f"the newest turn alone has {newest.messages} message(s), more than allowed, and is never dropped"
        )
        reasons.append(Reason("newest_turn_over_policy", said))
    return groups[first:], reasons


def _enlarge(portion: Portion, *groups: Turn) -> Portion:
    entries = [entry for turn in groups for entry in turn.entries]
    cost = sum(entry.tokens for entry in entries)
    return Portion(portion.messages + len(entries), portion.rounds + len(groups), portion.tokens + cost)


def _large(entries: Sequence[Entry], shape: Shape) -> list[Entry]:
    return [entry for entry in entries if entry.characters > shape.large]


def _compressible(run: list[Entry], among_tools: bool, shape: Shape) -> list[Entry]:
    """Return the entries of a tool run if it is long and large enough to be compressed."""
    costly = sum(entry.tokens for entry in run) >= shape.run_tokens
    return run if among_tools and len(run) >= shape.run and costly else []


def enough(newest_first: Sequence[Entry], limits: Limits, shape: Shape | None = None) -> bool:
    """Tell whether these last entries are all that a window within `limits` can contain.

    They are if they exceed the token limit even when shortened, and the part beyond it contains the beginning of a
    turn. They are, too, if the newest question is among them and the policies allow no further message.
    """
    small_cost = cost = rounds = 0
    for place, entry in enumerate(newest_first):
        small = shape is not None and (entry.characters > shape.large or entry.role == "tool" or entry.calls)
        small_cost += min(entry.tokens, PREVIEW_TOKENS) if small else entry.tokens
        cost += entry.tokens
        whole = entry.role == "user"
        rounds += whole
        if small_cost > limits.tokens and (whole or place > _LONGEST_TURN):
            return True
        if rounds and limits.policies and not limits.allow(Portion(place + 1 + whole, rounds + 1, cost)):
            return True
    return False


_LONGEST_TURN = 4000
"""Most messages of a turn that are read: a session without a user's message is one endless turn."""
_USUAL_ROUND = 4
"""Messages: a question, a tool call with its result, an answer."""
_LONGEST_PAGE = 2000
"""Most messages that are read at once."""


def first_page(messages: int, tokens: int, limits: Limits) -> int:
    """Return how many last entries to read first, so that one read is nearly always enough.

    Args:
        messages: Number of messages in the session.
        tokens: Their tokens together.
        limits: What the window keeps within.
    """
    mean = max(1.0, tokens / max(1, messages))

    def is_too_many(number: int) -> bool:
        return not limits.allow(Portion(number, -(-number // _USUAL_ROUND), round(number * mean)))

    most = bisect_left(range(1, _LONGEST_PAGE), True, key=is_too_many) if limits.policies else _LONGEST_PAGE
    return max(16, min(_LONGEST_PAGE, most + 8, int(1.3 * limits.tokens / mean) + 8))
