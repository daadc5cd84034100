"""Composed configurations have the objectives of the paper, in NumPy and float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rl.trainer.conftest import Compose

from arcforge_core.testing.traces import add_stream, make_traces, tokens_of
from arcforge_rl.trainer.build import build_algorithm

Array = NDArray[np.float64]


def pop(rho_T: Array) -> Array:
    return np.where((rho_T >= 0.5) & (rho_T <= 2.0), rho_T, 0.0)


def eq_1(p_T: Array, old_T: Array, rollout_T: Array, advantages_T: Array) -> Array:
    """A token's loss, beta = 2, epsilons 0.2 and 0.28."""
    r_T = np.exp(p_T - old_T)
    return -pop(np.exp(old_T - rollout_T)) * np.minimum(r_T * advantages_T, r_T.clip(0.8, 1.28) * advantages_T)


def eq_3(p_T: Array, old_T: Array, rollout_T: Array, advantages_T: Array) -> Array:
    """A token's loss as it is differentiated: f is constant."""
    r_T = np.exp(p_T - rollout_T)
    return -np.where((r_T > 0.8) & (r_T < 1.28), r_T, 0.0) * advantages_T * p_T


@pytest.mark.parametrize(("name", "formula"), [("opd", eq_1), ("icepop", eq_1), ("double_sided", eq_3)])
def test_the_composed_default_is_the_objective_of_the_paper(
    small_run: Compose, name: str, formula: Callable[..., Array]
) -> None:
    algorithm = build_algorithm(small_run(f"algorithm={name}"))
    traces = make_traces(3, [4, 3], 2)
    for number, stream in enumerate(("old", "teacher")):
        add_stream(traces, stream, 5 + number)
    algorithm.score(traces)
    branches = [branch for trace in traces for branch in trace.branches]
    draw = torch.Generator().manual_seed(1)
    shifts = [0.3 * torch.randn(len(b.ids), generator=draw, dtype=torch.float64) for b in branches]
    leaves = {b.branch_id: (b.streams["old"] + s).requires_grad_() for b, s in zip(branches, shifts, strict=True)}
    loss = sum(algorithm.loss(tokens_of(traces, leaves)).parts.values())
    assert isinstance(loss, torch.Tensor)
    loss.backward()

    groups: dict[str, list[float]] = {}
    for trace in traces:
        groups.setdefault(trace.group_id, []).append(trace.reward)
    terms, tokens, masked = 0.0, sum(trace.num_sampled for trace in traces), 0
    for trace in traces:
        own, number = np.array(groups[trace.group_id]), len(groups) * len(groups[trace.group_id])
        share = 1 / tokens if name == "double_sided" else 1 / number / trace.num_sampled
        advantage = trace.reward - own.mean()
        if name == "icepop":
            advantage /= own.std(ddof=1) + 1e-6
        for branch in trace.branches:
            at = branch.index_T.numpy()
            p, old, teacher = (
                x.detach().double().numpy()[at]
                for x in (leaves[branch.branch_id], branch.streams["old"], branch.streams["teacher"])
            )
            rollout = np.array(branch.logprobs)[at]
            advantages = teacher - p if name == "opd" else np.full(len(at), advantage)
            terms += share * formula(p, old, rollout, advantages).sum()
            step = 1e-6
            up, down = (formula(p + s, old, rollout, advantages) for s in (step, -step))
            gradient = leaves[branch.branch_id].grad
            assert gradient is not None
            found, slopes = gradient.numpy()[at], share * (up - down) / (2 * step)
            if name == "double_sided":  # f has no gradient
                r = np.exp(p - rollout)
                slopes = -share * np.where((r > 0.8) & (r < 1.28), r, 0.0) * advantages
            np.testing.assert_allclose(found, slopes, atol=1e-6)
            masked += int((formula(p, old, rollout, advantages) == 0.0).sum())
    assert float(loss.detach()) == pytest.approx(terms, rel=1e-5)
    assert 0 < masked < tokens, "tokens on both sides of the bounds"
