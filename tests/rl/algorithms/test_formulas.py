"""Every objective's loss and gradient are those of the formula, number by number, in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.plugins.loader import registry
from arcforge_core.testing.traces import add_stream, make_traces, tokens_of
from arcforge_rl.algorithms.scoring import groups as by_group
from arcforge_rl.configs.algorithms import BoundsConfig
from support import rl_formulas as scalar

POP = {"action": "mask", "low": 0.5, "high": 2.0}
BOTH_SIDES = {"pair": "current_rollout", "action": "mask", "low": 0.8, "high": 1.28, "closed": False}


def from_engine(formula):
    """The formula whose old log-probabilities are those that the engine recorded."""

    def found(groups, rewards):
        moved = [[[[{**t, "old": t["roll"]} for t in b] for b in y] for y in group] for group in groups]
        return formula(moved, rewards)

    return found


CASES = {
    "grpo": ({}, {}, scalar.grpo),
    "grpo with kl": ({"kl": 0.3}, {}, partial(scalar.grpo, beta=0.3)),
    "grpo with unbiased kl": ({"kl": 0.3, "unbiased_kl": True}, {}, partial(scalar.grpo, beta=0.3, unbiased=True)),
    "grpo from the engine": ({"old": "engine"}, {}, from_engine(scalar.grpo)),
    "grpo with unbiased kl from the engine": (
        {"old": "engine", "kl": 0.3, "unbiased_kl": True}, {},
        from_engine(partial(scalar.grpo, beta=0.3, unbiased=True)),
    ),
    "cispo from the engine": (
        {"old": "engine", "clip_low": 0.5, "clip_high": 0.3}, {}, from_engine(partial(scalar.cispo, low=0.5, high=0.3)),
    ),
    "gspo from the engine": (
        {"old": "engine", "clip_low": 0.1, "clip_high": 0.2}, {}, from_engine(partial(scalar.gspo, low=0.1, high=0.2)),
    ),
    "icepop": ({}, POP, scalar.icepop),
    "double_sided": ({}, BOTH_SIDES, scalar.double_sided),
    "dapo": ({"overlong_tokens": 5, "overlong_buffer": 3}, {}, partial(scalar.dapo, most=5, buffer=3)),
    "gspo": ({"clip_low": 0.1, "clip_high": 0.2}, {}, partial(scalar.gspo, low=0.1, high=0.2)),
    "cispo": ({"clip_low": 0.5, "clip_high": 0.3}, {}, partial(scalar.cispo, low=0.5, high=0.3)),
    "rloo": ({}, {}, scalar.rloo),
    "reinforce_pp": ({"reward_kl": 0.1}, {}, partial(scalar.reinforce_pp, kl=0.1, baseline=False)),
    "reinforce_pp with a baseline": (
        {"baseline": "group"}, {}, partial(scalar.reinforce_pp, kl=0.0, baseline=True),
    ),
    "ppo": (
        {"discount": 0.9, "gae_lambda": 0.8, "value_weight": 0.7, "value_clip": 0.1}, {},
        partial(scalar.ppo, gamma=0.9, lam=0.8, weight=0.7, value_clip=0.1),
    ),
    "opd": ({}, POP, lambda groups, rewards: scalar.opd(groups)),
}  # fmt: skip


def build(case):
    options, bounds, _ = CASES[case]
    component = registry().get("algorithm", case.split()[0])
    return component.load()(component.load_schema()(**options), BoundsConfig(**bounds))


def scored(algorithm, seed, sizes, branches):
    traces = make_traces(seed, sizes, branches)
    for number, name in enumerate(("old", "reference", "teacher", "values")):
        add_stream(traces, name, seed + number)
    algorithm.score(traces)
    return traces


def as_numbers(traces, current, values):
    """The traces as the scalar formulas want them, and each token's place in the micro-batch."""
    groups, places, at = [], {}, 0
    for group in by_group(traces).values():
        ys = []
        for trace in group:
            y = []
            for branch in trace.branches:
                tokens = []
                for n in branch.index_T.tolist():
                    stream = branch.streams
                    token = {
                        "lp": float(current[branch.branch_id][n]), "sg": float(current[branch.branch_id][n]),
                        "old": float(stream["old"][n]), "roll": branch.logprobs[n],
                        "ref": float(stream["reference"][n]), "teach": float(stream["teacher"][n]),
                        "value_old": float(stream["values"][n]), "value": float(values[at].detach()),
                    }  # fmt: skip
                    places[at] = token
                    tokens.append(token)
                    at += 1
                y.append(tokens)
            ys.append(y)
        groups.append(ys)
    return groups, places


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    branches=st.integers(1, 3),
    spread=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_loss_and_gradient_equal_the_formula(case, seed, sizes, branches, spread):
    algorithm, formula = build(case), CASES[case][2]
    traces = scored(algorithm, seed, sizes, branches)
    draw = torch.Generator().manual_seed(seed + 9)
    current = {
        b.branch_id: (b.streams["old"] + spread * torch.randn(len(b.ids), generator=draw, dtype=torch.float64))
        for t in traces
        for b in t.branches
    }
    total = sum(t.num_sampled for t in traces)
    values = torch.randn(total, generator=draw, dtype=torch.float64, requires_grad=True)
    leaves = {name: lp.clone().requires_grad_() for name, lp in current.items()}
    loss = sum(algorithm.loss(tokens_of(traces, leaves, values_T=values)).parts.values())
    rewards = [[t.reward for t in group] for group in by_group(traces).values()]
    numbers, places = as_numbers(traces, current, values)
    assert float(loss.detach()) == pytest.approx(formula(numbers, rewards), rel=2e-5, abs=2e-6)

    loss.backward()
    gradient = torch.cat([leaves[b.branch_id].grad[b.index_T] for t in traces for b in t.branches])
    for at, token in places.items():
        for field, found in (("lp", gradient[at]), ("value", values.grad[at] if values.grad is not None else 0.0)):
            here, centre, slopes = token[field], formula(numbers, rewards), []
            for step in (1e-6, -1e-6):
                token[field] = here + step
                slopes.append((formula(numbers, rewards) - centre) / step)
            token[field] = here
            low, high = sorted(slopes)
            assert low - 1e-4 <= float(found) <= high + 1e-4  # at a kink any slope between the two sides is one


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_corrections_compare_trainer_and_engine_whatever_is_below_the_ratio(seed):
    component = registry().get("algorithm", "icepop")
    factors, losses = [], []
    for old in ("trainer", "engine"):
        algorithm = component.load()(component.load_schema()(old=old), BoundsConfig(**POP))
        traces = scored(algorithm, seed, [3, 2], 2)
        leaves = {b.branch_id: b.streams["old"] for t in traces for b in t.branches}
        found = algorithm.loss(tokens_of(traces, leaves))
        factors.append(found.factor_T)
        losses.append(float(sum(found.parts.values())))
    assert torch.equal(*factors)
    assert losses[0] != losses[1] or not any(b.streams["advantages"].any() for t in traces for b in t.branches)
