"""Writes which pieces a context had, as JSON without any text, and reads it again.

Members of the object: `t` tokens, `l` token limit, `p` placement, `r` reasons, `m` how many pieces are missing. Of the pieces, in
their order: `k` a letter for each, `n` tokens, `s` keys of what each comes from, `c` a check of each message among these, `e` reasons
that are not the usual ones, `f` scores; the last two by the piece's place. With the answer come `u`, keys and checks of messages
that are stored with it, and `x`, what became of the window. A key in the same session is the message's place there.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from struct import pack, unpack
from typing import Any, NamedTuple, Protocol

from memlayer_core.message import TraceDraft

__all__ = [
    "MOST_BYTES",
    "PieceLike",
    "TraceBody",
    "TracedPiece",
    "body_of",
    "check_of",
    "complete",
    "move",
    "read_body",
]

MOST_BYTES = 16 * 1024
"""Bytes that a trace may have."""

_PENDING = 32  # bytes that a message takes which is stored with the answer
_WINDOW = 64  # bytes that are left free for what became of the window
_USUAL = 12  # bytes of a piece of the window
_LETTERS = {"system": "s", "profile": "p", "summary": "u", "recall": "r", "window": "w", "temporary": "t"}
_KINDS = {**{letter: kind for kind, letter in _LETTERS.items()}, "k": "recall"}
_STAYS = "kept"  # the reason of a recall that stays with its question
_REASONS = {"s": "instructions", "w": "recent", "t": "temporary", "k": _STAYS}
_OF_MESSAGES = frozenset("swr")  # letters of pieces that come from messages
_BITS = 32  # of a key below the session's number
_LAST = 2**_BITS - 1

Code = tuple[str, float | None]
"""A reason: its code, and the number in it."""


class _Reason(Protocol):
    @property
    def code(self) -> str: ...

    @property
    def value(self) -> float | None: ...


class PieceLike(Protocol):
    """A piece of a context."""

    @property
    def kind(self) -> str:
        """Its kind."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens that it costs."""
        ...

    @property
    def message_ids(self) -> Sequence[str]:
        """Ids of what it comes from."""
        ...

    @property
    def sources(self) -> Sequence[tuple[int, bytes]]:
        """A key for each of them, and of a message the digest. A message without a key is stored with the answer."""
        ...

    @property
    def reasons(self) -> Sequence[_Reason]:
        """Why it is in the context."""
        ...

    @property
    def score(self) -> float | None:
        """The score of a search."""
        ...


class TracedPiece(NamedTuple):
    """A piece of a context, as a trace tells of it.

    Attributes:
        kind: Its kind.
        tokens: Tokens that it costs.
        keys: Keys of what it comes from: messages, records, items. Of a summary, its versions. Of a recall that stays with its
            question, that question. Empty: nothing in the journal.
        checks: A number for each message among these: what `check_of` returns as long as it is unchanged.
        reasons: Why it is in the context.
        score: The score of a search.
        stays: Whether it is a recall that stays with its question.
    """

    kind: str
    tokens: int
    keys: tuple[int, ...]
    checks: tuple[int, ...]
    reasons: tuple[Code, ...]
    score: float | None
    stays: bool


class TraceBody(NamedTuple):
    """What a trace says.

    Attributes:
        tokens: Tokens of the context.
        token_limit: The most that it may have.
        placement: Where its recall was put.
        reasons: What is true of all of it.
        pieces: The pieces.
        missing: Pieces that are left out.
        compaction: Turns that left the window, and its tokens before and after.
    """

    tokens: int
    token_limit: int
    placement: str
    reasons: tuple[Code, ...]
    pieces: Sequence[TracedPiece]
    missing: int
    compaction: tuple[int, int, int] | None


def check_of(digest: bytes, message_id: str) -> int:
    """Return a number that is another one if a message is changed, but for one case in four billions.

    The id is part of it, and is deleted with the message: if nobody can guess it, nobody can compare words that they guess.
    """
    return zlib.crc32(message_id.encode("utf-8", "surrogatepass"), zlib.crc32(digest))


def body_of(
    pieces: Sequence[PieceLike], session: int, head: Mapping[str, Any], reasons: Sequence[_Reason]
) -> tuple[str, tuple[bytes, ...]]:
    """Return a trace as JSON, and the digests of messages that are stored with the answer.

    What is too much is left out: the oldest pieces of the window, then the last pieces.

    Args:
        pieces: The pieces of the context.
        session: Number of its session.
        head: The members `t`, `l` and `p`.
        reasons: What is true of the whole context.
    """
    every = len(pieces)
    while True:
        columns, pending = _columns(pieces, session)
        text = _json({**head, "r": _short(reasons), "m": every - len(pieces), **columns})
        over = len(text) + _WINDOW + _PENDING * len(pending) - MOST_BYTES
        if over <= 0:
            return text, tuple(pending)
        pieces = _without(pieces, 1 + over // _USUAL)


def complete(draft: TraceDraft, fresh: Iterable[tuple[int, bytes, str]]) -> str:
    """Return the JSON of a trace whose answer is stored.

    Args:
        draft: The trace.
        fresh: Place, digest and id of each message that is stored now.
    """
    more: dict[str, Any] = {"x": draft.compaction} if draft.compaction is not None else {}
    if draft.pending:
        stored: dict[bytes, deque[tuple[int, int]]] = {}
        for place, digest, message_id in fresh:
            stored.setdefault(digest, deque()).append((place, check_of(digest, message_id)))
        there = (stored.get(digest) for digest in draft.pending)
        more["u"] = [one.popleft() if one else None for one in there]
    return f"{draft.body[:-1]},{_json(more)[1:]}" if more else draft.body


def move(text: str, places: Mapping[int, int]) -> str:
    """Return the JSON of a trace of messages that have other places in their session now."""
    body = json.loads(text)

    def at(letter: str, key: Any) -> Any:
        return places.get(key, key) if letter in {*_OF_MESSAGES, "k"} else key

    body["s"] = [
        [at(letter, key) for key in keys] if isinstance(keys, list) else at(letter, keys)
        for letter, keys in zip(body["k"], body["s"], strict=True)
    ]
    if "u" in body:
        body["u"] = [one and [at("w", one[0]), one[1]] for one in body["u"]]
    return _json(body)


def read_body(text: str, session: int) -> TraceBody:
    """Return what a trace says.

    Args:
        text: Its JSON.
        session: Number of its session.
    """
    body = json.loads(text)
    raw = b64decode(body["c"])
    checks = iter(unpack(f">{len(raw) // 4}I", raw))
    pending = iter(body.get("u", ()))
    pieces = []
    for place, (letter, tokens, found) in enumerate(zip(body["k"], body["n"], body["s"], strict=True)):
        keys = found if isinstance(found, list) else [] if found is None else [found]
        numbers = [next(checks) for key in keys if _has_check(letter, key)]
        if found is None and letter in {"s", "w"} and (late := next(pending, None)):
            keys, numbers = [late[0]], [late[1]]
        if letter in {*_OF_MESSAGES, "k"}:
            keys = [(session << _BITS) + key if 0 <= key <= _LAST else key for key in keys]
        usual = (_REASONS[letter],) if letter in _REASONS else ()
        pieces.append(
            TracedPiece(
                _KINDS[letter],
                tokens,
                tuple(keys),
                tuple(numbers),
                _codes(body["e"].get(str(place), usual)),
                body["f"].get(str(place)),
                letter == "k",
            )
        )
    compaction = tuple(body["x"]) if "x" in body else None
    return TraceBody(body["t"], body["l"], body["p"], _codes(body["r"]), pieces, body["m"], compaction)


def _columns(pieces: Sequence[PieceLike], session: int) -> tuple[dict[str, Any], list[bytes]]:
    """Return what is said of the pieces, and digests of messages without a key. Every context pays for this."""
    letters: list[str] = []
    sources: list[Any] = []
    checks: list[int] = []
    reasons: dict[int, list[Any]] = {}
    scores: dict[int, float] = {}
    pending: list[bytes] = []
    for place, piece in enumerate(pieces):
        why = piece.reasons
        letter = _LETTERS[piece.kind] if why[0].code != _STAYS else "k"
        letters.append(letter)
        keys = _keys(piece, letter, session, checks, pending)
        sources.append(keys[0] if len(keys) == 1 else keys or None)
        if len(why) != 1 or why[0].code != _REASONS.get(letter):
            reasons[place] = _short(why)
        if piece.score is not None:
            scores[place] = round(piece.score, 3)
    return {
        "k": "".join(letters),
        "n": [piece.tokens for piece in pieces],
        "s": sources,
        "c": b64encode(pack(f">{len(checks)}I", *checks)).decode(),
        "e": reasons,
        "f": scores,
    }, pending


def _keys(piece: PieceLike, letter: str, session: int, checks: list[int], pending: list[bytes]) -> list[int]:
    """Return the keys that a trace says of a piece. Its messages' checks are added, and digests of those without a key."""
    if letter not in _OF_MESSAGES:
        keys = [key for key, _ in piece.sources] if letter != "t" else []
        return [key & _LAST for key in keys] if letter == "k" else keys
    keys = []
    for (key, digest), message_id in zip(piece.sources, piece.message_ids, strict=False):
        if key > 0:
            keys.append(key & _LAST if key >> _BITS == session else key)
            checks.append(check_of(digest, message_id))
        elif key < 0:
            keys.append(key)
        else:
            pending.append(digest)
    return keys


def _has_check(letter: str, key: int) -> bool:
    return letter in _OF_MESSAGES and key >= 0


def _short(reasons: Iterable[_Reason]) -> list[Any]:
    return [one.code if one.value is None else [one.code, round(one.value, 3)] for one in reasons]


def _codes(values: Iterable[Any]) -> tuple[Code, ...]:
    return tuple((one, None) if isinstance(one, str) else (one[0], one[1]) for one in values)


def _without(pieces: Sequence[PieceLike], count: int) -> Sequence[PieceLike]:
    gone = set([place for place, piece in enumerate(pieces) if piece.kind == "window"][:count])
    return [piece for place, piece in enumerate(pieces) if place not in gone] if gone else pieces[:-count]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
