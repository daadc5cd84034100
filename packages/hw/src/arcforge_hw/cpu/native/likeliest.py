"""The likeliest token of each row of logits and its log-prob, in one call of C++. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.likeliest import likeliest as plain
from arcforge_hw.cpu.native import POINTER, SIZE, direct, function, pointers, suffix

ARGUMENTS = (POINTER, POINTER, POINTER, SIZE, SIZE, SIZE)


def likeliest(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """See `arcforge_core.ops.likeliest`."""
    if not direct(logits_NV) or not logits_NV.numel():
        return plain(logits_NV)
    logits_NV = logits_NV.contiguous()
    rows, width = logits_NV.shape
    best_N = logits_NV.new_empty(rows, dtype=torch.int64)
    rest_N = logits_NV.new_empty(rows, dtype=torch.promote_types(logits_NV.dtype, torch.float32))
    function(f"arcforge_likeliest_{suffix(logits_NV.dtype)}", ARGUMENTS)(
        *pointers(logits_NV, best_N, rest_N), rows, width, torch.get_num_threads()
    )
    return best_N, rest_N
