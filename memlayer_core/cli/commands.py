"""The commands. Each imports its modules when it runs, so that `--help` is quick."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from memlayer_core.cli.terminal import Commands, console
from memlayer_core.errors import FlushTimeoutError, IndexUnavailableError, InputError
from memlayer_core.events import Event, IndexRebuilt
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["app"]


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="memlayer: a durable memory for chat applications. Start with `memlayer demo`.",
)

_Where = Annotated[
    Path | None,
    typer.Argument(metavar="DIRECTORY", help="The memory's directory; else ./memory, or --database-url."),
]
_Database = Annotated[str | None, typer.Option(help="PostgreSQL that holds the journal, by URL.")]
_Chroma = Annotated[str | None, typer.Option(help="A Chroma server, http://host:port.")]
_Tenant = Annotated[str, typer.Option(help="The tenant.")]
_Agent = Annotated[str | None, typer.Option(help="Sessions with this agent alone.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, with the names that Python has.")]


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


@app.command()
def demo(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIRECTORY", help="Keep the memory here; it must not hold one yet. Else it is removed."
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show every part of each context, its tokens and its reasons.")
    ] = False,
    embedder: Annotated[EmbedderName, typer.Option(help="What makes the vectors.")] = "auto",
) -> None:
    """Show that a memory outlives its process: the first process is killed, the second remembers.

    No model is called: no key is needed, and no network.
    """
    from memlayer_core.cli.demo import play
    from memlayer_core.memory import Memory

    out = console()
    if path is None:
        with TemporaryDirectory(prefix="memlayer-demo-", ignore_cleanup_errors=True) as directory:
            play(out, Path(directory), embedder, why=why)
        steps = {
            "memlayer demo --why": "why was each line recalled, and what does it cost?",
            "memlayer demo DIRECTORY": "this memory was removed; that one stays, for `inspect` and `search`",
        }
    else:
        if Memory.is_at(path):
            raise InputError(
                f"there is a memory in {str(path)!r} already",
                hint="The demo needs a new directory: choose another.",
            )
        play(out, path, embedder, why=why)
        quoted = shlex.quote(str(path))
        steps = {
            f"memlayer inspect {quoted} --user maya": "her sessions",
            f'memlayer search "old maps" {quoted} --user maya': "what she said of them",
        }
    out.print("\nnext:")
    for command, what in steps.items():
        out.print(f"  {command}  # {what}", soft_wrap=True, markup=False)


@app.command()
def inspect(
    path: _Where = None,
    user: Annotated[str | None, typer.Option(help="Show this user's sessions.")] = None,
    session: Annotated[str | None, typer.Option(help="Show this session's messages.")] = None,
    tenant: _Tenant = "default",
    agent: _Agent = None,
    last: Annotated[int, typer.Option(min=1, help="How many sessions or messages, the newest.")] = 50,
    as_json: _Json = False,
    database_url: _Database = None,
) -> None:
    """Show what is in a store: its state, a user's sessions, or a session's messages.

    Only the journal is read: no embedder is loaded and no background work is begun.
    """
    from memlayer_core.cli import views
    from memlayer_core.messages.flow.reads import session_view

    if session is not None and user is None:
        raise InputError("`--session` was given without `--user`", hint="A session belongs to a user.")
    scope = None if user is None else Scope(user, session, agent, tenant)
    with views.journal_at(path, database_url) as db:
        if as_json:
            typer.echo(views.json_of(views.facts(db, scope, last)))
        elif scope is None:
            for view in views.store_views(views.directory_of(path, database_url), db, last):
                console().print(view)
        elif session is None:
            console().print(views.sessions_view(db, scope, last))
        else:
            console().print(session_view(db, scope, last) or views.missing_session(db, scope))


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    user: Annotated[str, typer.Option(help="Whose memory is searched.")],
    path: _Where = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits at the most.")] = 10,
    tenant: _Tenant = "default",
    agent: _Agent = None,
    session: Annotated[str | None, typer.Option(help="This session alone.")] = None,
    as_json: _Json = False,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
) -> None:
    """Search the messages and records of a user."""
    from memlayer_core.cli.views import json_of

    with _open_memory(path, database_url, chroma_url) as memory:
        hits = memory.search(
            query, user_id=user, tenant_id=tenant, agent_id=agent, session_id=session, limit=k
        )
    if as_json:
        typer.echo(json_of(hits))
    else:
        console().print(hits)


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="The file to write, or `-` for the standard output.")],
    path: _Where = None,
    user: Annotated[str | None, typer.Option(help="This user alone; else all users of the tenant.")] = None,
    tenant: _Tenant = "default",
    database_url: _Database = None,
) -> None:
    """Write the messages and records of a tenant's users, or of one of them, as JSON lines.

    Only the journal is read. The file appears when it is complete.
    """
    from memlayer_core.cli.transfer import write_export
    from memlayer_core.cli.views import journal_at

    with journal_at(path, database_url) as db:
        written = write_export(db, target, tenant, user)
    console(stderr=True).print(f"Exported: {written:,} message(s).")


@app.command("import")
def import_from(
    source: Annotated[str, typer.Argument(help="What `export` wrote, or `-` for the standard input.")],
    path: _Where = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant to import into, if not the one it is from.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Whose all of it must be: lines of anybody else are refused.")
    ] = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
) -> None:
    """Store the conversations of an export. The memory is made if it does not exist.

    Importing twice changes nothing: messages have ids. The messages are indexed in the background.
    """
    if source != "-" and not Path(source).exists():
        raise InputError(f"there is no file {source!r}", hint="Give the path of an export.")
    from memlayer_core.cli.transfer import read_import
    from memlayer_core.cli.views import directory_of, show_backlog
    from memlayer_core.memory import Memory

    place = directory_of(path, database_url)
    with Memory.open(place, database_url=database_url, chroma_url=chroma_url) as memory:
        done = read_import(memory, source, tenant, user)
        backlog = memory.status().backlog
    out = console()
    out.print(f"Imported: {done}.")
    show_backlog(out, backlog)


@app.command()
def reindex(
    path: _Where = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
    embedder: Annotated[
        EmbedderName | None,
        typer.Option(help="Embed everything again with this one; else no model is asked."),
    ] = None,
) -> None:
    """Build Chroma's index again from the vectors in the journal, or embed everything again."""
    out = console()
    with _open_memory(path, database_url, chroma_url, embedder) as memory:
        memory.flush()
        with out.status("Writing the index …"):
            written = memory.reindex()
        status = memory.status()
    out.print(f"Embedder: {escape(status.embedder)}")
    if status.index == "none":
        out.print("This memory works without Chroma: there is no index to build.")
        return
    if status.index != "held":
        raise IndexUnavailableError(
            "another process holds the index", hint="End it, or let it do its work: it keeps the index whole."
        )
    out.print(f"The index was built again: {written:,} vectors.")


@app.command()
def verify(path: _Where = None, database_url: _Database = None, chroma_url: _Chroma = None) -> None:
    """Check the journal, compare both indexes with it, and build again an index that does not agree.

    It may run beside a server. Exit codes: 0: all is sound. 1: an index had to be built again, or a job was given up.
    3: all that was compared is sound, but another process holds Chroma's index and keeps it whole.
    """
    from memlayer_core.cli.views import show_backlog

    out = console()
    rebuilt: set[int] = set()

    def on_event(event: Event) -> None:
        if isinstance(event, IndexRebuilt):
            rebuilt.update(event.shards)

    with _open_memory(path, database_url, chroma_url) as memory:
        memory.listen(on_event)  # the worker may find it first
        with out.status("Comparing …"):
            repaired = memory.verify()
        status = memory.status()
    out.print("Words    [yellow]filed again[/]" if "words" in repaired else "Words    agree with the journal")
    match status.index:
        case "none":
            out.print("Index    this memory works without Chroma: nothing to compare")
        case "held" if rebuilt:
            shards = ", ".join(map(str, sorted(rebuilt)))
            out.print(f"Index    [yellow]built again[/]: collection(s) {shards}")
        case "held":
            out.print("Index    agrees with the journal")
        case _:
            out.print("Index    not compared: another process holds it, and keeps it whole")
    show_backlog(out, status.backlog)
    if rebuilt or repaired or status.backlog.dead:
        raise typer.Exit(1)
    if status.index == "not held":
        raise typer.Exit(3)


@app.command()
def work(
    path: _Where = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
    revive: Annotated[bool, typer.Option("--revive", help="Try again what was given up.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is owed any more.")] = False,
) -> None:
    """Do the background work that is queued: embed messages, write the index and summaries, erase what was deleted.

    Every process that opens a store does this work by itself. Run it as a service where those processes end soon (as
    functions in a cloud do), or with --once after an import. It goes on until Ctrl-C or SIGTERM.
    """
    from memlayer_core.cli.views import show_backlog

    out = console()
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    with _open_memory(path, database_url, chroma_url) as memory:
        if revive:
            out.print(f"Revived: {memory.retry_dead()}")
        memory.flush()
        show_backlog(out, memory.status().backlog)
        if not once:
            out.print("Waiting for work; Ctrl-C ends it.")
        while not once:
            time.sleep(1)
            if memory.status().backlog.queued:
                with suppress(FlushTimeoutError):
                    memory.flush()


@contextmanager
def _open_memory(
    path: Path | None,
    database_url: str | None,
    chroma_url: str | None,
    embedder: EmbedderName | None = None,
) -> Iterator[Memory]:
    """Open an existing memory; with `embedder`, embed all of it again."""
    from memlayer_core.cli.views import directory_of, journal_at
    from memlayer_core.memory import Memory

    with journal_at(path, database_url):
        pass  # it exists
    with Memory.open(
        directory_of(path, database_url),
        database_url=database_url,
        chroma_url=chroma_url,
        embedder=embedder or "auto",
        reembed=embedder is not None,
    ) as memory:
        yield memory
