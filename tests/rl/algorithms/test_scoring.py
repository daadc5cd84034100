"""Scores and shares: a trace counts once, whatever its branches and however the batch is cut."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.traces import add_stream, make_branch, make_traces, tokens_of
from arcforge_rl.algorithms.scoring import has_spread, shares
from arcforge_rl.configs.algorithms import BoundsConfig, GrpoConfig

NAMES = registry().names("algorithm")


def build(name, options=None, **bounds):
    component = registry().get("algorithm", name)
    return component.load()(component.load_schema()(**options or {}), BoundsConfig(**bounds))


def scored(algorithm, traces):
    for number, name in enumerate(("old", "reference", "teacher", "values")):
        add_stream(traces, name, number)
    algorithm.score(traces)
    return {b.branch_id: b.streams["old"] + 0.1 for t in traces for b in t.branches}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_micro_batches_change_nothing(name, seed, cuts):
    """Losses of parts of a batch sum to that of the whole."""
    algorithm = build(name)
    traces = make_traces(seed, (3, 2, 2), branches=3)
    current = scored(algorithm, traces)

    def loss(some):
        tokens = tokens_of(some, current)
        return float(sum(algorithm.loss(replace(tokens, values_T=torch.ones_like(tokens.old_T))).parts.values()))

    parts = [traces[n::cuts] for n in range(cuts)]
    assert sum(loss(part) for part in parts if part) == pytest.approx(loss(traces), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("mean", ["sequence", "token"])
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_tokens_of_a_batch_share_one(mean, seed, branches):
    traces = make_traces(seed, (4, 3), branches)
    total = sum(s * t.num_sampled for s, t in zip(shares(traces, GrpoConfig(mean=mean)), traces, strict=True))
    assert total == pytest.approx(1.0)


def test_a_trace_in_three_branches_counts_as_one():
    """Cut into branches, the same tokens have the same weights and the same advantage."""
    draw = random.Random(3)
    parts = [make_branch(draw, f"b{n}", 4) for n in range(3)]
    joined = make_branch(draw, "b", 12)
    other = make_branch(draw, "other", 5)
    for branches in (parts, [joined]):
        traces = [Trace("t", "g", "one", branches, {"reward": 1.0}), Trace("t", "g", "two", [other], {"reward": 0.0})]
        scored(build("grpo"), traces)
        for branch in branches:
            assert branch.streams["weights"].unique().tolist() == pytest.approx([1 / 2 / 12])
            assert branch.streams["advantages"].unique().tolist() == pytest.approx([math.sqrt(0.5)], rel=1e-5)


def test_constant_means_divide_by_what_is_asked_for():
    traces = make_traces(0, (2,))
    assert shares(traces, GrpoConfig(mean="constant", max_tokens=100)) == [1 / 200] * 2


def test_equal_rewards_have_no_advantage():
    traces = [Trace("t", "g", str(n), [make_branch(random.Random(n), str(n), 3)], {"reward": 1.0}) for n in range(4)]
    assert not has_spread(traces)
    for name in ("grpo", "icepop", "dapo", "gspo", "rloo", "double_sided"):
        current = scored(build(name), traces)
        assert float(build(name).loss(tokens_of(traces, current)).parts["policy"]) == 0.0


def test_rewards_that_differ_by_rounding_teach_nothing():
    """Their advantages would be rounding errors over rounding errors."""
    branch = make_branch(random.Random(0), "b", 3)
    one, other = (Trace("t", "g", "r", [branch], {"reward": reward}) for reward in (0.1 + 0.2, 0.3))
    assert one.reward != other.reward and not has_spread([one, other])


def test_distillation_stands_still_where_the_teacher_is_the_student():
    """Eq. 2: no advantage, no gradient; elsewhere a step moves towards what the teacher likes."""
    algorithm, traces = build("opd"), make_traces(1, (1, 1))
    current = scored(algorithm, traces)
    for trace in traces:
        for branch in trace.branches:
            branch.streams["teacher"] = current[branch.branch_id].clone()
    leaves = {name: lp.clone().requires_grad_() for name, lp in current.items()}
    algorithm.loss(tokens_of(traces, leaves)).parts["policy"].backward()
    assert all(leaf.grad.abs().max() == 0 for leaf in leaves.values())
    for trace in traces:
        for branch in trace.branches:
            branch.streams["teacher"] = current[branch.branch_id] + 0.1
    leaves = {name: lp.clone().requires_grad_() for name, lp in current.items()}
    algorithm.loss(tokens_of(traces, leaves)).parts["policy"].backward()
    for trace in traces:
        for branch in trace.branches:
            assert (leaves[branch.branch_id].grad[branch.index_T] < 0).all()


def test_on_policy_the_gradient_of_eq_1_is_pop_times_advantage_over_length():
    algorithm = build("icepop", action="mask", low=0.5, high=2.0)
    traces = make_traces(5, (3,))
    scored(algorithm, traces)
    leaves = {b.branch_id: b.streams["old"].clone().requires_grad_() for t in traces for b in t.branches}
    algorithm.loss(tokens_of(traces, leaves)).parts["policy"].backward()
    for trace in traces:
        for branch in trace.branches:
            for n in branch.index_T.tolist():
                rho = math.exp(float(branch.streams["old"][n]) - branch.logprobs[n])
                pop = rho if 0.5 <= rho <= 2 else 0.0
                wanted = -pop * float(branch.streams["advantages"][n]) / len(traces) / trace.num_sampled
                assert float(leaves[branch.branch_id].grad[n]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_refused(reward):
    traces = make_traces(0, (2,))
    traces[1] = replace(traces[1], rewards={"reward": reward})
    with pytest.raises(ArcforgeError, match=r"trace 0\.1 of task task 0: its reward is"):
        build("grpo").score(traces)


def test_batches_that_cannot_be_scored_are_refused():
    algorithm, traces = build("grpo"), make_traces(0, (2,))
    with pytest.raises(ArcforgeError, match="no traces"):
        algorithm.score([])
    with pytest.raises(ArcforgeError, match=r"two traces are called 0\.0"):
        algorithm.score([traces[0], traces[0]])
    silent = replace(traces[0], branches=[Branch("b", [1], [False], [0.0], [-1])])
    with pytest.raises(ArcforgeError, match="no sampled token"):
        algorithm.score([silent])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (([1, 2], [False, True], [0.0, math.nan], [-1, 0]), "token 1 was sampled with log-probability nan"),
        (([1, 2], [False, True], [0.0, -math.inf], [-1, 0]), "-inf"),
        (([1, 2], [False], [0.0, -1.0], [-1, 0]), "have lengths"),
    ],
)
def test_no_token_is_trained_without_a_logprob(fields, message):
    with pytest.raises(ValueError, match=message):
        Branch("b", *fields)


def test_a_trace_with_copies_scores_as_its_repetition():
    """A group that failures left with two of three rollouts is filled up with a copy (spec 8.2)."""
    one, other = make_traces(3, (2,))
    one.rewards, other.rewards = {"reward": 1.0}, {"reward": 0.0}
    algorithm = build("grpo")
    algorithm.score([replace(one, copies=2), other])
    first, second = (trace.branches[0] for trace in (one, other))
    assert float(first.streams["advantages"][0]) == pytest.approx((1 - 2 / 3) / (math.sqrt(1 / 3) + 1e-6))
    assert float(second.streams["advantages"][0]) == pytest.approx(-2 / 3 / (math.sqrt(1 / 3) + 1e-6))
    assert float(first.streams["weights"][0]) * one.num_sampled == pytest.approx(2 / 3)
    assert float(second.streams["weights"][0]) * other.num_sampled == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="copies must be at least 1, not 0"):
        replace(one, copies=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_current_policy_weighs_tokens_once(name):
    if name in ("double_sided",):
        build(name, pair="current_rollout", action="mask", high=2.0)
        return
    with pytest.raises(ConfigError, match="has the current policy's ratio"):
        build(name, pair="current_rollout", action="mask", high=2.0)
