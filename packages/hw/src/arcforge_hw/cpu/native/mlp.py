"""A dense SwiGLU layer: of few tokens in one call of C++, of many in torch's products with a gate in C++ between them.

Shapes: T tokens, D hidden, F width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native import swiglu
from arcforge_hw.cpu.native.fused import served
from arcforge_hw.torch_ops.bf16_product import wants_fp32

_function = native.by_dtype("mlp", "5p 4i")


def mlp(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """See `arcforge_core.ops.reference.mlp`."""
    (tokens, hidden), width = x_TD.shape, len(gate_FD)
    plain = native.direct(gate_FD, up_FD, down_DF) and not torch.is_autocast_enabled("cpu")
    if not (plain and served(x_TD, hidden, width)):
        return reference.mlp(x_TD, gate_FD, up_FD, down_DF)
    native.check_dtypes(x_TD, gate_FD, up_FD, down_DF)
    native.check_shape("gate_FD", gate_FD, width, hidden)
    native.check_shape("up_FD", up_FD, width, hidden)
    native.check_shape("down_DF", down_DF, hidden, width)
    if tokens <= native.FEW_ROWS:
        return native.output(_function, (x_TD, gate_FD, up_FD, down_DF), tokens, hidden, width)
    widened = wants_fp32(x_TD, gate_FD, tokens)
    dtype = torch.float32 if widened else x_TD.dtype
    wide_TD = x_TD.to(dtype)
    inner_TF, up_TF = F.linear(wide_TD, gate_FD.to(dtype)), F.linear(wide_TD, up_FD.to(dtype))
    swiglu.in_place(inner_TF, up_TF, widened)
    return F.linear(inner_TF, down_DF.to(dtype)).to(x_TD.dtype)
