"""Reads conversations in the format of LoCoMo: dated sessions of two speakers, and questions about them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memlayer_core.errors import InputError
from memlayer_core.records.message import Message, Role
from memlayer_core.records.scope import Scope

__all__ = ["Conversation", "DataFormatError", "Dated", "Question", "read"]

_SESSION = re.compile(r"session_(\d+)")
_DATE = "%I:%M %p on %d %B, %Y"
_HINT = (
    'A LoCoMo file is a JSON list of samples; each has a "conversation" with "speaker_a", "speaker_b", '
    '"session_1" (a list of {"speaker", "dia_id", "text"}), "session_1_date_time" '
    '("1:56 pm on 8 May, 2023"), and so on.'
)


class DataFormatError(InputError):
    """The file cannot be read, or is not in this format."""


@dataclass(frozen=True, slots=True)
class Dated:
    """One session: its id, its date and its turns."""

    session_id: str
    date: datetime
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a conversation, with the answer and the ids of the turns that it is taken from."""

    text: str
    answer: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All sessions of two speakers.

    Attributes:
        speakers: The first speaks as the user, the second as the assistant.
        sessions: In their order.
        questions: In the file's order.
    """

    speakers: tuple[str, str]
    sessions: tuple[Dated, ...]
    questions: tuple[Question, ...]

    @property
    def turns(self) -> int:
        """How many turns all sessions have together."""
        return sum(len(session.messages) for session in self.sessions)


def read(file: Path, number: int = 1) -> Conversation:
    """Read one conversation of a file.

    Args:
        file: JSON in UTF-8.
        number: Which of the file's conversations, counted from 1.

    Raises:
        DataFormatError: The file is missing, no JSON, or not in this format.
    """
    try:
        samples = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataFormatError(
            f"{str(file)!r} cannot be read: {problem.strerror or problem}", hint="Give the path of a file."
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise DataFormatError(f"{str(file)!r} is no JSON: {problem}", hint=_HINT) from problem
    if not isinstance(samples, list) or not samples:
        raise DataFormatError(f"{str(file)!r} is no list of samples", hint=_HINT)
    if not 1 <= number <= len(samples):
        raise DataFormatError(
            f"there is no conversation {number} in {str(file)!r}",
            hint=f"It has {len(samples)}; `--conversation` counts from 1.",
        )
    try:
        return _conversation(samples[number - 1])
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        said = f"{problem.args[0]!r} is missing" if isinstance(problem, KeyError) else str(problem)
        raise DataFormatError(
            f"sample {number} of {str(file)!r} is not in this format: {said}", hint=_HINT
        ) from problem


def _conversation(sample: Mapping[str, Any]) -> Conversation:
    told = sample["conversation"]
    speakers = (_text(told["speaker_a"]), _text(told["speaker_b"]))
    Scope(speakers[0])  # it will be a user's id
    numbers = sorted(int(found[1]) for key in told if (found := _SESSION.fullmatch(key)))
    sessions = tuple(_session(told, number, speakers) for number in numbers)
    if not any(session.messages for session in sessions):
        raise ValueError("it has no turns")
    return Conversation(speakers, sessions, tuple(_question(asked) for asked in sample.get("qa", ())))


def _session(told: Mapping[str, Any], number: int, speakers: tuple[str, str]) -> Dated:
    name = f"session_{number}"
    date = datetime.strptime(_text(told[f"{name}_date_time"]).strip(), _DATE).replace(tzinfo=UTC)
    return Dated(name, date, tuple(_message(turn, date, speakers) for turn in told[name]))


def _message(turn: Mapping[str, Any], date: datetime, speakers: tuple[str, str]) -> Message:
    speaker = _text(turn["speaker"])
    if speaker not in speakers:
        raise ValueError(f"{speaker!r} speaks, and is neither of {speakers}")
    caption = turn.get("blip_caption")
    text = _text(turn["text"]) + (f" [shares a picture: {caption}]" if caption else "")
    role: Role = "user" if speaker == speakers[0] else "assistant"
    return Message(role, text, id=_text(turn["dia_id"]), name=speaker, created_at=date)


def _question(asked: Mapping[str, Any]) -> Question:
    evidence = asked.get("evidence") or ()
    return Question(_text(asked["question"]), str(asked.get("answer", "")), tuple(map(str, evidence)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value
