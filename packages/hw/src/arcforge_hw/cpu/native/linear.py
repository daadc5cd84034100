"""Products of few rows in C++: each weight is read once; torch computes products of many rows.

Shapes: K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native
from arcforge_hw.torch_ops import bf16_product

_function = native.by_dtype("linear", "4p 4i")


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `arcforge_core.ops.reference.linear`."""
    (outputs, inputs), dtype = weight_NK.shape, x.dtype
    rows = x.numel() // inputs
    given = (weight_NK,) if bias_N is None else (weight_NK, bias_N)
    few = (
        0 < rows <= native.FEW_ROWS
        and x.shape[-1] == inputs
        and native.whole_vectors(inputs, dtype)
        and native.direct(x, *given)
    )
    few = few and (bias_N is None or bias_N.shape == (outputs,))
    if not (few and all(p.dtype == dtype and p.is_contiguous() for p in given)):
        return bf16_product.linear(x, weight_NK, bias_N)
    x, out = x.contiguous(), x.new_empty(*x.shape[:-1], outputs)
    bias_at = 0 if bias_N is None else bias_N.data_ptr()
    _function(dtype)(
        x.data_ptr(), weight_NK.data_ptr(), bias_at, out.data_ptr(), rows, inputs, outputs, torch.get_num_threads()
    )
    return out
