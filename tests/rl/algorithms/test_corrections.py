"""Corrections: masks flip exactly at their bounds, presets are the published rules, metrics say what happened."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import PolicyTokens
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.registry import Component, Registry
from arcforge_core.testing.algorithm_suite import loss_of, scored
from arcforge_rl.algorithms import base
from arcforge_rl.algorithms.corrections import Correction
from arcforge_rl.algorithms.grpo import Grpo
from arcforge_rl.configs.algorithms import BoundsConfig, GrpoConfig
from arcforge_rl.trainer.build import preset


def tokens(current, old, rollout, advantages=None, traces=None):
    """A micro-batch of log-probabilities."""
    current_T, old_T, rollout_T = (torch.tensor(x, dtype=torch.float64) for x in (current, old, rollout))
    advantages_T = torch.ones_like(old_T) if advantages is None else torch.tensor(advantages, dtype=torch.float64)
    trace_T = torch.zeros(len(old_T), dtype=torch.int64) if traces is None else torch.tensor(traces)
    return PolicyTokens(current_T, old_T, rollout_T, advantages_T, torch.ones_like(old_T), trace_T)


def factors(config, *args, **kwargs):
    return Correction(config)(tokens(*args, **kwargs))


def next_to(value, up):
    return math.nextafter(value, math.inf if up else -math.inf)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("bound", ["low", "high"])
def test_masks_flip_exactly_at_their_bounds(closed, bound):
    """The bound itself, and the next number on either side of it."""
    ratio = torch.tensor(-0.7, dtype=torch.float64).exp().item()
    for edge, inside in (
        (ratio, closed),
        (next_to(ratio, up=bound == "high"), True),
        (next_to(ratio, up=bound == "low"), False),
    ):
        found, metrics = factors(BoundsConfig(action="mask", closed=closed, **{bound: edge}), [-1.0], [-1.0], [-0.3])
        assert found.item() == (ratio if inside else 0.0)
        assert metrics[f"masked_{bound}"].item() == (0.0 if inside else 1.0)


@settings(max_examples=100, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3), st.booleans())
def test_pop_and_f_are_the_ratio_inside_and_nothing_outside(log_rho, log_r, positive):
    """pop of eq. 1 is closed, f of eq. 5 open; neither asks for the advantage's sign."""
    old, rollout = -3.5, -3.5 - log_rho
    current = rollout + log_r
    sign = [1.0 if positive else -1.0]
    pop, _ = factors(BoundsConfig(action="mask", low=0.5, high=2.0), [current], [old], [rollout], sign)
    rho = math.exp(old - rollout)
    assert pop.item() == pytest.approx(rho if 0.5 <= rho <= 2 else 0.0)
    config = BoundsConfig(pair="current_rollout", action="mask", low=0.8, high=1.28, closed=False)
    f, _ = factors(config, [current], [old], [rollout], sign)
    r = math.exp(current - rollout)
    assert f.item() == pytest.approx(r if 0.8 < r < 1.28 else 0.0)


def test_truncated_weights_keep_every_token():
    found, metrics = factors(
        BoundsConfig(action="truncate", high=2.0), [-1.0] * 3, [-1.0, -1.0, -1.0], [-3.0, -1.0, -0.5]
    )
    assert found.tolist() == pytest.approx([2.0, 1.0, math.exp(-0.5)])
    assert metrics["masked_high"].item() == pytest.approx(1 / 3)


def test_differences_of_probabilities_count_in_the_direction_of_the_advantage_only():
    config = BoundsConfig(
        pair="current_rollout", metric="difference", action="reject", low=-0.2, high=0.2, sign="outward"
    )
    up, down = [math.log(0.8)], [math.log(0.5)]
    assert factors(config, up, down, down, [1.0])[0].item() == 0.0
    assert factors(config, up, down, down, [-1.0])[0].item() == 1.0
    assert factors(config, down, up, up, [-1.0])[0].item() == 0.0
    assert factors(config, down, up, up, [1.0])[0].item() == 1.0


def test_sequences_stand_and_fall_together():
    """Trace 0 has one token far off and one near, trace 1 only near ones."""
    args = [-1.0] * 4, [-1.0, -1.0, -1.0, -1.0], [-2.0, -1.0, -1.001, -0.999]
    for level, value in (("sequence", math.exp(1.0)), ("geometric", math.exp(0.5))):
        config = BoundsConfig(level=level, action="mask", low=0.5, high=3.0)
        assert factors(config, *args, traces=[0, 0, 1, 1])[0].tolist() == pytest.approx([value, value, 1.0, 1.0])
        config = BoundsConfig(level=level, action="reject", high=1.01)
        assert factors(config, *args, traces=[0, 0, 1, 1])[0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_off_policy_traces_are_left_out_where_the_advantage_is_negative():
    config = BoundsConfig(
        pair="current_rollout", level="geometric", metric="k1", action="reject", high=1e-4, sign="negative"
    )
    args = [-1.0, -1.0], [-1.0, -1.0], [-0.9, -1.0]
    assert factors(config, *args, advantages=[-1.0, -1.0])[0].tolist() == [0.0, 0.0]
    assert factors(config, *args, advantages=[1.0, 1.0])[0].tolist() == [1.0, 1.0]
    assert factors(config, *args, advantages=[-1.0, -1.0], traces=[0, 1])[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("sign", "masked"),
    [("both", [True] * 4), ("outward", [True, False, False, True]), ("negative", [True, False, True, False])],
)
def test_signs_say_for_which_advantages_each_bound_counts(sign, masked):
    """Ratios below, below, above and above, with advantages -1, 1, -1 and 1."""
    rollout = [-0.5, -0.5, -1.5, -1.5]
    config = BoundsConfig(action="reject", low=0.9, high=1.1, sign=sign)
    found, _ = factors(config, [-1.0] * 4, [-1.0] * 4, rollout, advantages=[-1.0, 1.0, -1.0, 1.0])
    assert [factor == 0.0 for factor in found.tolist()] == masked


@pytest.mark.parametrize(("metric", "value"), [("k1", -0.3), ("k2", 0.045), ("k3", math.exp(0.3) - 1.3)])
def test_estimates_of_kl_are_bounded_too(metric, value):
    for bound, inside in ((value + 1e-9, 1.0), (value - 1e-9, 0.0)):
        config = BoundsConfig(metric=metric, action="reject", high=bound)
        assert factors(config, [-1.0], [-1.0], [-1.3])[0].item() == inside


def test_metrics_say_how_far_the_engines_are_apart():
    config = BoundsConfig(action="mask", low=0.5, high=2.0)
    _, metrics = factors(config, [-1.0] * 4, [-1.0] * 4, [-1.0, -1.0, -2.0, -0.1])
    assert metrics["masked_high"].item() == metrics["masked_low"].item() == 0.25
    assert metrics["ratio_50"].item() == pytest.approx(1.0)
    assert metrics["effective_samples"].item() == pytest.approx(0.5)
    k3 = [0.0, 0.0, math.e - 2, math.exp(-0.9) - 0.1]
    assert metrics["k3"].item() == pytest.approx(sum(k3) / 4)
    assert metrics["ratio_99"] > 2 > 1 > metrics["ratio_1"]


def test_without_an_action_nothing_changes_and_no_gradient_flows():
    current = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    base = tokens([0.0, 0.0], [-1.0, -2.0], [-5.0, -0.1])
    found, _ = Correction(BoundsConfig())(
        PolicyTokens(current, base.old_T, base.rollout_T, base.advantages_T, base.weights_T, base.trace_T)
    )
    assert found.tolist() == [1.0, 1.0]
    assert not found.requires_grad


def test_extreme_differences_stay_finite():
    found, metrics = factors(BoundsConfig(action="truncate", high=1e30), [-1e4], [0.0], [-1e4])
    assert found.isfinite().all()
    assert all(value.isfinite().all() for value in metrics.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pair": "a_b"}, "correction.pair"),
        ({"action": "mask"}, "needs a bound"),
        ({"high": 1.0}, "bounds have no effect"),
        ({"action": "mask", "low": 2.0, "high": 1.0}, "must not be above"),
        ({"action": "mask", "metric": "difference", "level": "sequence", "high": 1.0}, "token by token"),
        ({"action": "truncate", "metric": "k1", "high": 1.0}, "metric=ratio"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        BoundsConfig(**options)


PRESETS = {
    "none": BoundsConfig(),
    "tis": BoundsConfig(action="truncate", high=2.0),
    "icepop": BoundsConfig(action="mask", low=0.5, high=2.0),
    "double_sided": BoundsConfig(pair="current_rollout", action="mask", low=0.8, high=1.28, closed=False),
}


def test_presets_are_the_published_rules():
    """GLM-5 gives beta = 2 for pop; 0.2 and 0.28 for f are a guess, its eq. 5 leaves them open."""
    folder = files("arcforge_rl.conf") / "correction"
    found = {}
    for path in folder.iterdir():
        if path.name.endswith(".yaml"):
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
            assert values.pop("defaults") == ["custom", "_self_"]
            found[path.name.removesuffix(".yaml")] = BoundsConfig(**values)
    assert sorted(found) == ["double_sided", "dppo", "icepop", "none", "opsm", "seq_geo", "tis"]
    assert {name: found[name] for name in PRESETS} == PRESETS


@dataclass
class HalfConfig(CorrectionConfig):
    name: str = "half"


class Half:
    """A correction of a plugin: every token counts half."""

    def __init__(self, config):
        self.config = config

    def __call__(self, tokens):
        return torch.full_like(tokens.logprobs_T.detach(), 0.5), {"halved": torch.tensor(1.0)}


def test_a_plugins_correction_is_the_one_that_is_used(monkeypatch):
    plugins = Registry()
    plugins.register(Component("correction", "half", "acme:Half", "acme:HalfConfig", "test", "acme", "acme 1.0"))
    with monkeypatch.context() as patch:
        patch.setattr(base, "registry", lambda: plugins)
        patch.setattr(Component, "load", lambda component: Half)
        halved = Grpo(GrpoConfig(), HalfConfig())
    traces, current = scored(Grpo(GrpoConfig(), preset("none")), 0)
    _, whole = loss_of(Grpo(GrpoConfig(), preset("none")), traces, current)
    _, half = loss_of(halved, traces, current)
    torch.testing.assert_close(half.parts["policy"], whole.parts["policy"] / 2)
    assert half.metrics["halved"] == 1.0
