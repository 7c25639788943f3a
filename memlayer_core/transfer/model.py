"""What an import reads, and what it reports."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, count
from typing import Any, Self

from memlayer_core.items.model import PutItem
from memlayer_core.message import Message, Receipt, with_offset
from memlayer_core.messages.check import digest
from memlayer_core.show import Report, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation of another program, or what that program knows of a user. `Memory.import_from` takes an iterable of them.

    Attributes:
        messages: Its messages in order, each with the time at which it was said, if that is known. If a message has no id, it
            gets one that is made of its content, so that a second import finds it.
        session_id: Its id there. None: an id is made of its first messages.
        title: Its title.
        user_id: The user who owns it. None: the source does not say.
        records: Texts to remember, each with fields as for `Chat.remember`.
        items: Values under keys, as LangGraph's stores have them, each with the times at which it was put there.
        left_out: How many messages the reader left out, by the reason.
    """

    messages: Sequence[Message] = ()
    session_id: str | None = None
    title: str | None = None
    user_id: str | None = None
    records: Sequence[tuple[str, Mapping[str, Any]]] = ()
    items: Sequence[PutItem] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, messages: Iterable[Message | str], left_out: Mapping[str, int] | None = None, **more: Any
    ) -> Self:
        """Return a conversation of messages, and of texts that say why a message was left out."""
        every = list(messages)
        left = Counter(one for one in every if isinstance(one, str)) + Counter(left_out or {})
        return cls(messages=[one for one in every if isinstance(one, Message)], left_out=left, **more)

    def placed(self, place: str = "") -> Self:
        """Return it with an id for the session: its own, or one that is made of `place` and its first messages.

        A conversation that has grown keeps that id.
        """
        if self.session_id is not None or not self.messages:
            return self
        return replace(self, session_id=_id(place, *map(_key, self.messages[:_FIRST])))

    def named(self) -> Self:
        """Return it with an id for each message: its own, or one that is made of its content."""
        taken, messages = set[str](), list[Message]()
        for message in self.messages:
            same = (_id(self.session_id or "", _key(message), str(number)) for number in count())
            own = () if message.id is None else (message.id,)
            named = next(one for one in chain(own, same) if one not in taken)
            taken.add(named)
            messages.append(replace(message, id=named))
        return replace(self, messages=messages)


_FIRST = 3  # messages by which two conversations differ


def _key(message: Message) -> str:
    return repr((message.created_at, digest(message).hex()))


def _id(*parts: str) -> str:
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(slots=True)
class ImportReport(Report):
    """What an import did.

    Attributes:
        sessions: Sessions in it.
        messages: Messages in it.
        stored: Messages that are new.
        unchanged: Messages that were stored before, equal and under the same id.
        replaced: Messages that replaced another one with the same id.
        records: Records in it.
        remembered: Records that were stored: new ones, and ones that changed since.
        archived: Those of them that stay out of every context: `memory.records(every=True)` finds them, with the reason.
        items: Items in it.
        placed: Items that were stored: new ones, and ones with a newer value.
        source_format: Name of the format, such as `"chatgpt"`.
        left_out: How many messages, records or items were left out, by the reason.
        without_time: Messages whose time the source does not say: they get one between their neighbours.
        since: Time of the oldest message or record; None: none of them has a time.
        until: Time of the newest message or record.
        dry_run: Whether nothing was written.
    """

    sessions: int = 0
    messages: int = 0
    stored: int = 0
    unchanged: int = 0
    replaced: int = 0
    records: int = 0
    remembered: int = 0
    archived: int = 0
    items: int = 0
    placed: int = 0
    source_format: str = "memlayer"
    left_out: dict[str, int] = field(default_factory=dict)
    without_time: int = 0
    since: datetime | None = None
    until: datetime | None = None
    dry_run: bool = False

    def __str__(self) -> str:
        said = f"{self.messages:,} message(s) of {self.sessions:,} session(s), {self.stored:,} of them new"
        if self.records:
            said += f", {self.records:,} record(s), {self.remembered:,} of them new"
        if self.archived:
            said += f" ({self.archived:,} of these archived)"
        if self.items:
            said += f", {self.items:,} item(s), {self.placed:,} of them new"
        if self.since is not None and self.until is not None:
            said += f"; from {self.since:%Y-%m-%d} to {self.until:%Y-%m-%d}"
        if self.without_time:
            said += f"; {self.without_time:,} without a time"
        if self.left_out:
            said += "; left out: " + ", ".join(f"{count:,} ({why})" for why, count in self.left_out.items())
        return f"{said}; nothing was written" if self.dry_run else said

    def _view(self) -> View:
        """Show the values that are not empty."""
        row = self._row()
        del row["left out"], row["dry run"]
        cells = [(name, cell) for name, cell in row.items() if cell]
        cells += [(f"left out: {why}", count) for why, count in self.left_out.items()]
        return View(rows=tuple(cells), notes=("nothing was written",) if self.dry_run else ())

    def count(self, receipt: Receipt) -> None:
        """Count messages that were stored."""
        self.stored += receipt.stored
        self.unchanged += receipt.unchanged
        self.replaced += receipt.replaced

    def leave_out(self, why: str, count: int = 1) -> None:
        """Count something that is left out."""
        self.left_out[why] = self.left_out.get(why, 0) + count

    def date(self, *moments: datetime | None) -> None:
        """Extend the span of time to these moments."""
        times = [one for one in map(with_offset, (*moments, self.since, self.until)) if one is not None]
        self.since, self.until = min(times, default=None), max(times, default=None)
