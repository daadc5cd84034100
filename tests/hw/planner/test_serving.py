"""Layouts, and the times of prompts and of decoding."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.config.compose import compose
from arcforge_hw.planner.chip import chip_named
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.layout import Layout, expert_share, layouts, weight_bytes
from arcforge_hw.planner.machine import machine_of
from arcforge_hw.planner.serving import best_decode, best_prefill, room
from arcforge_hw.planner.step import Load, forward
from arcforge_hw.planner.training import best_training

H100 = machine_of(chip_named("nvidia_h100").assuming({"network": 50.0}), {})


@cache
def counted(weights="none"):
    config = compose(["model=small"])
    return count_model(config.model, config.attention, weights)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3]))
@settings(deadline=None, max_examples=8)
def test_layouts_use_every_device_once_and_hold_all_weights(devices, nodes):
    count = counted()
    found = list(layouts(count, nodes, devices, cp=True))
    assert len(set(found)) == len(found) > 0
    for layout in found:
        assert layout.devices == devices * nodes
        assert devices % layout.tp == 0
        assert count.config.num_attention_heads % layout.tp == 0
        assert weight_bytes(count, layout) * layout.devices / layout.copies >= 0.999 * (
            count.bytes - count.embedding.bytes
        )
        assert 0 < expert_share(count, layout) <= 1


@given(
    st.floats(2, 1e4), st.floats(0, 3e4), st.sampled_from(["memory", "bandwidth", "link", "flops"]), st.floats(1.01, 10)
)
@settings(deadline=None, max_examples=25)
def test_faster_machines_take_less_and_longer_loads_more(tokens, past, what, times):
    count, layout = counted(), Layout(tp=2, dp=4)
    load = Load(tokens, past, 1.0, 1.0)
    base = forward(count, H100, layout, load).total
    if what == "flops":
        better = replace(H100, flops={form: rate and rate * times for form, rate in H100.flops.items()})
    else:
        better = replace(H100, **{what: getattr(H100, what) * times})
    assert forward(count, better, layout, load).total <= base
    assert forward(count, H100, layout, replace(load, tokens=tokens * times)).total >= base
    assert forward(count, H100, layout, replace(load, past=past + 1000 * times)).total >= base


@given(st.integers(10, 20), st.floats(1.1, 8), st.sampled_from([64, 1000, 8000]))
@settings(deadline=None, max_examples=20)
def test_more_memory_never_serves_fewer_tokens(exponent, times, context):
    count = counted()
    little = replace(H100, memory=count.bytes * 1.0 + 2.0**exponent * 1000)
    much = replace(little, memory=little.memory * times)
    layout = Layout(dp=2)
    assert room(count, much, layout, context) >= room(count, little, layout, context)
    found = [best_decode(count, machine, 1, 2, context, 10, 0.05) for machine in (little, much)]
    if found[0] is not None:
        assert found[1].tokens_per_s >= found[0].tokens_per_s * (1 - 1e-9)


@given(st.sampled_from([64, 1000, 8000]), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=12)
def test_more_devices_never_serve_less(context, devices):
    count = counted()
    few, many = (best_decode(count, H100, 1, n, context, 10, 0.05) for n in (devices, 2 * devices))
    assert many.tokens_per_s >= few.tokens_per_s
    few, many = (best_prefill(count, H100, 1, n, context, None) for n in (devices, 2 * devices))
    assert many.prompts_per_s >= few.prompts_per_s
    assert best_prefill(count, H100, 1, devices, context, few.ttft).ttft <= few.ttft


def test_limits_choose_the_layout():
    count = counted()
    fast = best_decode(count, H100, 1, 8, 1000, 100, 1e-9)  # none is that fast: the fastest there is
    slow = best_decode(count, H100, 1, 8, 1000, 100, None)
    assert fast.tpot < slow.tpot
    assert fast.tokens_per_s < slow.tokens_per_s
    assert slow.sequences <= slow.limit


def test_what_does_not_fit_has_no_plan():
    count = counted()
    tiny = replace(H100, memory=count.bytes / 20)
    assert best_decode(count, tiny, 1, 2, 1000, 100, None) is None
    assert best_prefill(count, tiny, 1, 2, 1000, None) is None
    assert best_training(count, tiny, 1, 2, 8192, 4096) is None


def test_int8_weights_decode_one_sequence_in_less_time():
    plain, small = (best_decode(counted(weights), H100, 1, 1, 100, 10, 1e-9) for weights in ("none", "w8a8"))
    assert small.tpot < plain.tpot


def test_collectives_cost_more_between_nodes():
    count = counted()
    load = Load(512.0, 0.0, 1.0, 1.0)
    inside, across = (forward(count, H100, Layout(dp=16, nodes=n), load).collectives for n in (1, 2))
    assert 0 < inside < across


@given(st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None, max_examples=4)
def test_training_steps_are_faster_on_more_devices_and_below_the_peak(devices):
    count = counted()
    found = best_training(count, H100, 1, devices, 64 * 4096, 4096)
    more = best_training(count, H100, 1, 2 * devices, 64 * 4096, 4096)
    assert more.seconds < found.seconds
    assert 0 < found.flops / found.seconds < H100.flops["bf16"] * devices
    assert found.memory <= H100.memory


def test_a_roofline_is_never_below_flops_or_bytes():
    count = counted()
    for tokens in (1.0, 64.0, 4096.0):
        found = forward(count, H100, Layout(), Load(tokens, 0.0, 1.0, 1.0)).total
        flops = count.training((tokens + 1) / 2).main / 3 * tokens - sum(count.head.flops.values()) * (tokens - 1)
        assert found >= 0.8 * flops / H100.flops["bf16"]
    assert forward(count, H100, Layout(), Load(1.0, 0.0, 1.0, 1.0)).total >= count.head.bytes / H100.bandwidth


@pytest.mark.parametrize("tokens", [1.0, 3.0])
def test_a_step_is_the_sum_of_its_parts(tokens):
    found = forward(counted(), replace(H100, call=1e-6), Layout(tp=2, dp=2), Load(tokens, 10.0, tokens, tokens))
    parts = (
        found.attention, found.core, found.mlp, found.experts, found.between, found.head, found.collectives, found.host,
    )  # fmt: skip
    assert min(parts) > 0
    assert found.total == pytest.approx(sum(parts))
