"""The commands `memlayer-ui` and `memlayer-mcp`."""

import asyncio
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from mcp.server.mcpserver import MCPServer

from memlayer_core import Memory, Scope
from memlayer_core.errors import InputError, MemlayerError
from memlayer_server.agent_tools import http_app, mcp_server
from memlayer_server.http import LOOPBACK, serve, token_of
from memlayer_server.page import ui_app

MCP_TOKEN, UI_TOKEN = "MEMLAYER_MCP_TOKEN", "MEMLAYER_UI_TOKEN"
_MCP_PORT, _UI_PORT = 8765, 8766

Where = Annotated[
    Path | None,
    typer.Argument(metavar="DIRECTORY", help="The memory's directory; else ./memory, or --database-url."),
]
Database = Annotated[str | None, typer.Option(help="PostgreSQL that holds the journal, by URL.")]
Chroma = Annotated[str | None, typer.Option(help="A Chroma server, http://host:port.")]
Embedder = Annotated[
    str, typer.Option(help="`auto` is the store's own; `package.module:attribute` one of your application.")
]
Host = Annotated[str, typer.Option(help="The address to listen at; one of another machine needs a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free one.")]
Names = Annotated[list[str] | None, typer.Option(help="Another name by which it may be reached.")]


def ui() -> None:
    """Run `memlayer-ui`."""
    _run(serve_ui)


def mcp() -> None:
    """Run `memlayer-mcp`."""
    _run(serve_mcp)


def serve_ui(
    path: Where = None,
    write: Annotated[bool, typer.Option("--write", help="Also correct and forget.")] = False,
    host: Host = LOOPBACK[0],
    port: Port = _UI_PORT,
    allow_host: Names = None,
    embedder: Embedder = "auto",
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Serve a page to look through a memory: users, their records and what these rest on, their sessions.

    It goes on until Ctrl-C or SIGTERM. Open the address that it prints: give the token in it only to people who may see
    all users. MEMLAYER_UI_TOKEN sets a token that stays.
    """
    token = token_of(UI_TOKEN, host, names := allow_host or [])
    if not Memory.is_at(path, database_url=database_url):
        raise InputError(
            f"there is no memory in {repr(str(path or 'memory')) if database_url is None else 'that database'}",
            hint="Name the directory that the application gives to `Memory.open`, or `--database-url` for PostgreSQL.",
        )

    def lines(place: str, new: str) -> list[str]:
        return [f"Ctrl-C ends it. Open {place}/?token={new or '…'}"]

    with _opened(path, database_url, chroma_url, embedder) as memory:
        serve(partial(ui_app, memory, writes=write), lines, host=host, port=port, token=token, names=names)


def serve_mcp(
    user: Annotated[str, typer.Option(help="Whose memory it is. No tool can name another user.")],
    path: Where = None,
    tenant: Annotated[str, typer.Option(help="The user's tenant.")] = "default",
    agent: Annotated[
        str | None, typer.Option(help="Read and write what belongs to this agent alone.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(help="The session in which an application stores the user's messages, for quotes."),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP at /mcp; else on stdio.")] = False,
    host: Host = LOOPBACK[0],
    port: Port = _MCP_PORT,
    allow_host: Names = None,
    embedder: Embedder = "auto",
    database_url: Database = None,
    chroma_url: Chroma = None,
) -> None:
    """Serve the memory of one user to MCP hosts: memlayer's tools for agents. The memory is made if it does not exist.

    It goes on until its input ends, Ctrl-C or SIGTERM. Over HTTP, a client sends the token as `Authorization: Bearer …`: that
    of the variable MEMLAYER_MCP_TOKEN, else one that is made and printed at the start.
    """
    scope, names = Scope(user, session, agent, tenant), allow_host or []
    if not http and (host, port, names) != (LOOPBACK[0], _MCP_PORT, []):
        raise InputError(
            "`--host`, `--port` and `--allow-host` are for HTTP", hint="Add `--http`, or leave them out."
        )
    token = token_of(MCP_TOKEN, host, names) if http else ""

    def lines(place: str, new: str) -> list[str]:
        return [f"Serving at {place}/mcp; Ctrl-C ends it.", *([f"Token: {new}"] if new else [])]

    with _opened(path, database_url, chroma_url, embedder) as memory:
        server = mcp_server(memory.chat_of(scope))
        if http:
            serve(partial(http_app, server), lines, host=host, port=port, token=token, names=names)
        else:
            asyncio.run(_serve_stdio(server, memory))


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


def _opened(path: Path | None, database_url: str | None, chroma_url: str | None, embedder: Any) -> Memory:
    if ":" in embedder:
        sys.path.insert(0, "")  # as with `python -m`
        try:
            embedder = pkgutil.resolve_name(embedder)
        except (ImportError, AttributeError, ValueError) as problem:
            raise InputError(
                f"{embedder!r} cannot be loaded: {problem}",
                hint="Run it in the directory of your application, with its environment.",
            ) from problem
    place = None if path is None and database_url is not None else path or "memory"
    return Memory.open(place, database_url=database_url, chroma_url=chroma_url, embedder=embedder)


def _run(command: Callable[..., None]) -> None:
    """Run a command. An error of memlayer is a sentence and a hint; Ctrl-C ends it quietly."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app()
    except MemlayerError as problem:
        print(f"Error: {problem}\nHint:  {problem.hint}", file=sys.stderr)  # noqa: T201  (a command says why it ends)
        sys.exit(2 if isinstance(problem, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
