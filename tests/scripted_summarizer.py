"""A model that answers what a test tells it to, the memories that it works for, and a talk to sum up."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tuned import Tuned

from memlayer_core import Memory, Message, Settings

QUIET = Tuned(index_delay=3600, durability="normal", max_tokens=1000, job_backoff=0, summary_tokens=300)
"""Nothing is done in the background before a flush asks for it, and a few rounds fill the window."""

NAMES = re.compile(r"\b(?:Anna|Bela|Caro|Dana)\d+")

SENTENCE = re.compile(r"user: (.+?[.?!])")

MORE = (
    "The old quarter is quiet in the morning, and from the hill one sees the river and all the roofs below."
)

Answer = str | BaseException | Callable[[str, str], str]


class Scripted:
    """A model that answers what it is told to: texts, errors, or what a function makes of the prompt.

    Args:
        answers: One for each time that it is asked.
        then: The answer from there on.
    """

    def __init__(self, *answers: Answer, then: Answer) -> None:
        self.answers = list(answers)
        self.then = then
        self.prompts: list[str] = []
        self.instructions: list[str] = []

    def __call__(self, instructions: str, text: str) -> str:
        self.instructions.append(instructions)
        self.prompts.append(text)
        given = self.answers.pop(0) if self.answers else self.then
        if isinstance(given, BaseException):
            raise given
        return given(instructions, text) if callable(given) else given


def honest(instructions: str, text: str) -> str:
    """Return a true summary in few words: whom the user named, and how it began. With its episode where that is asked for."""
    conversation = text.partition("<conversation>")[2].partition("</conversation>")[0]
    said = " ".join(SENTENCE.findall(conversation)[:4])[:200].strip()
    of = _names(text)
    told = f"The user told the assistant of {of}, and spoke of other things, too. It began so: {said}"
    if "JSON" not in instructions:
        return told
    few = ", ".join(_names(conversation).split(", ")[:3])
    episode = json.dumps(
        {"summary": f"The user told of {few}: {said}"[:200].strip(), "importance": 0.6}, ensure_ascii=False
    )
    return episode if "nothing else" in instructions else f"{told}\n{episode}"


def _names(text: str) -> str:
    return ", ".join(dict.fromkeys(NAMES.findall(text))) or "this and that"


def memories(request: Any, dialect: str, settings: Settings) -> Iterator[Callable[..., Memory]]:
    """Give a function that opens memories on a database, and close them all."""
    where = {}
    if dialect == "postgres":
        where["database_url"] = request.getfixturevalue("postgres_url")
    make = Memory.open if where else Memory.in_memory
    opened: list[Memory] = []

    def open_memory(summarizer: Any = honest, **changes: Any) -> Memory:
        changed = settings.replace(**changes)
        opened.append(make(**where, embedder="hashing", summarizer=summarizer, settings=changed))
        return opened[-1]

    yield open_memory
    for memory in opened:
        memory.close()


def rounds(first: int, end: int) -> list[Message]:
    said = []
    for at in range(first, end):
        name = ("Anna", "Bela", "Caro", "Dana")[at % 4] + str(at)
        told = f"My friend {name} moved to Lisbon with {at + 3} cats and loves the trams there. {MORE}"
        answer = f"How lovely for {name}, trams and cats make any town a home. {MORE}"
        said += [Message("user", told), Message("assistant", answer)]
    return said


def talk(memory: Memory, count: int, first: int = 0, **ids: str):
    """Let a conversation go on turn by turn, each with its prompt and the background work after it."""
    chat = memory.chat(user_id="louis", session_id=ids.get("session_id", "s"))
    for at in range(first, count):
        chat.add_messages(rounds(at, at + 1))
        chat.context()
        memory.flush(30)
    return chat
