"""Costs fitted to steps: found again if planted, never worse than others, and used by plans."""

import json
import math
import random
from dataclasses import replace
from functools import cache

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.compose import compose, compose_config
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_hw.planner import command, measure, probes
from arcforge_hw.planner.chip import Chip, chips_of
from arcforge_hw.planner.configs import PROBES, PlanConfig
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.fit import COSTS, Fit, fit
from arcforge_hw.planner.layout import Layout
from arcforge_hw.planner.machine import machine_of
from arcforge_hw.planner.serving import decode, prefill
from arcforge_hw.planner.step import Load, forward, work
from arcforge_hw.planner.training import step_work, training_step

LOADS = st.builds(
    lambda tokens, past, decodes: Load(tokens, past, tokens if decodes else 1.0, 1.0),
    st.sampled_from([1.0, 16.0, 300.0]), st.sampled_from([0.0, 500.0]), st.booleans(),
)  # fmt: skip


@cache
def counted(weights="none", preset="small"):
    config = compose([f"model={preset}"])
    return count_model(config.model, config.attention, weights, torch.float32)


def like():
    config = compose(["model=small"])
    return config.model, config.attention


def costs(seed):
    draws = random.Random(seed)
    return {name: draws.choice([0.0, 10.0 ** draws.uniform(-12, -3)]) for name in COSTS}


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(deadline=None, max_examples=25)
def test_planted_costs_are_found(seed, used):
    draws = random.Random(seed)
    names = draws.sample(COSTS, used)
    planted = {name: 10.0 ** draws.uniform(-12, -3) for name in names}
    steps = []
    for _ in range(3 * used):
        amounts = {name: draws.uniform(0.1, 1) / planted[name] for name in names}
        steps.append((amounts, sum(Fit(planted).seconds(amounts).values())))
    found = fit(steps).costs
    assert found == pytest.approx(planted, rel=1e-5)


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_no_costs_that_are_not_negative_have_a_smaller_error(seed):
    draws = random.Random(seed)
    names = draws.sample(COSTS, 4)
    steps = [({name: draws.uniform(0, 1) for name in names}, draws.uniform(0.5, 5)) for _ in range(9)]

    def error(tried):
        return sum((sum(tried.seconds(amounts).values()) / took - 1) ** 2 for amounts, took in steps)

    best = fit(steps)
    assert min(best.costs.values()) >= 0
    for _ in range(50):
        other = {name: max(0.0, best.costs.get(name, 0.0) + draws.gauss(0, 0.3)) for name in names}
        assert error(best) <= error(Fit(other)) + 1e-9


@given(LOADS, st.sampled_from(["none", "w8a8", "w4a8"]), st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=20)
def test_work_is_what_a_roofline_computes_and_moves(load, weights, tp):
    count, layout = counted(weights), Layout(tp=tp)
    found = work(count, layout, load)
    free = machine_of(Chip("free"), {})
    rates = {"fp32": 2.0**40, "int8": 2.0**42, "bf16": None}
    busy = replace(free, flops=rates, bandwidth=math.inf, stream=math.inf, link=math.inf, latency=0.0, call=0.0)
    computed = sum(
        found[f"{part}_{form}"] / rates[form] for part in ("products", "experts") for form in ("fp32", "int8")
    )
    assert forward(count, busy, layout, load).total == pytest.approx(computed + found["core_flops"] / rates["fp32"])
    slow = replace(busy, flops=dict.fromkeys(rates, math.inf), bandwidth=2.0**30, stream=2.0**20)
    moved = (found["products_bytes"] + found["experts_bytes"] + found["core_bytes"]) / 2.0**30
    assert forward(count, slow, layout, load).total == pytest.approx(moved + found["between_bytes"] / 2.0**20)


def test_products_of_one_token_are_twice_its_weights():
    count, load = counted(), Load(1.0, 10.0, 1.0, 1.0)
    found = work(count, Layout(), load)
    matrices = sum(x.attention.values + x.mlp.values for x in count.layers) + count.head.values
    assert 0.97 * 2 * matrices < found["products_fp32"] <= 2 * matrices  # norms and biases are no products
    chosen = sum(x.expert.values for x in count.layers if x.expert) * count.config.num_experts_per_tok
    assert found["experts_fp32"] == 2 * chosen
    assert found["experts"] == pytest.approx(sum(count.config.num_experts_per_tok for x in count.layers if x.expert))


@given(st.integers(0, 10**6), LOADS)
@settings(deadline=None, max_examples=20)
def test_a_fitted_step_is_the_sum_of_its_costs_and_collectives(seed, load):
    count, layout, fitted = counted("w8a8"), Layout(tp=2), Fit(costs(seed))
    machine = machine_of(Chip("here").assuming({"link": 5.0}), {})
    found = forward(count, machine, layout, load, fit=fitted)
    assert found.collectives > 0
    expected = sum(fitted.seconds(work(count, layout, load)).values())
    assert found.total - found.collectives == pytest.approx(expected)


def test_plans_use_the_costs_of_their_kind_of_step():
    count = counted()
    fits = {kind: Fit({"step": seconds}) for kind, seconds in (("prompt", 1.0), ("decode", 2.0), ("train", 3.0))}
    here = machine_of(Chip("here", fits={count.formats: fits}), {})
    assert prefill(count, here, Layout(), 100).ttft == 1.0
    assert decode(count, here, Layout(), 4, 100)[0] == 2.0
    assert training_step(count, here, Layout(), 1024, 256).seconds == 3.0


def test_a_training_step_is_its_work_by_the_costs():
    count, fitted = counted(), Fit(costs(3))
    here = machine_of(Chip("here", fits={count.formats: {"train": fitted}}), {})
    for together in (1, 4):
        expected = sum(fitted.seconds(step_work(count, Layout(), 2048, 256, together)).values())
        assert training_step(count, here, Layout(), 2048, 256, together).seconds == pytest.approx(expected)
    alone, four = (step_work(count, Layout(), 2048, 256, n) for n in (1, 4))
    assert alone["products_fp32"] == pytest.approx(four["products_fp32"])
    assert alone["calls"] == pytest.approx(4 * four["calls"])


FILE = """
here:
  memory: {value: 16, unit: GB, tier: measured, source: x}
  devices_per_node: {value: 1, unit: devices, tier: measured, source: x}
  fits:
    fp32 none:
      prompt: {step: 0.5}
      decode: {step: 0.125, calls: 0}
      train: {step: 8}
"""


def planned(tmp_path, *overrides):
    path = tmp_path / "chips.yaml"
    path.write_text(FILE)
    names = ("model=small", f"chips={path}", "chip=here", "dtype=float32", "context=1k", "new_tokens=100")
    config = compose_config("plan", PlanConfig, [*names, f"output={tmp_path / 'out'}", *overrides])
    result = command.run(config)
    return result.figures, json.loads((result.dir / command.PLAN).read_text())["clusters"][0]


def test_a_file_with_costs_is_planned_with_and_named_as_the_source(tmp_path):
    figures, cluster = planned(tmp_path, "train_batch=8k", "sequence=1k", "tpot_ms=null")
    assert (figures["ttft"], figures["tpot"], figures["step_seconds"]) == (0.5, 0.125, 8)
    fact = cluster["inputs"]["fits"]
    assert fact["tier"] == "measured" and "fp32 none" in fact["source"]
    assert cluster["numbers"]["tpot"]["grounds"] == "assumed"  # the reserve of memory is


@pytest.mark.parametrize("rate", ["bandwidth=10", "bandwidth_efficiency=0.5", "call_us=100"])
def test_an_assumed_rate_takes_the_place_of_costs(tmp_path, rate):
    path = tmp_path / "chips.yaml"
    more = "".join(f"  {name}: {{value: 1, unit: TFLOPS, tier: measured, source: x}}\n" for name in ("fp32", "bf16"))
    path.write_text(
        FILE.replace("  fits:", f"{more}  bandwidth: {{value: 9, unit: GB/s, tier: measured, source: x}}\n  fits:")
    )
    names = ("model=small", f"chips={path}", "chip=here", "dtype=float32", "context=1k", "new_tokens=100")
    config = compose_config("plan", PlanConfig, [*names, f"output={tmp_path / 'out'}", f"+assume.{rate}"])
    assert command.run(config).figures["ttft"] != 0.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prompt:", "promt:", "fits.fp32 none='promt': must be one of prompt, decode, train; did you mean 'prompt'"),
        ("step: 0.5", "stepp: 0.5", "did you mean 'step'"),
        ("step: 0.5", "step: -1", "step=-1: must be seconds, finite and not negative"),
        ("step: 0.5", "step: .inf", "must be seconds"),
        ("step: 0.5", "step: fast", "must be seconds"),
        ("{step: 0.5}", "3", "must map names to values"),
    ],
)
def test_wrong_costs_are_refused_in_one_line(tmp_path, old, new, message):
    path = tmp_path / "chips.yaml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        chips_of(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_probe_models_are_always_the_same_and_none_is_a_preset():
    small = compose(["model=small"]).model
    first = list(probes.probes(small))
    assert first == list(probes.probes(small)) and len(first) == PROBES
    for name, values in probes.SIZES.items():
        seen = [getattr(model, name) for model in first]
        assert {seen.count(value) for value in values} == {PROBES // len(values)}
    for preset in ("small", "mini", "tiny"):
        config = compose([f"model={preset}"]).model
        assert all(any(getattr(model, name) != getattr(config, name) for name in probes.SIZES) for model in first)


def test_the_faster_pass_counts(monkeypatch):
    took = iter([{"prompt": [({"step": 1.0}, 5.0)]}, {"prompt": [({"step": 1.0}, 2.0)]}])
    monkeypatch.setattr(probes, "_measured", lambda *args: ("fp32 none", next(took)))
    assert probes.fitted(like(), "none", torch.float32) == ("fp32 none", {"prompt": Fit({"step": pytest.approx(2.0)})})


def test_without_an_engine_the_file_has_rates_alone(tmp_path, monkeypatch):
    def missing(*args):
        raise UnknownComponentError("no engine paged")

    monkeypatch.setattr(measure, "fitted", missing)
    monkeypatch.setattr(measure, "READ_BYTES", 2**22)
    monkeypatch.setattr(measure, "matmul_rate", lambda dtype: 1e11)
    measure.measure_machine(tmp_path / "here.yaml", like(), torch.float32, 1)
    assert "fits" not in yaml.safe_load((tmp_path / "here.yaml").read_text())["this_machine"]


@pytest.mark.nightly
def test_a_probe_model_is_measured_into_costs():
    formats, fits = probes.fitted(like(), "none", torch.float32, count=1)
    assert formats == "fp32 none" and set(fits) == {"prompt", "decode", "train"}
    for each in fits.values():
        assert sum(each.costs.values()) > 0
