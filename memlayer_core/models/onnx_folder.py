"""An embedder from a folder: an ONNX model with its tokenizer, as sentence-transformers saves it.

The folder's own files say how: `1_Pooling/config.json` the pooling (mean without it), `sentence_bert_config.json` the tokens
that are read, and `config_sentence_transformers.json` the prefixes of questions and texts, such as E5's "query: ".
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memlayer_core.errors import ConfigurationError
from memlayer_core.models.onnx_model import config_of, load, model_file

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["OnnxFolder"]

_TOKENS = 512  # where the folder does not say; what most models of this kind read
_CONFIGS = ("1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
_OF_TEXTS = ("passage", "document")


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
        self._text: str = next((prompts[name] for name in _OF_TEXTS if name in prompts), "")
        self._tokens = int(config_of(self._where, _CONFIGS[1]).get("max_seq_length") or _TOKENS)
        self.identity = f"onnx:{self._where.name}:{_digest(self._where)}"

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


def _digest(directory: Path) -> str:
    """Return a digest of all that the vectors depend on."""
    found = hashlib.sha256()
    for path in (model_file(directory), *(directory / name for name in ("tokenizer.json", *_CONFIGS))):
        if path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]
