"""`memlayer mcp`: an MCP server for the memory of one user, on stdio or over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memlayer_core.cli.app import app
from memlayer_core.cli.http_server import LOOPBACK, MCP_TOKEN, serve_http, token_of
from memlayer_core.errors import InputError
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from memlayer_core.memory import Memory

__all__ = ["mcp"]

_USE = "which each client sends as `Authorization: Bearer …`"
_PORT = 8765


@app.command()
def mcp(
    user: Annotated[str, typer.Option(help="Whose memory it is. No tool can name another user.")],
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIRECTORY", help="The memory's directory, made if it does not exist; else ./memory."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="The user's tenant.")] = "default",
    agent: Annotated[
        str | None, typer.Option(help="Read and write what belongs to this agent alone.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            help="The session in which an application stores the user's messages: quotes must stand in it."
        ),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP at /mcp; else on stdio.")] = False,
    host: Annotated[
        str, typer.Option(help=f"With --http: the address to listen at; another needs {MCP_TOKEN}.")
    ] = LOOPBACK[0],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --http: the port; 0: any free one.")
    ] = _PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="With --http: another name by which clients and web pages may reach it."),
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL that holds the journal, by URL.")
    ] = None,
    chroma_url: Annotated[str | None, typer.Option(help="A Chroma server, http://host:port.")] = None,
) -> None:
    """Serve the memory of one user to MCP hosts: remember, recall, context, profile, why, forget.

    It goes on until its input ends, Ctrl-C or SIGTERM. Over HTTP, a client sends the token as `Authorization: Bearer …`: that
    of the variable MEMLAYER_MCP_TOKEN, else one that is made and printed at the start.
    """
    scope, names = Scope(user, session, agent, tenant), allow_host or []
    token = token_of(MCP_TOKEN, host, names, _USE) if http else ""
    if not http and (host, port, names) != (LOOPBACK[0], _PORT, []):
        raise InputError(
            "`--host`, `--port` and `--allow-host` are for HTTP", hint="Add `--http`, or leave them out."
        )
    from memlayer_core.cli.views import directory_of
    from memlayer_core.mcp_server import http_app, mcp_server
    from memlayer_core.memory import Memory

    place = directory_of(path, database_url)
    with Memory.open(place, database_url=database_url, chroma_url=chroma_url) as memory:
        server = mcp_server(memory.chat_of(scope))
        if http:
            serve_http(partial(http_app, server), _lines, host=host, port=port, token=token, names=names)
        else:
            asyncio.run(_serve_stdio(server, memory))


def _lines(place: str, token: str | None) -> list[str]:
    line = f"Serving at {place}/mcp; Ctrl-C ends it."
    return [line] if token is None else [line, f"Token: {token}"]


async def _serve_stdio(server: MCPServer[None], memory: Memory) -> None:
    """Serve until the input ends. After a signal, end the process at once: a thread waits for the input, and would go on."""
    loop, signals = asyncio.get_running_loop(), asyncio.Queue[int]()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda number, _: loop.call_soon_threadsafe(signals.put_nowait, number))
    serving, stop = asyncio.ensure_future(server.run_stdio_async()), asyncio.ensure_future(signals.get())
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        await memory.aclose()
        os._exit(130 if stop.result() == signal.SIGINT else 0)
    stop.cancel()
    await serving
