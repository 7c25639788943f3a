"""What a model is told, piece by piece, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TypeVar

from memlayer_core import show
from memlayer_core.records.message import Beside, Message
from memlayer_core.records.record import Record
from memlayer_core.records.scope import Scope

__all__ = ["Context", "Hit", "Hits", "Piece", "PieceKind", "Placement", "Reason", "Recalled"]

T = TypeVar("T")
PieceKind = Literal["system", "profile", "summary", "recall", "window", "temporary"]
Placement = Literal["user", "system"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is there, or is not.

    Attributes:
        code: A stable word to test for, such as `"newest_turn_over_limit"`.
        text: The same for a person.
    """

    code: str
    text: str

    def __str__(self) -> str:
        """Return the text for a person."""
        return self.text


@dataclass(frozen=True, slots=True)
class Hit:
    """A message or a record that a search found.

    Attributes:
        text: What was said.
        score: Larger is better; comparable within one search only.
        kind: What was found: `"message"` or `"record"`.
        message_ids: The messages it comes from; none for a record.
        session_id: Where it was said; empty where that is not known.
        speaker: Who said it: the name, else the role. For a record, its type.
        created_at: When it was said, or happened.
        tokens: What it costs to show.
        reasons: What each source of the search gave.
        record: The record that was found.
    """

    text: str
    score: float
    kind: Literal["message", "record"]
    message_ids: tuple[str, ...]
    session_id: str
    speaker: str
    created_at: datetime
    tokens: int
    reasons: tuple[Reason, ...]
    record: Record | None = None


class Hits(tuple[Hit, ...]):
    """Hits, the best first. A tuple that Jupyter shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return show.table(
            ["score", "when", "who", "what", "why"],
            [
                [
                    f"{hit.score:.3f}",
                    f"{hit.created_at:%Y-%m-%d}",
                    hit.speaker,
                    hit.text,
                    "; ".join(map(str, hit.reasons)),
                ]
                for hit in self
            ],
            caption=f"{len(self)} hit(s)",
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a context.

    Attributes:
        kind: `"system"`, `"profile"`, `"summary"`, `"recall"`, `"window"` or `"temporary"`.
        text: What is shown.
        tokens: What it costs.
        message_ids: The messages it comes from, or the records.
        created_at: When it was said.
        speaker: Who said it; for a record, its type.
        reasons: Why it is there.
    """

    kind: PieceKind
    text: str
    tokens: int
    message_ids: tuple[str, ...]
    created_at: datetime | None
    speaker: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a model was shown of older talk, with the question that it answered.

    Attributes:
        question_id: The message that it stands with.
        text: The block of text, as it was shown.
        tokens: What it costs.
        message_ids: What it quotes: ids of messages, and of records.
    """

    question_id: str
    text: str
    tokens: int
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What a model is told for one call.

    Attributes:
        system: The newest system message, as it was stored.
        summary: What turns before the window said, in short; None while there is no summary. It is put where
            the recall is put, in front of the window's first message instead of the newest.
        window: The newest turns, as they were stored unless `reasons` say that they were made smaller.
        temporary: What is shown until a model has answered, and is not in the history.
        recall: Older turns that bear on the query, rendered as one block of text; empty if there are none.
        kept: What was recalled for earlier questions of the window, by their places in it: each stands in
            front of its question, so that the prompt begins like the one before.
        placement: `"user"`: the recall stands in front of the newest user message, inside it. `"system"`: it
            is appended to the last leading system message.
        pieces: Every part with its cost and the reasons for it.
        tokens: What everything costs together.
        token_limit: What it was allowed to cost.
        reasons: What holds for the whole: what was left out, what degraded.
        saying: What is being said, and not stored yet; it follows the window.
        beside: The recall, to stand with its question from the answer on; None: it does not.
        scope: Whose conversation it is of.
        profile: What is remembered of the user whatever is asked; None where that is nothing. It stands in front of
            the summary.
    """

    system: tuple[Message, ...]
    summary: Message | None
    window: tuple[Message, ...]
    temporary: tuple[Message, ...]
    recall: str
    kept: Mapping[int, str]
    placement: Placement
    pieces: tuple[Piece, ...]
    tokens: int
    token_limit: int
    reasons: tuple[Reason, ...]
    saying: tuple[Message, ...] = ()
    beside: Beside | None = None
    scope: Scope | None = None
    profile: Message | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages to send to a model, in their order, the recalled text in its place."""
        return tuple(
            self.compose(
                convert=lambda message: message,
                put_before=_put_before,
                put_after=_put_after,
                create=Message,
            )
        )

    def compose(
        self,
        *,
        convert: Callable[[Message], T],
        put_before: Callable[[T, str], T],
        put_after: Callable[[T, str], T],
        create: Callable[[Literal["system", "user"], str], T],
    ) -> list[T]:
        """Compose the messages to send, in a framework's own type.

        Results stand directly behind their calls, as providers want them, also where they came later.

        Args:
            convert: Makes the framework's message of a stored one.
            put_before: Returns a copy of a message with text in front of its own.
            put_after: Returns a copy of a message with text behind its own.
            create: Makes a message of a role and a text.
        """
        composed = [convert(message) for message in self.system]
        lasting = (self.profile, self.summary)
        older = "\n\n".join(message.text for message in lasting if message is not None)
        for text in (older, self.recall) if self.placement == "system" else ():
            if text and composed:
                composed[-1] = put_after(composed[-1], text)
            elif text:
                composed.append(create("system", text))
        over = older if self.placement == "user" else ""
        turns = (*self.window, *self.saying)
        asked = max((at for at, message in enumerate(turns) if message.role == "user"), default=None)
        beside = self.recall if self.placement == "user" else ""
        first = [over] if over and not (turns and turns[0].role == "user") else []
        first += [beside] if beside and asked is None else []
        if first:
            composed.append(create("user", "\n\n".join(first)))
        told = (*turns, *self.temporary)
        for at in _answered_at_once(told):
            made = convert(told[at])
            for text in (self.kept.get(at, ""), beside if at == asked else "", "" if first or at else over):
                made = put_before(made, text) if text else made
            composed.append(made)
        return composed

    def _repr_html_(self) -> str:
        head = show.bar(self.tokens, self.token_limit, "tokens")
        notes = "; ".join(map(str, self.reasons))
        rows: list[list[str | show.Bar]] = [
            [
                piece.kind,
                f"{piece.created_at:%Y-%m-%d}" if piece.created_at else "",
                piece.speaker,
                piece.text,
                show.Bar(piece.tokens, self.token_limit),
                "; ".join(map(str, piece.reasons)),
            ]
            for piece in self.pieces
        ]
        return head + show.table(["part", "when", "who", "what", "tokens", "why"], rows, caption=notes)


def _answered_at_once(messages: Sequence[Message]) -> list[int]:
    """Return the places of messages, those of results directly behind those of their calls; all else as it was said."""
    groups: list[list[int]] = []
    waiting: dict[str, list[int]] = {}
    calling: list[int] | None = None
    for at, message in enumerate(messages):
        if message.role == "tool":
            named = message.tool_call_id
            group = calling if named is None else waiting.pop(named, None)
            if group is not None:
                group.append(at)
                continue
        groups.append([at])
        if message.tool_calls:
            calling = groups[-1]
            waiting.update((call.id, calling) for call in message.tool_calls)
    return [at for group in groups for at in group]


def _put_before(message: Message, text: str) -> Message:
    if isinstance(message.content, str):
        return replace(message, content=f"{text}\n\n{message.content}", raw=None)
    return replace(message, content=({"type": "text", "text": text}, *message.content), raw=None)


def _put_after(message: Message, text: str) -> Message:
    if isinstance(message.content, str):
        return replace(message, content=f"{message.content}\n\n{text}", raw=None)
    return replace(message, content=(*message.content, {"type": "text", "text": text}), raw=None)
