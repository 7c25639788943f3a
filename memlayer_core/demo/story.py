"""Plays our own conversation: three sessions, two frameworks, and a process that is killed between them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from memlayer_core.demo.cast import Cast
from memlayer_core.demo.child import Order, begun
from memlayer_core.demo.clock import MemoryOfThen
from memlayer_core.demo.display import (
    say,
    show_budget,
    show_context,
    show_line,
    show_recall,
    show_received,
)
from memlayer_core.demo.opening import settled_embedder
from memlayer_core.demo.script import STORY, USER, Framework, Part
from memlayer_core.demo.turn import Stage, Turn
from memlayer_core.errors import MissingExtraError
from memlayer_core.memory import Memory

__all__ = ["play_story"]

_SCRIPTED = (
    "The model in this demo is [bold]scripted[/]: it recites lines and understands nothing, so that no key and "
    "no network is needed. What is real is everything around it: the frameworks, the memory, the recall, the "
    "killed process.\n\nA real model answers, by any name that LangChain's init_chat_model knows, with\n"
    "  [bold]pip install langchain-openai; export OPENAI_API_KEY=…[/]\n"
    "  [bold]memlayer demo --model openai:gpt-5-mini[/]"
)
_REAL = (
    "The LangChain parts are answered by [bold]{}[/], a real model. The LlamaIndex part stays [bold]scripted[/]: "
    "there the model only recites lines."
)


def play_story(
    console: Console, path: Path, *, embedder: str = "auto", token_limit: int = 800, model: str | None = None
) -> None:
    """Play the story and show what the model was given.

    Args:
        console: Where to show it.
        path: A directory without a memory in it.
        embedder: `"auto"`, `"minilm"` or `"hashing"`.
        token_limit: Tokens of a context.
        model: Name of a real model, for the parts that LangChain plays.

    Raises:
        MissingExtraError: A model is named and LangChain is not installed.
        ConfigurationError: The model cannot be made.
        ModelFailedError: The model raised.
    """
    with console.status("Loading the frameworks …"):
        cast = Cast()
        _check_model(cast, model)
    console.print(Panel(_SCRIPTED if model is None else _REAL.format(escape(model)), title="memlayer demo"))
    for framework, reason in cast.missing.items():
        wanted = escape(f"pip install 'memlayer-core[{framework}]'")
        console.print(
            f"[yellow]{framework} is not installed[/] ({escape(reason)})\n  {wanted}\n  "
            "The demo goes on without it."
        )
    chosen = settled_embedder(console, path, embedder)
    _play_first(console, cast, Order(str(path), chosen, cast.choose(STORY[0]), token_limit, model))
    with MemoryOfThen.opened(path, chosen) as memory:
        kept = sum(session.messages for session in memory.sessions(user_id=USER))
        owed = memory.status().backlog.queued
        _catch_up(console, memory)
        say(
            console,
            f"This process, pid {os.getpid()}, has opened the same directory: [bold]{kept} messages[/] are "
            f"there. {owed} of them were not indexed yet; now they are.",
        )
        for number, part in enumerate(STORY[1:], 2):
            _play_part(console, cast, memory, part, number, token_limit, model)
            _catch_up(console, memory)


def _catch_up(console: Console, memory: Memory) -> None:
    with console.status("Indexing what was said …"):
        memory.flush()


def _check_model(cast: Cast, model: str | None) -> None:
    """Find out before anything is written whether the model can be had."""
    if model is None:
        return
    if "langchain" in cast.missing:
        raise MissingExtraError(
            f"`--model` makes a model with LangChain, which is not installed: {cast.missing['langchain']}",
            hint="pip install 'memlayer-core[langchain]'",
        )
    from memlayer_core.demo.with_langchain import real_model  # noqa: PLC0415  (only where LangChain is)

    real_model(model)


def _play_first(console: Console, cast: Cast, order: Order) -> None:
    """Play the first session in a process of its own, and kill that process."""
    part = STORY[0]
    _show_title(console, cast, part, 1, order.framework)
    with begun(order) as child:
        say(console, f"In a process of its own, pid {child.pid}.")
        for told in child.turns():
            show_line(console, USER.title(), told["question"])
            show_line(console, _voice(order.framework, order.model), told["answer"], told["note"])
        by = child.kill()
    console.print()
    say(console, f"[bold red]Process {child.pid} was killed ({by})[/] right after its last write.")


def _play_part(
    console: Console,
    cast: Cast,
    memory: MemoryOfThen,
    part: Part,
    number: int,
    token_limit: int,
    model: str | None,
) -> None:
    framework = cast.choose(part)
    named = model if framework == "langchain" else None
    _show_title(console, cast, part, number, framework)
    memory.ago = timedelta(weeks=part.weeks_ago)
    chat = memory.chat(user_id=USER, session_id=part.session_id)
    player = cast[framework].player(Stage(chat, token_limit, tuple(reply for _, reply in part.lines), named))
    for place, (question, _) in enumerate(part.lines):
        turn = player.ask(question)
        show_line(console, USER.title(), turn.question)
        show_line(console, _voice(framework, named), turn.answer, turn.note)
        questions = len(part.lines) - part.looked_at
        if place == questions:
            _show_all(console, turn)
        elif place > questions:
            _show_recalled(console, turn)


def _show_all(console: Console, turn: Turn) -> None:
    console.print()
    say(console, "[bold]What the model was given for this question[/]")
    show_context(console, turn.context)
    show_received(console, turn.received)
    console.print()


def _show_recalled(console: Console, turn: Turn) -> None:
    console.print()
    say(console, "[bold]What was recalled for it[/]")
    show_recall(console, [piece for piece in turn.context.pieces if piece.kind == "recall"])
    show_budget(console, turn.context)


def _show_title(console: Console, cast: Cast, part: Part, number: int, framework: Framework) -> None:
    day = datetime.now(UTC) - timedelta(weeks=part.weeks_ago)
    ago = f"{part.weeks_ago} weeks ago" if part.weeks_ago else "today"
    console.print()
    console.rule(
        f"[bold]Session {number} of {len(STORY)}[/] · {day:%Y-%m-%d}, {ago} · {cast[framework].NAME}",
        align="left",
    )
    back = f"; the memory's clock is set back {part.weeks_ago} weeks" if part.weeks_ago else ""
    say(console, f"[dim]{escape(cast[framework].CALLS)}{back}.[/]")


def _voice(framework: Framework, model: str | None) -> str:
    return "model" if framework == "langchain" and model is not None else "scripted"
