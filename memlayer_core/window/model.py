"""What a model sees for one call, in pieces with reasons."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from memlayer_core.message import JSON, Entry, Link, Message, ids_in
from memlayer_core.messages.render import CACHE_MARKS, count_marks, keep_marks, openai_message, plain_messages
from memlayer_core.recall.model import Reason
from memlayer_core.scope import Scope
from memlayer_core.show import Bar, Colour, Mark, View, Viewable

T = TypeVar("T")
PieceKind = Literal["system", "profile", "summary", "recall", "window", "temporary"]
Placement = Literal["user", "system"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a context.

    Attributes:
        kind: `"system"`, `"profile"`, `"summary"`, `"recall"`, `"window"` or `"temporary"`.
        text: The text that a model sees.
        tokens: Tokens that it costs.
        message_ids: Ids of the messages or records that it comes from.
        created_at: When it was said; None if no time is known.
        speaker: The speaker's name or role; for a record, its type.
        reasons: Why it is in the context.
        score: Its score, if a search found it for this context; compare scores of one context only.
    """

    kind: PieceKind
    text: str
    tokens: int
    message_ids: tuple[str, ...]
    created_at: datetime | None
    speaker: str
    reasons: tuple[Reason, ...]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Context(Viewable):
    """What a model sees for one call.

    Attributes:
        system: The system messages in force, as they were stored.
        summary: Summary of turns that left the window; None if there is none. With `placement="user"` it is put in
            front of the window's first message, with `"system"` behind the system message.
        window: The newest turns, as they were stored. If some were made smaller, `reasons` say so.
        temporary: Temporary messages. A model sees them until it has answered; they are not in the history.
        recall: Older messages and records that are relevant to the query, as one text; empty if there are none.
        placement: `"user"`: the recall is put into the newest user message, in front of its text. `"system"`: it is
            appended to the last leading system message.
        pieces: Every part of the context, with its tokens and reasons.
        tokens: Tokens of the whole context.
        token_limit: The most tokens that it may cost.
        reasons: What is true of the whole context: what was left out, and what did not work.
        pending: Messages that are not stored yet. They follow the window.
        scope: Scope of the conversation.
        profile: Facts with `always=True`, and records of type `"profile"`, as one message in front of the summary; None
            if there are none.
    """

    system: tuple[Message, ...]
    summary: Message | None
    window: tuple[Message, ...]
    temporary: tuple[Message, ...]
    recall: str
    placement: Placement
    pieces: tuple[Piece, ...]
    tokens: int
    token_limit: int
    reasons: tuple[Reason, ...]
    pending: tuple[Message, ...] = ()
    scope: Scope | None = None
    profile: Message | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages to send to a model, in order, with profile, summary and recall in their places."""
        behind = partial(_put, behind=True)
        return tuple(self.compose(convert=_same, put_before=_put, put_after=behind, create=Message))

    def to_openai(self) -> list[dict[str, JSON]]:
        """Return the messages as dicts for OpenAI's chat API: `client.chat.completions.create(messages=…)`."""
        messages = [plain for message in self.messages for plain in plain_messages(message)]
        return [openai_message(message) for _, message in _results_behind_calls(messages)]

    def compose(
        self,
        *,
        convert: Callable[[Message], T],
        put_before: Callable[[T, str], T],
        put_after: Callable[[T, str], T],
        create: Callable[[Literal["system", "user"], str], T],
        other_parts: object = (),
    ) -> list[T]:
        """Compose the messages to send, in a framework's own type.

        A tool's result is put directly behind its call, as providers require, even if it was stored later. Of the marks of
        a prompt cache (`cache_control`), those of the system message stay, and the newest of the others.

        Args:
            convert: Converts a stored message into the framework's type.
            put_before: Returns a copy of a message with text in front of its own text.
            put_after: Returns a copy of a message with text behind its own text.
            create: Creates a message from a role and a text.
            other_parts: Other parts of the call that may have such marks: tools, or the contents of further messages.
        """
        turns = (*self.window, *self.pending)
        marked = keep_marks((*turns, *self.temporary, *self.system), CACHE_MARKS - count_marks(other_parts))
        end = len(marked) - len(self.system)
        everything, system = marked[:end], marked[end:]
        composed = [convert(message) for message in system]
        lasting = (self.profile, self.summary)
        older = "\n\n".join(message.text for message in lasting if message is not None)
        for text in (older, self.recall) if self.placement == "system" else ():
            if text and composed:
                composed[-1] = put_after(composed[-1], text)
            elif text:
                composed.append(create("system", text))
        questions = (at for at, one in enumerate(turns) if one.role == "user" and not one.answers)
        asked = max(questions, default=None)  # providers want results in front of other content
        over, recalled = (older, self.recall) if self.placement == "user" else ("", "")
        alone = [recalled] if recalled and asked is None else []
        has_place = turns and turns[0].role == "user" and not alone
        first = [*([over] if over and not has_place else []), *alone]
        if first:
            composed.append(create("user", "\n\n".join(first)))
        for at, message in _results_behind_calls(everything):
            # Plain messages stay as they were stored; another framework's message has no other form of the pair.
            made = convert(message if message.raw is not None else everything[at])
            for text in (recalled if at == asked else "", "" if first or at else over):
                made = put_before(made, text) if text else made
            composed.append(made)
        return composed

    def _bar(self) -> Bar:
        """Return the tokens against their limit, in the colours of the pieces."""
        costs = Counter[str]()
        for piece in self.pieces:
            costs[piece.kind] += piece.tokens
        parts = [(Mark(kind, colour), costs[kind]) for kind, colour in COLOURS.items() if costs[kind]]
        rest = (("framing", self.tokens - costs.total()), ("free", max(0, self.token_limit - self.tokens)))
        note = ", ".join(f"{name} {number:,}" for name, number in rest if number)
        return Bar(self.tokens, self.token_limit, "tokens", tuple(parts), note)

    def _view(self) -> View:
        return View(
            "What the model sees",
            bar=self._bar(),
            columns=("part", "tokens", "when", "who", "what", "why", "source"),
            rows=tuple(
                (
                    Mark(piece.kind, COLOURS[piece.kind]),
                    Bar(
                        piece.tokens, self.token_limit, parts=((Mark("", COLOURS[piece.kind]), piece.tokens),)
                    ),
                    piece.created_at and piece.created_at.date(),
                    piece.speaker,
                    piece.text,
                    "; ".join(map(str, piece.reasons)),
                    ", ".join(map(_short, piece.message_ids)),
                )
                for piece in self.pieces
            ),
            notes=tuple(
                Mark(str(one), "red" if one.code.endswith(_FAILURES) else "amber") for one in self.reasons
            ),
        )


COLOURS: Mapping[PieceKind, Colour] = {
    "system": "plain",
    "profile": "amber",
    "summary": "violet",
    "recall": "green",
    "window": "blue",
    "temporary": "pink",
}
_FAILURES = ("_failed", "_unavailable", "_over_limit")
_ID = 12  # characters of an id that are shown


def _short(id: str) -> str:
    return id if len(id) <= 2 * _ID else f"{id[:_ID]}…"


def _results_behind_calls(messages: Sequence[Message]) -> list[tuple[int, Message]]:
    """Return messages in order with their places, but each tool result directly behind its call, and with its id."""
    entries = [Entry.of(at, message) for at, message in enumerate(messages)]
    found = pair(entries)
    groups: dict[int, list[tuple[int, Message]]] = {}
    for at, message in enumerate(messages):
        place, number = found.get((at, 0), (at, -1)) if entries[at].role == "tool" else (at, -1)
        ids = entries[place].calls[number].ids if number >= 0 else ()
        if message.role == "tool" and ids and message.tool_call_id not in ids:
            message = replace(message, tool_call_id=ids[0])  # noqa: PLW2901
        groups.setdefault(place, []).append((at, message))
    return [one for group in groups.values() for one in group]


# What a context is made of, before it is one: messages as the model sees them, with their keys in the journal.


_SHORTER = frozenset({"offloaded", "compressed"})


class Part(NamedTuple):
    """A message as the model sees it.

    Attributes:
        message: A copy if it is shortened or merged with its neighbour.
        keys: Keys of the stored messages that it contains, or their places in a list; none for a pending message. Of a
            summary, its version.
        ids: Their ids.
        tokens: What it costs.
        reasons: Why it is in the context, and how it was changed.
    """

    message: Message
    keys: tuple[int, ...]
    ids: tuple[str, ...]
    tokens: int
    reasons: tuple[Reason, ...]

    @property
    def is_shorter(self) -> bool:
        """Whether it is only a part of the stored message."""
        return any(reason.code in _SHORTER for reason in self.reasons)

    def piece(self, kind: PieceKind, score: float | None = None) -> Piece:
        """Return it as a piece of a context."""
        said = self.message
        return Piece(
            kind, said.text, self.tokens, self.ids, said.created_at, said.speaker, self.reasons, score
        )


@dataclass(frozen=True, slots=True)
class Recall:
    """The recall of a context.

    Attributes:
        text: The recalled lines as a model is shown them.
        tokens: What they cost.
        pieces: The lines in it, by kind and in the order of time.
        prints: The `print_of` of each text, by its key.
        records: The keys of those that are records.
        notes: What did not work.
        reserve: How many tokens older turns left free for it.
    """

    text: str = ""
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    prints: Mapping[int, int] = field(default_factory=dict)
    records: Sequence[int] = ()
    notes: tuple[Reason, ...] = ()
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class WindowView:
    """The part of a session that is in a context.

    Attributes:
        first: Position of the first stored message in the window; without one, where the window begins.
        system: The instructions in force.
        window: The newest turns.
        temporary: The temporary messages.
        new_first: Position of the new window start if turns had to be left out, else None.
        reasons: What was left out or shortened, and why.
        summary: The summary of the turns before the window.
        summary_first: Position where it begins; None: there is none.
        next_start: Position where the window will begin when it has to move; None while that is far off.
        profile: The user's profile.
    """

    first: int
    system: tuple[Part, ...] = ()
    window: tuple[Part, ...] = ()
    temporary: tuple[Part, ...] = ()
    new_first: int | None = None
    reasons: tuple[Reason, ...] = ()
    summary: tuple[Part, ...] = ()
    summary_first: int | None = None
    next_start: int | None = None
    profile: tuple[Part, ...] = ()

    @property
    def tokens(self) -> int:
        """The tokens of all of it."""
        return cost_of((*self.system, *self.profile, *self.summary, *self.window, *self.temporary))

    def context(
        self,
        placement: Placement,
        token_limit: int,
        recall: Recall,
        notes: tuple[Reason, ...] = (),
        scope: Scope | None = None,
    ) -> Context:
        """Put a context together.

        Args:
            placement: Where the recall goes.
            token_limit: The most tokens that the context may cost.
            recall: What is recalled.
            notes: What else is true of the context.
            scope: The conversation; None: it is not in a journal.
        """

        def of(*kinds: PieceKind) -> tuple[Piece, ...]:
            return tuple(part.piece(kind) for kind in kinds for part in getattr(self, kind))

        return Context(
            system=tuple(part.message for part in self.system),
            profile=next((part.message for part in self.profile), None),
            summary=next((part.message for part in self.summary), None),
            window=tuple(part.message for part in self.window if part.keys),
            pending=tuple(part.message for part in self.window if not part.keys),
            temporary=tuple(part.message for part in self.temporary),
            recall=recall.text,
            placement=placement,
            pieces=(*of("system", "profile", "summary"), *recall.pieces, *of("window", "temporary")),
            tokens=self.tokens + recall.tokens,
            token_limit=token_limit,
            reasons=(*self.reasons, *notes),
            scope=scope,
        )

    @property
    def keys(self) -> set[int]:
        """Keys of all stored messages and records that it shows whole."""
        parts = (*self.system, *self.profile, *self.window)
        return set[int]().union(*(part.keys for part in parts if not part.is_shorter))


def cost_of(parts: Iterable[Part]) -> int:
    """Return the tokens of all of them."""
    return sum(part.tokens for part in parts)


# Pairs calls and answers.

_Spot = tuple[int, int]
_MADE = re.compile(r"call-[0-9]+")
"""Matches an id that adapters give to a call without one."""


def _is_own(link: Link) -> bool:
    return any(not _MADE.fullmatch(one) for one in link.ids)


_WAYS: Sequence[tuple[Callable[[Link], Sequence[str]], Callable[[Link], Sequence[str]]]] = (
    (lambda call: call.ids, lambda answer: answer.ids),
    (lambda call: (call.name,), lambda answer: answer.ids if _is_own(answer) else (answer.name,)),
    (
        lambda call: ("nameless",) if _is_own(call) else ("nameless", "any"),
        lambda answer: ("any",) if _is_own(answer) else ("nameless",),
    ),
)
"""How a call and an answer name each other: by an id, by the tool, or by their order if one of the two has no id."""


def pair(entries: Sequence[Entry]) -> dict[_Spot, _Spot]:
    """Return the call of each answer: the place of its entry, and its number there; -1: a block only names its id.

    A call has one answer. An id that is used again is that of the later call. Answers that are not found are left out.
    """
    found: dict[_Spot, _Spot] = {}
    for call_keys, answer_keys in _WAYS:
        waiting: dict[str, list[_Spot]] = {}
        taken = set(found.values())
        for at, entry in enumerate(entries):
            fresh: dict[str, list[_Spot]] = {}
            for number, call in enumerate(entry.calls):
                for key in call_keys(call) if (at, number) not in taken else ():
                    fresh.setdefault(key, []).append((at, number))
            waiting |= fresh
            for number, answer in enumerate(entry.answers):
                keys = answer_keys(answer) if (at, number) not in found else ()
                spots = (spot for key in keys for spot in waiting.get(key, ()) if spot not in taken)
                if (spot := next(spots, None)) is not None:
                    found[at, number] = spot
                    taken.add(spot)
    if len(found) < sum(len(entry.answers) for entry in entries):
        _add_mentions(entries, found)
    return found


def _add_mentions(entries: Sequence[Entry], links: dict[_Spot, _Spot]) -> None:
    """Add answers whose id is anywhere in an earlier message: a provider may have forms of calls that memlayer does not know."""
    named: dict[str, _Spot] = {}
    for at, entry in enumerate(entries):
        for number, answer in enumerate(entry.answers):
            spot = next((named[one] for one in answer.ids if one in named), None)
            if spot is not None:
                links.setdefault((at, number), spot)
        if entry.message is not None and not entry.answers:
            own = {one for call in entry.calls for one in call.ids}
            raw = entry.message.raw
            every = ids_in((entry.message.content, raw.dump if raw is not None else {}))
            named |= {one: (at, -1) for one in every if one not in own}


def _same(message: Message) -> Message:
    return message


def _put(message: Message, text: str, *, behind: bool = False) -> Message:
    own, block = message.content, {"type": "text", "text": text}
    if isinstance(own, str):
        return replace(message, content="\n\n".join((own, text) if behind else (text, own)), raw=None)
    return replace(message, content=(*own, block) if behind else (block, *own), raw=None)
