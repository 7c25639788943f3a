"""How vectors stand in a row of texts: in half precision, which changes cosines by less than 0.001, and without most zeros.

A row begins with a byte that gives the form, and the dimension. Then come the numbers of all parts of the text; in the
sparse form, a bit for each number comes first, which says whether it is there. A hashed message of 150 characters takes
700 bytes of 4,096.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlayer_core.seams import FloatVector, IndexEntry

_DENSE, _SPARSE = 0, 1
_HEAD = 3  # bytes


def packed(vectors: Sequence[FloatVector]) -> bytes:
    """Return the vectors of a text as a row has them."""
    matrix = np.ascontiguousarray(vectors, dtype="<f2")
    is_there = matrix != 0
    form, rest = _SPARSE, np.packbits(is_there, axis=1).tobytes() + matrix[is_there].tobytes()
    if len(rest) >= matrix.nbytes:
        form, rest = _DENSE, matrix.tobytes()
    return b"".join([bytes([form]), matrix.shape[1].to_bytes(_HEAD - 1, "little"), rest])


def unpacked(blobs: Sequence[bytes], counts: Sequence[int]) -> NDArray[np.float32]:
    """Return the vectors of rows as float32: products of half precision take 20 times as long.

    Args:
        blobs: One of each row, at least one.
        counts: How many vectors each has.

    Returns:
        Shape (dimension, number of all vectors): a column for each vector.
    """
    dimension = dimension_of(blobs[0])
    width = -(-dimension // 8)
    is_sparse = np.repeat([blob[0] == _SPARSE for blob in blobs], counts)
    matrix = np.zeros((dimension, len(is_sparse)), dtype="<f4")
    parts = [(blob, _HEAD + count * width) for blob, count in zip(blobs, counts, strict=True)]
    sparse = [(blob[_HEAD:end], blob[end:]) for blob, end in parts if blob[0] == _SPARSE]
    bits = _joined([one for one, _ in sparse], "u1").reshape(-1, width)
    # Places of true values are found seven times as fast as those of numbers.
    at = np.flatnonzero(np.unpackbits(bits, axis=1, count=dimension).view(bool))
    vector, number = np.divmod(at, dimension)
    matrix[number, np.flatnonzero(is_sparse)[vector]] = _joined([one for _, one in sparse], "<f2")
    dense = [blob[_HEAD:] for blob in blobs if blob[0] == _DENSE]
    if dense:
        matrix[:, ~is_sparse] = _joined(dense, "<f2").reshape(-1, dimension).T
    return matrix


def dimension_of(blob: bytes) -> int:
    """Return the dimension of a row's vectors."""
    return int.from_bytes(blob[1:_HEAD], "little")


def parts_of(row: Any) -> tuple[FloatVector, ...]:
    """Return the vectors of the parts of a row of texts; none before it is embedded."""
    return () if row.vector is None else tuple(np.ascontiguousarray(unpacked([row.vector], [row.vectors]).T))


def entry_of(row: Any) -> IndexEntry:
    """Return the vectors of a row of texts, for an index."""
    buckets = "u" + row.namespace, row.agent_bucket, row.session_bucket
    labels = row.text_hash or "", row.speaker or "", row.language or ""
    return IndexEntry(row.key, buckets, parts_of(row), *labels)


def _joined(pieces: Sequence[bytes], kind: str) -> NDArray[Any]:
    return np.frombuffer(b"".join(pieces), dtype=kind)
