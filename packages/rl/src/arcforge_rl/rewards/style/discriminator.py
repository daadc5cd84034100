"""Whether two sets of texts can be told apart: a logistic regression, and its area under the curve on unseen texts.

N: texts; F: features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arcforge_rl.rewards.style.features import Array

FOLDS, DECAY, ROUNDS = 5, 1.0, 12
"""Parts of the cross-validation; L2 penalty of standardised weights; Newton steps, which end long before."""


def auc(positive_N: Array, negative_N: Array) -> float:
    """Returns the chance that a score of the first set is above one of the second, ties counting half."""
    scores = np.concatenate([positive_N, negative_N])
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[place][: len(positive_N)]
    above = rank_N.sum() - len(positive_N) * (len(positive_N) + 1) / 2
    return float(above / (len(positive_N) * len(negative_N)))


def told_apart(texts_NF: Array, others_NF: Array) -> float:
    """Returns the mean AUC over the folds, 0.5 for sets of one style and 1 for sets that always differ.

    Args:
        texts_NF, others_NF: features of both sets, at least `FOLDS` texts each.
    """
    found = []
    for fold in range(FOLDS):
        parts = [(x_NF[np.arange(len(x_NF)) % FOLDS != fold], x_NF[fold::FOLDS]) for x_NF in (texts_NF, others_NF)]
        (ours_NF, ours_unseen_NF), (theirs_NF, theirs_unseen_NF) = parts
        x_NF = np.concatenate([ours_NF, theirs_NF])
        mean_F, scale_F = x_NF.mean(0), x_NF.std(0)
        scale_F[scale_F == 0.0] = 1.0
        is_ours_N = np.arange(len(x_NF)) < len(ours_NF)
        weight_F = fitted((x_NF - mean_F) / scale_F, is_ours_N)[:-1]
        scores = [((unseen_NF - mean_F) / scale_F) @ weight_F for unseen_NF in (ours_unseen_NF, theirs_unseen_NF)]
        found.append(auc(*scores))
    return float(np.mean(found))


def fitted(x_NF: Array, is_first_N: NDArray[np.bool_]) -> Array:
    """Returns the weights of a logistic regression on standardised features and its bias, float64 [F + 1].

    Both sets weigh the same; Newton's method.
    """
    x_NF = np.column_stack([x_NF, np.ones(len(x_NF))])
    balance_N = np.where(is_first_N, 0.5 / is_first_N.sum(), 0.5 / (~is_first_N).sum()) * len(x_NF)
    decay_F = np.full(x_NF.shape[1], DECAY)
    decay_F[-1] = 1e-6  # of the bias
    weight_F = np.zeros(x_NF.shape[1])
    for _ in range(ROUNDS):
        chance_N = 1.0 / (1.0 + np.exp(-np.clip(x_NF @ weight_F, -30.0, 30.0)))
        gradient_F = x_NF.T @ (balance_N * (chance_N - is_first_N)) + decay_F * weight_F
        curve_FF = (x_NF.T * (balance_N * chance_N * (1.0 - chance_N))) @ x_NF + np.diag(decay_F)
        weight_F = weight_F - np.linalg.solve(curve_FF, gradient_F)
    return weight_F
