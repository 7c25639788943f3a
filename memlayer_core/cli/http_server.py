"""Serves an application over HTTP until Ctrl-C or SIGTERM: at this machine's own address, unless somebody asks for more."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memlayer_core.cli.terminal import console
from memlayer_core.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["LOOPBACK", "MCP_TOKEN", "UI_TOKEN", "serve_http", "token_of"]

MCP_TOKEN, UI_TOKEN = "MEMLAYER_MCP_TOKEN", "MEMLAYER_UI_TOKEN"
"""Variables that set a token."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")  # noqa: S104  (these are refused without names)
_GRACE = 2  # seconds that open requests have at the end


def token_of(variable: str, host: str, names: Sequence[str], use: str) -> str:
    """Return the token that a variable sets, or an empty text: then one is made.

    Args:
        variable: The name of the variable.
        host: The address to listen at.
        names: Names by which clients reach it.
        use: How a client uses the token, as the end of a sentence.

    Raises:
        InputError: It would open a memory to a network without being asked to.
    """
    token = os.environ.get(variable, "").strip()
    if host not in LOOPBACK and not token:
        raise InputError(
            f"`--host {host}` lets other machines in, and there is no token",
            hint=f"Set {variable} to a long random text, {use}.",
        )
    if host in _ANY and not names:
        raise InputError(
            f"`--host {host}` does not say by which name clients reach this machine",
            hint="Name it: `--allow-host memory.example.org`, once for each name.",
        )
    return token


def serve_http(
    application: Callable[..., ASGIApp],
    lines: Callable[[str, str | None], Sequence[str]],
    *,
    host: str,
    port: int,
    token: str,
    names: Sequence[str],
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        application: Returns the application for a `token`, a `port`, `hosts` and `other_hosts`.
        lines: Returns what is printed at the start, from the address, and from the token if that is new.
        host: The address to listen at.
        port: The port; 0: any free one.
        token: The token; empty: one is made.
        names: Names by which others reach it.

    Raises:
        InputError: It cannot listen there.
    """
    import uvicorn

    def stop(*_: Any) -> None:
        sys.exit(0)  # a stopped service closes its store

    signal.signal(signal.SIGTERM, stop)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    hosts = [_bracketed(one) for one in dict.fromkeys((*LOOPBACK, host)) if one not in _ANY]
    place = f"http://{names[0] if host in _ANY else _bracketed(host)}:{port}"
    new = None if token else secrets.token_urlsafe(32)
    for line in lines(place, new):
        console(stderr=True).print(line, markup=False, soft_wrap=True)
    app = application(token=new or token, port=port, hosts=hosts, other_hosts=names)
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
