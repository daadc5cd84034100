"""Products of int8 matrices on CPUs: torch's own, or exact ones in float32 where these are faster.

Without instructions for int8, `torch._int_mm` takes tens of times as long as a float32 product. Sums of products of
int8 values are integers that float32 holds exactly up to 2^24, so both give the same bits. A measurement on the
processor decides (`arcforge_core.ops.calibration`).

Shapes: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from arcforge_core.ops.calibration import calibrated, fastest, forced, source_of

FIGURES = ("int8", "int8_in_fp32")
EXACT = 1 << 24
"""Up to which float32 holds every integer."""
LARGEST = 128
"""Greatest magnitude of an int8 value."""
INPUTS = EXACT // LARGEST**2
"""Columns whose products float32 adds exactly in any order."""
SIZE, ROWS = 512, 64
"""Columns and rows of the measured product."""
SECONDS = 0.1


def int8_product(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """Returns the sums [T, N] of the products of two int8 matrices: int32, or float32 with the same integers.

    Float32 only for at most `INPUTS` columns, which it adds exactly; more are added up in int32.
    """
    if x_TK.device.type != "cpu" or torch.compiler.is_compiling() or not in_fp32():
        sum_TN: Tensor = torch._int_mm(x_TK, weight_NK.mT)
        return sum_TN
    return fp32_product(x_TK, weight_NK)


def fp32_product(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """`int8_product` by float32 products."""
    parts = zip(x_TK.split(INPUTS, 1), weight_NK.split(INPUTS, 1), strict=True)
    sums: list[Tensor] = [x.float() @ weight.float().mT for x, weight in parts]
    if len(sums) == 1:
        return sums[0]
    total_TN: Tensor = torch.stack([part.to(torch.int32) for part in sums]).sum(0, dtype=torch.int32)
    return total_TN


def in_fp32() -> bool:
    """Returns whether float32 is faster, from the variable or measured.

    Raises:
        ConfigError: `arcforge_core.ops.calibration.forced`.
    """
    given = forced()
    figures = given if set(FIGURES) <= set(given) else _measured(torch.get_num_threads())
    return figures["int8_in_fp32"] > figures["int8"]


@cache
def _measured(threads: int) -> dict[str, float]:
    return calibrated("int8", FIGURES, measure, f"{threads} threads")


def measure() -> dict[str, float]:
    """Measures products by second of both kinds."""
    draw = torch.Generator().manual_seed(0)
    x_TK, weight_NK = (
        torch.randint(-127, 128, (rows, SIZE), dtype=torch.int8, generator=draw) for rows in (ROWS, SIZE)
    )
    calls = {"int8": partial(torch._int_mm, x_TK, weight_NK.mT), "int8_in_fp32": partial(fp32_product, x_TK, weight_NK)}
    return {name: 2 * ROWS * SIZE**2 / seconds for name, seconds in fastest(calls, SECONDS, 2).items()}


def explained() -> str:
    """Returns the choice in words."""
    dtype = "fp32, exactly" if in_fp32() else "int8"
    return f"many rows with int8 weights are multiplied in {dtype} ({source_of(*FIGURES)})"
