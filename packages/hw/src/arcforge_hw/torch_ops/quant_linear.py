"""Products of int8 in int32, as processors and tensor cores have them.

Shapes: T rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops.quantize import integer_rows, quantize_rows

LEAST_ROWS = {"cuda": 17}
"""Rows that a device's `torch._int_mm` asks for, by device type."""


def quant_linear(x: Tensor, weight: Tensor, scale_N: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """See `arcforge_core.ops.reference.quant_linear`; packed weights are unpacked for the product."""
    q_TK, scale_T = quantize_rows(x.flatten(0, -2), 8)
    rows = len(q_TK)
    if rows < (least := LEAST_ROWS.get(x.device.type, 0)):
        q_TK = F.pad(q_TK, (0, 0, 0, least - rows))
    sum_TN = torch._int_mm(q_TK, integer_rows(weight, x.shape[-1]).mT)[:rows]
    out_TN = sum_TN.to(scale_T.dtype).mul_(scale_T[:, None]).mul_(scale_N)
    out: Tensor = out_TN.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if bias_N is None else out.add_(bias_N)
