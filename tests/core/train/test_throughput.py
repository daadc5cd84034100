import itertools

import pytest
import torch
from hypothesis import given

from arcforge_core.train import throughput
from arcforge_core.train.callbacks.throughput import ThroughputMetrics
from arcforge_core.train.throughput import matmul_rate, mean_visible_keys
from support.models import segment_lengths


def rate_of(monkeypatch, durations: list[float]) -> float:
    """Returns the rate when the clock shows these durations in turn."""
    ends = itertools.accumulate(time for duration in durations for time in (duration, 0.0))
    clock = itertools.chain([0.0], ends)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    return matmul_rate(torch.float32, size=8, rounds=3)


def test_the_rate_is_the_median_of_the_rounds_after_two_of_warm_up(monkeypatch):
    assert rate_of(monkeypatch, [0.5, 0.5, 0.25, 0.0625, 0.125]) == 2 * 8**3 / 0.125


def test_a_slow_product_is_measured_once_after_warm_up(monkeypatch):
    assert rate_of(monkeypatch, [64.0, 64.0, 32.0]) == 2 * 8**3 / 32.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_rate_is_plausible(dtype):
    assert 1e6 < matmul_rate(dtype, size=64, rounds=3) < 1e16


@given(segment_lengths())
def test_mean_visible_keys_is_the_mean_over_queries(lengths):
    visible = [j + 1 for n in lengths for j in range(n)]
    assert mean_visible_keys(lengths) == pytest.approx(sum(visible) / len(visible))


def test_a_rate_that_training_beats_is_measured_again(tmp_path):
    """The first measurement shared the processor with another program."""
    rates = iter([100.0, 400.0, 150.0])
    metrics = ThroughputMetrics(tmp_path, 1, lambda: next(rates))

    def mfu(flops):
        metrics.flops, metrics.seconds, metrics.tokens = flops, 1.0, 1
        return metrics.columns()["mfu"]

    assert mfu(80.0) == 0.8
    assert mfu(200.0) == 0.5, "measured again: 400"
    assert mfu(500.0) == 1.0, "again too low: at least what training has shown"
    metrics.total_flops, metrics.total_seconds = 780.0, 3.0
    assert metrics.averages()["mfu"] == 0.52
