"""Measures the scale of an embedder's cosines: what unrelated texts get, and what a question and its answer get.

`calibration.json` has twelve sentences in each of eight languages, and a question for each of them in other words. An
embedder that reads one language has another scale for it than for the rest: MiniLM's unrelated texts have a cosine of 0.04
in English and of 0.33 to 0.66 elsewhere. Those of embedders that read many languages differ by 0.03.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from memlayer_core.vector import OTHER_LANGUAGES, SimilarityScale

if TYPE_CHECKING:
    from memlayer_core.vector import FloatVector

__all__ = ["calibration_texts", "scales_from"]

_UNITS = 5
"""Units that lie at most between the mean of unrelated texts and that of answers: with MiniLM and English, as many as there are
standard deviations of unrelated texts, nearly."""

_TAIL = 1.15
"""Standard deviations of unrelated texts in a unit: more of them are far from their mean than on a normal curve."""

_ALIKE = 1e-3  # standard deviation of all cosines below which an embedder gives all of the texts one vector


@cache
def _calibration() -> Mapping[str, Sequence[tuple[str, str]]]:
    file = resources.files("memlayer_core.index") / "calibration.json"
    return {
        language: [(sentence, question) for sentence, question in pairs]
        for language, pairs in json.loads(file.read_text(encoding="utf-8")).items()
    }


def calibration_texts() -> list[str]:
    """Return the texts whose vectors `scales_from` needs."""
    return [text for pairs in _calibration().values() for pair in pairs for text in pair]


def scales_from(vectors: Sequence[FloatVector]) -> dict[str, SimilarityScale]:
    """Return the scales by language, and under `OTHER_LANGUAGES` that of all languages together.

    Args:
        vectors: Those of `calibration_texts`, in their order.
    """
    rest = iter(vectors)
    others: dict[str, list[float]] = {OTHER_LANGUAGES: []}
    answers: dict[str, list[float]] = {OTHER_LANGUAGES: []}
    for language, pairs in _calibration().items():
        some = np.stack([next(rest) for pair in pairs for _ in pair])
        near = some[1::2] @ some[::2].T
        own = np.eye(len(near), dtype=bool)
        others[language], answers[language] = near[~own].tolist(), near[own].tolist()
        others[OTHER_LANGUAGES] += others[language]
        answers[OTHER_LANGUAGES] += answers[language]
    if np.std(others[OTHER_LANGUAGES]) < _ALIKE:
        return {OTHER_LANGUAGES: SimilarityScale()}  # its vectors say something that these texts do not show
    return {language: _scale(some, answers[language]) for language, some in others.items()}


def _scale(others: Sequence[float], answers: Sequence[float]) -> SimilarityScale:
    mean = float(np.mean(others))
    distance = float(np.mean(answers)) - mean
    return SimilarityScale(mean, max(_TAIL * float(np.std(others)), distance / _UNITS, 1e-3))
