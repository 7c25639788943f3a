"""Decides which turns are in a window, which messages are shortened, and the limits of a context."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, groupby, pairwise
from typing import Literal, get_args

from pydantic import InstanceOf

from memlayer_core.errors import ConfigurationError, InvalidLimitError, repr_of
from memlayer_core.message import SYSTEM_ROLES, Entry, Message, Receipt, StoredMessage
from memlayer_core.messages.align import in_force
from memlayer_core.messages.check import at_least_one, digest
from memlayer_core.messages.model import PreparedMessage
from memlayer_core.messages.preview import truncate_message
from memlayer_core.messages.render import as_prompt
from memlayer_core.messages.splice import append, with_identity_of
from memlayer_core.recall.model import Reason
from memlayer_core.scope import Scope
from memlayer_core.seams import Limits, MaxMessages, MaxRounds, MaxTokens, Policy, Portion
from memlayer_core.settings import Settings
from memlayer_core.window.model import Context, Part, Placement, Recall, WindowView, cost_of, pair

# Groups entries into turns, and finds tool messages without their counterpart.


Turn = Sequence[Entry]
"""A user message and everything up to the next one, in order: tool calls and their results are inside. Never empty."""


def turns(entries: Sequence[Entry]) -> tuple[Turn, ...]:
    """Group entries into turns; what comes before the first user message is a turn too.

    Args:
        entries: In the order of the conversation.
    """
    cuts = [at for at, one in enumerate(entries) if at == 0 or (one.role == "user" and not one.answers)]
    return tuple(tuple(entries[start:end]) for start, end in pairwise([*cuts, len(entries)]))


def _current(groups: Sequence[Turn]) -> int:
    """Return which turn is the newest one in which a user speaks; the first one if there is none."""
    return max((at for at, turn in enumerate(groups) if turn[0].role == "user"), default=0)


def presentable(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Leave out what a provider refuses: results without their call, calls without their results.

    A result that came after the user's next message has its call in an earlier turn, so whole turns do not always keep
    the two together. Calls at the very end may still wait for their results, and stay.

    Args:
        entries: In the order of the conversation.

    Returns:
        What stays, and what is left out; both in their order.
    """
    if not any(entry.calls or entry.answers or entry.role == "tool" for entry in entries):
        return tuple(entries), ()
    found = pair(entries)
    answered = set(found.values())
    last = max((at for at, entry in enumerate(entries) if entry.role != "tool"), default=-1)
    whole = {
        at
        for at, entry in enumerate(entries)
        if at == last or answered.issuperset((at, number) for number in range(len(entry.calls)))
    }
    kept: list[Entry] = []
    left: list[Entry] = []
    for at, entry in enumerate(entries):
        calls = {found.get((at, number), (-1, -1))[0] for number in range(len(entry.answers))}
        fits = not whole.isdisjoint(calls) if entry.role == "tool" else at in whole
        (kept if fits else left).append(entry)
    return tuple(kept), tuple(left)


# Decides the limits and the placement of a context, from the settings and the call.

NAMES: dict[str, type[MaxTokens | MaxMessages | MaxRounds]] = {
    "max_tokens": MaxTokens,
    "max_messages": MaxMessages,
    "max_rounds": MaxRounds,
}
"""Policies by name, each with its default number."""

_One = str | MaxTokens | InstanceOf[Policy] | Mapping[str, int]
Policies = _One | Iterable[_One]
"""A policy by name or as an object, or several that hold together; JSON can say `{"max_rounds": 4}`."""


def default_limits(settings: Settings) -> Limits:
    """Return the limits that the settings name."""
    messages = () if settings.max_messages is None else (MaxMessages(settings.max_messages),)
    rounds = () if settings.max_rounds is None else (MaxRounds(settings.max_rounds),)
    return Limits(settings.max_tokens, (*messages, *rounds))


def limits(default: Limits, policies: Policies | None, token_limit: int | None) -> Limits:
    """Return the limits that hold for a call.

    Policies of a call replace those of the settings; a token limit always holds. Of several limits of tokens the
    smallest one holds.

    Args:
        default: The limits of the settings.
        policies: The policies of the call.
        token_limit: The token limit of the call.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
    """
    every = [] if policies is None else list(_each(policies))
    tokens = [policy.limit for policy in every if isinstance(policy, MaxTokens)]
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        tokens.append(token_limit)
    others = tuple(policy for policy in every if not isinstance(policy, MaxTokens))
    return Limits(min(tokens, default=default.tokens), default.policies if policies is None else others)


def token_limit_of(default: int, policies: Policies | None = None, token_limit: int | None = None) -> int:
    """Return the limit of tokens that holds for a call of an adapter: see `limits`.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
    """
    return limits(Limits(default), policies, token_limit).tokens


def policy_json(policies: Policies) -> dict[str, int]:
    """Return policies as JSON: the number that holds for each name, the smallest of several.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
        ConfigurationError: A policy is the caller's own object, which JSON cannot name.
    """
    found: dict[str, int] = {}
    for policy in _each(policies):
        if not isinstance(policy, MaxTokens | MaxMessages | MaxRounds):
            raise ConfigurationError(
                f"{repr_of(policy)} cannot be written as JSON",
                hint="Pass a policy of your own again to the object that is loaded.",
            )
        name = _name_of(policy)
        found[name] = min(policy.limit, found.get(name, policy.limit))
    return found


def _each(policies: Policies) -> Iterator[MaxTokens | Policy]:
    """Yield each policy as an object, checked."""
    if isinstance(policies, str) and policies in NAMES:
        yield NAMES[policies]()
    elif isinstance(policies, Mapping):
        for name, limit in policies.items():
            if name not in NAMES:
                raise _unknown(name)
            yield from _each(NAMES[name](limit))
    elif isinstance(policies, MaxTokens | MaxMessages | MaxRounds):
        at_least_one(_name_of(policies), policies.limit)
        yield policies
    elif isinstance(policies, Policy) and not isinstance(policies, type):
        yield policies
    elif isinstance(policies, Iterable) and not isinstance(policies, str):
        for policy in policies:
            yield from _each(policy)
    else:
        raise _unknown(policies)


def _name_of(policy: MaxTokens | MaxMessages | MaxRounds) -> str:
    return next(name for name, kind in NAMES.items() if isinstance(policy, kind))


def _unknown(policy: object) -> InvalidLimitError:
    return InvalidLimitError(
        f"unknown policy {repr_of(policy)}",
        hint=f"Use one of {', '.join(map(repr, NAMES))}, an object such as MaxRounds(4), {{'max_rounds': 4}}, or an "
        "object of your own with `allows(portion)`.",
    )


def placement_of(placement: Placement | None, default: Placement) -> Placement:
    """Return where the recall goes.

    Raises:
        ConfigurationError: There is no such place.
    """
    if placement is not None and placement not in get_args(Placement):
        raise ConfigurationError(
            f"recalled text cannot be placed {repr_of(placement)}",
            hint='`"user"`: in front of the newest question; `"system"`: behind the system message.',
        )
    return placement or default


def size_of(tokens: int) -> int:
    """Return the number under which a window start is stored: equal for limits that differ by less than a quarter."""
    return round(math.log(tokens) / math.log(1.25))


# Decides which turns are in a window, and which messages are shortened.

PREVIEW_TOKENS = 160
"""Tokens that a preview with its note may cost; a preview that costs more is shortened."""

AHEAD = 0.75
"""The share of the limit from which on the next move is prepared, and up to which previews show more. A recall, the most
that comes at once, takes a quarter of a context at most."""

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
        moves: Whether turns were left out because of the token limit; the window then has a new start, with room to grow.
        next_start: Place where the window will begin when it has to move; None while that is far off.
        reasons: What was left out or shortened, and why.
        preview_tokens: Tokens that each preview may cost.
    """

    entries: tuple[Entry, ...] = ()
    reductions: Mapping[int, Shrink] = field(default_factory=dict)
    merges: bool = False
    tokens: int = 0
    moves: bool = False
    next_start: int | None = None
    reasons: tuple[Reason, ...] = ()
    preview_tokens: int = PREVIEW_TOKENS

    def most_tokens(self, entry: Entry) -> int:
        """Return the tokens that a shortened message may cost."""
        return reduced_tokens(entry, self.reductions[entry.position], self.preview_tokens)


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

    Then previews show more, all of them for equally many tokens, as long as three quarters of the limit are not used. They
    grow by half at each step, so that they, and the beginning of the prompt, stay the same for many turns.

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
    draft.show_more(min(room, AHEAD * hard))
    return draft.result(hard, reasons, next_start=ahead, moves=dropped > 0)


class _Draft:
    """A window in the making."""

    def __init__(self, groups: Sequence[Turn], shape: Shape | None) -> None:
        self._shape = shape
        self._costs = {entry.position: entry.tokens for turn in groups for entry in turn}
        self._groups = groups
        self._current = _current(groups)
        self._shrunk: dict[int, Shrink] = {}
        self._preview_tokens = PREVIEW_TOKENS
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
        older = [entry for turn in self._groups[: self._current] for entry in turn]
        old = older[: max(0, len(self._costs) - shape.last_keep)]
        pairs = sum(one.role == other.role != "tool" and not one.calls for one, other in pairwise(older))
        if pairs:
            self._merged = True
            self._say("merged", f"{pairs} message(s) shown as one with what the same speaker said before")
        # A result without its call is never in a window.
        called = dropwhile(lambda entry: entry.role == "tool", old)
        kinds = groupby(called, key=lambda entry: bool(entry.calls) or entry.role == "tool")
        grouped = [list(run) for among_tools, run in kinds if among_tools]
        long = (run for run in grouped if len(run) >= shape.run)
        runs = [one for run in long if sum(entry.tokens for entry in run) >= shape.run_tokens for one in run]
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
        return sum(self._costs[entry.position] for turn in self._groups[turns:] for entry in turn)

    def turns_to_drop(self, budget: int, target: int, stops: Collection[int]) -> int:
        """Return how many of the oldest turns to leave out.

        A stop is preferred if it frees at least half of what has to be freed, and leaves at least half of what should
        stay.
        """
        at_stops = [
            first
            for first, (before, turn) in enumerate(pairwise(self._groups[: self._current + 1]), 1)
            if any(before[-1].position < stop <= turn[0].position for stop in stops)
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
        return self._groups[first][0].position if first else None

    def _beyond(self, target: int) -> int:
        """Return how many of the oldest turns exceed the target; the newest with a user's message never does."""
        return bisect_left(range(self._current), -target, key=lambda first: -self.tokens_without(first))

    def make_current_smaller(self, hard: int) -> None:
        """Shorten the newest turn without its question, as far as necessary, the oldest messages first.

        The model needs the newest tool results most.
        """
        shape = self._shape
        if shape is None or self.tokens <= hard:
            return
        said = [entry for turn in self._groups for entry in turn if entry.role != "user"]
        offloaded = "large message(s) of the current round offloaded"
        self._shrink(_large(said, shape), "offload", "current_round_offloaded", offloaded, hard)
        compressed = f"message(s) of the current round compressed to {COMPRESS_TO:.0%}"
        self._shrink(said, "compress", "current_round_compressed", compressed, hard)

    def show_more(self, budget: float) -> None:
        """Let previews cost as many tokens each as the budget allows."""
        small = [one for turn in self._groups for one in turn if one.position in self._shrunk]
        while self._preview_tokens < max((one.tokens for one in small), default=0):
            more, how = self._preview_tokens * 3 // 2, self._shrunk
            costs = {
                one.position: min(one.tokens, reduced_tokens(one, how[one.position], more)) for one in small
            }
            if sum({**self._costs, **costs}.values()) > budget:
                break
            self._preview_tokens = more
            self._costs |= costs

    def result(self, hard: int, reasons: Sequence[Reason], *, next_start: int | None, moves: bool) -> Window:
        """Return the window, without messages that a provider would refuse."""
        shown, left = presentable([entry for turn in self._groups for entry in turn])
        if left:
            self._say(
                "incomplete_tools",
                f"{len(left)} message(s) left out: a tool call without its result, or the reverse",
            )
        tokens = sum(self._costs[entry.position] for entry in shown)
        if tokens > hard:
            self._say(
                "newest_turn_over_limit",
                f"the newest turn alone needs {tokens} of {hard} tokens and is never dropped",
            )
        here = {entry.position for entry in shown}
        shrunk = {position: how for position, how in self._shrunk.items() if position in here}
        every = (*reasons, *self._reasons)
        return Window(shown, shrunk, self._merged, tokens, moves, next_start, every, self._preview_tokens)

    def _shrink(
        self, entries: Sequence[Entry], method: Shrink, code: str, text: str, budget: int = -1
    ) -> None:
        """Shorten entries, in order, until they cost no more than `budget`."""
        total, count = self.tokens, 0
        for entry in entries:
            if total <= budget:
                break
            saved = entry.tokens - reduced_tokens(entry, method)
            if entry.position not in self._shrunk and saved > 0:
                self._shrunk[entry.position] = method
                self._costs[entry.position] -= saved
                total -= saved
                count += 1
        if count:
            self._say(code, f"{count} {text}")

    def _say(self, code: str, text: str) -> None:
        self._reasons.append(Reason(code, text))


def reduced_tokens(entry: Entry, method: Shrink, preview_tokens: int = PREVIEW_TOKENS) -> int:
    """Return the tokens that a shortened message may cost."""
    part = math.ceil(entry.tokens * COMPRESS_TO) if method == "compress" else 0
    return max(entry.min_tokens + preview_tokens, part)


def _recent(groups: Sequence[Turn], limits: Limits) -> tuple[Sequence[Turn], list[Reason]]:
    """Return the turns that the policies allow, the newest one in any case."""
    if not limits.policies:
        return groups, []
    first = current = _current(groups)
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
    entries = [entry for turn in groups for entry in turn]
    cost = sum(entry.tokens for entry in entries)
    return Portion(portion.messages + len(entries), portion.rounds + len(groups), portion.tokens + cost)


def _large(entries: Sequence[Entry], shape: Shape) -> list[Entry]:
    """Return the entries that are large by their text, or about by the arguments of their calls."""
    return [one for one in entries if max(one.characters, 4 * one.tokens * bool(one.calls)) > shape.large]


def enough(newest_first: Sequence[Entry], limits: Limits, shape: Shape | None = None) -> bool:
    """Return whether these last entries are all that a window within `limits` can contain.

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


# Decides how temporary messages are shown: a tool's result without its call is a line of the user.


def as_user_line(message: Message) -> Message:
    """Return a tool's result as a message of the user that says so. Its text follows in a new line."""
    head = f"[result of the tool {message.name}]" if message.name else "[result of a tool]"
    whole = message.content
    content = f"{head}\n{whole}" if isinstance(whole, str) else ({"type": "text", "text": head}, *whole)
    return replace(message, role="user", content=content, name=None, tool_call_id=None, raw=None)


# Decides the window of a list of messages, and what a list becomes when messages are added.
#
# A list has no index and no recall: the user's own message store keeps it as a whole.

INSTRUCTIONS = Reason("instructions", "the system messages in force are always shown")
RECENT = Reason("recent", "one of the newest whole turns")
PENDING = Reason("pending", "it is stored with the answer")


def check_instructions(tokens: int, limit: int) -> None:
    """Check that a system message leaves space for other messages.

    Raises:
        InvalidLimitError: It alone costs more than the limit.
    """
    if tokens > limit:
        raise InvalidLimitError(
            f"the system message alone needs {tokens} tokens, of {limit} for everything",
            hint="Shorten the system message, or pass a larger `token_limit` (`Settings.max_tokens`).",
        )


def prompt_of(
    message: Message, settings: Settings, truncate_with: Callable[[str, int], str], *, is_question: bool
) -> tuple[Message, tuple[Reason, ...]]:
    """Return a message of a window for a prompt, and how it was changed.

    The newest question stays whole; others are truncated if a setting says so.
    """
    whole = as_prompt(message)
    if is_question or not settings.truncate_messages:
        return whole, ()
    shorter = truncate_message(whole, settings.truncate_characters, truncate_with)
    if shorter is whole:
        return whole, ()
    return shorter, (Reason("truncated", f"at most {settings.truncate_characters} characters of it"),)


def add_to_list(
    scope: Scope, present: Sequence[Message], drafts: Sequence[PreparedMessage]
) -> tuple[list[Message], Receipt]:
    """Return a list with new messages at its end, as a session has them after `Chat.add_messages`."""
    every = list(present)

    def at_place(at: int) -> StoredMessage:
        return StoredMessage(at, scope, every[at], tokens=0, counter="", digest=digest(every[at]))

    ids = {draft.message.id for draft in drafts}
    existing = {one.id or "": at_place(at) for at, one in enumerate(every) if one.id in ids}
    begins = all(message.role in SYSTEM_ROLES or not message.model_visible for message in every)
    splice = append(existing, drafts, [at_place(at) for at in in_force(every)], begins=begins)
    for at, draft in splice.replacements:
        every[at] = with_identity_of(at_place(at), draft).message
    every += [draft.message for _, draft in splice.insertions]
    return every, splice.receipt


def list_window(
    messages: Sequence[Message],
    limits: Limits,
    settings: Settings,
    count: Callable[[Message], int],
    truncate_with: Callable[[str, int], str],
    *,
    pending: Sequence[Message] = (),
) -> tuple[Context, tuple[Message, ...]]:
    """Choose the newest whole turns of a list that keep the limits, as `Chat.context` does.

    The context is returned, and the list without the turns that left the window. The system message in force stays.

    Args:
        messages: The list.
        limits: What the window keeps within.
        settings: Whether messages are truncated, and how far a window moves.
        count: Counts the tokens of a message.
        truncate_with: Shortens a text to a number of characters.
        pending: Messages that follow the list in the context.

    Raises:
        InvalidLimitError: The system message alone costs more than the limit.
    """
    every = (*messages, *pending)
    visible = [at for at, message in enumerate(every) if message.is_told]
    instructions = in_force(every)
    question = next((at for at in reversed(visible) if every[at].turn_role == "user"), None)

    def show(at: int) -> Part:
        message, stored = every[at], at < len(messages)
        reason = INSTRUCTIONS if message.role in SYSTEM_ROLES else RECENT if stored else PENDING
        whole = reason is not RECENT or at == question
        shown, notes = prompt_of(message, settings, truncate_with, is_question=whole)
        return Part(shown, (at,) * stored, (message.id or "",), count(shown), (reason, *notes))

    system = tuple(show(at) for at in instructions if every[at].is_told)
    overhead = cost_of(system)
    check_instructions(overhead, limits.tokens)
    parts = {at: show(at) for at in visible if every[at].role not in SYSTEM_ROLES}
    entries = [Entry.of(at, part.message, part.tokens) for at, part in parts.items()]
    chosen = window(entries, limits, overhead=overhead, compact_to=settings.compact_to)
    places = [entry.position for entry in chosen.entries]
    leaves = chosen.moves or any(reason.code == "not_recent" for reason in chosen.reasons)
    first = places[0] if leaves else 0
    view = WindowView(first, system, tuple(parts[at] for at in places), reasons=chosen.reasons)
    left = tuple(one for at, one in enumerate(messages) if at >= first or at in instructions)
    return view.context(settings.recall_placement, limits.tokens, Recall()), left
