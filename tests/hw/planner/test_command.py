"""``arcforge-plan``: its numbers have sources, and a mistake is one line."""

import json

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ConfigError
from arcforge_hw.planner import command
from arcforge_hw.planner.configs import PlanConfig, cluster_of, price_of, tokens_of


def plan(tmp_path, *overrides):
    overrides = ("model=small", "chip=nvidia_h100", "context=1k", "new_tokens=100", *overrides)
    config = compose_config("plan", PlanConfig, [*overrides, f"output={tmp_path / 'out'}"])
    return command.run(config)


def test_every_number_has_unit_tier_and_source(tmp_path):
    result = plan(tmp_path, "beside=[ascend_910c, cambricon_mlu590:2x8]", "train_batch=64k", "+price.nvidia_h100=2 USD")
    written = json.loads((result.dir / command.PLAN).read_text())
    names = [set(cluster["numbers"]) for cluster in written["clusters"]]
    assert names[0] == names[1] == names[2]
    seen = [written["model"], *(c["numbers"] for c in written["clusters"]), *(c["inputs"] for c in written["clusters"])]
    for numbers in seen:
        for name, fact in numbers.items():
            assert fact["tier"], name
            assert fact["source"], name
            assert ("value" in fact) == ("unit" in fact) == (fact["tier"] != "unknown"), name
    assert result.figures["fits"] == "yes"
    assert result.figures["cost_per_hour"] == 16
    assert written["clusters"][2]["layouts"] == {"fits": "unknown"}
    assert "sources disagree" in written["clusters"][2]["numbers"]["tpot"]["source"]


def test_cost_follows_the_price_and_the_assumptions_the_speed(tmp_path):
    cheap = plan(tmp_path / "a", "+price.nvidia_h100=1 CNY").figures
    dear = plan(tmp_path / "b", "+price.nvidia_h100=3 CNY").figures
    assert dear["cost_per_million_new_tokens"] == pytest.approx(3 * cheap["cost_per_million_new_tokens"])
    slow = plan(tmp_path / "c", "+assume.bandwidth_efficiency=0.1", "+assume.nvidia_h100.bf16=100").figures
    assert slow["decode_tokens_per_s"] < cheap["decode_tokens_per_s"]  # tpot is what the limit allows
    assert slow["ttft"] > cheap["ttft"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("chip=nvidia_h10", "did you mean 'nvidia_h100'"),
        ("beside=[nvidia_h200:0]", "must be CHIP, CHIP:NODES or CHIP:NODESxDEVICES"),
        ("beside=[nvidia:1]", "chip='nvidia': must be one of"),
        ("nodes=0", "nodes=0: must be at least 1"),
        ("devices=0", "devices=0: must be at least 1"),
        ("+price.nvidia_h100=2", "an amount and a currency of three letters"),
        ("+price.nvidia_h20=2 USD", "must be a chip of this plan"),
        ("+assume.bandwith=2", "did you mean 'bandwidth'"),
        ("+assume.reserve=1", "must be below 1"),
        ("+assume.link_efficiency=2", "at most 1"),
        ("+assume.nvidia_h20.network=2", "must be a chip of this plan"),
        ("context=many", "must be a number of tokens"),
        ("context=0", "must be a number of tokens"),
        ("context=1m", "must be at most the model's"),
        ("new_tokens=32k", "must be 1 to the model's"),
        ("train_batch=1k", "must be at least one sequence"),
        ("weights=w3", "must be one of none, w8a8"),
        ("tpot_ms=0", "tpot_ms"),
        ("chips=none.yaml", "cannot be read"),
        ("probes=13", "probes=13: must be between 0 and 12"),
        ("dtype=float16", "must be bfloat16 or float32"),
    ],
)
def test_bad_input_is_one_line(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        plan(tmp_path, override)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_two_currencies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="one currency, not CNY, USD"):
        plan(tmp_path, "beside=[nvidia_h20:1]", "+price.nvidia_h100=2 USD", "+price.nvidia_h20=9 CNY")


def test_texts():
    assert tokens_of("context", "200k") == 200_000
    assert tokens_of("context", "1.5m") == 1_500_000
    assert cluster_of("beside", "nvidia_h200:3x2") == ("nvidia_h200", 3, 2)
    assert cluster_of("beside", "nvidia_h200") == ("nvidia_h200", 1, None)
    assert price_of("price", " 12.5 cny") == (12.5, "CNY")


@pytest.mark.nightly
def test_this_machine_is_measured_and_planned_with(tmp_path):
    path = tmp_path / "here.yaml"
    plan(tmp_path, f"measure={path}", "dtype=float32", "probes=1")
    figures = plan(tmp_path, f"chips={path}", "chip=this_machine", "dtype=float32").figures
    assert figures["tpot"] > 0
    with pytest.raises(ConfigError, match="exists"):
        plan(tmp_path, f"measure={path}")
