"""A token drawn of each row of logits, in one call of C++. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.race import race as plain
from arcforge_hw.cpu.native import POINTER, SIZE, check_shape, direct, function, pointers, suffix

ARGUMENTS = (*[POINTER] * 5, SIZE, SIZE, SIZE)


def race(logits_NV: Tensor, temperature_N: Tensor, seed_N: Tensor, place_N: Tensor) -> Tensor:
    """See `arcforge_core.ops.race`."""
    if not direct(logits_NV, temperature_N) or not logits_NV.numel():
        return plain(logits_NV, temperature_N, seed_N, place_N)
    rows, width = logits_NV.shape
    for name, given in (("temperature_N", temperature_N), ("seed_N", seed_N), ("place_N", place_N)):
        check_shape(name, given, rows)
    logits_NV, temperature_N = logits_NV.contiguous(), temperature_N.double()
    drawn_N = torch.empty(rows, dtype=torch.int64)
    function(f"arcforge_race_{suffix(logits_NV.dtype)}", ARGUMENTS)(
        *pointers(logits_NV, temperature_N, seed_N.long(), place_N.long(), drawn_N),
        rows,
        width,
        torch.get_num_threads(),
    )
    return drawn_N
