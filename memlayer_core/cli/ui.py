"""`memlayer ui`: a page in the browser to look through a memory, and with `--write` to mend it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from memlayer_core.cli.app import (
    Chroma,
    Database,
    Embedder,
    Where,
    app,
    embedder_of,
    memory_to_look_at,
    open_memory,
)
from memlayer_core.cli.http_server import LOOPBACK, UI_TOKEN, serve_http, token_of
from memlayer_core.errors import InputError

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["ui"]

_USE = "with which a browser opens the page: `/?token=…`"
_PORT = 8766


@app.command()
def ui(
    path: Where = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Also correct, merge, forget and export; this process does background work, too."
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(help=f"The address to listen at; one of another machine needs {UI_TOKEN}.")
    ] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")] = _PORT,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name by which browsers may reach it.")
    ] = None,
    embedder: Embedder = "auto",
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Serve a page to look through a memory: users, what is known of them and why, and their sessions.

    It goes on until Ctrl-C or SIGTERM. Open the address that it prints: the token in it is for whoever may see all users. Nothing
    is written without `--write`; another process may have the memory open. MEMLAYER_UI_TOKEN sets a token that stays.
    """
    names = allow_host or []
    token = token_of(UI_TOKEN, host, names, _USE)
    if not write and (chroma_url, embedder) != (None, "auto"):
        raise InputError(
            "`--chroma-url` and `--embedder` are for `--write`", hint="Add `--write`, or leave them out."
        )
    from memlayer_core.ui import ui_app

    opened: AbstractContextManager[Memory]
    if write:
        opened = open_memory(path, database_url, chroma_url, embedder_of(embedder))
    else:
        opened = memory_to_look_at(path, database_url, tokenizer="estimate")
    with opened as memory:
        application = partial(ui_app, memory, writes=write)
        serve_http(application, _lines, host=host, port=port, token=token, names=names)


def _lines(place: str, token: str | None) -> list[str]:
    if token is None:
        return [f"Ctrl-C ends it. With the token of {UI_TOKEN}, open {place}/?token=…"]
    return [f"Ctrl-C ends it. Open {place}/?token={token}"]
