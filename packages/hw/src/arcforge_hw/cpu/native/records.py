"""Rows of a cache in int8, and the rotation before, in C++: so that steps which make them can be recorded.

Shapes: K values of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.quant import SCALE_BYTES
from arcforge_core.ops.quant import to_records as plain
from arcforge_hw.cpu.native import POINTER, SIZE, direct, function, pointers, suffix
from arcforge_hw.torch_ops import hadamard as butterfly

ARGUMENTS = (POINTER, POINTER, SIZE, SIZE, SIZE)
DTYPES = (torch.float32, torch.bfloat16)


def to_records(x: Tensor) -> Tensor:
    """See `arcforge_core.ops.quant.to_records`."""
    if x.dtype not in DTYPES or not direct(x):
        return plain(x)
    x = x.contiguous()
    out = torch.empty(*x.shape[:-1], x.shape[-1] + SCALE_BYTES, dtype=torch.int8)
    run = function(f"arcforge_records_{suffix(x.dtype)}", ARGUMENTS)
    run(*pointers(x, out), x.numel() // x.shape[-1], x.shape[-1], torch.get_num_threads())
    return out


def hadamard(x: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.hadamard`; what is no power of two, or is differentiated, goes to torch."""
    width = x.shape[-1]
    if x.dtype not in DTYPES or width.bit_count() != 1 or not direct(x):
        return butterfly.hadamard(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    run = function(f"arcforge_hadamard_{suffix(x.dtype)}", ARGUMENTS)
    run(*pointers(x, out), x.numel() // width, width, torch.get_num_threads())
    return out
