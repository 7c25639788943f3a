"""Chroma on a server, which any number of processes and stores may use."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from memlayer_core.chroma.index import ChromaIndex, chroma_settings, load_chromadb, translate_errors
from memlayer_core.errors import ConfigurationError

if TYPE_CHECKING:
    from chromadb.api import ClientAPI

# A name or an address in brackets, a port and a path.
_URL = re.compile(r"https?://(\[[^]\s/@?#]+]|[^]\s/@?#:[]+)(:\d{1,5})?(/[^\s?#]*)?", re.IGNORECASE)


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
        if not _URL.fullmatch(str(url)):
            raise ConfigurationError(
                "the Chroma server's URL cannot be used",
                hint="Write http://host:port or https://host:port; credentials go into `headers`.",
            )
        parts = urlsplit(url)  # the log names the host in small letters
        self.url = f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"

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
        with translate_errors(f"reach {self.url}"):
            answer = httpx.get(f"{self.url}/api/v2/heartbeat", headers=self._headers, timeout=patience)
            answer.raise_for_status()
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
