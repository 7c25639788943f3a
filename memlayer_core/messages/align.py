"""Compares lists of messages: what is new, what it replaces, and what to remove.

Many frameworks hold the messages themselves and send the whole list each time. The list may be trimmed at the front,
summarized, filtered or edited. The history follows it, and loses or repeats nothing. Ids decide first, then words:

* A message with an id of the history is that message; new words replace its old ones. It stays at its place in the
  history, even if the list has it elsewhere.
* All others are matched by their words: the messages that list and history have in common, in the same order,
  between two messages that match by id.

The result depends on the messages in common:

* The list goes on where the history ends: the rest is new.
* The list lacks messages, or ends inside the history: nothing is new, and nothing was deleted. But if the list's end
  is the conversation's end (`final`), the messages behind it are superseded.
* The list has other messages behind a common one: the history's messages there are superseded.
* The list has other words between two common messages, as many and by the same speakers: they were edited.
* The list has something else in front or in between (a summary): it is inserted there.
* Nothing in common: all of it is new.

A `permanent` message comes from somebody else in the same session, so the list lacks it: it stays.

Messages are superseded only if the matches cannot be chance: an "ok" is in any conversation.

Instructions and hidden messages are not part of that order. The list's last instructions are in force afterwards: if
need be, they are added at the history's end again. A history without instructions gets them where the list has them.
"""

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from operator import eq
from typing import TypeVar

from memlayer_core.message import SYSTEM_ROLES, Block, Message, Role
from memlayer_core.messages.render import value_of

# Aligns two sequences: finds equal values in the same order. The time grows little faster than the sequences.

_PATIENCE = 100_000
"""Pairs of values in a stretch up to which all are compared; in a longer one, values that occur often begin no run."""

_Chain = tuple[int, int, "_Chain | None"]


def _inside(before: Sequence[bytes], after: Sequence[bytes]) -> dict[int, int]:
    """Return a dict from places in `after` to the places of equal values in `before`, as near to the end as possible.

    If `after` is no subsequence of `before`, the dict is empty.
    """
    found = find_in_order(before[::-1], after[::-1])
    if len(found) < len(after):
        return {}
    return {len(after) - 1 - at: len(before) - 1 - to for at, to in enumerate(found)}


def _in_runs(before: Sequence[bytes], after: Sequence[bytes], *, prefix: bool) -> dict[int, int]:
    """Align values that occur once in both sequences, then equal runs between them: the longest first, then the newest.

    Args:
        before: The earlier sequence.
        after: The later sequence.
        prefix: Whether the equal beginning of both is aligned first.
    """
    both = min(len(before), len(after)) if prefix else 0
    first = next((at for at in range(both) if before[at] != after[at]), both)
    single = [(at + first, to + first) for at, to in _unique_pairs(before[first:], after[first:])]
    pairs = {at: at for at in range(first)}
    for (at, to), (stop, end) in pairwise([(first, first), *single, (len(after), len(before))]):
        # What is aligned already stands at both ends, so that a run beside it is longer than others.
        ours, theirs = before[to : end + 1][::-1], after[at : stop + 1][::-1]
        many = len(ours) * len(theirs) > _PATIENCE
        for run in SequenceMatcher(None, ours, theirs, autojunk=many).get_matching_blocks():
            for step in range(run.size):
                pairs[at + len(theirs) - 1 - run.b - step] = to + len(ours) - 1 - run.a - step
    return pairs


def _unique_pairs(before: Sequence[bytes], after: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return pairs of places of values that occur once in each sequence, in the same order in both.

    There are as many pairs as possible; of several ways the newest is taken.
    """
    times, again = Counter(before), Counter(after)
    places = {value: to for to, value in enumerate(before) if times[value] == 1}
    both = [(at, places[value]) for at, value in enumerate(after) if again[value] == 1 and value in places]
    chains: list[_Chain] = []  # of each length, from the end on, the one that leaves most room in front
    for at, to in reversed(both):
        length = bisect_left(chains, -to, key=lambda chain: -chain[1])
        chains[length : length + 1] = [(at, to, chains[length - 1] if length else None)]
    longest: list[tuple[int, int]] = []
    chain = chains[-1] if chains else None
    while chain is not None:
        longest.append(chain[:2])
        chain = chain[2]
    return longest


# Compares a list that a framework sends again with the history: what is new, and what it replaces.

TELLING = 40
"""Messages that occur once in the history do not match by chance if they have so many characters together.
Two such messages do not, either, however short they are."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The properties of a message that decide whether it matches another.

    Attributes:
        words: 16 bytes, equal for equal speaker, content and tool calls; times and metadata do not matter.
        id: Its id; None if the caller gave none.
        role: Who speaks.
        characters: Length of its text.
        talk: Whether it is part of the talk: neither instructions nor hidden from models.
        is_instruction: Whether it is a system message that models see.
        tools: Whether it calls tools, or is a result of a call.
        permanent: Whether it stays in the history even if the list lacks it.
    """

    words: bytes
    id: str | None
    role: Role
    characters: int
    talk: bool = True
    is_instruction: bool = False
    tools: bool = False
    permanent: bool = False


Digests = Sequence[Digest]
Places = Sequence[int]


@dataclass(frozen=True, slots=True)
class Alignment:
    """How to change the history so that it agrees with the list.

    Attributes:
        matches: For each message of the list, its place in the past; None if it is new.
        new: Places in the list of new messages, in order, each with the place in the past of the message that follows
            it; None: it comes at the history's end.
        edits: Places in the list, each with the place in the past that it replaces.
        superseded: Places in the past that leave the session, in order.
        repeats: Places in the past that leave the session because the same message, under the same id, is new.
        missing: Places in the list of messages that this part of the past lacks, though it has later ones: they may be
            further back. The whole list if nothing matches.
    """

    matches: tuple[int | None, ...]
    new: tuple[tuple[int, int | None], ...] = ()
    edits: tuple[tuple[int, int], ...] = ()
    superseded: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


def digest_of(message: Message, *, with_id: bool, permanent: bool = False) -> Digest:
    """Return the digest of a message.

    Args:
        message: A checked message.
        with_id: Whether its id comes from the caller.
        permanent: Whether it stays in the history even if a list lacks it.
    """
    fields = [
        message.role,
        message.name,
        message.text,
        [_words(block) for block in other_blocks(message)],
        [[call.id, call.name, value_of(call.arguments)] for call in message.tool_calls],
        message.tool_call_id,
        message.model_visible,
    ]
    written = json.dumps(fields, ensure_ascii=False, sort_keys=True, default=dict, separators=(",", ":"))
    return Digest(
        hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        message.id if with_id else None,
        message.role,
        len(message.text),
        talk=message.role not in SYSTEM_ROLES and message.is_told,
        is_instruction=is_instruction(message),
        tools=message.role == "tool" or bool(message.tool_calls),
        permanent=permanent,
    )


def other_blocks(message: Message) -> list[Block]:
    """Return the content blocks of a message that are not text."""
    blocks = () if isinstance(message.content, str) else map(dict, message.content)
    return [block for block in blocks if block.get("type") != "text"]


def _words(block: Block) -> Block:
    """Return a block without a provider's signature of a thought."""
    if block.get("type") != "thinking":
        return block
    return {name: value for name, value in block.items() if name != "extras"}


def align(
    past: Digests, incoming: Digests, *, complete: bool, sparse: int = 0, final: bool = False
) -> Alignment:
    """Compare a list of messages with the end of a history.

    Args:
        past: The history's last messages in order, in front of them older messages with ids of the list. The newest
            instructions are among them.
        incoming: The list, in order.
        complete: Whether `past` is the whole history.
        sparse: How many messages at the beginning of `past` may have gaps between them.
        final: Whether the conversation ends where the list ends.
    """
    named = _matches_by_id(past, incoming)
    line = _in_rising_order(named, incoming)
    # A list without tool messages was filtered, unless it is the whole conversation.
    with_tools = final or any(one.tools for one in incoming)
    heard = [
        to for to, one in enumerate(past) if one.talk and not one.permanent and (with_tools or not one.tools)
    ]
    said = [at for at, one in enumerate(incoming) if one.talk]
    rest = _Rest(past, incoming, _without(heard, named.values()), _without(said, named), complete)

    same = rest.in_common(line)
    if final and complete and not line and rest.repeats():
        same = dict(zip(rest.theirs, rest.ours, strict=False))
    sure = bool(line) or rest.are_sure(same)
    if not sure and not rest.are_likely(same):
        same = {}
    same = dict(sorted({**line, **same}.items()))
    edited = {at: to for at, to in named.items() if past[to].words != incoming[at].words}
    exchanged: dict[int, int] = {}
    if sure:
        gaps = replace(rest, ours=_without(rest.ours, same.values()), theirs=_without(rest.theirs, same))
        exchanged = gaps.edits(same, sparse)
    edited |= exchanged
    known = {**named, **same, **exchanged}
    found, again = _outside_conversation(past, incoming, known)
    known |= found
    gone: list[int] = []
    repeated: list[int] = []
    if again is not None and again in known:
        (repeated if edited.pop(again, None) is None else gone).append(known.pop(again))

    new = [at for at in range(len(incoming)) if at not in known]
    last, end = max(same.items(), default=(-1, len(past)))
    behind = _without(range(end + 1, len(past)), known.values())
    goes_on = (final and sure) or any(incoming[at].talk and at > last for at in new) or last in edited
    if goes_on and not {*heard}.isdisjoint(behind):
        gone += [to for to in behind if past[to].role not in SYSTEM_ROLES and not past[to].permanent]
    bare = not any(one.is_instruction for one in past)
    fronts = _fronts(incoming, {**same, **exchanged}, sparse, bare)
    return Alignment(
        tuple(known.get(at) for at in range(len(incoming))),
        tuple((at, fronts[at]) for at in new),
        tuple(sorted(edited.items())),
        tuple(sorted({*gone})),
        tuple(repeated),
        tuple(at for at in new if at < last or not incoming[at].talk or not same),
    )


def _without(places: Places, others: Collection[int]) -> list[int]:
    left_out = {*others}
    return [place for place in places if place not in left_out]


def _matches_by_id(past: Digests, incoming: Digests) -> dict[int, int]:
    """Return places in the list with the places in the past that have the same id."""
    places = {one.id: to for to, one in enumerate(past) if one.id is not None}
    return {at: places[one.id] for at, one in enumerate(incoming) if one.id in places}


def _in_rising_order(by_id: Mapping[int, int], incoming: Digests) -> dict[int, int]:
    """Return the matches by id that are in the same order in the list and in the past.

    New messages come between or behind them, so that the same ones are in order when the list is sent again.
    """
    line: dict[int, int] = {}
    highest = -1
    for at, to in by_id.items():
        if incoming[at].talk and to > highest:
            line[at] = highest = to
    return line


@dataclass(frozen=True, slots=True)
class _Rest:
    """The messages of both lists that no id matches.

    Attributes:
        past: The history.
        incoming: The list.
        ours: Their places in the history.
        theirs: Their places in the list.
        complete: Whether `past` is the whole history.
    """

    past: Digests
    incoming: Digests
    ours: Places
    theirs: Places
    complete: bool

    def in_common(self, line: Mapping[int, int]) -> dict[int, int]:
        """Return matches by words, in rising order, between the matches by id."""
        same: dict[int, int] = {}
        ends = [*line.items(), (len(self.incoming), len(self.past))]
        for number, (theirs, ours) in enumerate(_stretches(self.theirs, self.ours, ends)):
            before, after = [self.past[to].words for to in ours], [self.incoming[at].words for at in theirs]
            begins = self.complete and not number
            pairs = _inside(before, after) or _in_runs(before, after, prefix=begins)
            same.update((theirs[at], ours[to]) for at, to in pairs.items())
        return dict(sorted(same.items()))

    def are_sure(self, same: Mapping[int, int]) -> bool:
        """Return whether the matches cannot be chance."""
        begins = self.complete and bool(same) and self.theirs[0] in same
        if begins and self.incoming[self.theirs[0]].words == self.past[self.ours[0]].words:
            return True
        times = Counter(one.words for one in self.past)
        single = [self.past[to] for to in same.values() if times[self.past[to].words] == 1]
        return len(single) > 1 or sum(one.characters for one in single) >= TELLING

    def repeats(self) -> bool:
        """Return whether the history begins with the list, and has no other words behind it."""
        before = [self.past[to].words for to in self.ours]
        after = [self.incoming[at].words for at in self.theirs]
        return bool(after) and before[: len(after)] == after and {*before} == {*after}

    def are_likely(self, same: Mapping[int, int]) -> bool:
        """Return whether to accept uncertain matches: the list begins with them, so that they supersede nothing."""
        if not same or list(same) != list(self.theirs[: len(same)]):
            return False
        if self.ours[-1] in same.values():
            return True
        times = Counter(one.words for one in self.past)
        again = Counter(self.incoming[at].words for at in self.theirs)
        return len(same) == len(self.theirs) and any(times[words] <= again[words] for words in again)

    def edits(self, same: Mapping[int, int], sparse: int) -> dict[int, int]:
        """Return which messages of the list replace which of the past, between two messages in common."""
        exchanged: dict[int, int] = {}
        for number, (theirs, ours) in enumerate(_stretches(self.theirs, self.ours, list(same.items()))):
            bounded = bool(ours) and (self.complete or number > 0) and ours[0] >= sparse
            if bounded and [self.past[to].role for to in ours] == [self.incoming[at].role for at in theirs]:
                exchanged.update(zip(theirs, ours, strict=True))
        return exchanged


def _stretches(
    incoming_places: Places, past_places: Places, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[Places, Places]]:
    """Yield the places between each pair and the one before: in the list, and in the past."""
    first = start = 0
    for at, to in pairs:
        last, stop = bisect_left(incoming_places, at), bisect_left(past_places, to)
        yield incoming_places[first:last], past_places[start:stop]
        first, start = last, stop


def _fronts(incoming: Digests, matches: Mapping[int, int], sparse: int, bare: bool) -> list[int | None]:
    """Return for each message of the list the place in the past of the next match, if there is one.

    Instructions have none, unless the history has no instructions (`bare`).
    """
    fronts: list[int | None] = [None] * len(incoming)
    front: int | None = None
    for at in reversed(range(len(incoming))):
        if incoming[at].talk or (bare and incoming[at].is_instruction):
            fronts[at] = front
        if matches.get(at, -1) >= sparse:
            front = matches[at]
    return fronts


def _outside_conversation(
    past: Digests, incoming: Digests, matches: Mapping[int, int]
) -> tuple[dict[int, int], int | None]:
    """Return matches of instructions and hidden messages, and the place in the list to add again.

    The list's last instructions are added again if others would be in force otherwise.
    """
    rest = [at for at, one in enumerate(incoming) if not one.talk and at not in matches]
    hidden = _without([to for to, one in enumerate(past) if not one.talk], matches.values())
    now = {to: incoming[at] for at, to in matches.items()}
    in_force = max((to for to, one in enumerate(past) if now.get(to, one).is_instruction), default=None)
    found = _matches_by_words(past, incoming, hidden, rest)
    instructions = [at for at, one in enumerate(incoming) if one.is_instruction]
    places = [{**matches, **found}.get(at) for at in instructions]
    if not instructions or (None not in places and places[-1] == in_force):
        return found, None
    return _matches_by_words(past, incoming, hidden, _without(rest, instructions[-1:])), instructions[-1]


def _matches_by_words(
    past: Digests, incoming: Digests, past_places: Places, incoming_places: Places
) -> dict[int, int]:
    """Return matches by words in any order, the newest of the list with the newest of the past."""
    places: dict[bytes, list[int]] = {}
    for to in past_places:
        places.setdefault(past[to].words, []).append(to)
    return {at: left.pop() for at in reversed(incoming_places) if (left := places.get(incoming[at].words))}


# Finds the beginning of a list in another one.

T = TypeVar("T")
U = TypeVar("U")


def find_in_order(past: Sequence[T], incoming: Sequence[U], same: Callable[[T, U], bool] = eq) -> list[int]:
    """Return the places in the past of a list's first items, in that order, with any others in between.

    It ends at the first item that is new: a conversation that begins like an old one is another one.
    """
    places: list[int] = []
    rest = iter(enumerate(past))
    for item in incoming:
        found = next((place for place, one in rest if same(one, item)), None)
        if found is None:
            break
        places.append(found)
    return places


def find_at_end(past: Sequence[T], incoming: Sequence[T]) -> list[int]:
    """Return the places in the past of a list's longest beginning with which the past ends, with any others in between."""
    wanted = {*incoming}
    if not past or past[-1] not in wanted:
        return []
    places = [place for place, item in enumerate(past) if item in wanted]
    for length in range(min(len(places), len(incoming)), 0, -1):
        if [past[place] for place in places[-length:]] == [*incoming[:length]]:
            return places[-length:]
    return []


def is_instruction(message: Message) -> bool:
    """Return whether it is a system message that a model sees."""
    return message.role in SYSTEM_ROLES and message.model_visible


def in_force(messages: Sequence[Message], *, begins: bool = True) -> list[int]:
    """Return the places of the system messages in force, in order.

    That is the newest one, and those directly in front of it that were stored by the same call, or before anything else
    was said. What is said twice counts once.

    Args:
        messages: Messages in order, with their times.
        begins: Whether the session begins with them.
    """
    shown = [at for at, message in enumerate(messages) if message.model_visible]
    while shown and not is_instruction(messages[shown[-1]]):
        shown.pop()
    run = [*takewhile(lambda at: is_instruction(messages[at]), reversed(shown))]
    if not begins or len(run) < len(shown):
        run = [*takewhile(lambda at: messages[at].created_at == messages[run[0]].created_at, run)]
    words = [messages[at].content for at in run]
    return [at for place, at in enumerate(run) if messages[at].content not in words[place + 1 :]][::-1]
