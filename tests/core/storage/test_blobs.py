"""Vectors come out of a row as they went in, but for what half precision loses."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.blobs import packed, unpacked

SIZES = st.tuples(st.integers(1, 4), st.floats(0, 1))


@given(st.lists(SIZES, min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_rows_of_any_density_come_back_together(rows, dimension: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    given_ = [
        chance.normal(size=(n, dimension)) * (chance.random((n, dimension)) < share) for n, share in rows
    ]
    blobs = [packed(one.astype(np.float32)) for one in given_]
    back = unpacked(blobs, [len(one) for one in given_])
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, np.concatenate(given_), atol=2e-3, rtol=1e-3)


def test_a_hashed_message_takes_a_sixth_of_its_floats() -> None:
    (vector,) = HashingEmbedder().embed(["I moved to Leeds with my mate Joe last summer, near the river."])
    assert len(packed([vector])) < 4 * len(vector) / 6
    assert float(unpacked([packed([vector])], [1])[0] @ vector) > 0.999
