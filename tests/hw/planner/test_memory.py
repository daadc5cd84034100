"""Weights and caches against the memory of nodes."""

import pytest

from arcforge_core.config.compose import compose
from arcforge_core.errors import ConfigError
from arcforge_hw.planner.chip import chip_named
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.memory import fit


def fitted(model, chip, weights="none", **request):
    config = compose([f"model={model}"])
    return fit(count_model(config.model, config.attention, weights), chip_named(chip), **request)


@pytest.mark.nightly
@pytest.mark.parametrize(("weights", "fits"), [("none", False), ("w4a8", True)])
def test_glm5_fits_one_a3_node_in_w4a8_but_not_in_bf16(weights, fits):
    found = fitted("glm5", "ascend_910c", nodes=1, context=200_000, weights=weights)
    assert found.available.value == 1024 * 10**9
    assert found.available.grounds == "vendor"
    assert found.fits is fits
    assert (found.sequences.value > 0) is fits


@pytest.mark.nightly
def test_bf16_needs_two_a3_nodes_and_w4a8_one_a2_node_as_the_vendor_says():
    found = fitted("glm5", "ascend_910c", nodes=2, context=1000)
    assert found.weights.value == pytest.approx(2 * 753.864e9, rel=1e-4)
    assert found.fits
    assert fitted("glm5", "ascend_910b2", nodes=1, context=200_000, weights="w4a8").fits


def test_an_unknown_memory_stays_unknown():
    found = fitted("tiny", "cambricon_mlu590", nodes=1, context=10)
    assert (found.available.value, found.fits, found.sequences.value) == (None, None, None)
    assert "sources disagree" in found.sequences.source


def test_named_devices_replace_the_chips_own():
    assert fitted("tiny", "nvidia_h20", nodes=1, context=10).fits is None
    found = fitted("tiny", "nvidia_h20", nodes=1, context=10, devices=8)
    assert found.available.value == 8 * 96e9


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"nodes": 0, "context": 10}, "nodes=0: must be at least 1"),
        ({"nodes": 1, "context": 0}, "context=0: must be 1 to"),
        ({"nodes": 1, "context": 10**9}, "context=1000000000: must be 1 to"),
        ({"nodes": 1, "context": 10, "weights": "w3"}, "w3"),
    ],
)
def test_impossible_requests_are_refused(request_, message):
    with pytest.raises(ConfigError, match=message):
        fitted("tiny", "nvidia_h20", **request_)
