"""Reads what stands for the session's older turns, and the newest turns beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memlayer_core.flows.present import Part, Present, present
from memlayer_core.ports import Journal, World
from memlayer_core.records.context import Reason
from memlayer_core.records.message import Message, Stored
from memlayer_core.records.policy import Limits
from memlayer_core.records.session import Session
from memlayer_core.records.summary import Summary
from memlayer_core.rules.budget import recall_share
from memlayer_core.rules.render import summary_block

__all__ = ["evict", "told"]

_PLACE = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class _Shown:
    """The summaries that are shown, as one text."""

    part: Part | None = None
    versions: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return self.part.tokens if self.part is not None else 0


def told(
    world: World,
    journal: Journal,
    session: Session | None,
    waiting: Sequence[Stored],
    limits: Limits,
    reserved: int,
    first: int,
) -> Present:
    """Read the newest turns, and the summaries of what lies before them; what is shown is not told twice.

    Args:
        world: Everything.
        journal: On one snapshot.
        session: None before the first message.
        waiting: Temporary messages.
        limits: What is to be kept.
        reserved: Tokens that older turns may not take.
        first: Where the window begins; nothing before it is read.
    """
    known = _known(world, journal, session)
    shown = _before(world, known, first, limits)
    while True:
        seen = present(world, journal, session, waiting, limits, reserved, first, spent=shown.tokens)
        wanted = _before(world, known, _begins(seen, first), limits)
        grows = wanted.versions != shown.versions
        if shown.part is not None and seen.tokens + shown.tokens > limits.tokens:
            known, wanted = [], _Shown()  # the newest turn goes before everything
        elif not grows or seen.tokens + reserved + wanted.tokens <= limits.tokens:
            break
        shown = wanted
    behind = known[-1].until_seq + 1 if known else 0
    return replace(seen, summary=(wanted.part,) if wanted.part is not None else (), summarized_to=behind)


def evict(world: World, session: Session | None, seen: Present, first: int) -> None:
    """Let what lies before the window be summed up, if that is worth it.

    A window that keeps a limit of tokens moves in large steps, and each is summed up. One that keeps a number of
    messages or rounds moves with every turn: some turns are waited for.
    """
    if world.evicted is None or session is None or session.superseded:
        return
    begins = _begins(seen, first)
    behind = max(seen.summarized_to, session.begins)
    stepped = seen.moved_to is not None or first > behind
    if begins > behind and (stepped or begins - behind >= world.settings.summary_batch):
        world.evicted(session.number, begins)


def _known(world: World, journal: Journal, session: Session | None) -> list[Summary]:
    if session is None or not session.summary_version or world.evicted is None:
        return []
    return [one for one in journal.summaries(session) if one.first_seq >= session.begins]


def _begins(seen: Present, first: int) -> int:
    return seen.window[0].keys[0] & _PLACE if seen.window else first


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
