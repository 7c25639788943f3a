"""A Chroma server as a place of collections."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from memlayer_core.chroma.places import Place, chroma_settings, load_chromadb, translate_errors
from memlayer_core.errors import ConfigurationError, IndexUnavailableError

if TYPE_CHECKING:
    from chromadb.api import ClientAPI


class ServerPlace(Place):
    """A Chroma server, which any number of processes may use.

    Args:
        url: `http://host:port` or `https://host:port`.
        headers: Sent with each request, for example a token.
        timeout: Seconds that a request may take; connecting gets five of them at most.

    Raises:
        ConfigurationError: `url` is no such URL.
    """

    fragile = False
    chunk = 100

    def __init__(self, url: str, headers: Mapping[str, str] | None, timeout: float) -> None:
        super().__init__()
        self._headers = dict(headers or {})
        self._timeout = timeout
        try:
            parts = urlsplit(url)
            port = parts.port
        except (ValueError, TypeError, AttributeError) as problem:
            raise _no_url("it cannot be parsed") from problem
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_url(f"got scheme {parts.scheme!r} and host {parts.hostname!r}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise _no_url("credentials go into `headers`, and nothing may follow the path")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._url = f"{parts.scheme}://{host}" + (f":{port}" if port else "") + parts.path.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def enter(self) -> bool:
        """Say yes: any number of processes may use it."""
        self.held = True
        return True

    def is_empty(self) -> bool:
        """Say no: only the server knows."""
        return False

    def open(self) -> ClientAPI:
        """Open a client, after a quick check that the server answers."""
        import httpx

        chromadb = load_chromadb()
        logging.getLogger("httpx").addFilter(self._is_not_ours)
        patience = httpx.Timeout(self._timeout, connect=min(5.0, self._timeout))
        hint = "Start it with `chroma run`, or correct the URL and its port."
        try:
            answer = httpx.get(f"{self._url}/api/v2/heartbeat", headers=self._headers, timeout=patience)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise IndexUnavailableError(
                f"no Chroma server answers at {self._url}: {type(problem).__name__}: {problem}", hint=hint
            ) from problem
        if not answer.is_success:
            raise IndexUnavailableError(
                f"what answers at {self._url} is no Chroma server that lets us in: HTTP {answer.status_code}",
                hint="Check the URL and its port, and the headers.",
            )
        with translate_errors(f"connect to {self._url}"):
            settings = chroma_settings(
                chroma_api_impl="chromadb.api.fastapi.FastAPI",
                chroma_server_host=self._url,
                chroma_server_http_port=None,
            )
            parts = urlsplit(self._url)
            client: ClientAPI = chromadb.HttpClient(
                host=self._url,
                port=parts.port or (443 if parts.scheme == "https" else 80),
                ssl=parts.scheme == "https",
                headers=dict(self._headers),
                settings=settings,
            )
            cast("Any", client)._server._session.timeout = patience  # noqa: SLF001 - Chroma waits for ever
        return client

    def wipe(self) -> bool:
        """Refuse: others' collections are there too."""
        return False

    def compact(self) -> None:
        """Do nothing: a server keeps its files itself."""

    def blank(self) -> None:
        """Do nothing: a server keeps its files itself."""

    def still_there(self) -> bool:
        """Say yes: a server keeps its files itself."""
        return True

    def _is_not_ours(self, record: logging.LogRecord) -> bool:
        """Keep httpx from logging each of our requests, as it does at level INFO; other requests are not touched."""
        return record.levelno > logging.INFO or self._url not in record.getMessage()

    def disconnect(self) -> None:
        """Close the connections too, which Chroma's own client leaves open."""
        logging.getLogger("httpx").removeFilter(self._is_not_ours)
        kept: Any = self.client
        servers = [getattr(one, "_server", None) for one in (kept, getattr(kept, "_admin_client", None))]
        super().disconnect()
        for server in servers:
            if server is not None:
                server._session.close()  # noqa: SLF001 - there is no public way

    def leave(self) -> None:
        """Do nothing: there is nothing to give back."""


def _no_url(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the Chroma server's URL cannot be used: {text}",
        hint="Write http://host:port or https://host:port.",
    )
