"""Decides what of a list that a framework sends again is new, and what it takes the place of.

Many frameworks keep the messages themselves and send the whole list each time: trimmed at the front, with
something put in its place, filtered, or edited. The history has to follow without losing or repeating a
word. First the ids decide, then the words:

* A message whose id the history knows is that message: other words take the place of its old ones. It stays
  where the history has it, also where the list has it in another place.
* All others, with an id that is not known or without one, are known by their words: what list and history
  have in common between two messages known by their ids, in the same order.

What follows from what both have in common:

* The list goes on where the history ends: the rest is new.
* The list leaves messages out, or ends inside the history: nothing is new, and nothing was deleted. Unless its
  end is known to be the conversation's (`ends`): then what the history has behind it is superseded.
* The list says something else behind a common message: what the history has there is superseded.
* The list has other words between two common messages, as many and by the same speakers: they were edited.
* The list puts something else in front or in between (a summary): it comes in front of what follows it.
* Nothing in common: all of it is new.

A run that decides over superseding must tell more than "ok", which is said in any conversation.

Instructions and hidden messages are no part of that order. The list's last instructions are the ones in force
afterwards: if need be, they come to the history's end again.

Sending the same list again finds all of it.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memlayer_core.records.message import Block, Message, Role
from memlayer_core.rules.runs import in_common

__all__ = ["TELLING", "Alignment", "Said", "align", "said"]

TELLING = 40
"""Characters, said once in the history, that cannot be the same by chance; nor can two such messages be, however
short they are."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message as far as it matters whether it was said before.

    Attributes:
        words: 16 bytes, equal where speaker, content and tool calls are; times and metadata do not matter.
        id: Its id; None where the caller named none.
        role: Who speaks.
        characters: Length of its text.
        spoken: Whether it is part of the conversation: no instructions, and nothing hidden from models.
        instructs: Whether it is instructions that models are told.
        tools: Whether it calls tools, or answers such a call.
    """

    words: bytes
    id: str | None
    role: Role
    characters: int
    spoken: bool = True
    instructs: bool = False
    tools: bool = False


@dataclass(frozen=True, slots=True)
class Alignment:
    """What to do with the history, so that it holds what was sent.

    Attributes:
        known: For each message sent, its place in the past; None where it is new.
        new: Places in the list of what is new, in their order, each with the place in the past of what it comes
            in front of; None: it comes to the history's end.
        edited: Places in the list, and the place in the past that each of them takes.
        superseded: Places in the past that leave the session, in their order.
        repeated: Places in the past that leave the session because the same message, under the same id, is new.
        missing: Places in the list of what is not in this part of the past, though what comes behind it is:
            it may stand further back. All of the list, where nothing of it was found.
    """

    known: tuple[int | None, ...]
    new: tuple[tuple[int, int | None], ...] = ()
    edited: tuple[tuple[int, int], ...] = ()
    superseded: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


def said(message: Message, *, named: bool) -> Said:
    """Return what decides whether a message is another one.

    Args:
        message: It has been checked.
        named: Whether its id is the caller's.
    """
    blocks = [] if isinstance(message.content, str) else list(map(dict, message.content))
    fields = [
        message.role,
        message.name,
        message.text,
        [_words(block) for block in blocks if block.get("type") != "text"],
        [[call.id, call.name, _plain(call.arguments)] for call in message.tool_calls],
        message.tool_call_id,
        message.model_visible,
    ]
    written = json.dumps(fields, ensure_ascii=False, sort_keys=True, default=dict, separators=(",", ":"))
    return Said(
        hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        message.id if named else None,
        message.role,
        len(message.text),
        spoken=message.role != "system" and message.model_visible,
        instructs=message.role == "system" and message.model_visible,
        tools=message.role == "tool" or bool(message.tool_calls),
    )


def _words(block: Block) -> Block:
    """Return a block without what a provider has signed its thought with: the thought is the same without."""
    return (
        {name: block[name] for name in block if name != "extras"}
        if block.get("type") == "thinking"
        else block
    )


def align(
    past: Sequence[Said], sent: Sequence[Said], *, whole: bool, loose: int = 0, ends: bool = False
) -> Alignment:
    """Compare a list of messages with the end of a history.

    Args:
        past: The history's last messages, in their order, and whatever stands further back and has one of the
            list's ids; the newest instructions are among them.
        sent: The list, in its order.
        whole: Whether `past` is the whole history.
        loose: How many at the beginning of `past` are single finds, with gaps between them.
        ends: Whether the conversation ends where the list does: a list is trimmed at its front, and not here.
    """
    named = _named(past, sent)
    line = _rising(named, sent)
    with_tools = any(one.tools for one in sent)  # a list without any was filtered
    heard = [to for to, one in enumerate(past) if one.spoken and (with_tools or not one.tools)]
    open_past = _without(heard, named.values())
    open_sent = _without([at for at, one in enumerate(sent) if one.spoken], named)

    same = _common(past, sent, open_past, open_sent, line, whole=whole)
    if ends and whole and not line and _repeats(past, sent, open_past, open_sent):
        same = dict(zip(open_sent, open_past, strict=False))
    sure = bool(line) or _is_sure(past, sent, open_past, open_sent, same, whole=whole)
    if not sure and not _is_likely(past, sent, open_past, open_sent, same):
        same = {}
    same = dict(sorted({**line, **same}.items()))
    edited = {at: to for at, to in named.items() if past[to].words != sent[at].words}
    exchanged: dict[int, int] = {}
    if sure:
        gaps = _without(open_past, same.values()), _without(open_sent, same)
        exchanged = _edited(past, sent, *gaps, same, loose=loose, whole=whole)
    edited |= exchanged
    known = {**named, **same, **exchanged}
    found, again = _beside(past, sent, known)
    known |= found
    gone: list[int] = []
    repeated: list[int] = []
    if again is not None and again in known:
        (repeated if edited.pop(again, None) is None else gone).append(known.pop(again))

    new = [at for at in range(len(sent)) if at not in known]
    last, end = max(same.items(), default=(-1, len(past)))
    behind = _without(range(end + 1, len(past)), known.values())
    goes_on = (ends and sure) or any(sent[at].spoken and at > last for at in new) or last in edited
    if goes_on and not {*heard}.isdisjoint(behind):
        gone += [to for to in behind if past[to].role != "system"]
    fronts = _fronts(sent, {**same, **exchanged}, loose)
    return Alignment(
        tuple(known.get(at) for at in range(len(sent))),
        tuple((at, fronts[at]) for at in new),
        tuple(sorted(edited.items())),
        tuple(sorted({*gone})),
        tuple(repeated),
        tuple(at for at in new if at < last or not sent[at].spoken or not same),
    )


def _plain(arguments: str) -> object:
    """Return arguments without what their spelling adds."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _without(places: Sequence[int], some: Collection[int]) -> list[int]:
    left_out = {*some}
    return [place for place in places if place not in left_out]


def _named(past: Sequence[Said], sent: Sequence[Said]) -> dict[int, int]:
    """Return places in the list with the places in the past that have the same id."""
    places = {one.id: to for to, one in enumerate(past) if one.id is not None}
    return {at: places[one.id] for at, one in enumerate(sent) if one.id in places}


def _rising(named: Mapping[int, int], sent: Sequence[Said]) -> dict[int, int]:
    """Return those that are in the same order in the list and in the past: behind all that came before.

    What is new comes in between or behind, so that the same ones are in order when the list is sent again.
    """
    line: dict[int, int] = {}
    highest = -1
    for at, to in named.items():
        if sent[at].spoken and to > highest:
            line[at] = highest = to
    return line


def _common(
    past: Sequence[Said],
    sent: Sequence[Said],
    heard: Sequence[int],
    told: Sequence[int],
    line: Mapping[int, int],
    *,
    whole: bool,
) -> dict[int, int]:
    """Return what has the same words, in rising order, between those that are known by their ids."""
    same: dict[int, int] = {}
    for number, (theirs, ours) in enumerate(_stretches(told, heard, [*line.items(), (len(sent), len(past))])):
        before, after = [past[to].words for to in ours], [sent[at].words for at in theirs]
        pairs = in_common(before, after, prefix=whole and not number)
        same.update((theirs[at], ours[to]) for at, to in pairs.items())
    return dict(sorted(same.items()))


def _stretches(
    told: Sequence[int], heard: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield what stands in front of each pair, and behind the one before: in the list, and in the past."""
    first = start = 0
    for at, to in pairs:
        last, stop = bisect_left(told, at), bisect_left(heard, to)
        yield told[first:last], heard[start:stop]
        first, start = last, stop


def _is_sure(
    past: Sequence[Said],
    sent: Sequence[Said],
    heard: Sequence[int],
    told: Sequence[int],
    same: Mapping[int, int],
    *,
    whole: bool,
) -> bool:
    """Tell whether what is in common cannot be so by chance."""
    if whole and same and told[0] in same and sent[told[0]].words == past[heard[0]].words:
        return True
    times = Counter(one.words for one in past)
    telling = [past[to].characters for to in same.values() if times[past[to].words] == 1]
    return len(telling) > 1 or sum(telling) >= TELLING


def _repeats(past: Sequence[Said], sent: Sequence[Said], heard: Sequence[int], told: Sequence[int]) -> bool:
    """Tell whether the history begins with the list, and says nothing behind it that the list does not say."""
    before, after = [past[to].words for to in heard], [sent[at].words for at in told]
    return bool(after) and before[: len(after)] == after and {*before} == {*after}


def _is_likely(
    past: Sequence[Said],
    sent: Sequence[Said],
    heard: Sequence[int],
    told: Sequence[int],
    same: Mapping[int, int],
) -> bool:
    """Tell whether to take it for the same because nothing is superseded by it: the list begins with it."""
    if not same or list(same) != list(told[: len(same)]):
        return False
    if heard[-1] in same.values():
        return True
    times, again = Counter(one.words for one in past), Counter(sent[at].words for at in told)
    return len(same) == len(told) and any(times[words] <= again[words] for words in again)


def _edited(
    past: Sequence[Said],
    sent: Sequence[Said],
    heard: Sequence[int],
    told: Sequence[int],
    same: Mapping[int, int],
    *,
    loose: int,
    whole: bool,
) -> dict[int, int]:
    """Return which messages take the place of which between two messages in common."""
    edited: dict[int, int] = {}
    for number, (theirs, ours) in enumerate(_stretches(told, heard, list(same.items()))):
        bounded = bool(ours) and (whole or number > 0) and ours[0] >= loose
        if bounded and [past[to].role for to in ours] == [sent[at].role for at in theirs]:
            edited.update(zip(theirs, ours, strict=True))
    return edited


def _fronts(sent: Sequence[Said], aligned: Mapping[int, int], loose: int) -> list[int | None]:
    """Return, for each message sent, the place in the past of what comes next in the list, where it is known."""
    fronts: list[int | None] = [None] * len(sent)
    front: int | None = None
    for at in reversed(range(len(sent))):
        if sent[at].spoken:
            fronts[at] = front
        if aligned.get(at, -1) >= loose:
            front = aligned[at]
    return fronts


def _beside(
    past: Sequence[Said], sent: Sequence[Said], known: Mapping[int, int]
) -> tuple[dict[int, int], int | None]:
    """Return where in the past stands what is no part of the conversation, and which of the list comes again.

    The list's last instructions do where others would be in force otherwise.
    """
    rest = [at for at, one in enumerate(sent) if not one.spoken and at not in known]
    hidden = _without([to for to, one in enumerate(past) if not one.spoken], known.values())
    now = {to: sent[at] for at, to in known.items()}
    in_force = max((to for to, one in enumerate(past) if now.get(to, one).instructs), default=None)
    found = _by_words(past, sent, hidden, rest)
    told = [at for at, one in enumerate(sent) if one.instructs]
    places = [{**known, **found}.get(at) for at in told]
    if not told or (None not in places and places[-1] == in_force):
        return found, None
    return _by_words(past, sent, hidden, _without(rest, told[-1:])), told[-1]


def _by_words(
    past: Sequence[Said], sent: Sequence[Said], heard: Sequence[int], told: Sequence[int]
) -> dict[int, int]:
    """Return what has the same words, whatever the order: the newest ones of the list with those of the past."""
    places: dict[bytes, list[int]] = {}
    for to in heard:
        places.setdefault(past[to].words, []).append(to)
    return {at: left.pop() for at in reversed(told) if (left := places.get(sent[at].words))}
