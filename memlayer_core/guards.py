"""What guards a server over HTTP: it answers to its own names, to its own web pages, and to whoever has its token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import compare_digest

from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    BaseUser,
    UnauthenticatedUser,
)
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["AddressGuard", "TokenBackend"]

_HTTP = 80  # browsers leave this port out


class AddressGuard:
    """Refuses a `Host` that is no name of the server with 421, and an `Origin` of another web page with 403.

    So no web page reaches the server by a name that it points at this machine, and none sends it forms.

    Args:
        app: The application.
        port: The port that it listens at.
        hosts: Names and addresses of this machine.
        other_hosts: Names by which others reach it, such as that of a proxy; with a port, or without one.
    """

    def __init__(
        self, app: ASGIApp, *, port: int, hosts: Sequence[str], other_hosts: Sequence[str] = ()
    ) -> None:
        self._app = app
        near = [f"{one}:{port}" for one in (*hosts, *other_hosts)]
        self._hosts = frozenset((*near, *other_hosts, *(hosts if port == _HTTP else ())))
        self._origins = frozenset(
            (*(f"http://{one}" for one in self._hosts), *(f"https://{one}" for one in other_hosts))
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if headers.get("host") not in self._hosts:
                return await PlainTextResponse("This is no name of the server.", 421)(scope, receive, send)
            if headers.get("origin") not in {None, *self._origins}:
                return await PlainTextResponse("Another web page asks.", 403)(scope, receive, send)
        return await self._app(scope, receive, send)


class TokenBackend(AuthenticationBackend):
    """Lets a request through that has the token.

    Args:
        token: The token.
        token_in: Returns the token that a request has; an empty text if it has none.
        advice: What whoever has none is to do.
    """

    def __init__(self, token: str, token_in: Callable[[HTTPConnection], str], advice: str) -> None:
        self._token = token.encode()
        self._token_in = token_in
        self._advice = advice

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser]:
        """Check the token of a request.

        Raises:
            AuthenticationError: It is not the server's.
        """
        if not compare_digest(self._token_in(conn).encode(), self._token):
            raise AuthenticationError(self._advice)
        return AuthCredentials(), UnauthenticatedUser()
