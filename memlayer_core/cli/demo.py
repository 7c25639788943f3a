"""`memlayer demo`: a first process talks with a user and is killed; a second process remembers, and learns facts.

The first process is `python -m memlayer_core.cli.demo DIRECTORY`. It prints a line after each message that it stored,
and then waits to be killed.
"""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from memlayer_core.errors import StoreError
from memlayer_core.memory import Memory
from memlayer_core.message import Role
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.settings import Settings
from memlayer_core.show import visible
from memlayer_core.window.model import Context

_USER = "maya"
_TOKENS = 800
_THEN = timedelta(weeks=10)
_FIRST: tuple[tuple[Role, str], ...] = (
    ("user", "Hi, I'm Maya. I live in Graz, but my sister Lena moves to Porto."),
    ("assistant", "Nice to meet you, Maya. Then you will have a reason to travel."),
    ("user", "Lena collects old maps, so I'll bring her one of Graz, our home town."),
    ("assistant", "An old map of Graz for Lena."),
    ("user", "顺便说一句，我对花生过敏，订餐厅的时候请记得。"),
    ("assistant", "好的，我会记得花生过敏的事。"),
    ("user", "While I am away, my dog Bruno stays with our neighbour, Mr. Novak."),
    ("assistant", "Bruno will be in good hands with Mr. Novak."),
)
_QUESTIONS = {
    "gift": (
        "What did I want to bring Lena from our home town?",
        r"collects (?P<what>.+), so I'll bring her one of (?P<where>\w+)",
        "A map of {where}: you said that she collects {what}.",
    ),
    "dinner": (
        "点菜之前再确认一下：我对什么过敏？",
        "我对(?P<what>.+?)过敏",
        "你对{what}过敏，不要点含{what}的菜。",
    ),
}
"""For each session: a question, what the answer takes from a recalled line, and the answer."""
_FACTS: dict[str, dict[str, object]] = {
    r"I live in (\w+)": {"key": "home", "always": True},
    r"我对(?!什么)(.+?)过敏": {"key": "allergy", "many": True, "always": True},
}
"""What the script that stands in for a model finds: a pattern, whose group is the value, and the fact that it states."""
_NEWS = "Guess what: I live in Porto now, three streets from Lena."


def play(console: Console, directory: Path, embedder: EmbedderName, *, why: bool) -> None:
    """Play the story, and show what is recalled for two questions.

    Args:
        console: Where to show it.
        directory: A directory without a memory in it.
        embedder: A name that `Memory.open` takes.
        why: Whether to show every part of each context, too, with its tokens and reasons.

    Raises:
        StoreError: The first process ended before it was killed.
    """
    console.print(
        "Maya talks with a first process, which is killed. A second process remembers.\n"
        "No model is called: a script stands for your model. The memory is real."
    )
    with (
        console.status("Opening a memory. MiniLM is downloaded if it is not on this machine …"),
        Memory.open(directory, embedder=embedder) as memory,
    ):
        chosen = memory.admin.status().embedder  # recorded in the store, for both processes
    console.print(f"Memory: {escape(str(directory))}   Embedder: {escape(chosen)}\n", soft_wrap=True)
    _play_first(console, directory)
    _play_second(console, directory, why=why)
    _play_facts(console, directory)


def _play_first(console: Console, directory: Path) -> None:
    command = [sys.executable, "-m", __name__, str(directory)]
    stored = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:  # noqa: S603  (our own)
        day = datetime.now(UTC) - _THEN
        console.rule(f"[bold]First process, pid {first.pid}[/] · {day:%Y-%m-%d}", align="left")
        try:
            for turn, _ in zip(_FIRST, first.stdout or (), strict=False):
                _show_line(console, *turn)
                stored += 1
        finally:
            first.kill()
    if stored < len(_FIRST):
        raise StoreError(
            f"the first process ended after {stored} of {len(_FIRST)} messages",
            hint="Its error is printed above. This should not happen: please report it.",
        )
    killed = "SIGKILL" if first.returncode < 0 else "TerminateProcess"
    end = f"[bold red]Process {first.pid} was killed ({killed})[/] after it stored the last message."
    console.print(f"\n{end}\n")


def _play_second(console: Console, directory: Path, *, why: bool) -> None:
    console.rule(f"[bold]Second process, pid {os.getpid()}[/] · {datetime.now(UTC):%Y-%m-%d}", align="left")
    with Memory.open(directory) as memory:
        found = sum(session.messages for session in memory.sessions(user_id=_USER))
        memory.flush()
        console.print(f"It opened the same directory: [bold]{found} messages[/] are there.")
        for session_id, (question, fact, answer) in _QUESTIONS.items():
            console.print()
            chat = memory.chat(user_id=_USER, session_id=session_id)
            chat.add("user", question)
            _show_line(console, "user", question)
            context = chat.context(token_limit=_TOKENS)
            show_context(console, context, why=why)
            taken = re.search(fact, context.recall)
            said = answer.format(**taken.groupdict()) if taken else "I do not know."
            chat.add("assistant", said)
            _show_line(console, "assistant", said)


def script(_instructions: str, prompt: str) -> str:
    """Stand in for a model that reads facts: it gets numbered lines of a conversation, and answers with JSON."""
    said = [
        {"op": "add", **fact, "value": found[1], "quote": found[0], "messages": [int(number)]}
        for number, line in re.findall(r"^\[(\d+)\] (.*)$", prompt, re.MULTILINE)
        for words, fact in _FACTS.items()
        for found in re.finditer(words, line)
    ]
    return json.dumps({"operations": said})


def _play_facts(console: Console, directory: Path) -> None:
    """Learn facts from what was said, and show what a change leaves of them."""
    console.print()
    console.rule("[bold]With a model, it learns facts[/] · Memory.open(path, model=…)", align="left")
    settings = Settings(learn_back_days=2 * _THEN.days)  # what was said before there was a model is read, too
    with Memory.open(directory, extractor=script, settings=settings) as memory:
        memory.flush()
        _show_facts(console, memory)
        memory.chat(user_id=_USER, session_id="news").add("user", _NEWS)
        _show_line(console, "user", _NEWS)
        memory.flush()
        _show_facts(console, memory)
        console.print("What held five weeks ago, by records(…, as_of=…):")
        _show_facts(console, memory, datetime.now(UTC) - _THEN / 2)
        console.print("Her profile, which every prompt of hers has from now on:")
        part = memory.chat(user_id=_USER, session_id="later").context("Hello!", token_limit=_TOKENS).profile
        for line in part.text.splitlines() if part is not None else ():
            _show_line(console, "profile", line, "green")


def _show_facts(console: Console, memory: Memory, as_of: datetime | None = None) -> None:
    """Show facts, each with the words that it rests on."""
    for fact in memory.records(user_id=_USER, as_of=as_of):
        said = memory.why(fact.memory_id, user_id=_USER).evidence[0]
        shown = f"{fact.key} = {fact.value}, for she said “{said.quote}” on {said.said_at:%Y-%m-%d}"
        _show_line(console, "fact", shown, "green")


def show_context(console: Console, context: Context, *, why: bool) -> None:
    """Show the recalled lines of a context; with `why`, instead every part of it with its tokens and reasons."""
    if why:
        console.print(context)
        return
    for piece in context.pieces:
        if piece.kind == "recall":
            day = f"{piece.created_at:%Y-%m-%d} " if piece.created_at else ""
            _show_line(console, "recalled", f"{day}{piece.speaker}: {piece.text}", "green")


def _show_line(console: Console, role: str, text: str, style: str = "") -> None:
    who = _USER.title() if role == "user" else role
    line = Text.assemble((f"{who:>9}  ", "bold"), (visible(" ".join(text.split())), style))
    console.print(line, no_wrap=True, overflow="ellipsis")


def _talk(directory: str) -> None:
    """Be the first process."""
    with Memory.open(directory) as memory:
        chat = memory.chat(user_id=_USER, session_id="summer")
        for role, text in _FIRST:
            chat.add(role, text, created_at=datetime.now(UTC) - _THEN)
            print("stored", flush=True)  # noqa: T201  (the parent counts these lines)
        sys.stdin.read()  # returns when the second process is gone


if __name__ == "__main__":
    _talk(sys.argv[1])
