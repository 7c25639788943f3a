"""Decides what of a list that a framework sends again is new, and what it takes the place of.

Many frameworks keep the messages themselves and send the whole list each time: trimmed at the front, with
something put in its place, filtered, or edited. The history has to follow without losing or repeating a
word. What both have in common is looked for in long runs; what follows from it:

* The list goes on where the history ends: the rest is new.
* The list ends inside the history, or leaves messages out: nothing is new, and nothing was deleted.
* The list says something else behind a common message: what the history has there is superseded.
* The list has other words between two common messages, as many and by the same speakers: they were edited.
* The list puts something else in front or in between (a summary): it comes in front of what follows it.
* Nothing in common: all of it is new.

The list then stands in the session in its own order, so that sending it again finds all of it.

A message that comes with an id is that message, whatever it says; one without is known by its words. A run
that decides over superseding must tell more than "ok", which is said in any conversation.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from memlayer_core.records.message import Message, Role

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
        tools: Whether it calls tools, or answers such a call.
    """

    words: bytes
    id: str | None
    role: Role
    characters: int
    spoken: bool = True
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
        missing: Places in the list of what is not in this part of the past, though what comes behind it is:
            it may stand further back. All of the list, where nothing of it was found.
    """

    known: tuple[int | None, ...]
    new: tuple[tuple[int, int | None], ...] = ()
    edited: tuple[tuple[int, int], ...] = ()
    superseded: tuple[int, ...] = ()
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
        [block for block in blocks if block.get("type") != "text"],
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
        tools=message.role == "tool" or bool(message.tool_calls),
    )


def align(
    past: Sequence[Said],
    sent: Sequence[Said],
    *,
    whole: bool,
    loose: int = 0,
    in_force: bytes | None = None,
) -> Alignment:
    """Compare a list of messages with the end of a history.

    Args:
        past: The history's last messages, in their order.
        sent: The list, in its order.
        whole: Whether `past` is the whole history.
        loose: How many at the beginning of `past` are single finds, with gaps between them.
        in_force: The words of the newest system message.
    """
    with_tools = any(one.tools for one in sent)  # a list without any was filtered
    heard = [at for at, one in enumerate(past) if one.spoken and (with_tools or not one.tools)]
    told = [at for at, one in enumerate(sent) if one.spoken]
    same = _common(past, sent, heard, told, whole=whole)
    sure = _is_sure(past, sent, heard, told, same, whole=whole)
    if not sure and not _is_likely(past, heard, told, same):
        same = {}
    edited = _edited(past, sent, heard, told, same, loose=loose, whole=whole) if sure else {}
    aligned = {**same, **edited}
    last = max(same, default=-1)
    known = {**aligned, **_beside(past, sent, aligned, in_force)}
    new = [at for at in range(len(sent)) if at not in known]
    goes_on = any(sent[at].spoken and at > last for at in new) or last in edited
    behind = [
        at for at in range(max(same.values(), default=len(past)) + 1, len(past)) if at not in known.values()
    ]
    superseded = (
        [at for at in behind if past[at].role != "system"] if goes_on and {*behind} & {*heard} else []
    )
    return Alignment(
        tuple(known.get(at) for at in range(len(sent))),
        tuple((at, _in_front_of(at, sent, aligned, loose)) for at in new),
        tuple(sorted(edited.items())),
        tuple(superseded),
        tuple(at for at in new if at < last or not sent[at].spoken or not same),
    )


def _plain(arguments: str) -> object:
    """Return arguments without what their spelling adds."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _common(
    past: Sequence[Said], sent: Sequence[Said], heard: Sequence[int], told: Sequence[int], *, whole: bool
) -> dict[int, int]:
    """Return places in the list with the places in the past that they stand for, both rising."""
    ids = {past[at].id for at in heard} & {sent[at].id for at in told} - {None}

    def mark(one: Said, at: int) -> object:
        if one.id in ids:
            return one.id
        return ("new", at) if ids and one.id is not None else one.words

    before = [past[at].id if past[at].id in ids else past[at].words for at in heard]
    after = [mark(sent[at], at) for at in told]
    pairs = _inside(before, after) or _in_runs(before, after, prefix=whole)
    return {told[at]: heard[to] for at, to in sorted(pairs.items())}


def _inside(before: Sequence[object], after: Sequence[object]) -> dict[int, int]:
    """Return where all of the list stands in the past, as near to its end as can be; nothing if some does not."""
    pairs: dict[int, int] = {}
    to = len(before)
    for at in reversed(range(len(after))):
        to = next((place for place in reversed(range(to)) if before[place] == after[at]), -1)
        if to < 0:
            return {}
        pairs[at] = to
    return pairs


def _in_runs(before: Sequence[object], after: Sequence[object], *, prefix: bool) -> dict[int, int]:
    """Return what both have in common, the longest runs first, the newest of equally long ones."""
    first = _prefix(before, after) if prefix else 0
    pairs = {at: at for at in range(first)}
    matcher = SequenceMatcher(None, before[first:][::-1], after[first:][::-1], autojunk=False)
    for run in matcher.get_matching_blocks():
        for step in range(1, run.size + 1):
            pairs[len(after) - run.b - step] = len(before) - run.a - step
    return pairs


def _prefix(one: Sequence[object], other: Sequence[object]) -> int:
    length = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        length += 1
    return length


def _changed(past: Sequence[Said], sent: Sequence[Said], at: int, same: Mapping[int, int]) -> bool:
    return past[same[at]].words != sent[at].words


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
    if any(sent[at].id is not None and sent[at].id == past[to].id for at, to in same.items()):
        return True
    if whole and same and same.get(told[0]) == heard[0]:
        return True
    once = _said_once(past)
    telling = [past[to].characters for to in same.values() if once(to)]
    return len(telling) > 1 or sum(telling) >= TELLING


def _is_likely(
    past: Sequence[Said], heard: Sequence[int], told: Sequence[int], same: Mapping[int, int]
) -> bool:
    """Tell whether to take it for the same because nothing is superseded by it: the list begins with it."""
    if not same or list(same) != list(told[: len(same)]):
        return False
    if heard[-1] in same.values():
        return True
    return len(same) == len(told) and any(map(_said_once(past), same.values()))


def _said_once(past: Sequence[Said]) -> Callable[[int], bool]:
    times = Counter(one.words for one in past)
    return lambda at: times[past[at].words] == 1


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
    """Return which messages take the place of which: by their id, or between two messages in common."""
    edited = {at: to for at, to in same.items() if _changed(past, sent, at, same)}
    for theirs, ours in _gaps(heard, told, same, whole=whole):
        speakers = [past[to].role for to in ours]
        if ours and ours[0] >= loose and speakers == [sent[at].role for at in theirs]:
            edited.update(zip(theirs, ours, strict=True))
    return edited


def _gaps(
    heard: Sequence[int], told: Sequence[int], same: Mapping[int, int], *, whole: bool
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield what stands between two messages in common: in the list, and in the past."""
    before = (-1, -1) if whole else None
    for pair in same.items():
        if before is not None:
            yield (
                [at for at in told if before[0] < at < pair[0]],
                [to for to in heard if before[1] < to < pair[1]],
            )
        before = pair


def _in_front_of(at: int, sent: Sequence[Said], aligned: Mapping[int, int], loose: int) -> int | None:
    """Return the place in the past of what comes next in the list, where that is known."""
    if not sent[at].spoken:
        return None
    return min((to for other, to in aligned.items() if other > at and to >= loose), default=None)


def _beside(
    past: Sequence[Said], sent: Sequence[Said], aligned: Mapping[int, int], in_force: bytes | None
) -> dict[int, int]:
    """Return where in the past stands what is no part of the conversation, or what an id says is out of line."""
    newest = max((at for at, one in enumerate(sent) if one.role == "system"), default=None)
    places: dict[object, list[int]] = {}
    for to, one in enumerate(past):
        if to not in aligned.values():
            if one.id is not None:
                places.setdefault(one.id, []).append(to)
            if not one.spoken:
                places.setdefault(one.words, []).append(to)
    found: dict[int, int] = {}
    for at, one in enumerate(sent):
        if at in aligned or (at == newest and one.id not in places and one.words != in_force):
            continue  # instructions that were said before are to be in force again
        name = one.id if one.id in places else one.words
        if one.id is not None or not one.spoken:
            free = [to for to in places.get(name, ()) if to not in found.values()]
            found.update({at: free[-1]} if free else {})
    return found
