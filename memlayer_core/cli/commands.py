"""The commands. Each imports its modules when it runs, so that `--help` is quick."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from memlayer_core.cli import app as shell
from memlayer_core.cli.app import app, note, show
from memlayer_core.errors import FlushTimeoutError, IndexUnavailableError, InputError, MemlayerError
from memlayer_core.events import Event, IndexRebuilt
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.scope import Scope
from memlayer_core.show import View, ViewList, visible

_ERASURE = 60.0  # seconds that `forget` waits for the files


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

    if path is not None and Memory.is_at(path):
        raise InputError(
            f"there is a memory in {str(path)!r} already",
            hint="The demo needs a new directory: choose another.",
        )
    out, quoted = shell.console(), shlex.quote(str(path))
    steps = {
        f"memlayer inspect {quoted} --user maya": "her sessions",
        f'memlayer search "old maps" {quoted} --user maya': "what she said of them",
    }
    if path is not None:
        play(out, path, embedder, why=why)
    else:
        with TemporaryDirectory(prefix="memlayer-demo-", ignore_cleanup_errors=True) as directory:
            play(out, Path(directory), embedder, why=why)
        steps = {
            "memlayer demo --why": "why was each line recalled, and what does it cost?",
            "memlayer demo DIRECTORY": "this memory was removed; that one stays, for `inspect` and `search`",
        }
    out.print("\nnext:")
    for command, what in steps.items():
        out.print(f"  {command}  # {what}", soft_wrap=True, markup=False)


@app.command()
def inspect(
    path: shell.Where = None,
    user: shell.User = None,
    session: shell.Session = None,
    tenant: shell.Tenant = "default",
    agent: shell.Agent = None,
    last: Annotated[int, typer.Option(min=1, help="How many users, sessions or messages, the newest.")] = 50,
    as_json: shell.AsJson = False,
    database_url: shell.Database = None,
) -> None:
    """Show what is in a store: its state and users, a user's sessions, or a session's messages.

    Only the journal is read: no embedder is loaded and no background work is begun.
    """
    from memlayer_core.cli import store
    from memlayer_core.messages import reads as messages_reads
    from memlayer_core.messages.check import message_to_json

    if session is not None and user is None:
        raise InputError("`--session` was given without `--user`", hint="A session belongs to a user.")
    with store.journal_at(path, database_url) as journal:
        db = journal.db
        if user is None:
            show(*store.look(store.directory_of(path, database_url), db, last), as_json=as_json)
            return
        scope = Scope(user, session, agent, tenant)
        if session is None:
            found = ViewList("Sessions", db.read(messages_reads.list_sessions, scope, last, 0))
            show(found, as_json=as_json)
            return
        known = db.read(messages_reads.find, scope)
        if known is None:
            note(f"There is no session {session!r}; `--user` alone lists the sessions with their agents.")
            raise typer.Exit(1)
        newest = [entry.seq for entry in db.read(messages_reads.tail, known, None, last)]
        said = ViewList("Messages", [one.message for one in db.read(messages_reads.read, known, newest)])
        show(said, [message_to_json(one) for one in said], as_json=as_json)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A question, or words.")],
    user: Annotated[str, typer.Option(help="Whose memory is searched.")],
    path: shell.Where = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits at the most.")] = 10,
    tenant: shell.Tenant = "default",
    agent: shell.Agent = None,
    session: shell.Session = None,
    embedder: shell.Embedder = "auto",
    as_json: shell.AsJson = False,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
) -> None:
    """Search the messages and records of a user."""
    from memlayer_core.cli.store import open_memory

    with open_memory(path, database_url, chroma_url, shell.embedder_of(embedder)) as memory:
        hits = memory.search(
            query, user_id=user, tenant_id=tenant, agent_id=agent, session_id=session, limit=k
        )
    show(hits, as_json=as_json)


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="The file to write, or `-` for the standard output.")],
    path: shell.Where = None,
    user: shell.User = None,
    tenant: shell.Tenant = "default",
    database_url: shell.Database = None,
) -> None:
    """Write the messages and records of a tenant's users, or of one of them, as JSON lines.

    Only the journal is read. The file appears when it is complete.
    """
    from memlayer_core.cli.store import journal_at
    from memlayer_core.runtime import SYNC, step
    from memlayer_core.storage.files import FileWriter
    from memlayer_core.transfer.flow import export as write

    file = FileWriter(sys.stdout if target == "-" else target)
    with journal_at(path, database_url) as journal, shell.progress("Exporting") as bar:
        flow = write(journal.db, SYNC, file, tenant_id=tenant, user_id=user, now=journal.now(), progress=bar)
        written = step(flow)
    note(f"Exported: {written:,} message(s).")


@app.command("import")
def import_from(
    source: Annotated[str, typer.Argument(help="What `export` wrote, or `-` for the standard input.")],
    path: shell.Where = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant to import into, if not the one it is from.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Whose all of it must be: lines of anybody else are refused.")
    ] = None,
    as_json: shell.AsJson = False,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
) -> None:
    """Store the conversations of an export. The memory is made if it does not exist.

    Importing twice changes nothing: messages have ids. The messages are indexed in the background.
    """
    if source != "-" and not Path(source).exists():
        raise InputError(f"there is no file {source!r}", hint="Give the path of an export.")
    from memlayer_core.cli.store import directory_of
    from memlayer_core.memory import Memory

    place = directory_of(path, database_url)
    lines = sys.stdin.buffer if source == "-" else source
    with Memory.open(place, database_url=database_url, chroma_url=chroma_url) as memory:
        with shell.progress("Importing") as bar:
            done = memory.import_from(lines, user_id=user, tenant_id=tenant, progress=bar)
        backlog = memory.admin.status().backlog
    data = {"imported": done, "backlog": backlog}
    show(shell.rows_of(backlog, ("Imported", str(done))), data, as_json=as_json)


@app.command()
def forget(
    path: shell.Where = None,
    user: Annotated[str | None, typer.Option(help="Everything of this user.")] = None,
    session: Annotated[
        str | None,
        typer.Option(help="Of the user, this session alone; without --user, one that has no user."),
    ] = None,
    record: Annotated[str | None, typer.Option(help="This record alone, by its id.")] = None,
    tenant: shell.Tenant = "default",
    agent: Annotated[str | None, typer.Option(help="Of the user, what belongs to this agent alone.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")] = False,
    as_json: shell.AsJson = False,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
) -> None:
    """Delete a record, a session or everything of a user for good, and say what was deleted and what is left.

    It tells what it would delete, and asks. Nothing finds it any more when the command ends; what remains in the files and in
    the index is erased, too, or the command says who will do it.
    """
    from memlayer_core.cli.store import journal_at
    from memlayer_core.messages import reads as messages_reads
    from memlayer_core.runtime import SYNC, step
    from memlayer_core.transfer.flow import forget_in_journal

    names = {"record": record, "session": session, "user": user, "agent": agent}
    named = visible(", ".join(f"{name} {value!r}" for name, value in names.items() if value is not None))
    if user is None and session is None and record is None:
        raise InputError(
            "nothing was named to delete",
            hint="`--user ID` for everything of a user, with `--session ID` for one session; or `--record ID`.",
        )
    with journal_at(path, database_url, writes=True) as journal:
        if not yes:
            what = ""
            if record is None:
                scope = Scope.of_session(session or "-", user_id=user, agent_id=agent, tenant_id=tenant)
                reach = scope if session is not None else scope.reach()
                found = journal.db.read(messages_reads.list_sessions, reach, sys.maxsize, 0, superseded=True)
                said = sum(one.messages for one in found)
                what = f"{len(found):,} session(s) with {said:,} message(s), and the records, of "
            _ask(f"This deletes {what}{named} in tenant {tenant!r}, for good.")
        gone = step(forget_in_journal(journal, SYNC, user, session, record, tenant, agent))
    if not (gone.sessions or gone.records or gone.items):
        show(View(notes=(f"There is nothing of {named}.",)), {"deleted": gone, "left": []}, as_json=as_json)
        raise typer.Exit(1)
    left = ["exports, backups, saved states and forks that you made: delete them yourself"]
    left += [
        f"items in the folder {'/'.join(folder)!r}, which is no user's: `memory.items(…).forget({folder!r})`"
        for folder in gone.undeclared_folders
    ]
    left += _erase(path, database_url, chroma_url)
    counts = (
        f"{gone.sessions:,} session(s) with {gone.messages:,} message(s), "
        f"{gone.records:,} record(s) and {gone.items:,} item(s)"
    )
    rows = (("Deleted", f"{counts} of {named}"), *(("Left", one) for one in left))
    show(View(rows=rows), {"deleted": gone, "left": left}, as_json=as_json)


def _ask(what: str) -> None:
    """Ask whether to delete.

    Raises:
        InputError: Nobody is there to answer.
        typer.Abort: The answer is no.
    """
    note(what)
    if not sys.stdin.isatty():
        raise InputError("nobody is there to answer whether to delete it", hint="Add `--yes`.")
    typer.confirm("Delete it?", abort=True, err=True)


def _erase(path: Path | None, database_url: str | None, chroma_url: str | None) -> list[str]:
    """Erase what was deleted from index and files. Returns who does it where this process cannot."""
    from memlayer_core.cli.store import open_memory

    try:
        with open_memory(path, database_url, chroma_url) as memory:
            memory.flush(_ERASURE)
    except MemlayerError as problem:
        what = "vectors in the index and remains in the files: a process that opens the store erases them"
        return [f"{what}, such as `memlayer work --once` ({problem})"]
    return []


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The directory of the copy. It must not hold a memory yet.")],
    path: shell.Where = None,
    database_url: shell.Database = None,
    as_json: shell.AsJson = False,
) -> None:
    """Copy a memory, of one moment and complete, while other processes read and write it.

    The copy is a memory of its own: `memlayer inspect TARGET` shows it, and `Memory.open` opens it. Only the journal is copied,
    which has everything; the first process that opens the copy builds Chroma's index again from it, and asks no model.
    For PostgreSQL the tool is pg_dump.
    """
    from memlayer_core.cli.store import journal_at, sentence, totals
    from memlayer_core.opening import directory_at
    from memlayer_core.storage.sqlite import copy_journal

    if database_url is not None:
        raise InputError(
            "PostgreSQL is copied with its own tool, pg_dump",
            hint="Such as `pg_dump --format=custom --table='memlayer_*' --file=memory.dump postgresql://user@host/name`; "
            "`pg_restore` brings it back. Chroma's index is built again from it.",
        )
    source, copy = directory_at("memory" if path is None else path), directory_at(target)
    with journal_at(path, None):
        pass  # it exists
    with shell.progress("Copying") as bar:
        size = copy_journal(source, copy, bar)
    with journal_at(copy, None) as journal:
        kept = totals(journal.db)
    rows = (
        ("Backup", str(copy)),
        ("Size", f"{size / 1e6:,.1f} MB"),
        ("Kept", sentence(kept)),
        ("Index", "not copied: the first process that opens the copy builds it again, and asks no model"),
    )
    show(View(rows=rows), {"path": copy, "bytes": size, **kept}, as_json=as_json)


@app.command()
def verify(
    path: shell.Where = None,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
    as_json: shell.AsJson = False,
) -> None:
    """Check the journal, compare both indexes with it, and build again an index that does not agree.

    It may run beside a server. Exit codes: 0: all is sound. 1: an index had to be built again, or a job was given up.
    3: all that was compared is sound, but another process holds Chroma's index and keeps it whole.
    """
    from memlayer_core.cli.store import open_memory

    rebuilt: set[int] = set()

    def on_event(event: Event) -> None:
        if isinstance(event, IndexRebuilt):
            rebuilt.update(event.shards)

    with open_memory(path, database_url, chroma_url) as memory:
        memory.listen(on_event)  # the worker may find it first
        with shell.console(stderr=True).status("Comparing …"):
            repaired = memory.admin.verify()
        status = memory.admin.status()
    index = {
        "none": "this memory has none",
        "held": "agrees with the journal",
        "not held": "not compared: another process holds it, and keeps it whole",
    }[status.index]
    if rebuilt:
        index = f"built again: collection(s) {', '.join(map(str, sorted(rebuilt)))}"
    words = "filed again" if "words" in repaired else "agree with the journal"
    data = {
        "words": not repaired,
        "index": status.index,
        "rebuilt": sorted(rebuilt),
        "backlog": status.backlog,
    }
    show(shell.rows_of(status.backlog, ("Words", words), ("Index", index)), data, as_json=as_json)
    if rebuilt or repaired or status.backlog.dead:
        raise typer.Exit(1)
    if status.index == "not held":
        raise typer.Exit(3)


@app.command()
def reindex(
    path: shell.Where = None,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
    embedder: Annotated[
        EmbedderName | None,
        typer.Option(help="Embed everything again with this one; else no model is asked."),
    ] = None,
    as_json: shell.AsJson = False,
) -> None:
    """Build Chroma's index again from the vectors in the journal, or embed everything again."""
    from memlayer_core.cli.store import open_memory

    again = embedder is not None
    with open_memory(path, database_url, chroma_url, embedder or "auto", reembed=again) as memory:
        memory.flush()
        with shell.console(stderr=True).status("Writing the index …"):
            written = memory.admin.reindex()
        status = memory.admin.status()
    if status.index == "not held":
        raise IndexUnavailableError(
            "another process holds the index", hint="End it, or let it do its work: it keeps the index whole."
        )
    index = f"built again: {written:,} vectors" if status.index == "held" else "this memory has none"
    data = {"embedder": status.embedder, "index": status.index, "vectors": written}
    show(View(rows=(("Embedder", status.embedder), ("Index", index))), data, as_json=as_json)


@app.command()
def work(
    path: shell.Where = None,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What sums up, writes episodes and learns, as `Memory.open(model=…)`: `package.module:attribute`."
        ),
    ] = None,
    revive: Annotated[bool, typer.Option("--revive", help="Try again what was given up.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is owed any more.")] = False,
    as_json: shell.AsJson = False,
) -> None:
    """Do the background work that is queued: embed messages, write the index, erase what was deleted.

    With --model, also what calls a language model: summaries, episodes and facts.

    Every process that opens a store does this work by itself. Run it as a service where those processes end soon (as
    functions in a cloud do), or with --once after an import. It goes on until Ctrl-C or SIGTERM.
    """
    from memlayer_core.cli.store import open_memory

    chosen = None if model is None else shell.load_object(model)
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    with open_memory(path, database_url, chroma_url, model=chosen) as memory:
        revived = memory.admin.retry_dead() if revive else 0
        memory.flush()
        backlog = memory.admin.status().backlog
        rows = [("Revived", f"{revived} job(s)")] if revive else []
        show(shell.rows_of(backlog, *rows), {"revived": revived, "backlog": backlog}, as_json=as_json)
        if not once:
            note("Waiting for work; Ctrl-C ends it.")
        while not once:
            time.sleep(1)
            if memory.admin.status().backlog.queued:
                with suppress(FlushTimeoutError):
                    memory.flush()


@app.command()
def doctor(
    path: shell.Where = None,
    database_url: shell.Database = None,
    chroma_url: shell.Chroma = None,
    as_json: shell.AsJson = False,
) -> None:
    """Look for what is wrong with this machine and a store, and say how to mend it.

    It looks at versions, settings, tokenizer, embedder, permissions, disk, the journal and its pages, locks, the queue and
    Chroma. Nothing is changed. Exit code 1: something is wrong.
    """
    from memlayer_core.cli.doctor import examine

    with shell.console(stderr=True).status("Looking …"):
        checks = list(examine(path, database_url, chroma_url))
    rows = tuple((one.state.upper(), one.name, one.finding, one.mend) for one in checks)
    show(View(columns=("", "what", "found", "how to mend it"), rows=rows), checks, as_json=as_json)
    if any(one.state == "wrong" for one in checks):
        raise typer.Exit(1)
