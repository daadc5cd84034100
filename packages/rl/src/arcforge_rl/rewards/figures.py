"""Figures of the components of a hybrid reward over the rollouts of a step. G: rollouts of a task."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from arcforge_rl.rewards.compose import compose
from arcforge_rl.rewards.spec import ROOT, RewardSpec

LEAST = 1e-12
"""Variances below are those of rounding."""


def component_figures(spec: RewardSpec, groups: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Returns spread, share of the advantage's variance, and correlations of the components.

    ``reward_A_spread`` is the standard deviation over all rollouts and ``reward_A_with_B`` Pearson's correlation. A
    component contributes to a rollout what its reward loses when the component has its mean over the group instead.
    ``reward_A_share`` is the covariance of contribution and reward within groups, divided by the reward's variance
    there. The shares sum to 1 where the reward is a weighted sum; gates and thresholds are charged to the components
    that open and pass them.

    Args:
        spec: the reward.
        groups: values of all parts of each rollout, as used; rollouts without rewards are left out.
    """
    found: dict[str, float] = {}
    columns = {name: [values[name] for group in groups for values in group] for name in spec.components}
    for name, column in columns.items():
        found[f"reward_{name}_spread"] = statistics.pstdev(column) if column else 0.0
    for one, other in itertools.combinations(columns, 2):
        together = correlation(columns[one], columns[other])
        if together is not None:
            found[f"reward_{one}_with_{other}"] = together
    advantages = [value for group in groups for value in centred([values[ROOT] for values in group])]
    variance = sum(value * value for value in advantages)
    if variance <= LEAST:
        return found
    for name in spec.components:
        parts = [value for group in groups for value in contributions(spec, name, group)]
        share = sum(part * advantage for part, advantage in zip(parts, advantages, strict=True)) / variance
        found[f"reward_{name}_share"] = share
    return found


def contributions(spec: RewardSpec, name: str, values_G: Sequence[Mapping[str, float]]) -> list[float]:
    """Returns what a component adds to each reward of a group, compared with its mean over the group; centred."""
    mean = sum(values[name] for values in values_G) / len(values_G)
    without = [
        compose(spec, {one: mean if one == name else values[one] for one in spec.components})[ROOT]
        for values in values_G
    ]
    return centred([values[ROOT] - other for values, other in zip(values_G, without, strict=True)])


def centred(values: Sequence[float]) -> list[float]:
    """Returns values minus their mean."""
    mean = sum(values) / len(values) if values else 0.0
    return [value - mean for value in values]


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns Pearson's correlation; None where one of the two does not vary."""
    left, right = centred(one), centred(other)
    spreads = sum(a * a for a in left), sum(b * b for b in right)
    if min(spreads) <= LEAST:
        return None
    return sum(a * b for a, b in zip(left, right, strict=True)) / math.sqrt(spreads[0] * spreads[1])
