"""Computes a hybrid reward from the values of its components. G: rollouts of a task."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Mapping, Sequence

from arcforge_rl.rewards.spec import PASSED, Combination, Measured, RewardPart, RewardSpec

REMEMBERED = 4096
"""Values of a component among which a quantile is taken, besides those of the group."""


def compose(spec: RewardSpec, measured: Mapping[str, float]) -> dict[str, float]:
    """Returns the values of all parts of one rollout.

    A part's value is aggregated, then capped; a gate that is not reached or a veto that is makes it 0.

    Args:
        spec: the reward.
        measured: comparable values of its components.
    """
    values: dict[str, float] = {}
    for part in spec.order:
        found = measured[part.name] if isinstance(part, Measured) else aggregated(part, values)
        values[part.name] = credited(part, found, values)
    return values


def aggregated(part: RewardPart, values: Mapping[str, float]) -> float:
    """Returns the value of a combination before gates, vetoes and cap."""
    assert isinstance(part, Combination)
    of = {name: values[name] for name in part.weights}
    if part.aggregation == "all-pass":
        return float(all(value >= PASSED for value in of.values()))
    if part.aggregation == "any-pass":
        return float(any(value >= PASSED for value in of.values()))
    if part.aggregation == "required-pass":
        return float(all(value >= PASSED for name, value in of.items() if name not in part.optional))
    total = sum(part.weights[name] * value for name, value in of.items())
    if part.aggregation == "weighted-sum":
        return total
    mean = total / sum(part.weights.values())
    return float(mean >= part.threshold) if part.aggregation == "threshold" else mean


def credited(part: RewardPart, value: float, values: Mapping[str, float]) -> float:
    """Returns a value after its cap, gates and vetoes."""
    closed = any(values[name] < bound for name, bound in part.gates.items())
    if closed or any(values[name] >= bound for name, bound in part.vetoes.items()):
        return 0.0
    return value if part.cap is None else min(value, part.cap)


class Comparable:
    """Makes the raw values of components comparable. Quantiles are among the values of the run so far.

    Args:
        spec: the reward.
    """

    def __init__(self, spec: RewardSpec) -> None:
        self.spec = spec
        self._seen: dict[str, deque[float]] = {
            name: deque(maxlen=REMEMBERED) for name, part in spec.components.items() if part.normalise == "quantile"
        }

    def __call__(self, raw_G: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
        """Returns the comparable values of a group; in any order of the group the same."""
        found_G: list[dict[str, float]] = [{} for _ in raw_G]
        for name, component in self.spec.components.items():
            value_G = [scaled(component, raw[name]) for raw in raw_G]
            if component.normalise == "group":
                value_G = ranks(value_G, value_G)
            elif component.normalise == "quantile":
                seen = self._seen[name]
                among = [*seen, *value_G]
                seen.extend(sorted(value_G))
                value_G = ranks(value_G, among)
            for found, value in zip(found_G, value_G, strict=True):
                found[name] = value
        return found_G

    @property
    def state(self) -> dict[str, list[float]]:
        """The values seen, for a checkpoint."""
        return {name: list(values) for name, values in self._seen.items()}

    @state.setter
    def state(self, state: Mapping[str, Sequence[float]]) -> None:
        for name, seen in self._seen.items():
            seen.clear()
            seen.extend(state.get(name, ()))


def scaled(component: Measured, value: float) -> float:
    """Returns a value on the component's scale."""
    if component.scale is None:
        return value
    low, high = component.scale
    return min(1.0, max(0.0, (value - low) / (high - low)))


def ranks(value_G: Sequence[float], among: Sequence[float]) -> list[float]:
    """Returns the share of the other values of `among` that each value exceeds, equal ones by half; 0.5 if it has no
    other. `among` contains the values."""
    ordered, others = sorted(among), len(among) - 1
    found = []
    for value in value_G:
        below = bisect.bisect_left(ordered, value)
        equal = bisect.bisect_right(ordered, value) - below - 1
        found.append((below + equal / 2) / others if others else 0.5)
    return found
