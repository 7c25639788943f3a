"""all-MiniLM-L6-v2 by ONNX: Chroma's default model from Chroma's own cache folder, without its padding.

Chroma's function pads every text to 256 tokens. This one makes the same vectors without that, which is faster for short
texts (`benchmarks/embed_speed.py`).
"""

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from memlayer_core.errors import EmbedderError
from memlayer_core.models.foreign import BlockingEmbedder, cut, environment, in_thread
from memlayer_core.runtime import Newest
from memlayer_core.seams import FloatVector

IDENTITY = "minilm-l6-v2"
URL = "https://chroma-onnx-models.s3.amazonaws.com/all-MiniLM-L6-v2/onnx.tar.gz"
WAY = f"go online once, or put `onnx.tar.gz` from {URL} into `~/.cache/chroma/onnx_models/all-MiniLM-L6-v2`"
"""How it gets onto a machine."""
_OF_TOKENIZER = ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt")
_FILES = ("model.onnx", "config.json", *_OF_TOKENIZER)

_TOKENS = 256  # what the model was trained with, and what Chroma cuts at
# A text is cut to this length before it is split into tokens. 256 English tokens are about 1,200 characters, and the
# tokenizer would copy a text of megabytes several times.
_CHARACTERS = 16_000
_BATCH = 16  # measured: 8 to 16 are the fastest on one and on two cores, 64 takes a third longer
_KEPT = 256  # texts: a question is embedded when it is asked, and again when it is stored
_THREADS = 4  # more cores than these gain little on texts this short, and an application has other work


def folder() -> Path:
    """Return the folder that Chroma keeps the model in, for the home directory of this moment.

    Raises:
        RuntimeError: There is no home directory.
    """
    return Path.home() / ".cache" / "chroma" / "onnx_models" / "all-MiniLM-L6-v2" / "onnx"


def is_present(directory: Path) -> bool:
    """Return whether the model's files are in a folder. Only names are checked: the last one is unpacked last."""
    return all((directory / name).is_file() for name in _FILES)


def fetch(directory: Path, seconds: float) -> None:
    """Let Chroma download its model, 79 MB, with a progress bar. One process does it, others wait for that one.

    An archive next to the folder is used instead of the network.

    Args:
        directory: The folder; `folder()`.
        seconds: How long it may take, waiting for other processes included.

    Raises:
        Exception: Whatever the network or the disk raised; `TimeoutError`: it took too long.
    """
    from filelock import FileLock  # only this once

    deadline = time.monotonic() + seconds
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.parent / "memlayer.lock", timeout=seconds):
        if not is_present(directory):
            # In a thread: the lookup of a host name has no time limit, and a slow server none for the whole.
            in_thread(lambda: _fetch(directory.parent)).result(deadline - time.monotonic())


def _fetch(target: Path) -> None:
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2

    function = ONNXMiniLM_L6_V2()
    function.DOWNLOAD_PATH = target
    function._download_model_if_not_exists()  # noqa: SLF001  (its public way loads the model, too)


class _Model:
    """The loaded model: the tokenizer and the network. Both may be used by several threads at once."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer  # half a second that only a first embedding pays

        runtime = _runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        # A number, since the default pins threads to cores, the same ones in every process.
        options.intra_op_num_threads = min(_THREADS, os.cpu_count() or 1)
        # Idle threads would keep their cores busy for a while after every text.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = runtime.InferenceSession(
            str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=_TOKENS)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text, float32. Texts of one length are computed together."""
        # One text at a time: batches start threads.
        tokens: list[list[int]] = [self._tokenizer.encode(cut(text, _CHARACTERS)).ids for text in texts]
        order = sorted(range(len(texts)), key=lambda place: len(tokens[place]))
        vectors: dict[int, FloatVector] = {}
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            made = self._vectors([tokens[place] for place in places])
            # No views, which would keep the batch in memory.
            vectors.update(zip(places, map(np.copy, made), strict=True))
        return [vectors[place] for place in range(len(texts))]

    def _vectors(self, batch: Sequence[list[int]]) -> FloatVector:
        """Return the unit vectors of tokenised texts, shape (texts, dimension)."""
        shape = len(batch), max(map(len, batch))
        ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(None, inputs)[0]
        # The length of the sum and of the mean point the same way: normalising needs no division by tokens.
        pooled = np.matmul(mask[:, None, :].astype(np.float32), states)[:, 0, :]
        unit: FloatVector = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit.astype(np.float32, copy=False)


def _runtime() -> Any:
    """Import onnxruntime with its telemetry off, unless the environment says something about it.

    Since 1.29 its Linux and macOS builds report models and devices to their maker, from a thread that starts
    with the import and that a forked child hangs on at its exit. The variable is read at the import only.
    """
    name = "ORT_DISABLE_TELEMETRY"
    with environment(name, os.environ.get(name, "1")):
        import onnxruntime  # a fifth of a second that only a first embedding pays
    return onnxruntime


_loading = threading.Lock()
_models: dict[Path, _Model] = {}


def _start_afresh() -> None:
    """Let a forked child load its own model, since it has none of the parent's threads, and a lock may be held forever.

    The child neither uses nor destroys the parent's models: at its exit that would wait for their threads forever.
    Therefore each of them gets a reference that is never released.
    """
    global _loading, _models
    for model in _models.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(model))
    _loading, _models = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


class MiniLM(BlockingEmbedder):
    """Embeds texts by meaning: 384 dimensions, the first 256 tokens of a text.

    The model is loaded with the first text, once per process. The last vectors are kept, and a text among the last ones is not
    embedded again. Safe to share between threads and across a fork.

    Args:
        directory: The folder with the model's files.

    Attributes:
        identity: `"minilm-l6-v2"`.
    """

    identity = IDENTITY

    def __init__(self, directory: Path) -> None:
        self._where = directory
        self._newest = Newest[bytes, FloatVector]()

    @classmethod
    def at_hand(cls, seconds: float) -> Self:
        """Return the model of this machine. It is fetched if it is missing.

        Args:
            seconds: How long that may take.

        Raises:
            EmbedderError: It is missing and cannot be fetched.
        """
        try:
            where = folder()
            if not is_present(where):
                fetch(where, seconds)
        except Exception as problem:
            raise EmbedderError(
                f"MiniLM is not at hand and cannot be fetched: {type(problem).__name__}: {problem}",
                hint=f'To have it, {WAY}. To go without: `embedder="hashing"`; a store that has its vectors needs '
                "`memlayer reindex --embedder hashing` first.",
            ) from problem
        return cls(where)

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text: float32, shape (384,), read-only.

        Raises:
            EmbedderError: The model's files are gone, damaged or not to be run here.
        """
        keys = [hashlib.blake2b(text.encode(errors="surrogatepass")).digest() for text in texts]
        found = {key: vector for key in keys if (vector := self._newest.get(key)) is not None}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        try:
            made = self._model().embed([*new.values()]) if new else []
        except Exception as problem:
            raise EmbedderError(
                f"MiniLM in {self._where} cannot be run: {type(problem).__name__}",
                hint='Delete that folder so that it is fetched again, or use `embedder="hashing"`.',
            ) from problem
        for key, vector in zip(new, made, strict=True):
            vector.flags.writeable = False  # it is everybody's now
            self._newest.put(key, vector, _KEPT)
            found[key] = vector
        return [found[key] for key in keys]

    def _model(self) -> _Model:
        with _loading:
            if self._where not in _models:
                _models[self._where] = _Model(self._where)
            return _models[self._where]
