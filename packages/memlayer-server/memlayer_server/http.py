"""Guards an application over HTTP, and serves it: at this machine's own address, unless somebody asks for more."""

import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memlayer_core.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEAR = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine, as a `Host` has them."""

_ANY = ("0.0.0.0", "::", "")  # noqa: S104  (these are refused without names)
_GRACE = 2  # seconds that open requests have at the end
_HTTP = 80  # browsers leave this port out


class Guard:
    """Refuses a `Host` of another name (421), an `Origin` of another web page (403), and a request without a token (401).

    So no web page reaches the server by a name that it points at this machine, and none sends it forms.

    Args:
        app: The application.
        port: The port that it listens at.
        hosts: Names and addresses of this machine.
        other_hosts: Names by which others reach it, such as that of a proxy; with a port, or without one.
        knows: Returns whether a request has the token.
        advice: What to do for somebody who has none.
        headers: Headers of every answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        port: int,
        hosts: Sequence[str],
        other_hosts: Sequence[str],
        knows: Callable[[HTTPConnection], bool],
        advice: str,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._app, self._knows, self._advice, self._headers = app, knows, advice, headers
        near = [f"{one}:{port}" for one in (*hosts, *other_hosts)]
        self._hosts = {*near, *other_hosts, *(hosts if port == _HTTP else ())}
        self._origins = {f"http://{one}" for one in self._hosts} | {f"https://{one}" for one in other_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send_more)

    def _refusal(self, asked: HTTPConnection) -> PlainTextResponse | None:
        if asked.headers.get("host") not in self._hosts:
            return PlainTextResponse("This is not a name of the server.", 421)
        if asked.headers.get("origin") not in {None, *self._origins}:
            return PlainTextResponse("Another web page asks.", 403)
        if self._knows(asked):
            return None
        return PlainTextResponse(self._advice, 401, {"WWW-Authenticate": "Bearer"})


def is_same(text: str, secret: str) -> bool:
    """Compare a text with a secret, in a time that reveals nothing of the secret."""
    return secrets.compare_digest(text.encode(), secret.encode())


def token_of(variable: str, host: str, names: Sequence[str]) -> str:
    """Return the token that a variable sets, or an empty text: then one is made.

    Raises:
        InputError: It would open a memory to a network without being asked to.
    """
    token = os.environ.get(variable, "").strip()
    if host not in LOOPBACK and not token:
        raise InputError(
            f"`--host {host}` lets other machines in, and there is no token",
            hint=f"Set {variable} to a long random text.",
        )
    if host in _ANY and not names:
        raise InputError(
            f"`--host {host}` does not say by which name clients reach this machine",
            hint="Name it: `--allow-host memory.example.org`, once for each name.",
        )
    return token


def serve(
    application: Callable[..., ASGIApp],
    lines: Callable[[str, str], Sequence[str]],
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

    def stop(number: int, _: Any) -> None:
        sys.exit(130 if number == signal.SIGINT else 0)  # a stopped service closes its store

    for one in (signal.SIGINT, signal.SIGTERM):  # asyncio's own handler of SIGINT may lose it
        signal.signal(one, stop)
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as problem:
        raise InputError(
            f"cannot listen at {host}, port {port}: {problem.strerror}",
            hint="Choose another `--port` (0: any free one), or an address of this machine.",
        ) from problem
    port, own = listener.getsockname()[1], f"[{host}]" if ":" in host else host
    new = "" if token else secrets.token_urlsafe(32)
    for line in lines(f"http://{names[0] if host in _ANY else own}:{port}", new):
        print(line, file=sys.stderr, flush=True)  # noqa: T201  (a command says where it serves)
    hosts = NEAR if host in _ANY else tuple(dict.fromkeys((*NEAR, own)))
    app = application(token=new or token, port=port, hosts=hosts, other_hosts=names)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE)
    uvicorn.Server(config).run(sockets=[listener])
