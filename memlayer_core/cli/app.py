"""The application of the command line: its options, its one printer, and memlayer's errors as sentences. It loads no database."""

from __future__ import annotations

import json
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from typer.core import TyperGroup

from memlayer_core.errors import InputError, MemlayerError, UnknownRecordError
from memlayer_core.events import IndexRebuilt
from memlayer_core.show import Bar, Cell, Mark, View, Viewable, visible

if TYPE_CHECKING:
    from memlayer_core.models.foreign import EmbedderLike

EXIT_CODES = (
    "Exit codes: 0: fine. 1: something is wrong, or there is no such thing. 2: arguments that cannot be used. "
    "3 (`verify` alone): sound, but another process holds the index. 130: Ctrl-C."
)


def console(*, stderr: bool = False) -> Console:
    """Return the terminal as it is at this moment."""
    return Console(stderr=stderr, highlight=False)


def note(text: str, style: str = "") -> None:
    """Print a line beside the results. Text of users is made visible."""
    console(stderr=True).print(visible(text), style=style, markup=False, soft_wrap=True)


def show(value: Viewable, data: Any = None, *, as_json: bool = False) -> None:
    """Print a value: a table on a terminal, lines in a pipe, or JSON with the names that Python has.

    In a pipe each row is one line, whole, with tabs between its cells: numbers as they are, times in ISO 8601. What is no row,
    such as a sum or a warning, goes to the standard error.

    Args:
        value: What people see.
        data: What JSON has; the value itself if left out.
        as_json: Whether JSON is printed.
    """
    if as_json:
        typer.echo(json.dumps(value if data is None else data, indent=2, default=_plain))
        return
    out = console()
    if out.is_terminal:
        out.print(value)
        return
    view = value._view()  # noqa: SLF001  (the same value, for another reader)
    for section in view.sections:
        show(section)
    for row in view.rows:
        typer.echo("\t".join(map(_field, row)))
    notes = [line.text if isinstance(line, Mark) else line for line in view.notes]
    for line in filter(None, [*([] if view.rows else [view.title]), *notes]):
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


def _plain(value: Any) -> Any:
    """Return what JSON has of a value: a dataclass is an object of its fields, and a time is ISO 8601."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else int(value)  # PostgreSQL sums decimals


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the standard error, if that is a terminal."""
    terminal = console(stderr=True)
    with Progress(
        console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=False
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=max(count, total))


class _Commands(TyperGroup):
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
            for name, text in (("[bold red]Error:[/]", str(problem)), ("[bold]Hint:[/] ", problem.hint)):
                console(stderr=True).print(f"{name} {escape(visible(text))}", soft_wrap=True)
            unusable = isinstance(problem, InputError) and not isinstance(problem, UnknownRecordError)
            raise typer.Exit(2 if unusable else 1) from None
        finally:
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    """Shows the memory's warnings as sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        event = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(event, IndexRebuilt):  # `verify` and `reindex` tell it themselves
            note(f"Note: {getattr(event, 'reason', None) or record.getMessage()}", "yellow")


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="memlayer: a durable memory for chat applications. Start with `memlayer demo`.",
    epilog=f"In a pipe, each row is one line with tabs between its cells; `--json` prints JSON. {EXIT_CODES}",
)

Where = Annotated[
    Path | None,
    typer.Argument(metavar="DIRECTORY", help="The memory's directory; else ./memory, or --database-url."),
]
Database = Annotated[str | None, typer.Option(help="PostgreSQL that holds the journal, by URL.")]
Chroma = Annotated[str | None, typer.Option(help="A Chroma server, http://host:port.")]
User = Annotated[str | None, typer.Option(help="This user alone.")]
Session = Annotated[str | None, typer.Option(help="This session of the user alone.")]
Tenant = Annotated[str, typer.Option(help="The tenant.")]
Agent = Annotated[str | None, typer.Option(help="What belongs to this agent alone.")]
Embedder = Annotated[
    str, typer.Option(help="`auto` is the store's own; `package.module:attribute` one of your application.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with the names that Python has.")]


def _show_version(flag: bool) -> None:
    if flag:
        typer.echo(f"memlayer {version('memlayer-core')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def embedder_of(option: str) -> EmbedderLike:
    """Return the embedder that `--embedder` names. A module in the current directory is found.

    Raises:
        InputError: It cannot be loaded.
    """
    return cast("EmbedderLike", load_object(option) if ":" in option else option)


def load_object(option: str) -> Any:
    """Return the object that `package.module:attribute` names, in the directory of the application.

    Raises:
        InputError: It cannot be loaded.
    """
    sys.path.insert(0, "")  # as with `python -m`
    try:
        return pkgutil.resolve_name(option)
    except (ImportError, AttributeError, ValueError) as problem:
        raise InputError(
            f"{option!r} cannot be loaded: {type(problem).__name__}: {problem}",
            hint="Such as `my_app.models:embedder`, in the directory of your application, with its environment.",
        ) from problem
    finally:
        sys.path.remove("")


def rows_of(backlog: Any, *rows: tuple[str, str]) -> View:
    """Return rows, and below them how many jobs are queued and how many are dead letters."""
    mend = " (`memlayer work --revive` tries them again)" if backlog.dead else ""
    return View(rows=(*rows, ("Backlog", f"{backlog.queued} job(s) owed, {backlog.dead} given up{mend}")))
