"""Reads conversations in the format of LoCoMo: dated sessions of two speakers, and questions about them."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memlayer_core.errors import InputError
from memlayer_core.message import Message, Role
from memlayer_core.scope import Scope

__all__ = ["Conversation", "DataFormatError", "Dated", "Question", "read", "read_all"]

_SESSION = re.compile(r"session_(\d+)")
_TURN = r"D\s*:?\s*(\d+)\s*:\s*(\d+)"
_REFERENCE = re.compile(rf"{_TURN}(?:\s*[-\u2013]\s*{_TURN})?")
_LONGEST_RANGE = 40  # turns from one end of "D1:3-D1:5" to the other; what is longer is a slip
_DATE = "%I:%M %p on %d %B, %Y"
_PICTURE = "[shares a picture: {}]"
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
    """A question about a conversation.

    Attributes:
        text: What is asked.
        answer: The file's answer.
        evidence: Ids of the turns that the answer is taken from, those of them that exist.
        category: 1 asks for several turns, 2 for a time, 3 for knowledge of the world as well, 4 for one turn;
            5 asks for what was never said. None where the file does not tell.
    """

    text: str
    answer: str
    evidence: tuple[str, ...]
    category: int | None = None


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


def read(file: Path, number: int = 1, *, picture: str = _PICTURE) -> Conversation:
    """Read one conversation of a file.

    Args:
        file: JSON in UTF-8.
        number: Which of the file's conversations, counted from 1.
        picture: How a picture is written behind the text of its turn; `{}` stands for its caption.

    Raises:
        DataFormatError: The file is missing, no JSON, or not in this format.
    """
    samples = _samples(file)
    if not 1 <= number <= len(samples):
        raise DataFormatError(
            f"there is no conversation {number} in {str(file)!r}",
            hint=f"It has {len(samples)}, counted from 1.",
        )
    return _checked(samples[number - 1], number, file, picture)


def read_all(file: Path, *, picture: str = _PICTURE) -> tuple[Conversation, ...]:
    """Read every conversation of a file; the arguments and errors are those of `read`."""
    return tuple(
        _checked(sample, number, file, picture) for number, sample in enumerate(_samples(file), start=1)
    )


def _samples(file: Path) -> list[Any]:
    try:
        samples = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataFormatError(
            f"{str(file)!r} cannot be read: {problem.strerror or problem}", hint="Give the path of a file."
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise DataFormatError(f"{str(file)!r} is not JSON: {problem}", hint=_HINT) from problem
    if not isinstance(samples, list) or not samples:
        raise DataFormatError(f"{str(file)!r} is not a list of samples", hint=_HINT)
    return samples


def _checked(sample: Any, number: int, file: Path, picture: str) -> Conversation:
    try:
        return _conversation(sample, picture)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        said = f"{problem.args[0]!r} is missing" if isinstance(problem, KeyError) else str(problem)
        raise DataFormatError(
            f"sample {number} of {str(file)!r} is not in this format: {said}", hint=_HINT
        ) from problem


def _conversation(sample: Mapping[str, Any], picture: str) -> Conversation:
    told = sample["conversation"]
    speakers = (_text(told["speaker_a"]), _text(told["speaker_b"]))
    Scope(speakers[0])  # it will be a user's id
    numbers = sorted(int(found[1]) for key in told if (found := _SESSION.fullmatch(key)))
    sessions = tuple(_session(told, number, speakers, picture) for number in numbers)
    if not any(session.messages for session in sessions):
        raise ValueError("it has no turns")
    known = {message.id for session in sessions for message in session.messages}
    return Conversation(speakers, sessions, tuple(_question(asked, known) for asked in sample.get("qa", ())))


def _session(told: Mapping[str, Any], number: int, speakers: tuple[str, str], picture: str) -> Dated:
    name = f"session_{number}"
    date = datetime.strptime(_text(told[f"{name}_date_time"]).strip(), _DATE).replace(tzinfo=UTC)
    return Dated(name, date, tuple(_message(turn, date, speakers, picture) for turn in told[name]))


def _message(turn: Mapping[str, Any], date: datetime, speakers: tuple[str, str], picture: str) -> Message:
    speaker = _text(turn["speaker"])
    if speaker not in speakers:
        raise ValueError(f"{speaker!r} speaks, and is neither of {speakers}")
    caption = turn.get("blip_caption")
    text = _text(turn["text"]) + (f" {picture.format(caption)}" if caption else "")
    role: Role = "user" if speaker == speakers[0] else "assistant"
    return Message(role, text, id=_text(turn["dia_id"]), name=speaker, created_at=date)


def _question(asked: Mapping[str, Any], known: Collection[str | None]) -> Question:
    evidence = dict.fromkeys(
        turn for told in asked.get("evidence") or () for turn in _turns(str(told)) if turn in known
    )
    category = asked.get("category")
    return Question(
        _text(asked["question"]),
        str(asked.get("answer", "")),
        tuple(evidence),
        category if isinstance(category, int) else None,
    )


def _turns(told: str) -> Iterator[str]:
    """Give the ids that a piece of evidence names: itself, or those in "D8:6; D9:17", "D1:3-D1:5", "D:11:26"."""
    yield told
    for found in _REFERENCE.finditer(told):
        session, turn = int(found[1]), int(found[2])
        last_session, last = (int(found[3]), int(found[4])) if found[3] else (session, turn)
        if session == last_session and 0 <= last - turn < _LONGEST_RANGE:
            yield from (f"D{session}:{each}" for each in range(turn, last + 1))
        else:
            yield from (f"D{session}:{turn}", f"D{last_session}:{last}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not a text")
    return value
