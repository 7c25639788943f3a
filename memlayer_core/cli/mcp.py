"""`memlayer mcp`: an MCP server for the memory of one user, on stdio or over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memlayer_core.cli.app import app
from memlayer_core.cli.terminal import console
from memlayer_core.errors import InputError
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from memlayer_core.memory import Memory

__all__ = ["mcp"]

_TOKEN = "MEMLAYER_MCP_TOKEN"  # noqa: S105  (the variable's name)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORT = 8765
_GRACE = 2  # seconds that open requests have at the end
_ANY = ("0.0.0.0", "::", "")  # noqa: S104  (these are refused without names)


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
        str, typer.Option(help=f"With --http: the address to listen at; another needs {_TOKEN}.")
    ] = _LOOPBACK[0],
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
    token = os.environ.get(_TOKEN, "").strip()
    if http:
        _check(host, token, names)
    elif (host, port, names) != (_LOOPBACK[0], _PORT, []):
        raise InputError(
            "`--host`, `--port` and `--allow-host` are for HTTP", hint="Add `--http`, or leave them out."
        )
    from memlayer_core.cli.views import directory_of
    from memlayer_core.mcp_server import mcp_server
    from memlayer_core.memory import Memory

    place = directory_of(path, database_url)
    with Memory.open(place, database_url=database_url, chroma_url=chroma_url) as memory:
        server = mcp_server(memory.chat_of(scope))
        if http:
            _serve_http(server, host, port, token, names)
        else:
            asyncio.run(_serve_stdio(server, memory))


def _check(host: str, token: str, names: list[str]) -> None:
    """Refuse what would open a memory to a network without being asked to."""
    if host not in _LOOPBACK and not token:
        raise InputError(
            f"`--host {host}` lets other machines in, and there is no token",
            hint=f"Set {_TOKEN} to a long random text, which each client sends as `Authorization: Bearer …`.",
        )
    if host in _ANY and not names:
        raise InputError(
            f"`--host {host}` does not say by which name clients reach this machine",
            hint="Name it: `--allow-host memory.example.org`, once for each name.",
        )


def _serve_http(server: MCPServer[None], host: str, port: int, token: str, names: list[str]) -> None:
    import uvicorn

    from memlayer_core.mcp_server import http_app

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a stopped service closes its store
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    out = console(stderr=True)
    hosts = [_bracketed(one) for one in dict.fromkeys((*_LOOPBACK, host)) if one not in _ANY]
    shown = f"{names[0] if host in _ANY else _bracketed(host)}:{port}"
    out.print(f"Serving at http://{shown}/mcp; Ctrl-C ends it.", markup=False, soft_wrap=True)
    if not token:
        token = secrets.token_urlsafe(32)
        out.print(f"Token: {token}", markup=False, soft_wrap=True)
    app = http_app(server, token=token, port=port, hosts=hosts, other_hosts=names)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as problem:
        raise InputError(
            f"cannot listen at {host}, port {port}: {problem.strerror}",
            hint="Choose another `--port` (0: any free one), or an address of this machine.",
        ) from problem


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


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
