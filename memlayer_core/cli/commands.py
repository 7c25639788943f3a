"""The commands. Each loads what it needs when it is run, so that `--help` is quick."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from memlayer_core.cli.backlog import show_backlog, work_off
from memlayer_core.cli.terminal import Commands, console
from memlayer_core.errors import FlushTimeoutError, IndexUnavailableError, InputError
from memlayer_core.records.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["app"]


class Embedders(StrEnum):
    """Embedders that the demo can be given by name."""

    auto = "auto"
    minilm = "minilm"
    hashing = "hashing"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="memlayer: a durable memory for chat applications. Start with `memlayer demo`.",
)

_Where = Annotated[Path | None, typer.Option("--path", help="The memory's directory.")]
_Database = Annotated[str | None, typer.Option(help="PostgreSQL that holds the journal, by URL.")]
_Chroma = Annotated[str | None, typer.Option(help="A Chroma server, http://host:port.")]
_Tenant = Annotated[str, typer.Option(help="The user's tenant.")]
_Agent = Annotated[str | None, typer.Option(help="Sessions with this agent alone.")]


@app.command()
def demo(
    path: Annotated[Path | None, typer.Option(help="Keep the memory here; it must not hold one yet.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A real model for LangChain's init_chat_model, PROVIDER:NAME.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Play this file, in the format of LoCoMo.")] = None,
    conversation: Annotated[int, typer.Option(help="Which conversation of the file, from 1.")] = 1,
    questions: Annotated[int, typer.Option(min=0, help="How many of the file's questions to ask.")] = 3,
    token_limit: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a context; 800, for a file 1200.")
    ] = None,
    embedder: Annotated[Embedders, typer.Option(help="What makes the vectors.")] = Embedders.auto,
) -> None:
    """Play a conversation over several sessions, and show what the model was given.

    The model is scripted unless --model names a real one: no key is needed, and no network.
    """
    out = console()
    if data is None:
        from memlayer_core.demo.story import play_story  # noqa: PLC0415

        with _stage(out, path, "maya", "old maps") as directory:
            play_story(out, directory, embedder=embedder.value, token_limit=token_limit or 800, model=model)
        return
    if model is not None:
        raise InputError(
            "`--model` and `--data` were both given", hint="A file is played without a model: leave one out."
        )
    from memlayer_core.demo.locomo import read  # noqa: PLC0415
    from memlayer_core.demo.recording import play_recording  # noqa: PLC0415

    told = read(data, conversation)
    with _stage(out, path, told.speakers[0], "holiday") as directory:
        play_recording(
            out,
            directory,
            told,
            questions=questions,
            embedder=embedder.value,
            token_limit=token_limit or 1200,
        )


@app.command()
def inspect(
    path: Annotated[Path | None, typer.Argument(help="The memory's directory.")] = None,
    user: Annotated[str | None, typer.Option(help="Show this user's sessions.")] = None,
    session: Annotated[str | None, typer.Option(help="Show this session's messages.")] = None,
    tenant: _Tenant = "default",
    agent: _Agent = None,
    last: Annotated[int, typer.Option(min=1, help="How many sessions or messages, the newest.")] = 50,
    database_url: _Database = None,
) -> None:
    """Show what is in a store: its state, a user's sessions, or a session's messages.

    Only the journal is read: no embedder is loaded and no background work is begun.
    """
    from memlayer_core.cli import looking  # noqa: PLC0415

    if session is not None and user is None:
        raise InputError("`--session` was given without `--user`", hint="A session belongs to a user.")
    out = console()
    with looking.journal_at(path, database_url) as opened:
        if user is None:
            looking.show_store(out, path, opened, last)
        elif session is None:
            looking.show_sessions(out, opened[1], Scope(user, None, agent, tenant), last)
        else:
            looking.show_session(out, opened[1], Scope(user, session, agent, tenant), last)


@app.command()
def search(
    path: Annotated[Path, typer.Argument(help="The memory's directory, or `-` with --database-url.")],
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    user: Annotated[str, typer.Option(help="Whose memory is searched.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits at the most.")] = 10,
    tenant: _Tenant = "default",
    agent: _Agent = None,
    session: Annotated[str | None, typer.Option(help="This session alone.")] = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
) -> None:
    """Find what a user said or was told."""
    from memlayer_core.cli.looking import show_hits  # noqa: PLC0415

    where = None if str(path) == "-" else path
    with _opened(where, database_url, chroma_url) as memory:
        hits = memory.search(query, user_id=user, tenant_id=tenant, agent_id=agent, session_id=session, k=k)
    show_hits(console(), hits)


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="The file to write, or `-` for the standard output.")],
    path: _Where = None,
    user: Annotated[str | None, typer.Option(help="Export what this user said and was told.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The user's tenant; without --user, all of this tenant.")
    ] = None,
    database_url: _Database = None,
) -> None:
    """Write the conversations of a user, or of a whole tenant, as lines of JSON.

    Only the journal is read. The file appears when it is complete.
    """
    if user is None and tenant is None:
        raise InputError(
            "it was not said what to export", hint="Give `--user`, or `--tenant` for everybody in it."
        )
    from memlayer_core.cli.looking import journal_at  # noqa: PLC0415
    from memlayer_core.cli.moving import send  # noqa: PLC0415

    with journal_at(path, database_url) as (_, journal):
        written = send(journal, target, tenant or "default", user)
    console(stderr=True).print(f"Exported: {written:,} message(s).")


@app.command("import")
def import_from(
    source: Annotated[str, typer.Argument(help="What `export` wrote, or `-` for the standard input.")],
    path: _Where = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant to import into, if not the one it is from.")
    ] = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
) -> None:
    """Store what an export holds, in a memory that is made if it is not there.

    Importing twice changes nothing: messages have ids. What was imported is indexed in the background.
    """
    if source != "-" and not Path(source).exists():
        raise InputError(f"there is no file {source!r}", hint="Give the path of an export.")
    from memlayer_core.cli.moving import take  # noqa: PLC0415
    from memlayer_core.memory import Memory  # noqa: PLC0415

    with Memory.open(path, database_url=database_url, chroma_url=chroma_url) as memory:
        done = take(memory, source, tenant)
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
        Embedders | None, typer.Option(help="Embed everything again with this one; else no model is asked.")
    ] = None,
) -> None:
    """Build Chroma's index again from the vectors in the journal, or embed everything anew."""
    out = console()
    with _opened(path, database_url, chroma_url, embedder, reembed=embedder is not None) as memory:
        work_off(out, memory)
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
    """Compare the index with the journal, and build again what does not agree.

    The exit code is 1 if something had to be built again, could not be compared, or was given up.
    """
    from memlayer_core.events import Event, IndexRebuilt  # noqa: PLC0415

    out = console()
    rebuilt: set[int] = set()

    def hear(event: Event) -> None:
        if isinstance(event, IndexRebuilt):
            rebuilt.update(event.shards)

    with _opened(path, database_url, chroma_url) as memory:
        memory.listen(hear)  # the worker may find it first
        with out.status("Comparing …"):
            rebuilt.update(memory.verify())
        status = memory.status()
    match status.index:
        case "none":
            out.print("Index    this memory works without Chroma: nothing to compare")
        case "held" if rebuilt:
            shards = ", ".join(map(str, sorted(rebuilt)))
            out.print(f"Index    [yellow]built again[/]: collection(s) {shards}")
        case "held":
            out.print("Index    agrees with the journal")
        case _:
            out.print("Index    [yellow]not compared[/]: another process holds it")
    show_backlog(out, status.backlog)
    if rebuilt or status.index == "not held" or status.backlog.dead:
        raise typer.Exit(1)


@app.command()
def work(
    path: _Where = None,
    database_url: _Database = None,
    chroma_url: _Chroma = None,
    revive: Annotated[bool, typer.Option("--revive", help="Try again what was given up.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is owed any more.")] = False,
) -> None:
    """Do the background work of a store in this process, until it is ended."""
    out = console()
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    with _opened(path, database_url, chroma_url) as memory:
        if revive:
            out.print(f"Revived: {memory.retry_dead()}")
        work_off(out, memory)
        show_backlog(out, memory.status().backlog)
        if not once:
            out.print("Waiting for work; Ctrl-C ends it.")
        while not once:
            time.sleep(1)
            if memory.status().backlog.queued:
                with suppress(FlushTimeoutError):
                    memory.flush()


@contextmanager
def _opened(
    path: Path | None,
    database_url: str | None,
    chroma_url: str | None,
    embedder: Embedders | None = None,
    *,
    reembed: bool = False,
) -> Iterator[Memory]:
    """Open a memory that is there already."""
    from memlayer_core.cli.looking import journal_at  # noqa: PLC0415
    from memlayer_core.memory import Memory  # noqa: PLC0415

    with journal_at(path, database_url):
        pass  # it is there
    chosen = (embedder or Embedders.auto).value
    with Memory.open(
        path, database_url=database_url, chroma_url=chroma_url, embedder=chosen, reembed=reembed
    ) as memory:
        yield memory


@contextmanager
def _stage(out: Console, path: Path | None, user: str, words: str) -> Iterator[Path]:
    """Give a demo a directory: a temporary one that is removed, or a named one that stays."""
    if path is None:
        directory = Path(mkdtemp(prefix="memlayer-demo-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        out.print(f"\n{escape(str(directory))} has been removed; `--path DIR` keeps it.", soft_wrap=True)
        return
    if (path / "journal.sqlite3").exists():
        raise InputError(
            f"there is a memory in {str(path)!r} already",
            hint="The demo writes into no other: choose a new one.",
        )
    yield path
    kept = escape(str(path))
    out.print(f"\nThe memory stays in {kept}. Look into it:", soft_wrap=True)
    out.print(f"  memlayer inspect {kept} --user {escape(user)}", soft_wrap=True)
    out.print(f'  memlayer search {kept} "{words}" --user {escape(user)}', soft_wrap=True)
