"""Int8 rounding of a cache's rows in C++, which makes steps that use it recordable. Shapes: K values of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_core.ops.quant import SCALE_BYTES
from arcforge_hw.cpu import native

DTYPES = (torch.float32, torch.bfloat16)
_function = native.by_dtype("records", "2p 3i")


def to_records(x: Tensor) -> Tensor:
    """See `arcforge_core.ops.quant.to_records`."""
    if x.dtype not in DTYPES or not native.direct(x):
        return reference.to_records(x)
    x = x.contiguous()
    out = torch.empty(*x.shape[:-1], x.shape[-1] + SCALE_BYTES, dtype=torch.int8)
    _function(x.dtype)(*native.pointers(x, out), x.numel() // x.shape[-1], x.shape[-1], torch.get_num_threads())
    return out
