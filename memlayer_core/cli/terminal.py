"""The terminal: its console, what is printed on it or into a pipe, and memlayer's errors as sentences. It loads no database."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from memlayer_core.errors import InputError, MemlayerError, UnknownRecordError
from memlayer_core.events import EmbedderFallback, IndexDegraded, IndexRebuilt, JobDead, SummarizerUnavailable
from memlayer_core.show import Bar, Cell, Mark, Viewable, visible

__all__ = ["EXIT_CODES", "Commands", "console", "json_of", "note", "show"]

EXIT_CODES = (
    "Exit codes: 0: fine. 1: something is wrong, or there is no such thing. 2: arguments that cannot be used. "
    "3 (`verify` alone): sound, but another process holds the index. 130: Ctrl-C."
)


def console(*, stderr: bool = False) -> Console:
    """Return the terminal as it is at this moment."""
    return Console(stderr=stderr, highlight=False)


def note(text: str, style: str = "", *, stderr: bool = True) -> None:
    """Print a line beside the results. Text of users is made visible."""
    console(stderr=stderr).print(visible(text), style=style, markup=False, soft_wrap=True)


def show(value: Viewable) -> None:
    """Print what people see of a value: a table on a terminal, and lines in a pipe.

    In a pipe each row is one line, whole, with tabs between its cells: numbers as they are, times in ISO 8601. What is no row,
    such as a sum or a warning, goes to the standard error.
    """
    out = console()
    if out.is_terminal:
        out.print(value)
        return
    view = value._view()  # noqa: SLF001  (the same value, for another reader)
    for section in view.sections:
        show(section)
    for row in view.rows:
        typer.echo("\t".join(map(_field, row)))
    beside = [] if view.rows else [view.title]
    if view.bar is not None:
        beside.append(f"{view.bar.value} of {view.bar.limit} {view.bar.unit}")
    notes = (line.text if isinstance(line, Mark) else line for line in view.notes)
    for line in (*beside, *notes):
        if line:
            note(line)


def _field(cell: Cell) -> str:
    """Return a cell as text without tabs and line breaks."""
    match cell:
        case None:
            return ""
        case Bar():
            return str(cell.value)
        case float():
            return f"{cell:.3f}"
        case datetime():
            return cell.isoformat(timespec="seconds")
        case date():
            return cell.isoformat()
    text = cell.text if isinstance(cell, Mark) else str(cell)
    return visible(" ".join(text.split()))


def json_of(value: Any) -> str:
    """Return a value as JSON: a dataclass is an object of its fields, and a time is ISO 8601."""
    return json.dumps(value, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else int(value)  # PostgreSQL sums decimals


class Commands(TyperGroup):
    """Shows memlayer's errors, and the exit codes below each help."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.epilog = EXIT_CODES
            paragraphs = (command.help or "").split("\n\n")
            command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)  # as wide as the terminal
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        logger, notes = logging.getLogger("memlayer"), _Notes(logging.WARNING)
        logger.addHandler(notes)
        try:
            return super().invoke(ctx)
        except MemlayerError as problem:
            if isinstance(problem.__cause__, BrokenPipeError):  # `| head`: typer ends quietly
                raise problem.__cause__ from None
            terminal = console(stderr=True)
            terminal.print(f"[bold red]Error:[/] {escape(visible(str(problem)))}", soft_wrap=True)
            terminal.print(f"[bold]Hint:[/]  {escape(visible(problem.hint))}", soft_wrap=True)
            unusable = isinstance(problem, InputError) and not isinstance(problem, UnknownRecordError)
            raise typer.Exit(2 if unusable else 1) from None
        finally:
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    """Shows the memory's warnings as sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        words = _words(record)
        if words:
            console(stderr=True).print(f"[yellow]Note:[/] {escape(visible(words))}", soft_wrap=True)


def _words(record: logging.LogRecord) -> str:
    event = record.args[0] if isinstance(record.args, tuple) and record.args else None
    match event:
        case EmbedderFallback(reason=reason):
            return reason
        case IndexDegraded(reason=reason) | SummarizerUnavailable(reason=reason):
            source = event.source if isinstance(event, IndexDegraded) else "summariser"
            return f"the {source} does not work at the moment: {reason}"
        case IndexRebuilt(reason="it was asked for" | "it was verified"):
            return ""  # the command that did it says so
        case IndexRebuilt(vectors=vectors, reason=reason):
            return f"{vectors} vector(s) were written to the index again: {reason}"
        case JobDead(kind=kind, error=error):
            return f"a job of kind {kind!r} was given up: {error}"
        case _:
            return record.getMessage()
