"""Chroma on a server, which any number of processes and stores may use."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from memlayer_core.chroma.index import ChromaIndex, chroma_settings, load_chromadb, translate_errors
from memlayer_core.errors import ConfigurationError, IndexUnavailableError

if TYPE_CHECKING:
    from chromadb.api import ClientAPI


class ChromaServer(ChromaIndex):
    """A Chroma server.

    It manages its own disk: deleted vectors are no longer found, but stay in its files until it rebuilds them.

    Args:
        url: `http://host:port` or `https://host:port`.
        store_id: The journal's id, a UUID.
        headers: Sent with each request, for example a token.
        timeout: Seconds that a request may take; connecting gets five of them at most.

    Attributes:
        url: As it is used.

    Raises:
        ConfigurationError: `url` is not such a URL.
    """

    exclusive = False
    batch = 1000
    slice = 250
    sync_threshold = 1000

    def __init__(
        self, url: str, *, store_id: str, headers: Mapping[str, str] | None = None, timeout: float = 10.0
    ) -> None:
        super().__init__(store_id)
        self._headers, self._timeout = dict(headers or {}), timeout
        self.url = server_url(url)

    def close(self) -> None:
        """Close the connections, also those that Chroma's own client leaves open."""
        client, self._client, self.is_held = cast("Any", self._client), None, False
        if client is not None:
            logging.getLogger("httpx").removeFilter(self._is_not_ours)
            servers = [
                getattr(one, "_server", None) for one in (client, getattr(client, "_admin_client", None))
            ]
            client.close()
            for server in filter(None, servers):
                server._session.close()  # noqa: SLF001 - there is no public way

    def _open(self) -> ClientAPI:
        """Open a client, after a quick check that the server answers."""
        import httpx

        chromadb = load_chromadb()
        patience = httpx.Timeout(self._timeout, connect=min(5.0, self._timeout))
        logging.getLogger("httpx").addFilter(self._is_not_ours)
        try:
            answer = httpx.get(f"{self.url}/api/v2/heartbeat", headers=self._headers, timeout=patience)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise IndexUnavailableError(
                f"no Chroma server answers at {self.url}: {type(problem).__name__}: {problem}",
                hint="Start it with `chroma run`, or correct the URL and its port.",
            ) from problem
        if not answer.is_success:
            raise IndexUnavailableError(
                f"what answers at {self.url} is not a Chroma server that lets us in: HTTP {answer.status_code}",
                hint="Check the URL and its port, and the headers.",
            )
        with translate_errors(f"connect to {self.url}"):
            settings = chroma_settings(
                chroma_api_impl="chromadb.api.fastapi.FastAPI",
                chroma_server_host=self.url,
                chroma_server_http_port=None,
            )
            parts = urlsplit(self.url)
            client: ClientAPI = chromadb.HttpClient(
                host=self.url,
                port=parts.port or (443 if parts.scheme == "https" else 80),
                ssl=parts.scheme == "https",
                headers=self._headers,
                settings=settings,
            )
            cast("Any", client)._server._session.timeout = patience  # noqa: SLF001 - Chroma waits forever
        return client

    def _is_not_ours(self, record: logging.LogRecord) -> bool:
        """Keep httpx from logging each of our requests, as it does at level INFO; other requests are not touched."""
        return record.levelno > logging.INFO or self.url not in record.getMessage()

    def _forget_parent(self) -> None:
        super()._forget_parent()
        self._client = None


def server_url(url: str) -> str:
    """Return the URL of a Chroma server as it is used.

    Raises:
        ConfigurationError: It is not such a URL.
    """
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
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "") + parts.path.rstrip("/")


def _no_url(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the Chroma server's URL cannot be used: {text}",
        hint="Write http://host:port or https://host:port.",
    )
