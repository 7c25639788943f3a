"""The application of the command line, the options that several commands have, and how a command opens a memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from memlayer_core.cli.terminal import EXIT_CODES, Commands
from memlayer_core.errors import ConfigurationError
from memlayer_core.models.foreign import EmbedderLike, EmbedderName

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = [
    "Agent",
    "AsJson",
    "Chroma",
    "Database",
    "Embedder",
    "Tenant",
    "User",
    "Where",
    "app",
    "embedder_of",
    "memory_to_look_at",
    "open_memory",
]

app = typer.Typer(
    cls=Commands,
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
User = Annotated[str, typer.Option(help="Whose memory it is.")]
Tenant = Annotated[str, typer.Option(help="The tenant.")]
Agent = Annotated[str | None, typer.Option(help="What belongs to this agent alone.")]
Embedder = Annotated[
    str,
    typer.Option(
        help="`auto` is the store's own; `package.module:attribute` one of your application, or a function that returns it."
    ),
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
    """Return the embedder that `--embedder` names.

    Raises:
        InputError: It cannot be loaded.
    """
    if ":" not in option:
        return cast("EmbedderName", option)
    from memlayer_core.cli.spec import load_object

    loaded: EmbedderLike = load_object(option, "--embedder")
    return loaded


@contextmanager
def open_memory(
    path: Path | None,
    database_url: str | None,
    chroma_url: str | None,
    embedder: EmbedderLike = "auto",
    *,
    reembed: bool = False,
    model: Any = None,
) -> Iterator[Memory]:
    """Open an existing memory."""
    from memlayer_core.cli.views import directory_of, journal_at
    from memlayer_core.memory import Memory

    with journal_at(path, database_url, writes=True):
        pass  # it exists
    with Memory.open(
        directory_of(path, database_url),
        database_url=database_url,
        chroma_url=chroma_url,
        embedder=embedder,
        model=model,
        reembed=reembed,
    ) as memory:
        yield memory


def _refuse(_: Sequence[str]) -> list[float]:
    raise ConfigurationError(
        "this command searches nothing, so it has no embedder", hint="`memlayer search` has one."
    )


@contextmanager
def memory_to_look_at(
    path: Path | None,
    database_url: str | None,
    tokenizer: str = "auto",
    embedder: EmbedderLike | None = None,
) -> Iterator[Memory]:
    """Open an existing memory to look at: nothing is written to it, and no background work is done.

    Args:
        path: The memory's directory; None: `./memory`, or none with a URL.
        database_url: PostgreSQL that holds the journal; None: SQLite in the directory.
        tokenizer: As for `Memory.open`.
        embedder: As for `Memory.open`; None: nothing will be searched, so none is loaded.
    """
    from memlayer_core.cli.views import directory_of, journal_at
    from memlayer_core.memory import Memory
    from memlayer_core.models.foreign_embedder import ForeignEmbedder
    from memlayer_core.opening import Resources
    from memlayer_core.storage import vectors

    with journal_at(path, database_url) as db:
        identity = db.read(vectors.layout).embedder

    directory = directory_of(path, database_url)
    opener = partial(
        Resources,
        database=database_url if database_url is not None else directory,
        directory=directory,
        chroma_url=None,
        embedder=ForeignEmbedder(identity or "none", _refuse) if embedder is None else embedder,
        tokenizer=tokenizer,
        truncate_with=None,
        model=None,
        summarizer=None,
        extractor=None,
        fact_schema=None,
        reranker=None,
        redactor=None,
        long_term_memory=None,
        settings=None,
        reembed=False,
        looks_only=True,
    )
    with Memory(opener, survives_fork=False) as memory:
        yield memory
