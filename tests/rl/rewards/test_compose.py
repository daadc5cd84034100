"""Composition equals a slow reference for random trees; the order of a group changes nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_rl.rewards.compose import REMEMBERED, Comparable, compose, ranks
from arcforge_rl.rewards.spec import AGGREGATIONS, NORMALISATIONS, Combination, Measured, RewardPart, RewardSpec
from arcforge_rl.rewards.toml import spec_of, to_toml

NUMBERS = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.9, 1.0, 2.0])
BOUNDS = st.sampled_from([-0.5, 0.25, 0.5, 1.0])


@st.composite
def specs(draw: st.DrawFn) -> RewardSpec:
    """A random tree: components c0.., combinations n0.. above them, and the root above all."""

    def credit(below: Sequence[str]) -> dict[str, Any]:
        bounds = st.dictionaries(st.sampled_from(below), BOUNDS, max_size=2) if below else st.just({})
        return {
            "gates": draw(bounds),
            "vetoes": draw(bounds),
            "cap": draw(st.none() | st.sampled_from([0.3, 0.8])),
        }

    names: list[str] = []
    parts: list[RewardPart] = []
    for number in range(draw(st.integers(1, 4))):
        scale = draw(st.none() | st.just((-1.0, 3.0)))
        normalise = draw(st.sampled_from(NORMALISATIONS))
        parts.append(Measured(f"c{number}", **credit(names), scale=scale, normalise=normalise))
        names.append(f"c{number}")
    for number in range(draw(st.integers(0, 3))):
        parts.append(combined(draw, f"n{number}", draw(st.sets(st.sampled_from(names), min_size=1)), credit(names)))
        names.append(f"n{number}")
    parts.append(combined(draw, "reward", set(names), credit(names)))
    return RewardSpec(draw(st.permutations(parts)))


def combined(draw: st.DrawFn, name: str, of: set[str], credit: Mapping[str, Any]) -> Combination:
    aggregation = draw(st.sampled_from(AGGREGATIONS))
    low = -2.0 if aggregation == "weighted-sum" else 0.0
    weights = {one: draw(st.sampled_from([low, 0.5, 1.0, 3.0])) for one in sorted(of)}
    first = min(weights)
    weights[first] = 1.0 if sum(weights.values()) <= 0 else weights[first]
    optional = tuple(sorted(of))[1:] if aggregation == "required-pass" and draw(st.booleans()) else ()
    return Combination(
        name, **credit, weights=weights, aggregation=aggregation, threshold=draw(BOUNDS), optional=optional
    )


def slow(spec: RewardSpec, name: str, measured: Mapping[str, float]) -> float:
    """The value of a part by its definition, everything computed again where it is read."""
    part: RewardPart = (spec.components | spec.combinations)[name]  # type: ignore[operator]
    for other, bound in part.gates.items():
        if slow(spec, other, measured) < bound:
            return 0.0
    for other, bound in part.vetoes.items():
        if slow(spec, other, measured) >= bound:
            return 0.0
    if isinstance(part, Combination):
        pairs = [(weight, slow(spec, other, measured)) for other, weight in part.weights.items()]
        mean = sum(w * v for w, v in pairs) / (sum(w for w, _ in pairs) or 1.0)
        needed = [v for other, (_, v) in zip(part.weights, pairs, strict=True) if other not in part.optional]
        value = {
            "weighted-mean": mean,
            "weighted-sum": sum(w * v for w, v in pairs),
            "threshold": 1.0 if mean >= part.threshold else 0.0,
            "all-pass": 1.0 if min(v for _, v in pairs) >= 1.0 else 0.0,
            "any-pass": 1.0 if max(v for _, v in pairs) >= 1.0 else 0.0,
            "required-pass": 1.0 if min(needed) >= 1.0 else 0.0,
        }[part.aggregation]
    else:
        value = measured[name]
    return value if part.cap is None or value < part.cap else part.cap


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_composition_equals_the_reference(data: st.DataObject) -> None:
    spec = data.draw(specs())
    measured = {name: data.draw(NUMBERS) for name in spec.components}
    found = compose(spec, measured)
    assert found == {name: pytest.approx(slow(spec, name, measured)) for name in found}
    assert set(found) == {*spec.components, *spec.combinations}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_order_of_a_group_changes_no_reward(data: st.DataObject) -> None:
    spec = data.draw(specs())
    raw = [{name: data.draw(NUMBERS) for name in spec.components} for _ in range(data.draw(st.integers(1, 5)))]
    order = data.draw(st.permutations(range(len(raw))))
    rewards = []
    for places in (range(len(raw)), order):
        comparable = Comparable(spec)
        comparable([dict.fromkeys(spec.components, 0.3)] * 2)  # earlier values of the run
        found = comparable([raw[place] for place in places])
        by_place = dict(zip(places, (compose(spec, one) for one in found), strict=True))
        rewards.append([by_place[place] for place in range(len(raw))])
        assert comparable(raw) == comparable(raw) or any(c.normalise == "quantile" for c in spec.components.values())
    assert rewards[0] == rewards[1]


@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_file_says_the_whole_reward(spec: RewardSpec) -> None:
    again = spec_of(tomllib.loads(to_toml(spec)))
    assert again.combinations == spec.combinations
    assert again.components == spec.components


def test_ranks_are_shares_of_the_others_that_a_value_exceeds() -> None:
    assert ranks([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == [0.0, 0.5, 1.0]
    assert ranks([1.0, 1.0, 5.0], [1.0, 1.0, 5.0]) == [0.25, 0.25, 1.0]
    assert ranks([7.0], [7.0]) == [0.5]


def test_quantiles_are_among_the_last_values_of_the_run_and_survive_a_checkpoint() -> None:
    spec = RewardSpec([Measured("a", normalise="quantile"), Combination("reward", weights={"a": 1.0})])
    comparable = Comparable(spec)
    assert comparable([{"a": 5.0}]) == [{"a": 0.5}]
    comparable([{"a": float(n)} for n in range(4)])
    again = Comparable(spec)
    again.state = comparable.state
    assert again([{"a": 4.0}]) == comparable([{"a": 4.0}]) == [{"a": 0.8}]
    comparable([{"a": 100.0}] * REMEMBERED)
    assert comparable([{"a": 99.0}]) == [{"a": 0.0}]


def test_scales_are_linear_and_bounded() -> None:
    spec = RewardSpec([Measured("a", scale=(2.0, 4.0)), Combination("reward", weights={"a": 1.0})])
    assert [one["a"] for one in Comparable(spec)([{"a": v} for v in (1.0, 2.0, 3.0, 9.0)])] == [0.0, 0.0, 0.5, 1.0]
