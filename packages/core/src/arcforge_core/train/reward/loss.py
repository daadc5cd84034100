"""The loss of preferences, and their measures. P: pairs.

Bradley-Terry: the probability that a reply is preferred is sigmoid of the difference of the scores (Ouyang et al.,
2022); margins as in Llama 2 (arXiv 2307.09288), centring as in arXiv 2312.09244. Length control is a product of experts
with a model of the length alone (Clark et al., 2019), and a penalty on correlation as in ODIN (arXiv 2402.07319).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from arcforge_core.config.reward import PreferenceConfig

BINS = 10
"""Of confidence, for the calibration error."""
NEWTON_STEPS = 50
LEAST = 1e-12
"""Added to the product of two sums of squares, whose root divides."""


def preference_loss(
    chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor, longer_P: Tensor, config: PreferenceConfig, bias: float
) -> Tensor:
    """Returns the mean loss of some pairs.

    Args:
        chosen_P, rejected_P: scores.
        margin_P: margins of the pairs.
        longer_P: by how much the chosen reply is longer.
        config: weights.
        bias: log-odds that a unit of length adds to a preference; counts with length control only.
    """
    difference_P = chosen_P - rejected_P
    logit_P = difference_P - config.margin * margin_P
    if config.length_control:
        logit_P = logit_P + bias * longer_P
    loss = -F.logsigmoid(logit_P).mean()
    if config.centring:
        loss = loss + config.centring * ((chosen_P + rejected_P) ** 2).mean()
    if config.length_control:
        loss = loss + config.length_control * cosine(difference_P, longer_P) ** 2
    return loss


def cosine(one_P: Tensor, other_P: Tensor) -> Tensor:
    """Returns the correlation of two differences whose signs swap together: their means are 0 by symmetry."""
    norms = (one_P.square().sum() * other_P.square().sum() + LEAST).sqrt()  # the root of 0 has no gradient
    return (one_P * other_P).sum() / norms


def length_bias(longer: Sequence[float]) -> float:
    """Returns the log-odds per unit of length that explain the preferences best if nothing else counts.

    The mean of log sigmoid(bias x longer) is concave in the bias; Newton's method finds it, within bounds for labels
    that the length separates.
    """
    longer_P = torch.tensor(longer, dtype=torch.float64)
    scale = float(longer_P.square().mean().sqrt())
    if scale == 0:
        return 0.0
    unit_P, bias = longer_P / scale, 0.0
    for _ in range(NEWTON_STEPS):
        wrong_P = torch.sigmoid(-bias * unit_P)
        slope = float((wrong_P * unit_P).sum())
        curve = float((wrong_P * (1 - wrong_P) * unit_P.square()).sum()) + 1e-9
        step = max(-1.0, min(1.0, slope / curve))
        bias = max(-8.0, min(8.0, bias + step))
        if abs(step) < 1e-10:
            break
    return bias / scale


@dataclass(frozen=True)
class Measured:
    """How scores agree with preferences.

    Attributes:
        pairs: measured pairs.
        accuracy: share of pairs whose chosen reply scores higher; equal scores count by half.
        loss: Bradley-Terry loss without margin, in nats.
        calibration_error: mean difference of confidence and accuracy over `BINS` bins of confidence, by pairs.
        length_correlation: of the differences of scores and of lengths.
        mean: of all scores.
        spread: standard deviation of the differences.
        bins: pairs, mean confidence and accuracy of each bin that has pairs.
    """

    pairs: int
    accuracy: float
    loss: float
    calibration_error: float
    length_correlation: float
    mean: float
    spread: float
    bins: list[tuple[int, float, float]]

    @property
    def figures(self) -> dict[str, float]:
        """Numbers by name."""
        return {
            "pairs": self.pairs,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "calibration_error": self.calibration_error,
            "length_correlation": self.length_correlation,
            "score_mean": self.mean,
            "score_spread": self.spread,
        }


def measure(chosen: Sequence[float], rejected: Sequence[float], longer: Sequence[float]) -> Measured:
    """Measures the scores of pairs."""
    difference_P = torch.tensor(chosen, dtype=torch.float64) - torch.tensor(rejected, dtype=torch.float64)
    right_P = 0.5 * (difference_P.sign() + 1)
    confidence_P = torch.sigmoid(difference_P.abs())
    bin_P = ((confidence_P - 0.5) * 2 * BINS).long().clamp(0, BINS - 1)
    bins = []
    for number in range(BINS):
        inside_P = bin_P == number
        if count := int(inside_P.sum()):
            bins.append((count, float(confidence_P[inside_P].mean()), float(right_P[inside_P].mean())))
    error = sum(count * abs(confidence - accuracy) for count, confidence, accuracy in bins) / len(difference_P)
    both = [*chosen, *rejected]
    return Measured(
        len(difference_P), float(right_P.mean()), float(-F.logsigmoid(difference_P).mean()), error,
        float(cosine(difference_P, torch.tensor(longer, dtype=torch.float64))), math.fsum(both) / len(both),
        float(difference_P.std(correction=0)), bins,
    )  # fmt: skip
