"""Plays a recorded conversation from a file: stores it, indexes it, and asks some of its questions."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memlayer_core.demo.display import say, show_budget, show_recall
from memlayer_core.demo.locomo import Conversation, Question
from memlayer_core.demo.opening import settled_embedder
from memlayer_core.events import Event, Indexed
from memlayer_core.memory import Memory

__all__ = ["play_recording"]

_LONGEST = 120
_PATIENCE = 600.0  # seconds for the indexing of one conversation


def play_recording(
    console: Console,
    path: Path,
    told: Conversation,
    *,
    questions: int = 5,
    embedder: str = "auto",
    token_limit: int = 1200,
) -> None:
    """Store a conversation and show what is recalled for a few of its questions.

    Args:
        console: Where to show it.
        path: A directory without a memory in it.
        told: The conversation.
        questions: How many of its questions are asked.
        embedder: `"auto"`, `"minilm"` or `"hashing"`.
        token_limit: Tokens of a context.
    """
    user, assistant = told.speakers
    first, last = told.sessions[0].date, told.sessions[-1].date
    console.print(
        f"[bold]{told.turns} turns[/] in {len(told.sessions)} sessions, {first:%Y-%m-%d} to {last:%Y-%m-%d}. "
        f"{escape(user)} speaks as the user, {escape(assistant)} as the assistant; each has the name, each turn "
        "the date of its session. No model answers here: what is shown is what one would be given."
    )
    chosen = settled_embedder(console, path, embedder)
    with Memory.open(path, embedder=chosen) as memory:
        _store(console, memory, told)
        for place, question in enumerate(_spread(told.questions, questions), 1):
            _ask(console, memory, user, place, question, token_limit)


def _store(console: Console, memory: Memory, told: Conversation) -> None:
    """Store everything, with a bar for the writing and one for the indexing."""
    begin = time.perf_counter()
    bar = Progress(
        TextColumn("  {task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        storing = bar.add_task("stored", total=told.turns)
        indexing = bar.add_task("indexed", total=told.turns)
        counting = threading.Lock()

        def hear(event: Event) -> None:
            if isinstance(event, Indexed):
                with counting:
                    bar.advance(indexing, event.messages)

        stop = memory.listen(hear)
        for session in told.sessions:
            chat = memory.chat(user_id=told.speakers[0], session_id=session.session_id)
            chat.add_messages(session.messages)
            bar.advance(storing, len(session.messages))
        stored = time.perf_counter() - begin
        memory.flush(_PATIENCE)
        stop()
        bar.update(indexing, completed=told.turns)  # turns without a word have nothing to index
    whole = time.perf_counter() - begin
    console.print(f"  Stored durably after {stored:.1f} s, findable by meaning after {whole:.1f} s.")


def _ask(
    console: Console, memory: Memory, user: str, place: int, question: Question, token_limit: int
) -> None:
    begin = time.perf_counter()
    context = memory.chat(user_id=user).context(question.text, token_limit=token_limit)
    taken = time.perf_counter() - begin
    recalled = [piece for piece in context.pieces if piece.kind == "recall"]
    found = {message_id for piece in recalled for message_id in piece.message_ids}
    wanted = frozenset(question.evidence)
    console.print()
    console.rule(f"[bold]{place}. {escape(question.text)}[/]", align="left")
    say(
        console,
        f"[dim]The file's answer: {escape(question.answer)}. Its evidence: "
        f"{escape(', '.join(question.evidence)) or 'none'}; {len(wanted & found)} of {len(wanted)} recalled "
        f"(✓) among {len(recalled)} turns, in {taken * 1000:.0f} ms.[/]",
    )
    show_recall(console, recalled, marked=wanted, longest=_LONGEST)
    show_budget(console, context)


def _spread(questions: tuple[Question, ...], wanted: int) -> list[Question]:
    """Return some questions that have evidence, evenly taken from all of them."""
    askable = [question for question in questions if question.evidence]
    if len(askable) <= wanted:
        return askable
    return [askable[place * len(askable) // wanted] for place in range(wanted)]
