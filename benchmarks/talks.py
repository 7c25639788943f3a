"""Reads conversations with questions whose evidence is known, in our own format, in LoCoMo's and in BEAM's.

A folder of ours has a person's talks with an assistant in each file, as people type, and what is asked a week later:
`data/talks`. A file is LoCoMo's: two speakers who talk on many days. A folder is BEAM's: `N-chat.json` is a user's long talk
with an assistant, `N-probing_questions.json` has the questions. Of these two, questions that nothing in the talk answers
(LoCoMo's fifth category, BEAM's "abstention") and those without a known turn as evidence are left out.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from locomo import DataFormatError, read_all

KINDS = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
ADVERSARIAL = 5
BEAM_HINT = "A BEAM folder has pairs of `N-chat.json` and `N-probing_questions.json`."
PLAN = re.compile(r"\s*->->.*\Z", re.DOTALL)  # what BEAM's generator noted behind a text


@dataclass(frozen=True)
class Turn:
    """What was said at once. `name` is None where only the role is known, `at` where the date is not."""

    id: str
    session: str
    role: str
    name: str | None
    text: str
    at: datetime | None

    @property
    def line(self):
        """Who said it, and what."""
        return f"{self.name or self.role}: {self.text}"


@dataclass(frozen=True)
class Asked:
    """What is asked, and what of the talk answers it; `bears` also has what bears on it, `before` is the round before it."""

    text: str
    evidence: frozenset[str]
    kind: str
    bears: frozenset[str] = frozenset()
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Talk:
    turns: tuple[Turn, ...]
    questions: tuple[Asked, ...]
    name: str = ""
    language: str = "en"


def read_talks(path):
    """Read every conversation of a file or a folder.

    Raises:
        DataFormatError: It is missing, or not in one of the formats.
    """
    if not path.is_dir():
        return locomo(path)
    files = sorted(path.glob("*.json"))
    return beam(path) if not files or any("-chat" in file.name for file in files) else list(map(ours, files))


def ours(file):
    told = json.loads(file.read_text(encoding="utf-8"))
    turns = tuple(
        Turn(
            said["id"],
            session["id"],
            said["role"],
            None,
            said["text"],
            datetime.fromisoformat(session["date"]),
        )
        for session in told["sessions"]
        for said in session["turns"]
    )
    questions = tuple(
        Asked(
            one["text"],
            frozenset(one["needed"]),
            one["kind"],
            frozenset(one["needed"]) | frozenset(one["bears"]),
            tuple(map(tuple, one.get("before", ()))),
        )
        for one in told["questions"]
    )
    return Talk(turns, questions, file.stem, told["language"])


def locomo(file):
    return [
        Talk(
            turns=tuple(
                Turn(said.id, session.session_id, said.role, said.name, said.text, said.created_at)
                for session in told.sessions
                for said in session.messages
            ),
            questions=tuple(
                Asked(asked.text, frozenset(asked.evidence), KINDS.get(asked.category, "other"))
                for asked in told.questions
                if asked.evidence and asked.category != ADVERSARIAL
            ),
        )
        for told in read_all(file, picture="[image: {}]")
    ]


def beam(folder):
    chats = sorted(folder.glob("*-chat.json"), key=lambda file: (len(file.name), file.name))
    if not chats:
        raise DataFormatError(f"there is no chat in {str(folder)!r}", hint=BEAM_HINT)
    try:
        return [beam_talk(chat) for chat in chats]
    except OSError as problem:
        raise DataFormatError(f"a file is missing: {problem}", hint=BEAM_HINT) from problem
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DataFormatError(
            f"a chat in {str(folder)!r} is not in this format: {problem!r}", hint=BEAM_HINT
        ) from problem


def beam_talk(chat):
    turns = tuple(beam_turns(json.loads(chat.read_text(encoding="utf-8"))))
    known = {turn.id for turn in turns}
    probing = chat.with_name(chat.name.replace("-chat.", "-probing_questions."))
    questions = (
        Asked(asked["question"], frozenset(map(str, leaves(asked.get("source_chat_ids")))) & known, kind)
        for kind, some in json.loads(probing.read_text(encoding="utf-8")).items()
        if kind != "abstention"
        for asked in some
    )
    return Talk(turns, tuple(asked for asked in questions if asked.evidence))


def beam_turns(batches):
    """Give the turns of a chat. A date is written where it changes, and holds until the next one."""
    at = None
    for batch in batches:
        for message in (message for group in batch["turns"] for message in group):
            if message.get("time_anchor"):
                at = datetime.strptime(message["time_anchor"].strip(), "%B-%d-%Y").replace(tzinfo=UTC)
            text = PLAN.sub("", message["content"]).strip()
            yield Turn(str(message["id"]), f"batch-{batch['batch_number']}", message["role"], None, text, at)


def leaves(nested):
    """Give what stands in lists and dicts, however deep."""
    match nested:
        case None:
            return
        case dict():
            yield from leaves(list(nested.values()))
        case list():
            for one in nested:
                yield from leaves(one)
        case _:
            yield nested
