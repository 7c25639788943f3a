"""The commands. Each imports its modules when it runs, so that `--help` is quick."""

import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from memlayer_core.cli import app as shell
from memlayer_core.cli.app import Answers, JournalPlace, OpenPlace, StorePlace, Whom, app, console, note
from memlayer_core.errors import FlushTimeoutError, IndexUnavailableError, InputError, MemlayerError
from memlayer_core.events import Event, IndexRebuilt
from memlayer_core.models.foreign import EmbedderName
from memlayer_core.runtime import drive
from memlayer_core.scope import Scope
from memlayer_core.show import View, ViewList, visible

_ERASURE = 60.0  # seconds that `forget` waits for the files
_NEXT = (
    "demo --why  # why was each line recalled, and what does it cost?",
    "demo DIRECTORY  # this memory was removed; that one stays, for `inspect` and `search`",
)
"""What to run after a demo whose memory was removed."""
_NEXT_HERE = (
    "inspect {} --user maya  # her sessions",
    'search "old maps" {} --user maya  # what she said of them',
)
"""What to run after a demo whose memory stays."""


@app.add
def demo(path: Path | None = None, *, why: bool = False, embedder: EmbedderName = "auto") -> None:
    """Show that a memory outlives its process: the first process is killed, the second remembers.

    No model is called: no key is needed, and no network.

    Takes:
        path: Keep the memory here; it must not hold one yet. Else it is removed.
        why: Show every part of each context, its tokens and its reasons.
        embedder: What makes the vectors.
    """
    from memlayer_core.cli.demo import play
    from memlayer_core.memory import Memory

    if path is not None and Memory.is_at(path):
        what = f"there is a memory in {str(path)!r} already"
        raise InputError(what, hint="The demo needs a new directory: choose another.")
    if path is None:
        with TemporaryDirectory(prefix="memlayer-demo-", ignore_cleanup_errors=True) as directory:
            play(console(), Path(directory), embedder, why=why)
    else:
        play(console(), path, embedder, why=why)
    console().print("\nnext:")
    for line in _NEXT if path is None else _NEXT_HERE:
        console().print(f"  memlayer {line.format(shlex.quote(str(path)))}", soft_wrap=True, markup=False)


@app.add
def inspect(store: JournalPlace, whom: Whom, *, last: int = 50) -> Answers:
    """Show what is in a store: its state and users, a user's sessions, or a session's messages.

    Only the journal is read: no embedder is loaded and no background work is begun.

    Takes:
        last: How many users, sessions or messages, the newest.
    """
    from memlayer_core.cli.doctor import look
    from memlayer_core.messages import reads

    if whom.session is not None and whom.user is None:
        raise InputError("`--session` was given without `--user`", hint="A session belongs to a user.")
    with store.journal() as journal:
        db = journal.db
        if whom.user is None:
            yield look(store.directory, db, last)
        elif whom.session is None:
            yield ViewList("Sessions", db.read(reads.list_sessions, Scope(**whom.ids), last, 0)), None
        elif (known := db.read(reads.find, Scope(**whom.ids))) is None:
            what = f"There is no session {whom.session!r}"
            note(f"{what}; `--user` alone lists the sessions with their agents.")
            raise typer.Exit(1)
        else:
            newest = db.read(reads.tail_messages, known, None, last)[::-1]
            said = ViewList("Messages", [one.message for _, one in newest])
            yield said, [one.to_json() for one in said]


@app.add
def search(query: str, store: OpenPlace, whom: Whom, *, k: int = 10) -> Answers:
    """Search the messages and records of a user.

    Takes:
        query: A question, or words.
        user: Whose memory is searched. It must be given.
        k: Maximum number of hits.
    """
    if whom.user is None:
        raise InputError("`--user` is missing", hint="`memlayer inspect` lists the users.")
    with store.open_old() as memory:
        yield memory.search(query, **whom.ids, limit=k), None


@app.add
def export(target: str, store: JournalPlace, *, user: str | None = None, tenant: str = "default") -> None:
    """Write the messages and records of a tenant's users, or of one of them, as JSON lines.

    Only the journal is read. The file appears when it is complete.

    Takes:
        target: The file to write, or `-` for the standard output.
    """
    from memlayer_core.transfer.flow import export as write

    with store.journal() as journal, shell.progress("Exporting") as bar:
        written = drive(write(journal, sys.stdout if target == "-" else target, user, tenant, bar))
    note(f"Exported: {written:,} message(s).")


@app.add
def import_(
    source: str,
    store: OpenPlace,
    *,
    tenant: str | None = None,
    user: str | None = None,
    source_format: str | None = None,
    me: str | None = None,
    dry_run: bool = False,
) -> Answers:
    """Store the conversations of an export, or what another program wrote. The memory is made if it does not exist.

    Importing twice changes nothing: messages have ids. The messages are indexed in the background.

    Takes:
        source: What `export` wrote; a file, a folder or a ZIP archive of another program; or `-`: an export on the standard input.
        tenant: The tenant to import into, if not the one it is from.
        user: The user of all of it: lines of other users are refused.
        source_format: Its format, if it is not recognized. docs/migration.md lists the formats.
        me: Of a group, the name of the speaker who is the user.
        dry_run: Read and check everything, and write nothing.
    """
    from memlayer_core.memory import Memory
    from memlayer_core.transfer.sources import source_of

    if source != "-":
        source_of(source, source_format)  # what cannot be imported is refused before a memory is made
    lines = sys.stdin.buffer if source == "-" else source
    options: dict[str, Any] = {"user_id": user, "tenant_id": tenant, "source_format": source_format, "me": me}
    with store.open() if not dry_run or store.exists else Memory.in_memory() as memory:
        with shell.progress("Reading" if dry_run else "Importing") as bar:
            done = memory.import_from(lines, **options, progress=bar, dry_run=dry_run)
        backlog = memory.admin.status().backlog
    if dry_run:
        yield View(rows=(("Would import", str(done)),)), {"imported": done}
    else:
        yield shell.state(backlog, ("Imported", str(done)), imported=done)


@app.add
def forget(
    store: OpenPlace, whom: Whom, *, record: str | None = None, speaker: str | None = None, yes: bool = False
) -> Answers:
    """Delete a record, a session or everything of a user for good, and say what was deleted and what is left.

    It says what it would delete, and asks. Nothing finds it any more when the command ends; what remains in the files
    and in the index is erased, too, or the command says who will do it.

    Takes:
        user: Everything of this user.
        session: Of the user, this session with those below it (ID/…); without --user, one that has no user.
        record: This record with what it had ended, by its id.
        speaker: Of the user, only what the other person of this name said.
        agent: Of the user, what belongs to this agent alone.
        yes: Delete without a question.
    """
    from memlayer_core.transfer.flow import Erasure, forget_in_journal
    from memlayer_core.transfer.sql import sessions_of

    erasure = Erasure(**whom.ids, record_id=record, speaker=speaker)
    names = {"record": record, "speaker": speaker, **vars(whom), "tenant": None}
    named = visible(", ".join(f"{name} {value!r}" for name, value in names.items() if value is not None))
    if whom.user is None and whom.session is None and record is None:
        raise InputError(
            "nothing was named to delete",
            hint="`--user ID` for everything of a user, with `--session ID` for one session; or `--record ID`.",
        )
    with store.journal(writes=True) as journal:
        if not yes:
            what = ""
            if record is None:
                query = sessions_of(erasure.reach)
                found = journal.db.read(lambda connection: connection.execute(query).all())
                said = sum(one.messages for one in found)
                what = f"{len(found):,} session(s) with {said:,} message(s), and the records, of "
                what = what if speaker is None else "what was said by "
            note(f"This deletes {what}{named} in tenant {whom.tenant!r}, for good.")
            if not sys.stdin.isatty():
                raise InputError("nobody is there to answer whether to delete it", hint="Add `--yes`.")
            typer.confirm("Delete it?", abort=True, err=True)
        gone = forget_in_journal(journal, erasure)
    if not (gone.sessions or gone.records or gone.items):
        yield View(notes=(f"There is nothing of {named}.",)), {"deleted": gone, "left": []}
        raise typer.Exit(1)
    left = ["exports, backups, saved states and forks that you made: delete them yourself"]
    left += [
        f"items in the folder {'/'.join(folder)!r}, which belongs to no user: `memory.items(…).forget({folder!r})`"
        for folder in gone.undeclared_folders
    ]
    try:
        with store.open_old() as memory:
            memory.flush(_ERASURE)
    except MemlayerError as problem:
        what = "vectors in the index and remains in the files: a process that opens the store erases them"
        left.append(f"{what}, such as `memlayer work --once` ({problem})")
    counts = f"{gone.sessions:,} session(s) with {gone.messages:,} message(s)"
    counts += f", {gone.records:,} record(s) and {gone.items:,} item(s)"
    rows = (("Deleted", f"{counts} of {named}"), *(("Left", one) for one in left))
    yield View(rows=rows), {"deleted": gone, "left": left}


@app.add
def backup(target: Path, store: JournalPlace) -> Answers:
    """Copy a memory, of one moment and complete, while other processes read and write it.

    The copy is a memory of its own: `memlayer inspect TARGET` shows it, and `Memory.open` opens it. Only the journal is copied,
    which has everything; the first process that opens the copy builds Chroma's index again from it, and asks no model.
    For PostgreSQL the tool is pg_dump.

    Takes:
        target: The directory of the copy. It must not hold a memory yet.
    """
    from memlayer_core.cli.doctor import sentence, totals
    from memlayer_core.storage.sqlite import copy_journal

    source, copy = store.directory, JournalPlace(target).directory
    if source is None or copy is None or store.database_url is not None:
        raise InputError(
            "PostgreSQL is copied with its own tool, pg_dump",
            hint="Such as `pg_dump --format=custom --table='memlayer_*' --file=memory.dump postgresql://user@host/name`; "
            "`pg_restore` brings it back. Chroma's index is built again from it.",
        )
    with store.journal():
        pass  # it exists
    with shell.progress("Copying") as bar:
        size = copy_journal(source, copy, bar)
    with JournalPlace(copy).journal() as journal:
        kept = totals(journal.db)
    rows = (
        ("Backup", str(copy)),
        ("Size", f"{size / 1e6:,.1f} MB"),
        ("Kept", sentence(kept)),
        ("Index", "not copied: the first process that opens the copy builds it again, and asks no model"),
    )
    yield View(rows=rows), {"path": copy, "bytes": size, **kept}


@app.add
def verify(store: OpenPlace) -> Answers:
    """Check the journal, compare both indexes with it, and build again an index that does not agree.

    It may run while a server uses the store. Exit codes: 0: all is sound. 1: an index had to be built again, or a job
    was given up. 3: all that was compared is sound, but another process holds Chroma's index and keeps it whole.
    """
    events: list[Event] = []
    with store.open_old() as memory:
        memory.listen(events.append)  # the worker may find it first
        with console(stderr=True).status("Comparing …"):
            repaired = memory.admin.verify()
        status = memory.admin.status()
    rebuilt = sorted({shard for one in events if isinstance(one, IndexRebuilt) for shard in one.shards})
    index = {
        "none": "this memory has none",
        "held": "agrees with the journal",
        "not held": "not compared: another process holds it, and keeps it whole",
    }[status.index]
    if rebuilt:
        index = f"built again: collection(s) {', '.join(map(str, rebuilt))}"
    words = "filed again" if "words" in repaired else "agree with the journal"
    data = {"words": "words" not in repaired, "index": status.index, "rebuilt": rebuilt}
    yield shell.state(status.backlog, ("Words", words), ("Index", index), **data)
    if rebuilt or repaired or status.backlog.dead:
        raise typer.Exit(1)
    if status.index == "not held":
        raise typer.Exit(3)


@app.add
def reindex(store: OpenPlace) -> Answers:
    """Build Chroma's index again from the vectors in the journal, or embed everything again with another embedder.

    Takes:
        embedder: Embed everything again with this one, `minilm`, `multilingual`, `hashing` or `package.module:attribute`; else
            no model is asked.
    """
    with store.open_old(reembed=store.embedder != "auto") as memory:
        memory.flush()
        with console(stderr=True).status("Writing the index …"):
            written = memory.admin.reindex()
        status = memory.admin.status()
    if status.index == "not held":
        hint = "End it, or let it do its work: it keeps the index whole."
        raise IndexUnavailableError("another process holds the index", hint=hint)
    index = f"built again: {written:,} vectors" if status.index == "held" else "this memory has none"
    data = {"embedder": status.embedder, "index": status.index, "vectors": written}
    yield View(rows=(("Embedder", status.embedder), ("Index", index))), data


@app.add
def work(store: OpenPlace, *, model: str | None = None, revive: bool = False, once: bool = False) -> Answers:
    """Do the background work that is queued: embed messages, write the index, erase what was deleted.

    With --model, also what calls a language model: summaries, episodes and facts.

    Every process that opens a store does this work by itself. Run it as a service where those processes end soon (as
    functions in a cloud do), or with --once after an import. It goes on until Ctrl-C or SIGTERM.

    Takes:
        model: What sums up, writes episodes and learns, as `Memory.open(model=…)`: `package.module:attribute`.
        revive: Try again what was given up.
        once: End when no work is left.
    """
    chosen = None if model is None else shell.load(model)
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    with store.open_old(model=chosen) as memory:
        revived = memory.admin.retry_dead() if revive else 0
        if not once:
            queued = memory.admin.status().backlog.queued
            how = "Ctrl-C ends it. `--once` ends when none is left."
            note(f"Doing {queued:,} job(s), and those that come; {how}")
        memory.flush()
        backlog = memory.admin.status().backlog
        rows = [("Revived", f"{revived} job(s)")] if revive else []
        yield shell.state(backlog, *rows, revived=revived)
        if not once:
            note("Waiting for work; Ctrl-C ends it.")
        while not once:
            time.sleep(1)
            if memory.admin.status().backlog.queued:
                with suppress(FlushTimeoutError):
                    memory.flush()


@app.add
def doctor(store: StorePlace) -> Answers:
    """Look for problems of this machine and a store, and say how to mend them.

    It looks at versions, settings, tokenizer, embedder, permissions, disk, the journal and its pages, locks, the queue and
    Chroma. Nothing is changed. Exit code 1: something is wrong.
    """
    from memlayer_core.cli.doctor import examine

    with console(stderr=True).status("Looking …"):
        checks = list(examine(store))
    yield ViewList("Checks", checks), None
    if any(one.state == "wrong" for one in checks):
        raise typer.Exit(1)
