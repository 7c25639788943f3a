"""The terminal: its console, and memlayer's errors and warnings as sentences. It loads no database."""

from __future__ import annotations

import logging
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from memlayer_core.errors import InputError, MemlayerError
from memlayer_core.events import EmbedderFallback, IndexDegraded, IndexRebuilt, JobDead, SummarizerUnavailable
from memlayer_core.show import visible

__all__ = ["Commands", "console"]


def console(*, stderr: bool = False) -> Console:
    """Return the terminal as it is at this moment."""
    return Console(stderr=stderr, highlight=False)


class Commands(TyperGroup):
    """Shows memlayer's errors; the exit code is 2 for arguments that cannot be used, 1 for everything else."""

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
            raise typer.Exit(2 if isinstance(problem, InputError) else 1) from None
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
