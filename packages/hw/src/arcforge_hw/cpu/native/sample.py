"""Sampling of a token from each row of logits, in one C++ call. Shapes: N rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native

_function = native.by_dtype("sample", "5p 3i")


def sample(logits_NV: Tensor, temperature_N: Tensor, seed_N: Tensor, place_N: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.sample`."""
    if not native.direct(logits_NV, temperature_N) or not logits_NV.numel():
        return reference.sample(logits_NV, temperature_N, seed_N, place_N)
    rows, width = logits_NV.shape
    for name, given in (("temperature_N", temperature_N), ("seed_N", seed_N), ("place_N", place_N)):
        native.check_shape(name, given, rows)
    logits_NV, temperature_N = logits_NV.contiguous(), temperature_N.double()
    drawn_N = torch.empty(rows, dtype=torch.int64)
    _function(logits_NV.dtype)(
        *native.pointers(logits_NV, temperature_N, seed_N.long(), place_N.long(), drawn_N),
        rows,
        width,
        torch.get_num_threads(),
    )
    return drawn_N
