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
from typing import Any, NamedTuple

from memlayer_core.message import TraceDraft

__all__ = ["MOST_BYTES", "KeptPiece", "TraceBody", "body_of", "check_of", "complete", "move", "read_body"]

MOST_BYTES = 16 * 1024
"""Bytes that a trace may have."""

_UNSAVED = 32  # bytes that a message takes which is stored with the answer
_WINDOW = 64  # bytes that are left free for what became of the window
_USUAL = 12  # bytes of a piece of the window
_LETTERS = {"system": "s", "profile": "p", "summary": "u", "recall": "r", "window": "w", "temporary": "t"}
_KINDS = {**{letter: kind for kind, letter in _LETTERS.items()}, "k": "recall"}
_REASONS = {"s": "instructions", "w": "recent", "t": "temporary", "k": "kept"}
_OF_MESSAGES = frozenset("swr")  # letters of pieces that come from messages
_BITS = 32  # of a key below the session's number
_LAST = 2**_BITS - 1
_CHECK = 3  # bytes of a check

Code = tuple[str, float | None]
"""A reason: its code, and the number in it."""


class KeptPiece(NamedTuple):
    """A piece of a context, as a trace has it.

    Attributes:
        kind: Its kind.
        tokens: Tokens that it costs.
        keys: Keys of what it comes from: messages, records, items. Of a summary, its versions. Of a recall that stays with its
            question, that question. Empty: nothing in the journal.
        checks: A number for each message among these: what `check_of` returns as long as it is unchanged.
        reasons: Why it is in the context.
        score: The score of a search.
        unsaved: Digest of a message that is stored with the answer; it has no key yet.
        stays: Whether it is a recall that stays with its question.
    """

    kind: str
    tokens: int
    keys: tuple[int, ...] = ()
    checks: tuple[int, ...] = ()
    reasons: tuple[Code, ...] = ()
    score: float | None = None
    unsaved: bytes | None = None
    stays: bool = False


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
    pieces: Sequence[KeptPiece]
    missing: int = 0
    compaction: tuple[int, int, int] | None = None


def check_of(digest: bytes, message_id: str) -> int:
    """Return a number that is another one if a message is changed, but for one case in 16 millions.

    Nobody can tell a deleted message's words from it: its id, which nobody can guess, is part of it.
    """
    named = message_id.encode("utf-8", "surrogatepass")
    return zlib.crc32(named, zlib.crc32(digest)) >> 8 * (4 - _CHECK)


def body_of(trace: TraceBody, session: int) -> tuple[str, tuple[bytes, ...]]:
    """Return a trace as JSON, and the digests of messages that are stored with the answer.

    What is too much is left out: the oldest pieces of the window, then the last pieces.

    Args:
        trace: What it says, before the answer is stored.
        session: Number of its session.
    """
    pieces, every = list(trace.pieces), len(trace.pieces)
    while True:
        text = _json(_members(trace._replace(pieces=pieces, missing=every - len(pieces)), session))
        unsaved = tuple(one.unsaved for one in pieces if one.unsaved is not None)
        over = len(text) + _WINDOW + _UNSAVED * len(unsaved) - MOST_BYTES
        if over <= 0:
            return text, unsaved
        pieces = _without(pieces, 1 + over // _USUAL)


def complete(draft: TraceDraft, fresh: Iterable[tuple[int, bytes, str]]) -> str:
    """Return the JSON of a trace whose answer is stored.

    Args:
        draft: The trace.
        fresh: Place, digest and id of each message that is stored now.
    """
    more: dict[str, Any] = {"x": draft.compaction} if draft.compaction is not None else {}
    if draft.unsaved:
        stored: dict[bytes, deque[tuple[int, int]]] = {}
        for place, digest, message_id in fresh:
            stored.setdefault(digest, deque()).append((place, check_of(digest, message_id)))
        there = (stored.get(digest) for digest in draft.unsaved)
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
    checks = iter([int.from_bytes(raw[at : at + _CHECK]) for at in range(0, len(raw), _CHECK)])
    unsaved = iter(body.get("u", ()))
    pieces = []
    for place, (letter, tokens, found) in enumerate(zip(body["k"], body["n"], body["s"], strict=True)):
        keys = found if isinstance(found, list) else [] if found is None else [found]
        numbers = [next(checks) for key in keys if _has_check(letter, key)]
        if found is None and letter in {"s", "w"} and (late := next(unsaved, None)):
            keys, numbers = [late[0]], [late[1]]
        if letter in {*_OF_MESSAGES, "k"}:
            keys = [(session << _BITS) + key if 0 <= key <= _LAST else key for key in keys]
        usual = (_REASONS[letter],) if letter in _REASONS else ()
        pieces.append(
            KeptPiece(
                _KINDS[letter],
                tokens,
                tuple(keys),
                tuple(numbers),
                _codes(body["e"].get(str(place), usual)),
                body["f"].get(str(place)),
                stays=letter == "k",
            )
        )
    compaction = tuple(body["x"]) if "x" in body else None
    return TraceBody(body["t"], body["l"], body["p"], _codes(body["r"]), pieces, body["m"], compaction)


def _members(trace: TraceBody, session: int) -> dict[str, Any]:
    letters, sources, checks = [], [], bytearray()
    reasons, scores = {}, {}
    for place, piece in enumerate(trace.pieces):
        letter = "k" if piece.stays else _LETTERS[piece.kind]
        letters.append(letter)
        keys: Sequence[int] = piece.keys
        if letter in _OF_MESSAGES or letter == "k":
            keys = [key & _LAST if key >> _BITS == session else key for key in keys]
        sources.append(keys[0] if len(keys) == 1 else list(keys) or None)
        for number in piece.checks:
            checks += number.to_bytes(_CHECK)
        if len(piece.reasons) != 1 or piece.reasons[0] != (_REASONS.get(letter), None):
            reasons[place] = _short(piece.reasons)
        if piece.score is not None:
            scores[place] = round(piece.score, 3)
    return {
        "t": trace.tokens,
        "l": trace.token_limit,
        "p": trace.placement,
        "r": _short(trace.reasons),
        "m": trace.missing,
        "k": "".join(letters),
        "n": [piece.tokens for piece in trace.pieces],
        "s": sources,
        "c": b64encode(checks).decode(),
        "e": reasons,
        "f": scores,
    }


def _has_check(letter: str, key: int) -> bool:
    return letter in _OF_MESSAGES and key >= 0


def _short(reasons: Iterable[Code]) -> list[Any]:
    return [code if value is None else [code, round(value, 3)] for code, value in reasons]


def _codes(found: Iterable[Any]) -> tuple[Code, ...]:
    return tuple((one, None) if isinstance(one, str) else (one[0], one[1]) for one in found)


def _without(pieces: Sequence[KeptPiece], count: int) -> list[KeptPiece]:
    places = [place for place, piece in enumerate(pieces) if piece.kind == "window"][:count]
    if not places:
        return list(pieces[:-count])
    gone = set(places)
    return [piece for place, piece in enumerate(pieces) if place not in gone]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
