"""The matmul rate of this machine, measured in the training process, for MFU."""

from __future__ import annotations

import statistics
import time

import torch

SECONDS = 2.0
"""Time limit of a measurement: a processor may multiply some dtypes a hundred times slower than others."""


def matmul_rate(dtype: torch.dtype, device: torch.device | str = "cpu", size: int = 1024, rounds: int = 7) -> float:
    """Returns FLOP/s of a square matrix product with the current thread count, the median of at most `rounds`."""
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    synchronize = (lambda: None) if a.device.type == "cpu" else torch.get_device_module(a.device).synchronize
    seconds: list[float] = []
    for n in range(rounds + 2):
        if n > 2 and sum(seconds) > SECONDS:
            break
        synchronize()
        start = time.perf_counter()
        torch.mm(a, b)
        synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[2:])


def mean_visible_keys(lengths: list[int]) -> float:
    """Returns the mean number of visible keys per query of these causal segments."""
    return sum(n * (n + 1) / 2 for n in lengths) / sum(lengths)
