import itertools

import pytest
import torch
from hypothesis import given

from arcforge_core.testing.models import segment_lengths
from arcforge_core.train import throughput
from arcforge_core.train.throughput import matmul_rate, mean_visible_keys


def test_the_rate_is_the_median_of_the_rounds_after_warm_up(monkeypatch):
    # durations 100 and 100 warm up; then 4, 1, 2, so the median is 2 s
    ends = itertools.accumulate([100, 0, 100, 0, 4, 0, 1, 0, 2, 0])
    clock = itertools.chain([0], ends)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    assert matmul_rate(torch.float32, size=8, rounds=3) == 2 * 8**3 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_rate_is_plausible(dtype):
    assert 1e6 < matmul_rate(dtype, size=64, rounds=3) < 1e16


@given(segment_lengths())
def test_mean_visible_keys_is_the_mean_over_queries(lengths):
    visible = [j + 1 for n in lengths for j in range(n)]
    assert mean_visible_keys(lengths) == pytest.approx(sum(visible) / len(visible))
