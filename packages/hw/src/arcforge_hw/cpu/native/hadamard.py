"""The Hadamard transform of rows in C++, which makes steps that use it recordable. Shapes: K values of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops import hadamard as butterfly

DTYPES = (torch.float32, torch.bfloat16)
_function = native.by_dtype("hadamard", "2p 3i")


def hadamard(x: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.hadamard`; other sizes than powers of two, and gradients, use torch."""
    width = x.shape[-1]
    if x.dtype not in DTYPES or width.bit_count() != 1 or not native.direct(x):
        return butterfly.hadamard(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    _function(x.dtype)(*native.pointers(x, out), x.numel() // width, width, torch.get_num_threads())
    return out
