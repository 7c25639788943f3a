"""`memlayer doctor`: what is wrong with this machine, a store or a model, and how to mend it."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from memlayer_core.cli.app import AsJson, Chroma, Database, Where, app
from memlayer_core.cli.terminal import console, json_of, show
from memlayer_core.show import View

__all__ = ["doctor"]


@app.command()
def doctor(
    path: Where = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Try this model as an extractor: `package.module:attribute`, which is a chat model, a function, or returns one.",
        ),
    ] = None,
    database_url: Database = None,
    chroma_url: Chroma = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with this machine and a store, and say how to mend it; or try a model.

    It looks at versions, settings, tokenizer, embedder, permissions, disk, the journal and its pages, locks, the queue and
    Chroma. Nothing is changed. With --model, five small batches of messages are learned from by that model, in a memory
    that is deleted again, and it says whether the model is good enough to be an `extractor`. Exit code 1: something is wrong,
    or the model is not good enough.
    """
    if model is not None:
        _try_model(model, as_json=as_json)
        return
    from memlayer_core.cli.checks import Check, embedder_check, guard, machine_checks
    from memlayer_core.cli.store_checks import store_checks
    from memlayer_core.cli.views import directory_of
    from memlayer_core.memory import Memory

    directory = directory_of(path, database_url)
    with console(stderr=True).status("Looking …"):
        checks = list(machine_checks())
        if path is None and directory is not None and not Memory.is_at(directory):
            mend = "Name its directory if it is elsewhere: `memlayer doctor DIRECTORY`."
            checks.append(Check("journal", "note", f"there is no memory in {directory} yet", mend))
            checks.append(guard("embedder", lambda: embedder_check(None, None)))
        else:
            checks += store_checks(directory, database_url, chroma_url)
    if as_json:
        typer.echo(json_of(checks))
    else:
        rows = tuple((one.state.upper(), one.name, one.finding, one.mend) for one in checks)
        show(View(columns=("", "what", "found", "how to mend it"), rows=rows))
    if any(one.state == "wrong" for one in checks):
        raise typer.Exit(1)


def _try_model(spec: str, *, as_json: bool) -> None:
    from memlayer_core.cli.trial import load_model, try_model

    model = load_model(spec)
    logger = logging.getLogger("memlayer")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # the trial tells what did not work
    try:
        trial = try_model(model, console(stderr=True).status)
    finally:
        logger.setLevel(level)
    if as_json:
        typer.echo(json_of(trial))
    else:
        show(trial)
    if not trial.is_good:
        raise typer.Exit(1)
