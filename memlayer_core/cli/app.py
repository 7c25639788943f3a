"""The application of the command line: its options, its one printer, and memlayer's errors as sentences.

Databases are loaded when one is opened, so that `--help` is quick.
"""

from __future__ import annotations

import json
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from typer.core import TyperGroup

from memlayer_core import errors
from memlayer_core.events import IndexRebuilt
from memlayer_core.settings import Settings
from memlayer_core.show import Bar, Cell, Mark, View, Viewable, visible

if TYPE_CHECKING:
    from memlayer_core.memory import Memory
    from memlayer_core.runtime import Journal

EXIT_CODES = (
    "Exit codes: 0: fine. 1: something is wrong, or there is no such thing. 2: arguments that cannot be used. "
    "3 (`verify` alone): sound, but another process holds the index. 130: Ctrl-C."
)
Answers: TypeAlias = Generator[tuple[Viewable, Any], None, None]
"""What a command yields: values for people, each with its value for JSON; None if that is the same."""


def console(*, stderr: bool = False) -> Console:
    """Return the terminal as it is at this moment."""
    return Console(stderr=stderr, highlight=False)


def note(text: str, style: str = "") -> None:
    """Print a line on the standard error. Control characters in it are made visible."""
    console(stderr=True).print(visible(text), style=style, markup=False, soft_wrap=True)


def _show(value: Viewable, data: Any = None, *, as_json: bool = False) -> None:
    """Print a value: a table on a terminal, lines in a pipe, or JSON with the names that Python has.

    In a pipe, each row is one whole line with tabs between its cells; numbers are not formatted, and times are ISO
    8601. Everything else, such as a sum or a warning, goes to the standard error.
    """
    out = console()
    if as_json:
        typer.echo(json.dumps(value if data is None else data, indent=2, default=_plain))
    elif out.is_terminal:
        out.print(value)
    else:
        view = value._view()  # noqa: SLF001  (the same value, for another reader)
        for section in view.sections:
            _show(section)
        for row in view.rows:
            typer.echo("\t".join(map(_field, row)))
        for line in ("" if view.rows else view.title, *view.notes):
            if line:
                note(line.text if isinstance(line, Mark) else line)


def _field(cell: Cell) -> str:
    """Return a cell as text without tabs and line breaks."""
    plain = cell.text if isinstance(cell, Mark) else cell.value if isinstance(cell, Bar) else cell
    if isinstance(plain, datetime):
        return plain.isoformat(timespec="seconds")
    text = f"{plain:.3f}" if isinstance(plain, float) else str("" if plain is None else plain)
    return visible(" ".join(text.split()))


def _plain(value: Any) -> Any:
    """Return a value for JSON: a dataclass is an object of its fields, and a time is ISO 8601."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else int(value)  # PostgreSQL sums decimals


def state(backlog: Any, *rows: tuple[str, str], **data: Any) -> tuple[View, dict[str, Any]]:
    """Return rows, and below them how many jobs are queued and how many are dead letters; for JSON, data and the backlog."""
    mend = " (`memlayer work --revive` tries them again)" if backlog.dead else ""
    owed = "Backlog", f"{backlog.queued} job(s) owed, {backlog.dead} given up{mend}"
    return View(rows=(*rows, owed)), {**data, "backlog": backlog}


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the standard error, if that is a terminal."""
    out = console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=max(count, total))


def load(option: str, names: Sequence[str] = ()) -> Any:
    """Return one of memlayer's names, or the object that `package.module:attribute` names, in the directory of the application.

    Raises:
        InputError: It cannot be loaded.
    """
    if option in names:
        return option
    sys.path.insert(0, "")  # as with `python -m`
    try:
        return pkgutil.resolve_name(option)
    except (ImportError, AttributeError, ValueError) as problem:
        raise errors.InputError(
            f"{option!r} cannot be loaded: {type(problem).__name__}: {problem}",
            hint="Such as `my_app.models:embedder`, in the directory of your application, with its environment.",
        ) from problem
    finally:
        sys.path.remove("")


class _Group(TyperGroup):
    """Shows memlayer's errors, and the memory's warnings as sentences."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        logger, notes = logging.getLogger("memlayer"), _Notes(logging.WARNING)
        logger.addHandler(notes)
        try:
            return super().invoke(ctx)
        except errors.MemlayerError as problem:
            if isinstance(problem.__cause__, BrokenPipeError):  # `| head`: typer ends quietly
                raise problem.__cause__ from None
            for name, text in (("[bold red]Error:[/]", str(problem)), ("[bold]Hint:[/] ", problem.hint)):
                console(stderr=True).print(f"{name} {escape(visible(text))}", soft_wrap=True)
            unusable = isinstance(problem, errors.InputError) or type(problem) is errors.ConfigurationError
            is_absent = isinstance(problem, errors.UnknownRecordError)
            raise typer.Exit(2 if unusable and not is_absent else 1) from None
        finally:
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        event = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(event, IndexRebuilt):  # `verify` and `reindex` report it themselves
            details = filter(None, (getattr(event, name, None) for name in ("source", "reason")))
            note(f"Note: {': '.join(details) or record.getMessage()}", "yellow")


@dataclass(frozen=True)
class JournalPlace:
    """Where the journal of a memory is: in `./memory` if neither a directory nor a database is named.

    Attributes:
        path: The memory's directory; else ./memory, or --database-url.
        database_url: PostgreSQL that holds the journal, by URL.
    """

    path: Path | None = None
    _: KW_ONLY
    database_url: str | None = field(default=None, repr=False)

    @property
    def directory(self) -> Path | None:
        """The memory's directory."""
        from memlayer_core.opening import directory_at

        path = Path("memory") if self.path is None and self.database_url is None else self.path
        return None if path is None else directory_at(path)

    @property
    def target(self) -> Path | str | None:
        """What a database is opened with."""
        return self.directory if self.database_url is None else self.database_url

    @contextmanager
    def journal(self, *, writes: bool = False) -> Iterator[Journal]:
        """Open the journal alone, without an embedder and an index.

        Args:
            writes: Whether it will be written to.

        Raises:
            InputError: There is no memory, and none is made.
            StoreUnavailableError: It cannot be read; or it is to be written to, and this process may not.
        """
        from sqlalchemy import inspect

        from memlayer_core.runtime import Journal
        from memlayer_core.storage import database, sqlite, tables

        target = self.target
        missing = errors.InputError(
            f"there is no memory in {repr(str(target)) if isinstance(target, Path) else 'that database'}",
            hint="Name the directory that the application gives to `Memory.open`, or `--database-url` for PostgreSQL, as a user "
            "whose schema has tables that begin with `memlayer_`.",
        )
        if isinstance(target, Path) and not sqlite.has_journal(target):
            raise missing
        is_writable = sqlite.may_write(target)
        if writes and not is_writable:
            raise errors.StoreUnavailableError(
                f"this user may not write to {str(target)!r}",
                hint="Run it as the user whose process has the memory, or change the owner of its files.",
            )
        with closing(database.open_database(target, Settings(), read_only=not is_writable)) as db:
            if not db.read(lambda connection: inspect(connection).has_table(tables.meta.name)):
                raise missing
            db.read(database.check_version)
            yield Journal(db, Settings(), partial(datetime.now, UTC))

    @property
    def exists(self) -> bool:
        """Whether there is a memory, which can be read."""
        with suppress(errors.InputError), self.journal():
            return True
        return False


@dataclass(frozen=True, kw_only=True)
class StorePlace(JournalPlace):
    """Where all of a memory is.

    Attributes:
        chroma_url: A Chroma server, http://host:port.
    """

    chroma_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class OpenPlace(StorePlace):
    """Where a memory is, and what a process needs to open it.

    Attributes:
        embedder: `auto` is the store's own; `package.module:attribute` one of your application.
    """

    embedder: str = "auto"

    def open(self, *, reembed: bool = False, **options: Any) -> Memory:
        """Open the memory as an application does; it is made if there is none.

        Args:
            reembed: Whether everything is embedded again, if another embedder made the vectors.
            **options: Other options of `Memory.open`.
        """
        from memlayer_core.memory import Memory
        from memlayer_core.models.foreign import EmbedderName

        options |= {"database_url": self.database_url, "chroma_url": self.chroma_url}
        verb = Memory.reembed if reembed else Memory.open
        return verb(self.directory, embedder=load(self.embedder, get_args(EmbedderName)), **options)

    def open_old(self, **how: Any) -> Memory:
        """Open the memory, which must exist."""
        with self.journal(writes=True):
            pass
        return self.open(**how)


@dataclass(frozen=True, kw_only=True)
class Whom:
    """Whose memory it is about.

    Attributes:
        user: This user alone.
        session: This session of the user alone.
        tenant: The tenant.
        agent: What belongs to this agent alone.
    """

    user: str | None = None
    session: str | None = None
    tenant: str = "default"
    agent: str | None = None

    @property
    def ids(self) -> dict[str, Any]:
        """The keywords by which the verbs of a memory take it."""
        return {f"{name}_id": value for name, value in vars(self).items()}


_NAMES = {"as_json": ("--json",), "source_format": ("--from",), "k": ("-k",), "yes": ("--yes", "-y")}


class _App(typer.Typer):
    """The application. What is decorated with its `add` is a command."""

    def add(self, run: Callable[..., Answers | None]) -> Callable[..., Answers | None]:
        """Make a command of a function, called by its name.

        Its parameters are arguments, and its keywords are options; a dataclass is several of them. Their help is in the
        docstrings. What the function yields is printed; if it yields anything, `--json` is an option.
        """
        taken: list[Parameter] = []
        groups: dict[str, Any] = {}
        for one in signature(run, eval_str=True).parameters.values():
            if is_dataclass(one.annotation):
                groups[one.name] = one.annotation
                taken += signature(groups[one.name], eval_str=True).parameters.values()
            else:
                taken.append(one)
        if run.__annotations__["return"] != "None":
            taken.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=bool))
        every = JournalPlace, StorePlace, OpenPlace, Whom, run
        docstrings = "\n".join(cleandoc(one.__doc__ or "") for one in every)
        helps = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", docstrings, re.MULTILINE))
        helps["as_json"] = "Print JSON, with the names that Python has."

        def call(*, as_json: bool = False, **values: Any) -> None:
            for name, kind in groups.items():
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            if (answers := run(**values)) is not None:
                with closing(answers):
                    for view, data in answers:
                        _show(view, data, as_json=as_json)

        made = sorted((_parameter(one, helps.get(one.name, "")) for one in taken), key=lambda one: one.kind)
        call.__signature__ = Signature(made)  # type: ignore[attr-defined]
        about = cleandoc(run.__doc__ or "").partition("\n\nTakes:\n")[0].split("\n\n")
        text = "\n\n".join(" ".join(one.split()) for one in about)  # as wide as the terminal
        self.command(run.__name__.rstrip("_"), help=text, epilog=EXIT_CODES)(call)
        return run


def _parameter(one: Parameter, text: str) -> Parameter:
    names = _NAMES.get(one.name, (f"--{one.name}".replace("_", "-"),))
    made = typer.Argument(metavar="DIRECTORY" if one.name == "path" else None, help=" ".join(text.split()))
    if one.kind is Parameter.KEYWORD_ONLY:
        made = typer.Option(*names, min=1 if one.annotation is int else None, help=made.help)
    return one.replace(annotation=Annotated[one.annotation, made])


app = _App(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="memlayer: a durable memory for chat applications. Start with `memlayer demo`.",
    epilog=f"In a pipe, each row is one line with tabs between its cells; `--json` prints JSON. {EXIT_CODES}",
)


def _show_version(flag: bool) -> None:
    if flag:
        typer.echo(f"memlayer {version('memlayer-core')}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")


@app.callback()
def _main(_: Annotated[bool, _VERSION] = False) -> None:
    pass
