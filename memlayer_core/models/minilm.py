"""all-MiniLM-L6-v2 by ONNX: Chroma's default model from Chroma's own cache folder, without its padding.

Chroma's function pads every text to 256 tokens. This one makes the same vectors, many times as fast on messages of chat
length (`benchmarks/embed_speed.py`).

`fetch` downloads the model (79 MB) once. A download that was killed is never taken for the model: the digest of the
archive is checked, the archive is unpacked beside the target, and each file is moved into its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from memlayer_core.models.onnx_model import load
from memlayer_core.storage.languages import ENGLISH, language_of

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["ARCHIVE", "IDENTITY", "SHA256", "URL", "MiniLM", "fetch", "folder", "is_present"]

IDENTITY = "minilm-l6-v2"
# Facts of Chroma's release of the model, as in its `ONNXMiniLM_L6_V2`.
URL = "https://chroma-onnx-models.s3.amazonaws.com/all-MiniLM-L6-v2/onnx.tar.gz"
SHA256 = "913d7300ceae3b2dbc2c50d1de4baacab4be7b9380491c27fab7418616a16ec3"
ARCHIVE = "onnx.tar.gz"

_NEEDED = ("model.onnx", "tokenizer.json")
_FILES = (*_NEEDED, "config.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt")
_CONNECT_SECONDS = 5.0
_TOKENS = 256  # what the model was trained with, and what Chroma cuts at


def folder() -> Path:
    """Return the folder that Chroma keeps the model in, for the home directory of this moment.

    Raises:
        RuntimeError: There is no home directory.
    """
    return Path.home() / ".cache" / "chroma" / "onnx_models" / "all-MiniLM-L6-v2" / "onnx"


def is_present(directory: Path) -> bool:
    """Return whether the model's files are in a folder. Only names are checked."""
    return all((directory / name).is_file() for name in _NEEDED)


def fetch(directory: Path, *, url: str, sha256: str, seconds: float) -> None:
    """Put the model into a folder, showing a progress bar. One process does it, others wait for that one.

    An archive that Chroma (or a person) has put beside the folder is used instead of the network.

    Args:
        directory: The folder; `folder()`.
        url: Where the archive is; `URL`.
        sha256: Hexadecimal digest of the archive; `SHA256`.
        seconds: How long it may take, waiting for other processes included.

    Raises:
        OSError: The download failed: no network, too slow, a wrong digest, no space.
        Exception: Whatever else the network or the disk raised.
    """
    from filelock import FileLock  # only this once

    deadline = time.monotonic() + seconds
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.parent / "memlayer.lock", timeout=seconds):
        if is_present(directory):
            return
        with tempfile.TemporaryDirectory(dir=directory.parent, ignore_cleanup_errors=True) as temporary:
            archive = directory.parent / ARCHIVE
            if not (archive.is_file() and _digest(archive) == sha256):
                archive = Path(temporary, ARCHIVE)
                _download(url, archive, deadline)
                if (found := _digest(archive)) != sha256:
                    raise OSError(f"the archive's SHA-256 is {found}, not {sha256}: damaged or tampered with")
            _unpack(archive, Path(temporary), directory)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Transfer:
    """The state that two threads share: one reads from the network, the other one waits for it."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.received = 0
        self.connected = threading.Event()
        self.over = threading.Event()
        self.abandoned = threading.Event()
        self.problem: Exception | None = None

    def run(self, url: str, path: Path) -> None:
        import httpx  # only this once

        try:
            limits = httpx.Timeout(15.0, connect=_CONNECT_SECONDS)
            with (
                httpx.stream("GET", url, timeout=limits, follow_redirects=True) as answer,
                path.open("wb") as file,
            ):
                self.connected.set()
                answer.raise_for_status()
                length = answer.headers.get("content-length", "")
                self.total = int(length) if length.isdigit() else None
                for piece in answer.iter_raw():
                    if self.abandoned.is_set():
                        return
                    self.received += file.write(piece)
        except Exception as problem:  # noqa: BLE001  (handed to the waiting thread)
            self.problem = problem
        finally:
            self.over.set()


def _download(url: str, path: Path, deadline: float) -> None:
    """Fetch an archive in a thread: the lookup of a host name has no time limit of its own."""
    from tqdm import tqdm  # only this once

    transfer = _Transfer()
    threading.Thread(target=transfer.run, args=(url, path), name="memlayer-fetch", daemon=True).start()
    # Twice the limit of one address: names often have two, and the first may be unreachable.
    connect_by = time.monotonic() + 2 * _CONNECT_SECONDS
    try:
        with tqdm(desc="Fetching all-MiniLM-L6-v2, once", unit="B", unit_scale=True, mininterval=0.5) as bar:
            while not transfer.over.wait(0.05):
                bar.total = transfer.total
                bar.update(transfer.received - bar.n)
                now = time.monotonic()
                if now > deadline:
                    raise TimeoutError(f"not fetched in time; {transfer.received} bytes came")
                if now > connect_by and not transfer.connected.is_set():
                    raise TimeoutError("the server does not answer")
            bar.total = transfer.total
            bar.update(transfer.received - bar.n)
    finally:
        transfer.abandoned.set()
    if transfer.problem is not None:
        raise transfer.problem


def _unpack(archive: Path, temporary: Path, directory: Path) -> None:
    """Take the model's files, and nothing else, out of an archive. Each appears whole or not at all."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            content = tar.extractfile(member) if member.isfile() and name in _FILES else None
            if content is not None:
                with content, (temporary / name).open("wb") as file:
                    shutil.copyfileobj(content, file)
    if not is_present(temporary):
        raise OSError(f"the archive lacks {' or '.join(_NEEDED)}")
    directory.mkdir(parents=True, exist_ok=True)
    for name in reversed(_FILES):  # the needed ones last: until then the model counts as absent
        with suppress(FileNotFoundError):
            (temporary / name).replace(directory / name)


class MiniLM:
    """Embeds texts by meaning: 384 dimensions, the first 256 tokens of a text.

    The model is loaded with the first text, once per process. Safe to share between threads and across a fork.

    Args:
        directory: The folder with the model's files.

    Attributes:
        identity: `"minilm-l6-v2"`.
    """

    identity = IDENTITY

    def __init__(self, directory: Path) -> None:
        self._where = directory

    def trust(self, question: str) -> float:
        """Return how far the cosine is to be believed, 0 or 1: the model reads English only.

        It takes other languages apart into syllables and letters, and finds all their texts near each other.
        """
        return float(language_of(question) == ENGLISH)

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text: float32, shape (384,).

        Raises:
            EmbedderError: The model's files are gone, damaged or not to be run here.
        """
        if not texts:
            return []
        hint = 'Delete that folder so that it is fetched again, or use `embedder="hashing"`.'
        return load(self._where, tokens=_TOKENS, name=f"MiniLM in {self._where}", hint=hint).embed(texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same in a worker thread, loading the model included."""
        return await asyncio.to_thread(self.embed, texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question: the model makes no difference."""
        return self.embed([text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same in a worker thread."""
        return await asyncio.to_thread(self.embed_query, text)
