"""Reads what a model is shown of the present session: its instructions, its newest turns, and what is said once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from memlayer_core.errors import InvalidLimitError
from memlayer_core.flows.entries import as_shown, last_entries, newest_question, shape_of
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Piece, PieceKind, Reason
from memlayer_core.records.message import Beside, Entry, Message, Stored
from memlayer_core.records.policy import Limits
from memlayer_core.records.session import Mark, Session
from memlayer_core.rules.offload import merged, preview
from memlayer_core.rules.render import in_front
from memlayer_core.rules.turns import presentable
from memlayer_core.rules.window import COMPRESS_TO, Window, reduced, window

__all__ = ["Part", "Present", "present"]

_INSTRUCTIONS = (Reason("instructions", "the session's newest system message is always shown"),)
_RECENT = Reason("recent", "one of the newest whole turns")
_KEPT = (Reason("kept", "recalled for the question behind it, and stays with it"),)
_ONCE = (Reason("temporary", "shown until a model has answered to it"),)
_SAYING = (Reason("saying", "it is being said, and stored with the answer"),)


@dataclass(frozen=True, slots=True)
class Part:
    """A message as it is shown.

    Attributes:
        message: A copy where it is made smaller, or shown as one with its neighbour.
        keys: The stored messages that it shows; none for what is being said.
        ids: Their ids.
        tokens: What it costs.
        reasons: Why it is there, and what was done to it.
        beside: The recalled text that stands with it.
    """

    message: Message
    keys: tuple[int, ...]
    ids: tuple[str, ...]
    tokens: int
    reasons: tuple[Reason, ...]
    beside: Beside | None = None

    @property
    def cost(self) -> int:
        """What it costs with the recalled text that stands with it."""
        return self.tokens + (self.beside.tokens if self.beside is not None else 0)

    def pieces(self, kind: PieceKind) -> tuple[Piece, ...]:
        """Return it as pieces of a context."""
        said = self.message
        piece = Piece(kind, said.text, self.tokens, self.ids, said.created_at, said.speaker, self.reasons)
        if self.beside is None:
            return (piece,)
        kept = self.beside
        return Piece("recall", kept.text, kept.tokens, kept.ids, said.created_at, "", _KEPT), piece


@dataclass(frozen=True, slots=True)
class Present:
    """What is shown of the present session.

    Attributes:
        system: The instructions in force.
        window: The newest turns.
        temporary: What is shown once.
        moved_to: Where the window begins from now on, if turns had to be left out.
        reasons: What was left out or made smaller.
        summary: What stands for the turns before the window.
        summarized_to: The place behind what is summed up.
        ahead: Place where the window is going to begin when it has to move; None while that is far off.
        begins: How the window begins from now on, where that is not as it is marked.
        profile: What is told of the user whatever is asked.
    """

    system: tuple[Part, ...] = ()
    window: tuple[Part, ...] = ()
    temporary: tuple[Part, ...] = ()
    moved_to: int | None = None
    reasons: tuple[Reason, ...] = ()
    summary: tuple[Part, ...] = ()
    summarized_to: int = 0
    ahead: int | None = None
    begins: Mark | None = None
    profile: tuple[Part, ...] = ()

    @property
    def tokens(self) -> int:
        """What all of it costs."""
        parts = (*self.system, *self.profile, *self.summary, *self.window, *self.temporary)
        return sum(part.cost for part in parts)

    @property
    def keys(self) -> set[int]:
        """Which stored messages and records are shown, as they are or in recalled text."""
        parts = (*self.system, *self.profile, *self.window)
        quoted = {key for part in parts if part.beside is not None for key in part.beside.sources}
        return quoted.union(*(part.keys for part in parts))


def present(
    world: World,
    journal: Journal,
    session: Session | None,
    waiting: Sequence[Stored],
    limits: Limits,
    reserved: int,
    first: int,
    *,
    spent: int = 0,
    stops: Collection[int] = (),
    saying: Sequence[Stored] = (),
) -> Present:
    """Read as much of the session's end as fits, never more than a page beyond it.

    Args:
        world: Everything.
        journal: On one snapshot.
        session: None before the first message.
        waiting: Temporary messages.
        limits: What is to be kept.
        reserved: Tokens that older turns may not take.
        first: Where the window begins; nothing before it is read.
        spent: Tokens of what is told beside it.
        stops: Places where the window had better begin when it has to move.
        saying: What is being said: it is shown as it will be once it is stored, behind everything else.

    Raises:
        InvalidLimitError: The instructions alone are larger than the limit.
    """
    once = tuple(_part(world, stored, _ONCE) for stored in waiting)
    if not saying and (session is None or not session.messages):
        _, once, orphans = _fitting((), once)
        return Present(temporary=once, reasons=(*orphans, *_over(once, limits.tokens)))
    system = _instructions(world, journal, session, limits.tokens, saying)
    shape = shape_of(world)
    new = _upcoming(world, session, saying)
    entries = last_entries(world, journal, session, limits, first, [entry for entry, _ in new])
    beside, spent = spent, spent + sum(part.tokens for part in (*system, *once))
    compact_to = world.settings.compact_to
    while True:
        chosen = window(
            entries, limits, spent=spent, reserved=reserved, compact_to=compact_to, stops=stops, shape=shape
        )
        shown = _shown(world, journal, session, chosen, {entry.seq: part for entry, part in new})
        least = {
            entry.seq: shown[entry.seq].tokens
            for entry in chosen.shown
            if entry.seq in shown
            and entry.seq in chosen.shrunk
            and shown[entry.seq].tokens > reduced(entry, chosen.shrunk[entry.seq])
        }
        if not least:
            break
        # Images and the like do not become smaller, and nobody knows of them before the message is read.
        entries = [replace(entry, least=least.get(entry.seq, entry.least)) for entry in entries]
    parts, once, orphans = _fitting(_joined(world, chosen, shown), once)
    reasons = (*chosen.reasons, *orphans, *_over((*system, *once), limits.tokens))
    # What is told once pushes turns out for this once: the window does not begin anew for it.
    moved_to = chosen.shown[0].seq if chosen.moved and chosen.shown and not once else None
    ahead = chosen.ahead if not once and not limits.slides else None
    seen = Present(system, parts, once, moved_to, reasons, ahead=ahead)
    if seen.tokens + beside > limits.tokens:
        return seen
    # Made smaller, the newest turn came out smaller than it was sure to.
    return replace(seen, reasons=tuple(one for one in reasons if one.code != "newest_turn_over_limit"))


def _instructions(
    world: World, journal: Journal, session: Session | None, limit: int, saying: Sequence[Stored]
) -> tuple[Part, ...]:
    found = [one for one in saying if one.message.role == "system" and one.message.model_visible][-1:]
    if not found and session is not None and session.instructions is not None:
        found = journal.read(session, [session.instructions & 0xFFFF_FFFF])
    system = tuple(_part(world, stored, _INSTRUCTIONS) for stored in found)
    if system and system[0].tokens > limit:
        raise InvalidLimitError(
            f"the system message alone needs {system[0].tokens} tokens, of {limit} for everything",
            hint="Shorten the system message, or pass a larger `token_limit` (`Settings.max_tokens`).",
        )
    return system


def _upcoming(world: World, session: Session | None, saying: Sequence[Stored]) -> list[tuple[Entry, Part]]:
    """Return what is being said at the places that it will have, to be shown as it is."""
    told = [one for one in saying if one.message.role != "system" and one.message.model_visible]
    parts = [replace(_part(world, stored, _SAYING), keys=()) for stored in told]
    entries = [
        replace(_entry(seq, part.message), tokens=part.tokens)
        for seq, part in enumerate(parts, session.next_seq if session is not None else 0)
    ]
    return list(zip(entries, parts, strict=True))


def _shown(
    world: World, journal: Journal, session: Session | None, chosen: Window, new: Mapping[int, Part]
) -> dict[int, Part]:
    """Return each message of the window as it is shown, by its place; one that was deleted is missing."""
    question = newest_question(chosen.shown[::-1])
    entries = {entry.seq: entry for entry in chosen.shown if entry.seq not in new}
    if session is None:
        return dict(new)
    found = journal.read(session, list(entries))
    beside = journal.beside([stored.key for stored in found if entries[stored.seq].beside])
    stored = {
        stored.seq: replace(
            _smaller(world, chosen, entries[stored.seq], stored, stored.seq == question),
            beside=_counted(world, beside.get(stored.key)),
        )
        for stored in found
    }
    return {**stored, **new}


def _counted(world: World, beside: Beside | None) -> Beside | None:
    if beside is None or beside.counter == world.tokens.name:
        return beside
    return replace(beside, tokens=world.tokens.text(in_front(beside.text)), counter=world.tokens.name)


def _joined(world: World, chosen: Window, shown: Mapping[int, Part]) -> tuple[Part, ...]:
    """Return the window in its order, old neighbours of one speaker as one where that saves room."""
    question = newest_question(chosen.shown[::-1])
    parts: list[Part] = []
    for entry in chosen.shown:
        if entry.seq not in shown:
            continue
        part = shown[entry.seq]
        before = parts[-1] if parts else None
        old = question is not None and entry.seq < question
        alone = part.beside is not None or not part.keys or not (chosen.merged and old)
        one = merged(before.message, part.message) if before is not None and not alone else None
        if one is not None and before is not None:
            parts[-1] = Part(
                one,
                before.keys + part.keys,
                before.ids + part.ids,
                world.tokens.message(one),
                (*before.reasons, Reason("merged", "shown as one with what the same speaker said next")),
                before.beside,
            )
        else:
            parts.append(part)
    return tuple(parts)


def _smaller(world: World, chosen: Window, entry: Entry, stored: Stored, asked: bool) -> Part:
    message = as_shown(world, stored.message, asked)
    keys, ids = (stored.key,), (stored.message.id or "",)
    reasons: tuple[Reason, ...] = (_RECENT,)
    if message is not stored.message:
        message = replace(message, id=None)  # stored again, it must not take the place of the whole one
        reasons += (Reason("truncated", f"at most {world.settings.truncate_characters} characters of it"),)
    how = chosen.shrunk.get(entry.seq)
    if how is None:
        return Part(message, keys, ids, entry.tokens, reasons)
    characters = world.settings.preview_characters
    if how == "compress":  # as many characters as its part of the tokens pays for
        characters = max(characters, math.floor(len(message.text) * COMPRESS_TO))
        reasons += (Reason("compressed", "the current round had to be made smaller"),)
    else:
        reasons += (Reason("offloaded", "a preview; its id loads all of it"),)
    tokens = reduced(entry, how)
    small = preview(message, entry.seq, characters=characters, tokens=tokens, count=world.tokens.message)
    return Part(small, keys, ids, world.tokens.message(small), reasons)


def _fitting(
    parts: tuple[Part, ...], once: tuple[Part, ...]
) -> tuple[tuple[Part, ...], tuple[Part, ...], tuple[Reason, ...]]:
    """Leave out what a provider refuses where temporary messages follow: results, or calls that wait for one."""
    if not once:
        return parts, once, ()
    together = (*parts, *once)
    _, left = presentable([_entry(at, part.message) for at, part in enumerate(together)])
    if not left:
        return parts, once, ()
    gone = {entry.seq for entry in left}
    fitting = [part if at not in gone else None for at, part in enumerate(together)]
    said = f"{len(left)} message(s) left out: what is told once follows a call without its result, or the reverse"
    return (
        tuple(part for part in fitting[: len(parts)] if part is not None),
        tuple(part for part in fitting[len(parts) :] if part is not None),
        (Reason("incomplete_tools", said),),
    )


def _over(parts: Sequence[Part], limit: int) -> tuple[Reason, ...]:
    """Tell that the instructions and what is told once are over the limit by themselves."""
    tokens = sum(part.tokens for part in parts)
    said = f"the instructions and what is told once need {tokens} of {limit} tokens, and are never dropped"
    return (Reason("temporary_over_limit", said),) if tokens > limit else ()


def _entry(seq: int, message: Message) -> Entry:
    return Entry(seq, message.role, 0, tuple(call.id for call in message.tool_calls), message.tool_call_id)


def _part(world: World, stored: Stored, reasons: tuple[Reason, ...]) -> Part:
    current = stored.counter == world.tokens.name
    tokens = stored.tokens if current else world.tokens.message(stored.message)
    return Part(stored.message, (stored.key,), (stored.message.id or "",), tokens, reasons)
