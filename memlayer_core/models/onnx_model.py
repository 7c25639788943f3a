"""Runs an embedding model from a folder with an ONNX file and its tokenizer, as sentence-transformers lays it out.

Texts are sorted by length, and each batch is padded to its longest text only.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memlayer_core.errors import EmbedderError

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["OnnxModel", "config_of", "load", "model_file"]

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
