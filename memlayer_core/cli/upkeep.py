"""Commands that keep a memory whole: its index, its queue, what time asks for, and a copy of it."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from memlayer_core.cli.app import AsJson, Chroma, Database, Where, app, open_memory
from memlayer_core.cli.spec import load_object
from memlayer_core.cli.terminal import console, json_of, note, show
from memlayer_core.errors import FlushTimeoutError, IndexUnavailableError, InputError
from memlayer_core.events import Event, IndexRebuilt
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.show import View

__all__ = ["backup", "maintain", "reindex", "verify", "work"]


def _answer(data: dict[str, Any], rows: tuple[tuple[str, str], ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_of(data))
    else:
        show(View(rows=rows))


@app.command()
def reindex(
    path: Where = None,
    database_url: Database = None,
    chroma_url: Chroma = None,
    embedder: Annotated[
        EmbedderName | None,
        typer.Option(help="Embed everything again with this one; else no model is asked."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build Chroma's index again from the vectors in the journal, or embed everything again."""
    again = embedder is not None
    with open_memory(path, database_url, chroma_url, embedder or "auto", reembed=again) as memory:
        memory.flush()
        with console(stderr=True).status("Writing the index …"):
            written = memory.reindex()
        status = memory.status()
    if status.index == "not held":
        raise IndexUnavailableError(
            "another process holds the index", hint="End it, or let it do its work: it keeps the index whole."
        )
    index = f"The index was built again: {written:,} vectors."
    if status.index == "none":
        index = "This memory works without Chroma: there is no index to build."
    data = {"embedder": status.embedder, "index": status.index, "vectors": written}
    _answer(data, (("Embedder", status.embedder), ("Index", index)), as_json=as_json)


@app.command()
def verify(
    path: Where = None, database_url: Database = None, chroma_url: Chroma = None, as_json: AsJson = False
) -> None:
    """Check the journal, compare both indexes with it, and build again an index that does not agree.

    It may run beside a server. Exit codes: 0: all is sound. 1: an index had to be built again, or a job was given up.
    3: all that was compared is sound, but another process holds Chroma's index and keeps it whole.
    """
    from memlayer_core.cli.views import backlog_row

    rebuilt: set[int] = set()

    def on_event(event: Event) -> None:
        if isinstance(event, IndexRebuilt):
            rebuilt.update(event.shards)

    with open_memory(path, database_url, chroma_url) as memory:
        memory.listen(on_event)  # the worker may find it first
        with console(stderr=True).status("Comparing …"):
            repaired = memory.verify()
        status = memory.status()
    words = "filed again" if "words" in repaired else "agree with the journal"
    match status.index:
        case "none":
            index = "this memory works without Chroma: nothing to compare"
        case "held" if rebuilt:
            index = f"built again: collection(s) {', '.join(map(str, sorted(rebuilt)))}"
        case "held":
            index = "agrees with the journal"
        case _:
            index = "not compared: another process holds it, and keeps it whole"
    data = {
        "words": "words" not in repaired,
        "index": status.index,
        "rebuilt": sorted(rebuilt),
        "backlog": status.backlog,
    }
    _answer(data, (("Words", words), ("Index", index), backlog_row(status.backlog)), as_json=as_json)
    if rebuilt or repaired or status.backlog.dead:
        raise typer.Exit(1)
    if status.index == "not held":
        raise typer.Exit(3)


@app.command()
def work(
    path: Where = None,
    database_url: Database = None,
    chroma_url: Chroma = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What sums up, writes episodes and learns, as `Memory.open(model=…)`: `package.module:attribute`."
        ),
    ] = None,
    revive: Annotated[bool, typer.Option("--revive", help="Try again what was given up.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is owed any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the background work that is queued: embed messages, write the index, erase what was deleted.

    With --model, also what calls a language model: summaries, episodes and facts.

    Every process that opens a store does this work by itself. Run it as a service where those processes end soon (as
    functions in a cloud do), or with --once after an import. It goes on until Ctrl-C or SIGTERM.
    """
    from memlayer_core.cli.views import backlog_row

    chosen = load_object(model, "--model") if model is not None else None
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    with open_memory(path, database_url, chroma_url, model=chosen) as memory:
        revived = memory.retry_dead() if revive else 0
        memory.flush()
        backlog = memory.status().backlog
        rows = [("Revived", f"{revived} job(s)")] if revive else []
        data = {"revived": revived, "backlog": backlog}
        _answer(data, (*rows, backlog_row(backlog)), as_json=as_json)
        if not once:
            note("Waiting for work; Ctrl-C ends it.")
        while not once:
            time.sleep(1)
            if memory.status().backlog.queued:
                with suppress(FlushTimeoutError):
                    memory.flush()


@app.command()
def maintain(path: Where = None, as_json: AsJson = False, database_url: Database = None) -> None:
    """Do what time asks for: tell how many records have faded or expired, and delete what the settings say.

    Nothing is deleted without MEMLAYER_DELETE_ARCHIVED_DAYS or MEMLAYER_LEDGER_DAYS. A process that has the store open does
    the same once a day. Only the journal is used: no embedder is loaded.
    """
    from memlayer_core.cli.views import journal_at, journal_of
    from memlayer_core.runner import SYNC, step
    from memlayer_core.worker.maintain import maintain_journal

    with journal_at(path, database_url, writes=True) as db:
        journal = journal_of(db)
        done = step(maintain_journal(journal, SYNC))
    settings = journal.settings
    never = "nothing is deleted without {}"
    records = f"{done.deleted:,} record(s)"
    if settings.delete_archived_days is None:
        records = never.format("MEMLAYER_DELETE_ARCHIVED_DAYS")
    entries = f"{done.entries:,} entries"
    if settings.ledger_days is None:
        entries = never.format("MEMLAYER_LEDGER_DAYS")
    rows = (
        ("Archived", f"{done.archived:,} record(s) have faded, {done.expired:,} have expired"),
        ("Deleted", records),
        ("Ledger", entries),
    )
    data = {name: getattr(done, name) for name in ("at", "archived", "expired", "deleted", "entries")}
    _answer(data, rows, as_json=as_json)


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The directory of the copy. It must not hold a memory yet.")],
    path: Where = None,
    database_url: Database = None,
    as_json: AsJson = False,
) -> None:
    """Copy a memory, of one moment and complete, while other processes read and write it.

    The copy is a memory of its own: `memlayer inspect TARGET` shows it, and `Memory.open` opens it. Only the journal is copied,
    which has everything; the first process that opens the copy builds Chroma's index again from it, and asks no model.
    For PostgreSQL the tool is pg_dump.
    """
    from memlayer_core.cli.transfer import write_backup
    from memlayer_core.cli.views import journal_at, journal_size
    from memlayer_core.opening import directory_at

    if database_url is not None:
        raise InputError(
            "PostgreSQL is copied with its own tool, pg_dump",
            hint="Such as `pg_dump --format=custom --table='memlayer_*' --file=memory.dump postgresql://user@host/name`; "
            "`pg_restore` brings it back. Chroma's index is built again from it.",
        )
    source, copy = directory_at("memory" if path is None else path), directory_at(target)
    with journal_at(path, None):
        pass  # it exists
    size = write_backup(source, copy)
    with journal_at(copy, None) as db:
        totals = journal_size(db)
    rows = (
        ("Backup", str(copy)),
        ("Size", f"{size / 1e6:,.1f} MB"),
        ("Kept", "{messages:,} message(s) in {sessions:,} session(s) of {users:,} user(s)".format(**totals)),
        ("Index", "not copied: the first process that opens the copy builds it again, and asks no model"),
    )
    data = {"path": copy, "bytes": size, **totals}
    _answer(data, rows, as_json=as_json)
