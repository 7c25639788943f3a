"""Puts the best hits in the order of a reranker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memlayer_core.recall.rules.rank import ScoredCandidate

__all__ = ["FIRST", "choose", "reorder"]

FIRST = 50
"""Hits that a reranker is asked for: on LoCoMo, half of the evidence that is not among the first ten is among these."""


def reorder(candidates: Sequence[ScoredCandidate], scores: Mapping[int, float]) -> list[ScoredCandidate]:
    """Return candidates in the order of a reranker's scores; those without one stay behind in their own order.

    Args:
        candidates: The best first.
        scores: What the reranker gave, by key; equal scores leave the order as it is.
    """
    judged = sorted(
        (one for one in candidates if one.key in scores), key=lambda one: scores[one.key], reverse=True
    )
    others = [one for one in candidates if one.key not in scores]
    if not judged:
        return others
    lowest, best = scores[judged[-1].key], max((one.score for one in others), default=0.0)
    return [
        *(one._replace(score=scores[one.key], rerank_score=scores[one.key]) for one in judged),
        *(one._replace(score=lowest + one.score - best) for one in others),
    ]


def choose(
    eligible: Sequence[ScoredCandidate], candidates: Sequence[ScoredCandidate]
) -> Sequence[ScoredCandidate]:
    """Return as many of the reranked candidates as pass the ranking's gate and cut.

    The ranking decides whether anything is told, and how much; the reranker says what. Wishes that hold for the
    question come first.

    Args:
        eligible: What the ranking lets pass.
        candidates: All candidates, in the order of the reranker.
    """
    told = {one.key for one in eligible if one.is_standing}
    standing = [one for one in candidates if one.key in told]
    others = [one for one in candidates if not one.is_standing]
    return [*standing, *others[: len(eligible) - len(standing)]]
