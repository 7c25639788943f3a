"""Types of embedders, tokenizers and summarisers that a user may pass. Models of frameworks are recognised by methods.

No framework is imported here; its classes fit these protocols as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sized
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from memlayer_core.seams import Embedder, LanguageModel, Reranker, TokenCounter

__all__ = [
    "EmbedderLike",
    "EmbedderName",
    "LangChainCompressor",
    "LangChainEmbeddings",
    "LangChainModel",
    "LanguageModelLike",
    "LlamaIndexEmbedding",
    "LlamaIndexModel",
    "LlamaIndexPostprocessor",
    "RerankerLike",
    "Scores",
    "TokenizerLike",
]

Vectors: TypeAlias = Iterable[Iterable[float]]
"""One vector for each text: lists of numbers, or an array."""


class LangChainEmbeddings(Protocol):
    """LangChain's `Embeddings`."""

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""
        ...

    def embed_query(self, text: str) -> Iterable[float]:
        """Return the vector of a question."""
        ...


class LlamaIndexEmbedding(Protocol):
    """LlamaIndex's `BaseEmbedding`."""

    def get_text_embedding_batch(self, texts: list[str]) -> Vectors:
        """Return one vector for each text."""
        ...

    def get_query_embedding(self, query: str) -> Iterable[float]:
        """Return the vector of a question."""
        ...


class LangChainModel(Protocol):
    """LangChain's `BaseChatModel` or `BaseLLM`."""

    @property
    def invoke(self) -> Callable[..., object]:
        """Answer messages."""
        ...

    @property
    def ainvoke(self) -> Callable[..., Awaitable[object]]:
        """Do the same without blocking the event loop."""
        ...


class LangChainCompressor(Protocol):
    """LangChain's `BaseDocumentCompressor`."""

    @property
    def compress_documents(self) -> Callable[..., object]:
        """Return those of some documents that answer a query, the best first."""
        ...

    @property
    def acompress_documents(self) -> Callable[..., Awaitable[object]]:
        """Do the same without blocking the event loop."""
        ...


class LlamaIndexPostprocessor(Protocol):
    """LlamaIndex's `BaseNodePostprocessor`."""

    @property
    def postprocess_nodes(self) -> Callable[..., object]:
        """Return those of some nodes that answer a query, the best first."""
        ...

    @property
    def apostprocess_nodes(self) -> Callable[..., Awaitable[object]]:
        """Do the same without blocking the event loop."""
        ...


class LlamaIndexModel(Protocol):
    """LlamaIndex's `LLM`."""

    @property
    def complete(self) -> Callable[..., object]:
        """Answer a prompt."""
        ...

    @property
    def acomplete(self) -> Callable[..., Awaitable[object]]:
        """Do the same without blocking the event loop."""
        ...


EmbedderName: TypeAlias = Literal["auto", "minilm", "multilingual", "minilm+multilingual", "hashing"]
"""The embedders that memlayer has itself. `"auto"`: MiniLM where it is at hand or can be downloaded, together with the
multilingual one where its extra is installed; one of them alone; or hashing."""

EmbedderLike: TypeAlias = (
    EmbedderName
    | Path
    | Embedder
    | LangChainEmbeddings
    | LlamaIndexEmbedding
    | Callable[[list[str]], Vectors]
)
"""What `Memory.open` takes as an embedder. Chroma's embedding functions are functions of a list of texts; a `Path` is the
folder of an ONNX model."""

TokenizerLike: TypeAlias = str | TokenCounter | Callable[[str], int | Sized]
"""A model's or an encoding's name, a counter, or a function from a text to its number of tokens or to the tokens."""

LanguageModelLike: TypeAlias = (
    LanguageModel
    | LangChainModel
    | LlamaIndexModel
    | Callable[[str], str | Awaitable[str]]
    | Callable[[str, str], str | Awaitable[str]]
)
"""What `Memory.open` takes as a model. A function of two arguments is given instructions and text apart."""

Scores: TypeAlias = Iterable[float]
"""One score for each text, larger ones for better texts."""

RerankerLike: TypeAlias = (
    Reranker
    | LangChainCompressor
    | LlamaIndexPostprocessor
    | Callable[[str, list[str]], Scores]
    | Callable[[str, list[str]], Awaitable[Scores]]
)
"""What `Memory.open` takes as a reranker. A function is given the query and the texts."""
