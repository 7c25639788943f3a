"""Commands that show a memory and carry it elsewhere. Each imports its modules when it runs, so that `--help` is quick."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from memlayer_core.cli.app import (
    Agent,
    AsJson,
    Chroma,
    Database,
    Embedder,
    Tenant,
    Where,
    app,
    embedder_of,
    open_memory,
)
from memlayer_core.cli.terminal import console, json_of, note, show
from memlayer_core.errors import InputError
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.scope import Scope

__all__ = ["demo", "export", "import_from", "inspect", "search"]


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
    path: Where = None,
    user: Annotated[str | None, typer.Option(help="Show this user's sessions.")] = None,
    session: Annotated[str | None, typer.Option(help="Show this session's messages.")] = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    last: Annotated[int, typer.Option(min=1, help="How many sessions or messages, the newest.")] = 50,
    as_json: AsJson = False,
    database_url: Database = None,
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
            typer.echo(json_of(views.facts(db, scope, last)))
        elif scope is None:
            for view in views.store_views(views.directory_of(path, database_url), db, last):
                show(view)
        elif session is None:
            show(views.sessions_view(db, scope, last))
        elif (found := session_view(db, scope, last)) is not None:
            show(found)
        if scope is not None and session is not None and not views.has_session(db, scope):
            note(views.missing_session(db, scope))
            raise typer.Exit(1)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    user: Annotated[str, typer.Option(help="Whose memory is searched.")],
    path: Where = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits at the most.")] = 10,
    tenant: Tenant = "default",
    agent: Agent = None,
    session: Annotated[str | None, typer.Option(help="This session alone.")] = None,
    embedder: Embedder = "auto",
    as_json: AsJson = False,
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Search the messages and records of a user."""
    with open_memory(path, database_url, chroma_url, embedder_of(embedder)) as memory:
        hits = memory.search(
            query, user_id=user, tenant_id=tenant, agent_id=agent, session_id=session, limit=k
        )
    if as_json:
        typer.echo(json_of(hits))
    else:
        show(hits)


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="The file to write, or `-` for the standard output.")],
    path: Where = None,
    user: Annotated[str | None, typer.Option(help="This user alone; else all users of the tenant.")] = None,
    tenant: Tenant = "default",
    database_url: Database = None,
) -> None:
    """Write the messages and records of a tenant's users, or of one of them, as JSON lines.

    Only the journal is read. The file appears when it is complete.
    """
    from memlayer_core.cli.transfer import write_export
    from memlayer_core.cli.views import journal_at

    with journal_at(path, database_url) as db:
        written = write_export(db, target, tenant, user)
    note(f"Exported: {written:,} message(s).")


@app.command("import")
def import_from(
    source: Annotated[str, typer.Argument(help="What `export` wrote, or `-` for the standard input.")],
    path: Where = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant to import into, if not the one it is from.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Whose all of it must be: lines of anybody else are refused.")
    ] = None,
    as_json: AsJson = False,
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Store the conversations of an export. The memory is made if it does not exist.

    Importing twice changes nothing: messages have ids. The messages are indexed in the background.
    """
    if source != "-" and not Path(source).exists():
        raise InputError(f"there is no file {source!r}", hint="Give the path of an export.")
    from memlayer_core.cli.transfer import read_import
    from memlayer_core.cli.views import backlog_row, directory_of
    from memlayer_core.memory import Memory
    from memlayer_core.show import View

    place = directory_of(path, database_url)
    with Memory.open(place, database_url=database_url, chroma_url=chroma_url) as memory:
        done = read_import(memory, source, tenant, user)
        backlog = memory.status().backlog
    if as_json:
        typer.echo(json_of({"imported": done, "backlog": backlog}))
    else:
        show(View(rows=(("Imported", str(done)), backlog_row(backlog))))
