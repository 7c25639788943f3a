"""`memlayer forget`: deletes a record, a session or a user, after a question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from memlayer_core.cli.app import AsJson, Chroma, Database, Tenant, Where, app, open_memory
from memlayer_core.cli.terminal import json_of, note, show
from memlayer_core.errors import InputError, MemlayerError
from memlayer_core.messages.model import ForgetReport
from memlayer_core.show import View, visible

if TYPE_CHECKING:
    from memlayer_core.runtime import Journal
    from memlayer_core.storage.database import Connection
    from memlayer_core.storage.database import Database as JournalDatabase

__all__ = ["forget"]

P = ParamSpec("P")
T = TypeVar("T")
_ERASURE = 60.0  # seconds that the command waits for the files


@app.command()
def forget(
    path: Where = None,
    user: Annotated[str | None, typer.Option(help="Everything of this user.")] = None,
    session: Annotated[
        str | None,
        typer.Option(help="Of the user, this session alone; without --user, one that has no user."),
    ] = None,
    record: Annotated[str | None, typer.Option(help="This record alone, by its id.")] = None,
    tenant: Tenant = "default",
    agent: Annotated[str | None, typer.Option(help="Of the user, what belongs to this agent alone.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")] = False,
    as_json: AsJson = False,
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Delete a record, a session or everything of a user for good, and say what was deleted and what is left.

    It tells what it would delete, and asks. Nothing finds it any more when the command ends; what remains in the files and in
    the index is erased, too, or the command says who will do it.
    """
    from memlayer_core.cli.views import journal_at, journal_of
    from memlayer_core.runner import SYNC, step
    from memlayer_core.transfer.flow.forget import forget_in_journal

    def delete(journal: Journal) -> ForgetReport:
        return step(forget_in_journal(journal, SYNC, user, session, record, tenant, agent))

    if user is None and session is None and record is None:
        raise InputError(
            "nothing was named to delete",
            hint="`--user ID` for everything of a user, with `--session ID` for one session; or `--record ID`.",
        )
    named = _named(user, session, record, tenant, agent)
    with journal_at(path, database_url, writes=True) as db:
        journal = journal_of(db)
        if not yes:
            _ask(delete(type(journal)(_Sandbox(db), journal.settings, journal.now)), named)
        gone = delete(journal)
    is_gone = bool(gone.sessions or gone.records or gone.items)
    left = _left(gone, session)
    if is_gone and (remains := _erase(path, database_url, chroma_url)):
        left.append(remains)
    if as_json:
        typer.echo(json_of({"deleted": gone, "left": left}))
    else:
        rows = (("Deleted", f"{_counts(gone)} of {named}"), *(("Left", one) for one in left))
        show(View(rows=rows if is_gone else (), notes=() if is_gone else (f"There is nothing of {named}.",)))
    if not is_gone:
        raise typer.Exit(1)


def _ask(would_go: ForgetReport, what: str) -> None:
    """Ask whether to delete; nothing is asked where nothing is there.

    Raises:
        InputError: Nobody is there to answer.
        typer.Abort: The answer is no.
    """
    if not (would_go.sessions or would_go.records or would_go.items):
        return
    note(f"This deletes {_counts(would_go)} of {what}, for good.")
    if not sys.stdin.isatty():
        raise InputError("nobody is there to answer whether to delete it", hint="Add `--yes`.")
    typer.confirm("Delete it?", abort=True, err=True)


def _named(user: str | None, session: str | None, record: str | None, tenant: str, agent: str | None) -> str:
    if record is not None:
        what = f"record {record!r}"
    elif user is None:
        what = f"session {session!r}, which has no user,"
    else:
        what = f"user {user!r}" if session is None else f"session {session!r} of user {user!r}"
    with_agent = f" with agent {agent!r}" if agent is not None else ""
    return visible(f"{what}{with_agent} in tenant {tenant!r}")


def _counts(report: ForgetReport) -> str:
    return (
        f"{report.sessions:,} session(s) with {report.messages:,} message(s), "
        f"{report.records:,} record(s) and {report.items:,} item(s)"
    )


def _left(report: ForgetReport, session: str | None) -> list[str]:
    """Return what is not deleted, besides what the files have."""
    left = ["exports, backups and saved states that you made: delete them yourself"]
    if session is not None:
        left.append("forks of the session")
    left += [
        f"items in the folder {'/'.join(folder)!r}, which is no user's: `memory.items(…).forget({folder!r})`"
        for folder in report.undeclared_folders
    ]
    return left


def _erase(path: Path | None, database_url: str | None, chroma_url: str | None) -> str | None:
    """Erase what was deleted from index and files. Returns who does it where this process cannot; None: it is done."""
    try:
        with open_memory(path, database_url, chroma_url) as memory:
            memory.flush(_ERASURE)
    except MemlayerError as problem:
        return (
            "vectors in the index and remains in the files: a process that opens the store erases them, such as "
            f"`memlayer work --once` ({problem})"
        )
    return None


class _UndoneError(Exception):
    """Ends a transaction whose answer is known."""


class _Sandbox:
    """A journal that stays as it is: what writes to it is undone, and its answer returned."""

    def __init__(self, db: JournalDatabase) -> None:
        self.read, self.check, self.check_file = db.read, db.check, db.check_file
        self.close, self.tidy, self._write = db.close, db.tidy, db.write

    def write(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, undo it, and return its answer."""
        answer: list[T] = []

        def undo(connection: Any) -> None:
            answer[:] = [work(connection, *args, **kwargs)]
            raise _UndoneError

        try:
            self._write(undo)
        except _UndoneError:
            return answer[0]
        raise AssertionError("it is always undone")
