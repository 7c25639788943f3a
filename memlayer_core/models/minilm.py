"""Embedding models in ONNX files: all-MiniLM-L6-v2 from Chroma's own cache folder, and folders as sentence-transformers saves them.

Chroma's function pads every text to 256 tokens. This one makes the same vectors, many times as fast on messages of chat
length (`benchmarks/embed_speed.py`).

`fetch` downloads the model (79 MB) once. A download that was killed is never taken for the model: the digest of the
archive is checked, the archive is unpacked beside the target, and each file is moved into its place.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import ConfigurationError, EmbedderError

if TYPE_CHECKING:
    from memlayer_core.seams import FloatVector


# Runs an embedding model from a folder with an ONNX file and its tokenizer, as sentence-transformers lays it out.
#
# Texts are sorted by length, and each batch is padded to its longest text only.

# A text is cut to this length before it is split into tokens. 256 English tokens are about 1,200 characters, and the
# tokenizer would copy a text of megabytes several times.
_CHARACTERS = 16_000
_BATCH = 16  # measured: 8 to 16 are the fastest on one and on two cores, 64 takes a third longer
_THREADS = 4  # more cores than these gain little on texts this short, and an application has other work
_OF_TEXTS = 2  # dimensions of an output that is pooled already; states of all tokens have three


def model_file(directory: Path) -> Path:
    """Return the ONNX file of a folder: `model.onnx`, or `onnx/model.onnx`. It need not exist."""
    own = directory / "model.onnx"
    return own if own.is_file() else directory / "onnx" / "model.onnx"


def config_of(directory: Path, name: str) -> Mapping[str, Any]:
    """Return one of a folder's JSON files; nothing if there is none."""
    path = directory / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


class OnnxModel:
    """A loaded model: the tokenizer and the network. Both may be used by several threads at once.

    Args:
        directory: The folder.
        tokens: How many tokens of a text are read.
        name: What errors call it.
        hint: What errors advise.
    """

    def __init__(self, directory: Path, tokens: int, name: str, hint: str) -> None:
        from tokenizers import Tokenizer  # half a second that only a first embedding pays

        runtime = _runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        # A number, since the default pins threads to cores, the same ones in every process.
        options.intra_op_num_threads = min(_THREADS, os.cpu_count() or 1)
        # Idle threads would keep their cores busy for a while after every text.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(model_file(directory)), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {known.name for known in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=tokens)
        self._tokenizer.no_padding()
        self._first_token = (
            config_of(directory, "1_Pooling/config.json").get("pooling_mode_cls_token") is True
        )
        self._name, self._hint = name, hint

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text, float32.

        Raises:
            EmbedderError: The model does not run here.
        """
        tokens = [self._tokens(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda place: len(tokens[place]))
        vectors: list[FloatVector] = [np.empty(0, dtype=np.float32)] * len(texts)
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            try:
                made = self._vectors([tokens[place] for place in places])
            except Exception as problem:
                raise EmbedderError(
                    f"{self._name} failed: {type(problem).__name__}",
                    hint=self._hint,
                ) from problem
            for place, vector in zip(places, made, strict=True):
                vectors[place] = vector.copy()  # not a view that keeps the batch in memory
        return vectors

    def _tokens(self, text: str) -> list[int]:
        """Return a text's token numbers, 2 at least. One at a time: batches start threads."""
        ids: list[int] = self._tokenizer.encode(_cut(text)).ids
        return ids

    def _vectors(self, batch: Sequence[list[int]]) -> FloatVector:
        """Return the unit vectors of tokenised texts, shape (texts, dimension)."""
        shape = len(batch), max(map(len, batch))
        ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(
            None, {name: value for name, value in inputs.items() if name in self._inputs}
        )[0]
        pooled = self._pool(states, mask)
        unit: FloatVector = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit.astype(np.float32, copy=False)

    def _pool(self, states: Any, mask: Any) -> Any:
        if states.ndim == _OF_TEXTS:
            return states
        if self._first_token:
            return states[:, 0, :]
        # The length of the sum and of the mean point the same way: normalising needs no division by tokens.
        return np.matmul(mask[:, None, :].astype(np.float32), states)[:, 0, :]


def _runtime() -> Any:
    """Import onnxruntime with its telemetry off, unless the environment says something about it.

    Since 1.29 its Linux and macOS builds report models and devices to their maker, from a thread that starts
    with the import and that a forked child hangs on at its exit. The variable is read at the import only.
    """
    name = "ORT_DISABLE_TELEMETRY"
    unsaid = name not in os.environ
    if unsaid:
        os.environ[name] = "1"
    try:
        import onnxruntime  # a fifth of a second that only a first embedding pays
    finally:
        if unsaid:
            os.environ.pop(name, None)
    return onnxruntime


def _cut(text: str) -> str:
    """Return the beginning of a text, without the white space that would be all of it, and encodable."""
    if len(text) > _CHARACTERS:
        text = " ".join(text[: 4 * _CHARACTERS].split())[:_CHARACTERS]
    return text.encode("utf-8", "replace").decode("utf-8")


_loading = threading.Lock()
_models: dict[Path, OnnxModel] = {}


def _start_afresh() -> None:
    """Let a forked child load its own model, since it has none of the parent's threads, and a lock may be held for ever.

    The child neither uses nor destroys the parent's models: at its exit that would wait for their threads for ever.
    Therefore each of them gets a reference that is never released.
    """
    global _loading, _models
    for model in _models.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(model))
    _loading, _models = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def load(directory: Path, *, tokens: int, name: str, hint: str) -> OnnxModel:
    """Return the model of a folder, which is loaded once per process.

    Args:
        directory: The folder.
        tokens: How many tokens of a text are read.
        name: What errors call it.
        hint: What errors advise.

    Raises:
        EmbedderError: Its files are gone, damaged or not to be run here.
    """
    found = _models.get(directory)
    if found is not None:
        return found
    with _loading:
        if directory not in _models:
            try:
                _models[directory] = OnnxModel(directory, tokens, name, hint)
            except Exception as problem:
                raise EmbedderError(
                    f"{name} cannot be loaded: {type(problem).__name__}: {problem}",
                    hint=hint,
                ) from problem
        return _models[directory]


# An embedder from a folder: an ONNX model with its tokenizer, as sentence-transformers saves it.
#
# The folder's own files say how: `1_Pooling/config.json` the pooling (mean without it), `sentence_bert_config.json` the tokens
# that are read, and `config_sentence_transformers.json` the prefixes of questions and texts, such as E5's "query: ".

_TOKENS_ONNX_FOLDER = 512  # where the folder does not say; what most models of this kind read
_CONFIGS = ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
_OF_TEXTS_ONNX_FOLDER = ("passage", "document")


class OnnxFolder:
    """Embeds texts with the model of a folder. It is loaded with the first text.

    Args:
        directory: The folder: `tokenizer.json`, and `model.onnx` or `onnx/model.onnx`.

    Attributes:
        identity: The folder's name and a digest of its files.

    Raises:
        ConfigurationError: The folder has no such files, or asks for a pooling other than mean and first token.
    """

    def __init__(self, directory: Path) -> None:
        self._where = directory.expanduser().resolve()
        lost = [
            path for path in (model_file(self._where), self._where / "tokenizer.json") if not path.is_file()
        ]
        if lost:
            raise ConfigurationError(
                f"the folder {directory} has no {lost[0].name}",
                hint="Pass a folder with `tokenizer.json`, and `model.onnx` or `onnx/model.onnx`.",
            )
        pooling = config_of(self._where, _CONFIGS[0])
        if pooling and not (pooling.get("pooling_mode_mean_tokens") or pooling.get("pooling_mode_cls_token")):
            raise ConfigurationError(
                f"the model in {directory} is pooled neither by the mean nor by the first token",
                hint="Pass a function from a list of texts to their vectors instead.",
            )
        prompts = config_of(self._where, _CONFIGS[2]).get("prompts") or {}
        self._query: str = prompts.get("query", "")
        self._text: str = next((prompts[name] for name in _OF_TEXTS_ONNX_FOLDER if name in prompts), "")
        self._tokens = int(config_of(self._where, _CONFIGS[1]).get("max_seq_length") or _TOKENS_ONNX_FOLDER)
        self.identity = f"onnx:{self._where.name}:{_digest_onnx_folder(self._where)}"

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text, float32.

        Raises:
            EmbedderError: The model is damaged, or does not run here.
        """
        return self._embed([self._text + text for text in texts])

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Do the same in a worker thread, loading the model included."""
        return await asyncio.to_thread(self.embed, texts)

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question, with the prefix of questions."""
        return self._embed([self._query + text])[0]

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same in a worker thread."""
        return await asyncio.to_thread(self.embed_query, text)

    def _embed(self, texts: Sequence[str]) -> list[FloatVector]:
        if not texts:
            return []
        hint = "Look at the error that it was raised from; the folder may be damaged, or the model of another kind."
        return load(self._where, tokens=self._tokens, name=f"the model in {self._where}", hint=hint).embed(
            texts
        )


def _digest_onnx_folder(directory: Path) -> str:
    """Return a digest of all that the vectors depend on."""
    found = hashlib.sha256()
    for path in (model_file(directory), *(directory / name for name in ("tokenizer.json", *_CONFIGS))):
        if path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]


# all-MiniLM-L6-v2 by ONNX: Chroma's default model from Chroma's own cache folder, without its padding.

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
